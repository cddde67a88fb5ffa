// The page: conditions and what-ifs in, the server's answers out. One request is under way at a
// time; while it is, only the newest view waits.

import { Corner, colours } from "./corner.js";
import { clean, csv, number, percent, range } from "./format.js";

const COVERAGES = [0.5, 0.9];
const NEAR = 200;
// An axis stays while 95 % of the probability fill at least this much of it, with room beside.
const FILLED = 0.3;
const ROOM = 0.2;

const id = (name) => document.getElementById(name);
const narrow = () => window.innerWidth < 600;

/** Return an element with properties, attributes and children; text is always text. */
function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in made && !name.startsWith("aria")) made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

class Explorer {
  constructor(model) {
    this.model = model;
    this.corner = new Corner(id("corner"));
    this.controls = new Map();
    this.held = {};
    this.start = {
      condition: Object.fromEntries(model.conditions.map((one) => [one.name, one.start])),
      given: {},
      shown: model.targets.slice(0, narrow() ? 3 : 5).map((one) => one.name),
      components: true,
      data: true,
      fixed: false,
      tab: "density",
    };
    this.state = structuredClone(this.start);
  }

  // Setting up.

  begin() {
    const { model } = this;
    document.title = `${clean(model.name)} · condens`;
    id("name").textContent = clean(model.name);
    const rows = model.n_rows === null ? "" : `, fitted to ${model.n_rows} rows`;
    const members = model.n_members > 1 ? ` in each of ${model.n_members} networks` : "";
    id("about").textContent = `${model.targets.length} target${model.targets.length > 1 ? "s" : ""} `
      + `given ${model.conditions.length} condition${model.conditions.length > 1 ? "s" : ""}; `
      + `${model.n_components} components${members}${rows}`;
    model.conditions.forEach((column, place) => this.addControl(column, place));
    this.addTargets();
    id("show-data-label").hidden = model.data === null;
    id("fix-axes-label").hidden = model.targets.every((one) => one.low === null);
    id("hint").hidden = model.targets.length < 2;
    id("show-components").parentElement.hidden = model.targets.length < 2;
    id("picture-title").textContent = model.targets.length < 2 ? "Density" : "Joint density";
    this.legend();
    for (const [name, key] of [["show-components", "components"], ["show-data", "data"], ["fix-axes", "fixed"]]) {
      id(name).addEventListener("change", (event) => {
        this.state[key] = event.target.checked;
        this.held = {};
        this.update();
      });
    }
    id("reset").addEventListener("click", () => this.restore({ ...this.start, tab: this.state.tab }));
    id("copy-link").addEventListener("click", () => this.copyLink());
    id("copy-python").addEventListener("click", () => this.copyPython());
    id("save-png").addEventListener("click", () => this.savePng());
    id("save-csv").addEventListener("click", () => this.saveCsv());
    this.listenToTabs();
    this.listenToPlot();
    window.addEventListener("hashchange", () => {
      if (location.hash !== this.written) this.restore(this.read() ?? this.start);
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      this.legend();
      this.redraw();
    });
    new ResizeObserver(() => this.redraw()).observe(id("plot"));
    this.restore(this.read() ?? this.start);
  }

