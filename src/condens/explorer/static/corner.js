// The corner plot on a canvas: curves on the diagonal, planes below it. All numbers are the
// server's; here they are only drawn.

import { clean, floats, number } from "./format.js";

const GAP = 8;
const FONT = 'system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif';

/** Return the colours of the page, as the reader's system has them. */
export function colours() {
  const style = getComputedStyle(document.documentElement);
  const names = ["page", "text", "soft", "line", "density", "component", "data", "mark"];
  return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

function channels(colour) {
  const digits = colour.slice(1);
  return [0, 2, 4].map((start) => parseInt(digits.slice(start, start + 2), 16));
}

/** Maps values of a target to places on one side of a cell. */
function scale({ low, high, log }, from, to) {
  const place = log ? Math.log : (value) => value;
  const [start, end] = [place(low), place(high)];
  const forward = (value) => from + ((place(value) - start) / (end - start || 1)) * (to - from);
  const back = (at) => {
    const value = start + ((at - from) / (to - from)) * (end - start);
    return log ? Math.exp(value) : value;
  };
  return { forward, back };
}

/** Return a few round numbers between the ends of an axis. */
export function ticks({ low, high, log, step }, count) {
  if (log) {
    const first = Math.ceil(Math.log10(low) - 1e-9);
    const last = Math.floor(Math.log10(high) + 1e-9);
    if (last - first >= 1) {
      const every = Math.ceil((last - first + 1) / Math.max(count, 2));
      const found = [];
      for (let power = first; power <= last; power += every) found.push(10 ** power);
      return found;
    }
  }
  const width = (high - low) / Math.max(count, 1);
  if (!(width > 0) || !Number.isFinite(width)) return [low];
  const power = 10 ** Math.floor(Math.log10(width));
  let each = [1, 2, 5, 10].map((digit) => digit * power).find((size) => size >= 0.7 * width);
  if (step) each = Math.max(1, Math.round(each));
  const found = [];
  for (let i = Math.ceil(low / each - 1e-9); i * each <= high + 1e-9 * each; i += 1) {
    found.push(Number((i * each).toPrecision(12)));
  }
  return found;
}

// The edges of a cell that a level crosses, by which of its corners are above it: north is 0, east 1,
// south 2, west 3. The two cases with opposite corners depend on the middle.
const CROSSED = [
  [], [[3, 0]], [[0, 1]], [[3, 1]], [[1, 2]], null, [[0, 2]], [[3, 2]],
  [[3, 2]], [[0, 2]], null, [[1, 2]], [[3, 1]], [[0, 1]], [[3, 0]], [],
];
const APART = [[3, 0], [1, 2]];
const JOINED = [[3, 2], [0, 1]];

/** Return line segments [x0, y0, x1, y1] where a grid has a level, by marching squares. */
export function contour(values, nx, ny, level) {
  const segments = [];
  for (let j = 0; j + 1 < ny; j += 1) {
    for (let i = 0; i + 1 < nx; i += 1) {
      const [a, b] = [values[j * nx + i], values[j * nx + i + 1]];
      const [d, c] = [values[(j + 1) * nx + i], values[(j + 1) * nx + i + 1]];
      const kind = (a >= level) + 2 * (b >= level) + 4 * (c >= level) + 8 * (d >= level);
      if (kind === 0 || kind === 15) continue;
      const joined = ((a + b + c + d) / 4 >= level) === (kind === 5);
      const places = [
        [i + (level - a) / (b - a), j],
        [i + 1, j + (level - b) / (c - b)],
        [i + (level - d) / (c - d), j + 1],
        [i, j + (level - a) / (d - a)],
      ];
      for (const [from, to] of CROSSED[kind] ?? (joined ? JOINED : APART)) {
        segments.push([...places[from], ...places[to]]);
      }
    }
  }
  return segments;
}

/** Draws answers, and tells where on the plot a pointer is. */
export class Corner {
  constructor(canvas) {
    this.canvas = canvas;
    this.cells = [];
    this.hover = null;
  }

  /** Draw an answer of /api/density. */
  draw(answer, options) {
    [this.answer, this.options] = [answer, options];
    const drawn = answer.targets.filter((target) => target.axis);
    const count = drawn.length;
    const width = Math.max(this.canvas.parentElement.clientWidth, 200);
    const small = width < 480;
    const [left, bottom, top, right] = count > 1
      ? [small ? 46 : 62, small ? 42 : 48, 6, 8]
      : [small ? 14 : 20, 46, 6, 14];
    const size = (width - left - right - (count - 1) * GAP) / Math.max(count, 1);
    const cellHeight = count === 1 ? Math.min(size * 0.55, 380) : size;
    const height = Math.round(top + count * cellHeight + (count - 1) * GAP + bottom);
    const ratio = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    this.canvas.style.height = `${height}px`;
    const context = this.canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    Object.assign(this, { context, colours: colours(), small, size });
    context.fillStyle = this.colours.page;
    context.fillRect(0, 0, width, height);
    this.cells = [];
    drawn.forEach((target, row) => {
      for (let column = 0; column <= row; column += 1) {
        const cell = {
          x: left + column * (size + GAP),
          y: top + row * (cellHeight + GAP),
          width: size,
          height: cellHeight,
          target: row === column ? target : null,
        };
        if (row === column) this.curve(cell, target);
        else this.plane(cell, this.pair(drawn[column], target));
        this.frame(cell, {
          across: drawn[column],
          up: row === column ? null : target,
          bottom: row === count - 1,
          left: column === 0 && row > 0,
        });
        this.cells.push(cell);
      }
    });
  }

  pair(one, other) {
    return this.answer.pairs.find((pair) => pair.x === one.name && pair.y === other.name);
  }

  within(cell, paint) {
    this.context.save();
    this.context.beginPath();
    this.context.rect(cell.x, cell.y, cell.width, cell.height);
    this.context.clip();
    paint(this.context);
    this.context.restore();
  }

  curve(cell, target) {
    const { colours: hue, answer } = this;
    const across = scale(target.axis, cell.x, cell.x + cell.width);
    cell.across = across;
    const highest = Math.max(...target.density.filter((value) => value !== null), 1e-300);
    const base = cell.y + cell.height;
    const up = (value) => base - ((value ?? highest) / highest) * cell.height * 0.9;
    const path = (context, low, high) => {
      const points = target.points.map((value, i) => [value, target.density[i]])
        .filter(([value]) => value >= low && value <= high);
      if (!points.length) return;
      context.beginPath();
      context.moveTo(across.forward(points[0][0]), base);
      for (const [value, density] of points) context.lineTo(across.forward(value), up(density));
      context.lineTo(across.forward(points.at(-1)[0]), base);
    };
    this.within(cell, (context) => {
      context.fillStyle = hue.density;
      context.globalAlpha = 0.14;
      path(context, -Infinity, Infinity);
      context.fill();
      const intervals = [...target.intervals].reverse();
      intervals.forEach(([low, high], i) => {
        context.globalAlpha = 0.18 + (0.2 * (i + 1)) / intervals.length;
        // The cell of a whole number reaches half a step to either side.
        const half = target.axis.step / 2;
        path(context, (low ?? -Infinity) - half, (high ?? Infinity) + half);
        context.fill();
      });
      context.globalAlpha = 1;
      context.strokeStyle = hue.density;
      context.lineWidth = 1.5;
      context.beginPath();
      target.points.forEach((value, i) => {
        context[i ? "lineTo" : "moveTo"](across.forward(value), up(target.density[i]));
      });
      context.stroke();
      const median = target.quantiles[target.levels.indexOf(0.5)];
      if (median !== undefined && median !== null) {
        context.setLineDash([3, 3]);
        context.strokeStyle = hue.text;
        context.lineWidth = 1;
        context.beginPath();
        context.moveTo(across.forward(median), base);
        context.lineTo(across.forward(median), cell.y + cell.height * 0.08);
        context.stroke();
        context.setLineDash([]);
      }
      if (this.options.data && answer.near) {
        context.strokeStyle = hue.data;
        context.globalAlpha = 0.45;
        context.beginPath();
        for (const value of answer.near.targets[target.name]) {
          if (value === null) continue;
          context.moveTo(across.forward(value), base);
          context.lineTo(across.forward(value), base - 6);
        }
        context.stroke();
      }
    });
  }

  plane(cell, pair) {
    const { context, colours: hue, answer, options } = this;
    const [ny, nx] = pair.shape;
    const [x, y] = pair.axes;
    pair.values ??= floats(pair.density);
    const across = scale(x, cell.x, cell.x + cell.width);
    const up = scale(y, cell.y + cell.height, cell.y);
    const one = answer.targets.find((target) => target.name === pair.x);
    const other = answer.targets.find((target) => target.name === pair.y);
    const ends = (axis, target, map) => (axis.step
      ? [map(axis.low + axis.step / 2), map(axis.high - axis.step / 2)]
      : [map(target.points[0]), map(target.points.at(-1))]);
    const [x0, x1] = ends(x, one, across.forward);
    const [y0, y1] = ends(y, other, up.forward);
    const [dx, dy] = [(x1 - x0) / (nx - 1 || 1), (y1 - y0) / (ny - 1 || 1)];
    const image = document.createElement("canvas");
    [image.width, image.height] = [nx, ny];
    const inner = image.getContext("2d");
    const pixels = inner.createImageData(nx, ny);
    const [red, green, blue] = channels(hue.density);
    for (let j = 0; j < ny; j += 1) {
      for (let i = 0; i < nx; i += 1) {
        // Rows of the image go down, those of the grid up.
        const at = 4 * ((ny - 1 - j) * nx + i);
        pixels.data[at] = red;
        pixels.data[at + 1] = green;
        pixels.data[at + 2] = blue;
        pixels.data[at + 3] = 225 * pair.values[j * nx + i] ** 0.75;
      }
    }
    inner.putImageData(pixels, 0, 0);
    this.within(cell, () => {
      const whole = x.step > 0 || y.step > 0;
      context.imageSmoothingEnabled = !whole;
      context.imageSmoothingQuality = "high";
      context.drawImage(image, x0 - dx / 2, y1 + dy / 2, nx * dx, -ny * dy);
      if (options.data && answer.near) {
        const [xs, ys] = [answer.near.targets[pair.x], answer.near.targets[pair.y]];
        context.fillStyle = hue.data;
        context.globalAlpha = 0.45;
        context.beginPath();
        xs.forEach((value, i) => {
          if (value === null || ys[i] === null) return;
          const [px, py] = [across.forward(value), up.forward(ys[i])];
          context.moveTo(px + 1.5, py);
          context.arc(px, py, 1.5, 0, 2 * Math.PI);
        });
        context.fill();
        context.globalAlpha = 1;
      }
      if (!whole) {
        pair.levels.forEach((level, i) => {
          context.strokeStyle = hue.text;
          context.globalAlpha = 0.85;
          context.lineWidth = 1.5 - 0.3 * i;
          context.beginPath();
          for (const [fromX, fromY, toX, toY] of contour(pair.values, nx, ny, level)) {
            context.moveTo(x0 + fromX * dx, y0 + fromY * dy);
            context.lineTo(x0 + toX * dx, y0 + toY * dy);
          }
          context.stroke();
        });
      }
      if (options.components && pair.ellipses.weights.length) {
        const { weights, shape } = pair.ellipses;
        pair.rims ??= floats(pair.ellipses.points);
        weights.forEach((weight, k) => {
          context.strokeStyle = hue.component;
          context.globalAlpha = Math.min(1, 0.35 + 1.2 * weight);
          context.lineWidth = this.small ? 1 : 1.4;
          context.setLineDash([4, 2]);
          context.beginPath();
          for (let point = 0; point < shape[1]; point += 1) {
            const at = 2 * (k * shape[1] + point);
            const to = [across.forward(pair.rims[at]), up.forward(pair.rims[at + 1])];
            context[point ? "lineTo" : "moveTo"](...to);
          }
          context.stroke();
        });
        context.setLineDash([]);
        context.globalAlpha = 1;
      }
    });
  }

  frame(cell, { across, up, bottom, left }) {
    const { context, colours: hue, small } = this;
    context.globalAlpha = 1;
    context.strokeStyle = hue.line;
    context.lineWidth = 1;
    context.strokeRect(cell.x + 0.5, cell.y + 0.5, cell.width - 1, cell.height - 1);
    context.fillStyle = hue.soft;
    const font = small ? 10 : 11;
    const count = Math.max(3, Math.floor(cell.width / (small ? 34 : 44)));
    context.font = `${font}px ${FONT}`;
    if (bottom) {
      const map = scale(across.axis, cell.x, cell.x + cell.width);
      context.textAlign = "center";
      context.textBaseline = "top";
      let free = -Infinity;
      for (const value of ticks(across.axis, count)) {
        const at = map.forward(value);
        const text = number(value);
        const half = context.measureText(text).width / 2;
        this.tick(at, cell.y + cell.height, at, cell.y + cell.height + 4);
        if (at - half < Math.max(free, cell.x - 10) + 4) continue;
        if (at + half > cell.x + cell.width + 6) continue;
        context.fillText(text, at, cell.y + cell.height + 6);
        free = at + half;
      }
      this.label(across.name, cell.x + cell.width / 2, cell.y + cell.height + 22, cell.width, 0);
    }
    if (left) {
      const map = scale(up.axis, cell.y + cell.height, cell.y);
      context.fillStyle = hue.soft;
      context.font = `${font}px ${FONT}`;
      context.textAlign = "right";
      context.textBaseline = "middle";
      for (const value of ticks(up.axis, Math.max(3, Math.floor(cell.height / 36)))) {
        const at = map.forward(value);
        this.tick(cell.x - 4, at, cell.x, at);
        context.fillText(number(value), cell.x - 6, Math.min(Math.max(at, cell.y + 6), cell.y + cell.height - 6));
      }
      this.label(up.name, small ? 6 : 8, cell.y + cell.height / 2, cell.height, -Math.PI / 2);
    }
  }

  tick(x0, y0, x1, y1) {
    const { context } = this;
    context.beginPath();
    context.moveTo(x0, y0);
    context.lineTo(x1, y1);
    context.stroke();
  }

  label(name, x, y, room, turn) {
    const { context, colours: hue, small } = this;
    context.save();
    context.translate(x, y);
    context.rotate(turn);
    context.fillStyle = hue.text;
    context.font = `600 ${small ? 11 : 12}px ${FONT}`;
    context.textAlign = "center";
    context.textBaseline = turn ? "middle" : "top";
    // Names that are alike often differ at the end: letters are left out in the middle.
    const letters = Array.from(clean(name, 400));
    let text = letters.join("");
    for (let kept = Math.min(letters.length, 40); context.measureText(text).width > room && kept > 2; kept -= 1) {
      text = `${letters.slice(0, Math.ceil(kept / 2)).join("")}…${letters.slice(-Math.floor(kept / 2)).join("")}`;
    }
    context.fillText(text, 0, 0);
    context.restore();
  }

  /** Return the target and the value below a pointer, if it is on a curve. */
  at(event) {
    const box = this.canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const cell = this.cells.find((one) => one.target
      && x >= one.x && x <= one.x + one.width && y >= one.y && y <= one.y + one.height);
    if (!cell) return null;
    let value = cell.across.back(x);
    if (cell.target.axis.step) value = Math.round(value);
    return { target: cell.target, value, cell, x };
  }
}
