"""The page of a report: self-contained, harmless whatever the names, and right in a browser."""

import base64
import re
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.browser import Visit, chromium

from condens import GaussianMixture
from condens.errors import ArgumentError
from condens.evaluation import Report, evaluate, page

HOSTILE = (
    '<img src=x onerror="alert(1)">',
    "</script><script>alert(2)</script>",
    "a & b ]]> $x_1^2$ 'q'",
    "long" * 60,
    "السعر\u202egnp.exe",
)


def report_of(names, *, n_rows=300, seed=0):
    """Return the report of densities that are too narrow for the first target."""
    generator = torch.Generator().manual_seed(seed)
    size = len(names)
    mean = torch.randn(n_rows, size, generator=generator).double()
    densities = GaussianMixture(
        torch.zeros(n_rows, 1).double(),
        mean.unsqueeze(1),
        torch.zeros(n_rows, 1, size * (size + 1) // 2).double(),
        names=names,
    )
    noise = torch.randn(n_rows, size, generator=generator).double()
    noise[:, 0] *= 2
    columns = zip(names, mean.T, strict=True)
    condition = pd.DataFrame({f"{name} of X": column for name, column in columns})
    y = (mean + noise).numpy()
    return evaluate(densities, condition, y, train=(condition, y), n_samples=50)


@pytest.fixture(scope="module")
def report():
    return report_of(HOSTILE)


@pytest.fixture(scope="module")
def written(report, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    assert report.to_html(path) == path.read_text(encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def browser():
    with chromium() as started:
        yield started


class Elements(HTMLParser):
    """Every element of a page with its attributes, and all of its text."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.text = [], ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_data(self, data):
        self.text += data


def pictures(text):
    """Return the pictures of a page by what they show, as trees of SVG."""
    found = {}
    for tag, attributes in Elements(text).elements:
        if tag == "img":
            kind, _, data = attributes["src"].partition(",")
            assert kind == "data:image/svg+xml;base64"
            found[attributes["alt"]] = ElementTree.fromstring(base64.b64decode(data))
    return found


def shown(name):
    return name.replace("\u202e", "\N{REPLACEMENT CHARACTER}")


# Without a browser.


def test_nothing_is_asked_for_from_elsewhere(written):
    parsed = Elements(written.read_text(encoding="utf-8"))
    for tag, attributes in parsed.elements:
        assert tag not in ("script", "link", "iframe", "object", "embed", "base", "form")
        for key, value in attributes.items():
            assert not key.startswith("on")
            assert key not in ("href", "srcset", "style")
            assert key != "src" or value.startswith("data:image/svg+xml;base64,")
    policy = [a["content"] for _, a in parsed.elements if a.get("http-equiv")]
    assert policy == ["default-src 'none'; style-src 'unsafe-inline'; img-src data:"]


def test_pictures_ask_for_nothing_and_have_the_names_as_text(written):
    for tree in pictures(written.read_text(encoding="utf-8")).values():
        for element in tree.iter():
            assert not element.tag.endswith(("script", "image", "foreignObject"))
            for key, value in element.attrib.items():
                assert not key.startswith("on")
                assert "href" not in key or value.startswith("#")
                assert "url(" not in value.replace("url(#", "")
    trees = pictures(written.read_text(encoding="utf-8"))
    drawn = trees[shown(f"probability integral transforms of {HOSTILE[0]}")]
    words = [element.text for element in drawn.iter() if element.tag.endswith("text")]
    assert HOSTILE[0] in words


def test_the_verdict_comes_first(written, report):
    text = written.read_text(encoding="utf-8")
    headline = report.verdict.splitlines()[0]
    assert re.search("<h1>(.*?)</h1>", text).group(1) == page._text(headline)
    assert text.index("<h1>") < text.index("<table>") < text.index("<img ")
    assert "too narrow" in Elements(text).text


def test_every_figure_is_on_it(written, report):
    text = Elements(written.read_text(encoding="utf-8")).text
    for section in report.sections():
        for row in section.rows:
            for cell in row[1:]:
                assert page._short(shown(cell), page.MAX_CELL) in text
    for name in HOSTILE[:3]:
        assert name in text


def test_every_kind_of_picture_is_on_it(written, report):
    found = list(pictures(written.read_text(encoding="utf-8")))
    for words, count in (
        ("gain over", 1),
        ("coverage observed against", 1),
        ("probability integral transforms of", 5),
        ("coverage of", page.MAX_COLUMNS),
        ("observed against predicted", 5),
        ("predicted standard deviations of", 5),
    ):
        assert sum(alt.startswith(words) for alt in found) == count, words


@pytest.fixture
def few(monkeypatch):
    """Fewer pictures, which take time to draw."""
    monkeypatch.setattr(page, "MAX_COLUMNS", 1)


def test_of_many_targets_the_worst_are_drawn(few, monkeypatch):
    monkeypatch.setattr(page, "MAX_TARGETS", 2)
    found = report_of(["a", "b", "c", "d"], n_rows=100)
    order = [2, 3, 1, 0]  # the first, too narrow, comes last
    columns = {key: v[:, order] if v.ndim == 2 else v for key, v in found.rows.items()}
    text = replace(found, names=tuple("cdba"), rows=columns).to_html()
    drawn = [alt for alt in pictures(text) if alt.startswith("probability")]
    assert len(drawn) == 2
    assert drawn[-1] == "probability integral transforms of a"
    assert "Shown: the worst 2 targets." in text


def test_a_report_without_rows_still_has_a_page(few, report):
    bare = Report.from_dict(report.to_dict(rows=False))
    found = pictures(bare.to_html())
    assert [alt.split()[0] for alt in found] == ["gain", "coverage"]


def test_the_same_report_has_the_same_page_whatever_the_style(few):
    import matplotlib as mpl
    from matplotlib import pyplot

    report = report_of(["a"], n_rows=100)
    first = report.to_html()
    with pyplot.style.context("dark_background"), mpl.rc_context({"font.size": 30}):
        before = dict(mpl.rcParams)
        assert report.to_html() == first
        assert dict(mpl.rcParams) == before
    assert not pyplot.get_fignums()


def test_a_place_that_cannot_hold_it_is_named(report, tmp_path):
    with pytest.raises(ArgumentError, match="is a directory"):
        report.to_html(tmp_path)
    with pytest.raises(ArgumentError, match="is in no directory"):
        report.to_html(tmp_path / "nowhere" / "report.html")
    assert not list(tmp_path.iterdir())


def test_entries_that_were_not_observed_are_left_out(few):
    found = report_of(["a", "b"])
    rows = {key: values.copy() for key, values in found.rows.items()}
    for key in ("pit", "target"):
        rows[key][:, 1] = np.nan
        rows[key][:50, 0] = np.nan
    drawn = pictures(replace(found, rows=rows).to_html())
    assert "probability integral transforms of a" in drawn
    assert "probability integral transforms of b" not in drawn


# In a browser.


@pytest.mark.parametrize(
    ("scheme", "width"), [pytest.param("light", 1200, marks=pytest.mark.slow), ("dark", 360)]
)
def test_it_opens_in_chromium(browser, written, scheme, width, tmp_path):
    with Visit(browser, written, scheme=scheme, width=width) as visit:
        assert visit.messages == []
        assert visit.dialogs == []
        assert {url for url in visit.requests if not url.startswith("data:")} == {written.as_uri()}
        opened = visit.page
        # Nothing runs over the edge but tables, which scroll by themselves.
        assert opened.evaluate("document.documentElement.scrollWidth <= innerWidth")
        sizes = opened.evaluate("[...document.images].map(i => [i.complete, i.naturalWidth])")
        assert len(sizes) == len(pictures(written.read_text(encoding="utf-8")))
        assert all(complete and wide > 100 for complete, wide in sizes)
        body = opened.inner_text("body")
        for name in HOSTILE[:3]:
            assert name in body
        assert "\u202e" not in body
        page_colour, text_colour, image_filter = opened.evaluate(
            "[getComputedStyle(document.body).backgroundColor,"
            " getComputedStyle(document.body).color,"
            " getComputedStyle(document.images[0]).filter]"
        )
        bright = [sum(map(int, re.findall(r"\d+", c)[:3])) for c in (page_colour, text_colour)]
        if scheme == "light":
            assert bright[0] == 765
            assert bright[1] < 150
            assert image_filter == "none"
        else:
            assert bright[0] < 100
            assert bright[1] > 600
            assert image_filter.startswith("invert(0.92)")
        # Pictures are as dark as the page around them.
        opened.locator("img").first.scroll_into_view_if_needed()
        opened.screenshot(path=tmp_path / "page.png")
        corner = opened.evaluate("document.images[0].getBoundingClientRect().toJSON()")
        taken = picture_of(tmp_path / "page.png")
        inside = taken[int(corner["top"]) + 4, int(corner["left"]) + 4]
        beside = taken[int(corner["top"]) - 8, 2]
        assert np.abs(inside.astype(int) - beside.astype(int)).max() <= 2


def picture_of(path):
    from matplotlib.image import imread

    return (255 * imread(path)[..., :3]).astype(np.uint8)


@pytest.mark.slow
def test_it_prints_in_light_colours(browser, written):
    with Visit(browser, written, scheme="dark") as visit:
        visit.page.emulate_media(media="print", color_scheme="dark")
        colour, image_filter = visit.page.evaluate(
            "[getComputedStyle(document.body).backgroundColor,"
            " getComputedStyle(document.images[0]).filter]"
        )
        assert colour == "rgb(255, 255, 255)"
        assert image_filter == "none"
        assert visit.page.pdf()[:5] == b"%PDF-"