  addControl(column, place) {
    const name = clean(column.name);
    const key = `condition-${place}`;
    const top = element("div", { className: "top" }, element("label", {
      className: "name", htmlFor: key, textContent: name, dir: "auto", title: clean(column.name, 400),
    }));
    const control = element("div", { className: "control" }, top);
    const change = (value) => {
      this.state.condition[column.name] = value;
      this.update();
    };
    let show;
    if (column.kind === "categories") {
      const options = column.values.map((value, i) => {
        const count = column.counts[i];
        const rows = count === null || count === undefined ? "" : ` (${count})`;
        return element("option", { value: String(i), textContent: `${clean(value)}${rows}` });
      });
      if (column.may_miss) options.push(element("option", { value: "missing", textContent: "missing" }));
      const menu = element("select", { id: key }, ...options);
      menu.addEventListener("change", () => {
        change(menu.value === "missing" ? null : column.values[Number(menu.value)]);
      });
      control.append(menu);
      show = (value) => {
        menu.value = value === null ? "missing" : String(column.values.indexOf(value));
      };
    } else {
      const step = column.whole ? 1 : (column.high - column.low) / 500 || 1;
      const slider = element("input", {
        type: "range", id: key, min: column.low, max: column.high, step: column.whole ? 1 : "any",
      });
      const exact = element("input", { type: "number", step: "any", "aria-label": `${name}, exact value` });
      const set = (value) => {
        exact.value = Number(value.toPrecision(column.whole ? 12 : 5));
        change(value);
      };
      slider.addEventListener("input", () => set(slider.valueAsNumber));
      // With step "any" browsers move by their own step; ours is a five-hundredth of the range.
      slider.addEventListener("keydown", (event) => {
        const by = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -25, PageUp: 25 }[event.key];
        if (!by || column.whole) return;
        event.preventDefault();
        slider.value = slider.valueAsNumber + by * step;
        set(slider.valueAsNumber);
      });
      exact.addEventListener("change", () => {
        if (!Number.isFinite(exact.valueAsNumber)) return show(this.state.condition[column.name]);
        slider.value = exact.valueAsNumber;
        return change(exact.valueAsNumber);
      });
      top.append(exact);
      if (column.counts.length) control.append(histogram(column.counts));
      control.append(slider, element("div", { className: "ends", "aria-hidden": "true" },
        element("span", { textContent: number(column.low) }),
        element("span", { textContent: number(column.high) })));
      let missing = null;
      if (column.may_miss) {
        missing = element("input", { type: "checkbox", "aria-label": `${name} is missing` });
        missing.addEventListener("change", () => {
          const value = missing.checked ? null : slider.valueAsNumber;
          show(value);
          change(value);
        });
        control.append(element("label", { className: "missing" }, missing, "missing"));
      }
      show = (value) => {
        if (missing) missing.checked = value === null;
        slider.disabled = exact.disabled = value === null;
        if (value === null) return;
        slider.value = value;
        exact.value = Number(value.toPrecision(column.whole ? 12 : 5));
      };
    }
    this.controls.set(column.name, show);
    id("conditions").append(control);
  }

  addTargets() {
    const place = id("targets");
    place.hidden = this.model.targets.length < 3;
    this.boxes = this.model.targets.map((target) => {
      const box = element("input", { type: "checkbox" });
      box.addEventListener("change", () => {
        const shown = this.model.targets.map((one) => one.name).filter((name, i) => this.boxes[i].checked);
        if (!shown.length || shown.length > this.model.limits.targets) {
          box.checked = !box.checked;
          say(shown.length ? `At most ${this.model.limits.targets} targets are drawn.` : "One target at least is drawn.");
          return;
        }
        this.state.shown = shown;
        this.update();
      });
      place.append(element("label", { dir: "auto" }, box, clean(target.name)));
      return box;
    });
  }

  legend() {
    const entries = [
      ["density", "median; 50 % and 90 % intervals"],
      ...(this.model.targets.length > 1
        ? [["contour", "50 % and 90 % regions"], ["component", "components, one standard deviation"]] : []),
      ...(this.model.data === null ? [] : [["data", "data near the condition"]]),
    ];
    id("legend").replaceChildren(...entries.map(([kind, words]) => {
      const swatch = element("canvas", { width: 56, height: 28, "aria-hidden": "true" });
      const paint = swatch.getContext("2d");
      const hue = colours();
      paint.lineWidth = 3;
      if (kind === "density") {
        [[0.3, 0, 56], [0.45, 12, 32]].forEach(([alpha, at, width]) => {
          paint.globalAlpha = alpha;
          paint.fillStyle = hue.density;
          paint.fillRect(at, 4, width, 20);
        });
        paint.globalAlpha = 1;
        paint.strokeStyle = hue.text;
        paint.setLineDash([5, 4]);
        paint.beginPath();
        paint.moveTo(28, 2);
        paint.lineTo(28, 26);
      } else if (kind === "data") {
        paint.fillStyle = hue.data;
        paint.globalAlpha = 0.6;
        [10, 27, 44].forEach((at, i) => {
          paint.beginPath();
          paint.arc(at, 10 + 5 * (i % 2), 3.5, 0, 2 * Math.PI);
          paint.fill();
        });
        paint.beginPath();
      } else {
        paint.strokeStyle = kind === "contour" ? hue.text : hue.component;
        if (kind === "component") paint.setLineDash([7, 4]);
        paint.beginPath();
        paint.ellipse(28, 14, 24, 10, 0, 0, 2 * Math.PI);
      }
      paint.stroke();
      return element("li", {}, swatch, words);
    }));
  }

  listenToTabs() {
    const tabs = [id("tab-density"), id("tab-calibration")];
    tabs.forEach((tab, place) => {
      tab.addEventListener("click", () => {
        this.state.tab = tab.id.slice(4);
        this.showTab();
        this.write();
      });
      tab.addEventListener("keydown", (event) => {
        if (!["ArrowLeft", "ArrowRight", "Home", "End"].includes(event.key)) return;
        event.preventDefault();
        const next = tabs[event.key === "Home" ? 0 : event.key === "End" ? 1 : 1 - place];
        next.focus();
        next.click();
      });
    });
  }

  listenToPlot() {
    const { canvas } = this.corner;
    canvas.addEventListener("pointermove", (event) => {
      const found = this.model.targets.length > 1 ? this.corner.at(event) : null;
      canvas.style.cursor = found ? "crosshair" : "default";
      canvas.title = found ? `What if ${clean(found.target.name)} = ${number(found.value)}?` : "";
    });
    canvas.addEventListener("click", (event) => {
      const found = this.corner.at(event);
      if (found) this.give(found.target.name, Number(found.value.toPrecision(5)));
    });
  }

  // The view: what a link holds.

  restore({ note = "", ...state }) {
    this.state = structuredClone(state);
    this.held = {};
    for (const [name, show] of this.controls) show(this.state.condition[name]);
    id("show-components").checked = this.state.components;
    id("show-data").checked = this.state.data;
    id("fix-axes").checked = this.state.fixed;
    this.model.targets.forEach((target, i) => {
      this.boxes[i].checked = this.state.shown.includes(target.name);
    });
    this.showTab();
    this.update();
    this.note = note;
  }

  /** Return the view of the address, its parts checked against the model; null if it has none. */
  read() {
    if (location.hash.length < 2) return null;
    const state = structuredClone(this.start);
    try {
      const given = JSON.parse(decodeURIComponent(location.hash.slice(1)));
      for (const column of this.model.conditions) {
        const value = given.condition?.[column.name];
        const fits = column.kind === "numbers" ? Number.isFinite(value) : column.values.includes(value);
        if (fits || (value === null && column.may_miss)) state.condition[column.name] = value;
      }
      const names = this.model.targets.map((one) => one.name);
      for (const name of names) {
        if (Number.isFinite(given.given?.[name])) state.given[name] = given.given[name];
      }
      const shown = names.filter((name) => given.shown?.includes(name)).slice(0, this.model.limits.targets);
      if (shown.length) state.shown = shown;
      for (const key of ["components", "data", "fixed"]) {
        if (typeof given[key] === "boolean") state[key] = given[key];
      }
      if (given.tab === "calibration") state.tab = given.tab;
    } catch {
      state.note = "The link cannot be read; this is the view at the start.";
    }
    return state;
  }

  write() {
    clearTimeout(this.writing);
    this.writing = setTimeout(() => {
      this.written = this.link();
      history.replaceState(null, "", this.written);
    }, 150);
  }

  link() {
    return `#${encodeURIComponent(JSON.stringify(this.state))}`;
  }

  give(name, value) {
    const others = Object.keys(this.state.given).filter((one) => one !== name);
    if (value !== null && others.length >= this.model.targets.length - 1) {
      say("One target has to stay free.");
      this.redraw();
      return;
    }
    if (value === null) delete this.state.given[name];
    else this.state.given[name] = value;
    this.update();
  }

  // Asking.

  request() {
    const { state, model } = this;
    const free = state.shown.filter((name) => !(name in state.given));
    const first = model.targets.map((one) => one.name).find((name) => !(name in state.given));
    const limits = {};
    for (const target of model.targets) {
      if (target.name in state.given || target.whole) continue;
      if (state.fixed && target.low !== null && target.low < target.high) limits[target.name] = [target.low, target.high];
      else if (this.held[target.name]) limits[target.name] = this.held[target.name];
    }
    return {
      condition: state.condition,
      given: state.given,
      targets: free.length ? free : [first],
      coverages: COVERAGES,
      limits,
      near: state.data && model.data !== null ? NEAR : 0,
      pixels: free.length <= 3 ? 56 : 40,
      encoding: "base64",
    };
  }

  update() {
    this.note = "";
    this.write();
    this.wanted = true;
    if (!this.asking) requestAnimationFrame(() => this.ask());
    this.asking = true;
    id("plot").setAttribute("aria-busy", "true");
  }

  async ask() {
    while (this.wanted) {
      this.wanted = false;
      const started = performance.now();
      try {
        const answer = await post("/api/density", this.request());
        fault(this.note);
        this.show(answer);
        performance.measure("condens-view", { start: started });
      } catch (error) {
        if (error.busy) {
          this.wanted = true;
          await new Promise((resolve) => { setTimeout(resolve, 500); });
        } else {
          fault(error.message);
        }
      }
    }
    this.asking = false;
    id("plot").setAttribute("aria-busy", "false");
  }

  show(answer) {
    this.answer = answer;
    this.redraw();
    this.showGiven();
    this.showNumbers();
    this.showTrust();
    if (!this.state.fixed) this.hold();
    const { near } = answer;
    id("near").textContent = near
      ? `Data: the ${near.distances.length} of ${near.n_rows} rows nearest to the condition, `
        + `half of them within ${number(near.distances[near.distances.length >> 1])} standard deviations.`
      : "";
    clearTimeout(this.speaking);
    this.speaking = setTimeout(() => say(this.words()), 700);
    clearTimeout(this.resting);
    this.resting = setTimeout(() => this.calibrate(), 250);
  }

  /** Fill in calibrated intervals, which take longer, once the view is at rest. */
  async calibrate() {
    const { condition, given } = this.state;
    if (!this.model.calibrated || Object.keys(given).length) return;
    const shown = this.answer;
    try {
      const questions = [{ ask: "calibrated_intervals", coverage: COVERAGES.at(-1) }];
      const { answers: [found] } = await post("/api/query", { condition, questions });
      if (shown !== this.answer) return;
      const cells = document.querySelectorAll("#numbers .calibrated");
      this.model.targets.forEach(({ name }, i) => { if (cells[i]) cells[i].textContent = range(found[name]); });
    } catch (error) {
      if (!error.busy) fault(error.message);
    }
  }

  /** Keep axes that the density still fills, so that it moves and not its frame. */
  hold() {
    const held = {};
    for (const target of this.answer.targets.filter((one) => one.axis && !one.axis.log)) {
      const { low, high } = target.axis;
      const [first, last] = [target.quantiles[0], target.quantiles.at(-1)];
      const spread = last - first;
      const slack = 0.02 * (high - low);
      const inside = first - ROOM * spread >= low - slack && last + ROOM * spread <= high + slack;
      if (inside && spread >= FILLED * (high - low)) held[target.name] = [low, high];
    }
    const moved = Object.keys(this.held).some((name) => !(name in held));
    this.held = held;
    if (moved) this.wanted = true;
  }

  redraw() {
    if (!this.answer) return;
    this.corner.draw(this.answer, { components: this.state.components, data: this.state.data });
    this.corner.canvas.setAttribute("aria-label", `Corner plot of the joint density. ${this.words()}`);
  }

  words() {
    return this.answer.targets.map((target) => {
      const median = target.quantiles[target.levels.indexOf(0.5)];
      return `${clean(target.name)}: median ${number(median)}, 90 % from ${range(target.intervals.at(-1))}`;
    }).join("; ");
  }

  showGiven() {
    const given = Object.entries(this.state.given);
    id("given").replaceChildren(...given.map(([name, value]) => {
      const remove = element("button", {
        type: "button", textContent: "×", "aria-label": `Remove ${clean(name)} = ${number(value)}`,
      });
      remove.addEventListener("click", () => {
        this.give(name, null);
        id("corner").closest("section").querySelector("button")?.focus();
      });
      return element("li", { dir: "auto" }, `${clean(name)} = ${number(value)}`, remove);
    }));
  }

  showTrust() {
    const { outside, unknown, novelty } = this.answer;
    const names = (list) => list.map((name) => clean(name)).join(", ");
    const place = id("trust");
    place.className = outside.length || unknown.length || novelty > 1 ? "warn" : "";
    if (outside.length) place.textContent = `Far outside the training rows in ${names(outside)}: no data support this.`;
    else if (unknown.length) place.textContent = `Not among the training rows: ${names(unknown)}.`;
    else if (novelty > 1) place.textContent = "Less usual than any training row.";
    else if (novelty === null) place.textContent = "";
    else if (novelty < 0.5) place.textContent = "A usual condition.";
    else place.textContent = `Less usual than ${Math.floor(100 * novelty)} % of the training rows.`;
  }

  showNumbers() {
    const { answer, state, model } = this;
    const active = document.activeElement?.dataset?.target;
    const several = model.targets.length > 1;
    const calibrated = model.calibrated && !Object.keys(state.given).length;
    const heads = ["Target", ...(several ? ["What if"] : []), "Mean", "Std. dev.", "Median",
      ...answer.coverages.map((one) => `${percent(one)} interval`),
      ...(calibrated ? [`${percent(answer.coverages.at(-1))} calibrated`] : [])];
    const found = new Map(answer.targets.map((target) => [target.name, target]));
    const rows = model.targets.map(({ name }) => {
      const target = found.get(name);
      const cells = target
        ? [number(target.mean), number(target.stddev), number(target.quantiles[target.levels.indexOf(0.5)]),
          ...target.intervals.map(range)]
        : ["given", ...Array(2 + answer.coverages.length).fill("")];
      const row = element("tr", {}, element("th", { scope: "row", textContent: clean(name), dir: "auto" }));
      if (several) {
        const field = element("input", { type: "number", step: "any", "aria-label": `What if ${clean(name)} were` });
        field.dataset.target = name;
        if (name in state.given) field.value = state.given[name];
        field.addEventListener("change", () => {
          this.give(name, Number.isFinite(field.valueAsNumber) ? field.valueAsNumber : null);
          if (!(name in this.state.given)) field.value = "";
        });
        row.append(element("td", {}, field));
      }
      row.append(...cells.map((text) => element("td", { textContent: text })));
      if (calibrated) row.append(element("td", { className: "calibrated", textContent: "…" }));
      return row;
    });
    const typed = document.activeElement?.dataset?.target ? document.activeElement.value : null;
    id("numbers").replaceChildren(
      element("thead", {}, element("tr", {}, ...heads.map((text) => element("th", { scope: "col", textContent: text })))),
      element("tbody", {}, ...rows),
    );
    if (active !== undefined) {
      const field = [...id("numbers").querySelectorAll("input")].find((one) => one.dataset.target === active);
      if (field && typed !== null && !(active in state.given)) field.value = typed;
      field?.focus();
    }
    const last = answer.region.at(-1);
    const plausible = Object.keys(state.given).length
      ? ` The given values have log density ${number(answer.log_prob_given)} under the model.` : "";
    id("region").textContent = `The smallest region with ${percent(last.coverage)} of the probability holds the points with `
      + `log density above ${number(last.log_threshold)}.${plausible}`;
  }

  showTab() {
    const calibration = this.state.tab === "calibration";
    for (const name of ["density", "calibration"]) {
      const selected = name === this.state.tab;
      id(`tab-${name}`).setAttribute("aria-selected", selected);
      id(`tab-${name}`).tabIndex = selected ? 0 : -1;
      id(`panel-${name}`).hidden = !selected;
    }
    for (const name of ["save-png", "save-csv", "copy-python"]) id(name).disabled = calibration;
    const frame = id("report");
    if (!calibration || frame.src) return;
    if (this.model.data === null) {
      id("report-about").textContent = "Start the explorer with --data and rows that were not used in fit: "
        + "the report judges the model by them.";
      return;
    }
    id("report-about").textContent = "The report is being made; this takes some seconds.";
    frame.addEventListener("load", () => {
      id("report-about").textContent = "The model, judged by the rows of --data: a fair judgement if they were not used in fit.";
    });
    frame.hidden = false;
    frame.src = "/report";
  }

  // Taking away.

  copyLink() {
    this.written = this.link();
    history.replaceState(null, "", this.written);
    copy("Link to this view", `${location.origin}/${this.written}`);
  }

  async copyPython() {
    const request = this.request();
    try {
      const { code } = await post("/api/python", { ...request, limits: {} });
      copy("This view in Python", code);
    } catch (error) {
      fault(error.message);
    }
  }

  savePng() {
    this.corner.canvas.toBlob((blob) => save(blob, "density.png"), "image/png");
  }

  saveCsv() {
    const { answer, state } = this;
    const rows = [["quantity", "name", "at", "value"]];
    for (const [name, value] of Object.entries(state.condition)) rows.push(["condition", name, "", value]);
    for (const [name, value] of Object.entries(state.given)) rows.push(["given", name, "", value]);
    for (const target of answer.targets) {
      rows.push(["mean", target.name, "", target.mean], ["stddev", target.name, "", target.stddev]);
      target.levels.forEach((level, i) => rows.push(["quantile", target.name, level, target.quantiles[i]]));
      (target.points ?? []).forEach((value, i) => rows.push([target.axis.quantity, target.name, value, target.density[i]]));
    }
    save(new Blob([csv(rows)], { type: "text/csv" }), "density.csv");
  }
}

