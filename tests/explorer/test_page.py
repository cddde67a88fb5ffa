"""The page in Chromium: what it shows is what the model gives; hostile names stay text."""

import csv
import io
import json
import re
import urllib.parse
from pathlib import Path

import pandas as pd
import pytest
import torch
from helpers.browser import chromium
from helpers.explorers import DATA, FORMULA, SCRIPT, TARGETS, TOKEN, TURNED, fitted, serving
from numpy.testing import assert_allclose

AXE = Path(__file__).parent / "axe.min.js"
SIZES = {"wide": (1280, 900), "narrow": (400, 860)}


@pytest.fixture(scope="module")
def model():
    return fitted()


@pytest.fixture(scope="module")
def service(model):
    with serving(model, data=DATA) as running:
        yield running


@pytest.fixture(scope="module")
def browser():
    with chromium() as running:
        yield running


class Visit:
    """The page, open and signed in, and what it said and asked for."""

    def __init__(self, browser, service, size="wide", scheme="light", link="", **options):
        width, height = SIZES[size]
        self.messages, self.requests, self.dialogs, self.service = [], [], [], service
        self.context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme=scheme,
            permissions=["clipboard-read", "clipboard-write"],
            **options,
        )
        self.page = self.context.new_page()
        self.page.on("console", lambda message: self.messages.append(message.text))
        self.page.on("pageerror", lambda error: self.messages.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("dialog", lambda dialog: (self.dialogs.append(1), dialog.dismiss()))
        self.page.goto(service.url + link)
        self.settle()

    def settle(self):
        """Wait until the newest view is drawn and written to the address."""
        self.page.wait_for_selector("#plot[aria-busy=false]", timeout=20_000)
        self.page.wait_for_timeout(200)
        self.page.wait_for_selector("#plot[aria-busy=false]", timeout=20_000)

    @property
    def state(self):
        return json.loads(urllib.parse.unquote(urllib.parse.urlparse(self.page.url).fragment))

    def row(self, name):
        """Return the cells of a target in the table."""
        # At once: asked one by one, every cell is a message to the browser.
        rows = self.page.locator("#numbers tbody tr").evaluate_all(
            "rows => rows.map(row => [...row.querySelectorAll('th, td')].map(c => c.innerText))"
        )
        shown = name.replace("\u202e", "\N{REPLACEMENT CHARACTER}")
        (found,) = [cells for first, *cells in rows if first == shown]
        return found

    def numbers(self, name):
        """Return mean, standard deviation and median."""
        return [float(cell.replace("\u2212", "-")) for cell in self.row(name)[1:4]]

    def field(self, name):
        return self.page.get_by_label(f"What if {name.replace(TURNED[0], chr(0xFFFD))} were")

    def density(self, model):
        """Return what the model gives for the view."""
        row = pd.DataFrame({name: [value] for name, value in self.state["condition"].items()})
        found = model.predict_dist(row, tail=False)[0]
        given = self.state["given"]
        return found.condition(given) if given else found

    def check_numbers(self, model):
        density = self.density(model)
        for dim, name in enumerate(density.names):
            line = density.marginal(dim)
            expected = [line.mean.item(), line.stddev.item(), line.quantile(0.5).item()]
            assert_allclose(self.numbers(name), expected, rtol=1e-3, atol=1e-3)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        self.context.close()
        if kind is None:
            assert self.messages == []
            assert self.dialogs == []
            ours = self.service.address + "/"
            assert [one for one in self.requests if not one.startswith((ours, "blob:"))] == []
            asked = [one for one in self.requests if TOKEN in one]
            assert asked == [f"{self.service.url}{self.link}" for _ in asked]

    link = ""


@pytest.mark.parametrize("size", ["wide", pytest.param("narrow", marks=pytest.mark.slow)])
def test_a_slider_moves_the_density(browser, service, model, size):
    with Visit(browser, service, size) as visit:
        assert TOKEN not in visit.page.url
        visit.check_numbers(model)
        before = visit.numbers("price")
        slider = visit.page.get_by_label("number", exact=True)
        slider.focus()
        for _ in range(4):
            visit.page.keyboard.press("PageUp")
        visit.settle()
        # The picture is in sight while the slider moves, also on a small screen.
        assert visit.page.locator("#corner").bounding_box()["y"] >= 0
        assert visit.state["condition"]["number"] > 0.3
        visit.check_numbers(model)
        assert visit.numbers("price")[0] > before[0] + 0.5
        visit.page.get_by_label("number, exact value").fill("-1.5")
        visit.page.keyboard.press("Enter")
        visit.page.get_by_label("town", exact=True).select_option(
            label="Łódź (" + count("Łódź", model) + ")"
        )
        visit.page.get_by_label(f"{SCRIPT} is missing").check()
        visit.settle()
        assert visit.state["condition"] == {"number": -1.5, SCRIPT: None, "town": "Łódź"}
        visit.check_numbers(model)
        wide = visit.page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0


def count(town, model):
    found = model.summary_.conditions[2]
    return str(dict(zip(found.values, found.counts, strict=True))[town])


def test_what_if_by_click_and_by_keyboard(browser, service, model):
    with Visit(browser, service) as visit:
        before = visit.numbers(FORMULA)
        canvas = visit.page.locator("#corner")
        box = canvas.bounding_box()
        # The first curve, a little to the right of its middle.
        canvas.click(position={"x": 62 + 0.7 * (box["width"] - 86) / 3, "y": 60})
        visit.settle()
        (value,) = visit.state["given"].values()
        assert list(visit.state["given"]) == ["price"]
        assert visit.page.locator("#given li").count() == 1
        visit.check_numbers(model)
        assert visit.numbers(FORMULA) != before
        assert visit.row("price")[1] == "given"
        visit.field(TURNED).fill("1.2")
        visit.page.keyboard.press("Enter")
        visit.settle()
        assert visit.state["given"] == {"price": value, TURNED: 1.2}
        visit.check_numbers(model)
        visit.field(FORMULA).fill("0")
        visit.page.keyboard.press("Enter")
        visit.settle()
        assert len(visit.state["given"]) == 2  # one target stays free
        visit.page.get_by_role("button", name=re.compile("Remove price")).click()
        visit.settle()
        assert visit.state["given"] == {TURNED: 1.2}
        visit.check_numbers(model)
        visit.page.get_by_role("button", name="Reset").click()
        visit.settle()
        assert visit.numbers(FORMULA) == before


def test_what_cannot_be_is_said(browser, service, model):
    with Visit(browser, service) as visit:
        visit.field(TURNED).fill("-1")
        visit.page.keyboard.press("Enter")
        visit.page.wait_for_selector("#fault:not([hidden])")
        assert "above" in visit.page.locator("#fault").inner_text()
        visit.page.get_by_role("button", name="Reset").click()
        visit.settle()
        assert visit.page.locator("#fault").is_hidden()
        visit.messages.clear()  # the browser's own note of a status 422


@pytest.mark.slow
def test_a_link_brings_the_view_back(browser, service, model):
    with Visit(browser, service) as visit:
        visit.page.get_by_label("number, exact value").fill("0.7")
        visit.page.keyboard.press("Enter")
        visit.field("price").fill("2")
        visit.page.keyboard.press("Enter")
        visit.page.get_by_label("Components").uncheck()
        visit.settle()
        visit.page.get_by_role("button", name="Copy link").click()
        visit.page.wait_for_selector("#copy-link:text('Copied')")
        link = visit.page.evaluate("navigator.clipboard.readText()")
        assert TOKEN not in link
        numbers, state = visit.numbers(FORMULA), visit.state
    fragment = link[link.index("#") :]
    with Visit(browser, service, link=fragment) as visit:
        visit.link = fragment
        visit.requests = [one for one in visit.requests if TOKEN not in one]
        assert visit.state == state
        assert visit.numbers(FORMULA) == numbers
        assert not visit.page.get_by_label("Components").is_checked()
        visit.page.evaluate("location.hash = '#%7Bnonsense'")
        visit.settle()
        assert visit.page.locator("#fault").is_visible()


def test_what_can_be_taken_away(browser, service, model):
    with Visit(browser, service) as visit:
        with visit.page.expect_download() as waiting:
            visit.page.get_by_role("button", name="CSV").click()
        text = Path(waiting.value.path()).read_text()
        rows = list(csv.DictReader(io.StringIO(text)))
        density = visit.density(model)
        prices = [row for row in rows if row["name"] == "price"]
        (mean,) = (float(row["value"]) for row in prices if row["quantity"] == "mean")
        assert mean == pytest.approx(density.mean[0].item(), rel=1e-9)
        curve = [(float(r["at"]), float(r["value"])) for r in prices if r["quantity"] == "density"]
        at, values = torch.tensor(curve, dtype=torch.float64).T
        expected = density.marginal(0).log_prob(at[:, None]).exp()
        assert_allclose(values, expected, rtol=1e-9)
        # A spreadsheet would compute a name that begins like a formula.
        assert {row["name"] for row in rows if "HYPERLINK" in row["name"]} == {"'" + FORMULA}
        with visit.page.expect_download() as waiting:
            visit.page.get_by_role("button", name="PNG").click()
        data = Path(waiting.value.path()).read_bytes()
        assert data[:8] == b"\x89PNG\r\n\x1a\n"
        assert int.from_bytes(data[16:20], "big") > 400
        visit.page.get_by_role("button", name="Copy as Python").click()
        visit.page.wait_for_selector("#copy-python:text('Copied')")
        code = visit.page.evaluate("navigator.clipboard.readText()")
        compile(code, "view", "exec")
        assert "predict_dist(X, tail=False)[0]" in code


@pytest.mark.slow
def test_the_report_and_tabs_by_keyboard(browser, service):
    with Visit(browser, service) as visit:
        visit.page.get_by_role("tab", name="Density").focus()
        visit.page.keyboard.press("ArrowRight")
        assert visit.page.get_by_role("tabpanel", name="Calibration").is_visible()
        frame = visit.page.frame_locator("#report")
        frame.locator("h1").wait_for(timeout=60_000)
        assert "log-likelihood" in frame.locator("body").inner_text()
        visit.page.keyboard.press("Home")
        assert visit.page.locator("#corner").is_visible()


@pytest.mark.parametrize(
    ("size", "scheme"), [("wide", "light"), pytest.param("narrow", "dark", marks=pytest.mark.slow)]
)
def test_nothing_keeps_a_reader_out(browser, service, size, scheme):
    """By axe-core; its script needs what the page's policy forbids."""
    with Visit(browser, service, size, scheme, bypass_csp=True) as visit:
        visit.field("price").fill("1")
        visit.page.keyboard.press("Enter")
        visit.settle()
        visit.page.evaluate(AXE.read_text())
        found = visit.page.evaluate("axe.run()")
        assert [(one["id"], one["nodes"][0]["html"]) for one in found["violations"]] == []


def test_names_stay_text_and_data_can_be_hidden(browser, service):
    with Visit(browser, service) as visit:
        body = visit.page.locator("body").inner_text()
        assert SCRIPT in body
        assert "\u202e" not in body
        assert visit.page.locator("img").count() == 0
        assert f"20 of {len(TARGETS)} rows" in visit.page.locator("#near").inner_text()
        before = visit.page.evaluate("corner.toDataURL()")
        visit.page.get_by_label("Data near the condition").uncheck()
        visit.settle()
        assert visit.page.locator("#near").inner_text() == ""
        assert visit.page.evaluate("corner.toDataURL()") != before


def test_without_signing_in(browser, service):
    context = browser.new_context()
    page = context.new_page()
    page.goto(service.address + "/")
    assert "Not signed in" in page.locator("h1").inner_text()
    context.close()


def test_from_a_link_on_another_site(browser, service, tmp_path):
    """A strict cookie is kept back at first; the page reloads and is there."""
    (tmp_path / "link.html").write_text(
        f'<meta http-equiv="refresh" content="0;url={service.url}">'
    )
    context = browser.new_context()
    page = context.new_page()
    page.goto((tmp_path / "link.html").as_uri())
    page.wait_for_selector("#plot[aria-busy=false]", timeout=20_000)
    assert TOKEN not in page.url
    context.close()