function histogram(counts) {
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  const set = (node, values) => Object.entries(values).forEach(([name, value]) => node.setAttribute(name, value));
  set(svg, { viewBox: `0 0 ${counts.length} 1`, preserveAspectRatio: "none", "aria-hidden": "true" });
  const highest = Math.max(...counts, 1);
  counts.forEach((count, i) => {
    const bar = document.createElementNS(space, "rect");
    // The smallest bar can still be seen.
    const height = count ? Math.max(count / highest, 0.04) : 0;
    set(bar, { x: i + 0.04, y: 1 - height, width: 0.92, height });
    svg.append(bar);
  });
  return svg;
}

async function post(path, body) {
  let response;
  try {
    response = await fetch(path, {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body),
    });
  } catch {
    throw new Error("The server does not answer. Is condens still running?");
  }
  if (response.status === 503) throw Object.assign(new Error("The server is busy."), { busy: true });
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error.message);
  return answer;
}

async function copy(title, text) {
  try {
    await navigator.clipboard.writeText(text);
    say("Copied.");
    flash(title);
  } catch {
    id("dialog-title").textContent = title;
    id("dialog-text").value = text;
    id("dialog").showModal();
    id("dialog-text").select();
  }
}

function flash(title) {
  const button = id(title.startsWith("Link") ? "copy-link" : "copy-python");
  const words = button.dataset.words ?? button.textContent;
  button.dataset.words = words;
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = words; }, 1200);
}

function save(blob, name) {
  const link = element("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

function say(text) {
  id("status").textContent = text;
}

function fault(text) {
  id("fault").textContent = text;
  id("fault").hidden = !text;
}

try {
  const response = await fetch("/api/model");
  if (!response.ok) throw new Error((await response.json()).error.message);
  const explorer = new Explorer(await response.json());
  explorer.begin();
} catch (error) {
  fault(error.message);
}
