"""The page of a report: one file of HTML with its pictures inside, and nothing from elsewhere."""

import base64
import io
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from condens._version import __version__
from condens.evaluation.calibration import Bin, Bins, Test
from condens.evaluation.statistics import Array, Score
from condens.progress import Progress
from condens.scalars import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Targets, and columns of X, that have pictures: those that fit worst.
MAX_TARGETS, MAX_COLUMNS = 12, 6
# Characters of a cell, and of a name in a legend.
MAX_CELL, MAX_LABEL = 100, 14
# Names at the top of the page.
MAX_NAMES = 20
# Curves on one picture, so many can be told apart.
MAX_CURVES = 6

# Scripts, fonts and requests of any kind are refused by the page itself.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
# Pictures are drawn on white; on dark screens they are inverted, and their hues turned back.
_STYLE = """
:root { color-scheme: light dark; --page: #fff; --text: #1b1b1b; --soft: #595959;
  --line: #d9d9d9; --shade: #f5f6f8; --mark: #0072b2; }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 3rem; max-width: 72rem; background: var(--page);
  color: var(--text); font: 1rem/1.5 system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif;
  overflow-wrap: anywhere; }
header { border-left: .3rem solid var(--mark); padding: .2rem 0 .2rem 1rem; }
h1 { font-size: 1.45rem; line-height: 1.3; margin: .2rem 0 .6rem; }
h2 { font-size: 1.15rem; margin: 2.4rem 0 .4rem; }
header ul { margin: .4rem 0; padding-left: 1.2rem; }
.about, figcaption, .how, footer { color: var(--soft); font-size: .9rem; }
.about, .how { margin: .2rem 0 .6rem; }
.pictures { display: grid; gap: 1rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 20rem), 1fr)); }
figure { margin: 0; min-width: 0; }
figure img { display: block; width: 100%; max-width: 32rem; height: auto; }
.tables { display: flex; flex-wrap: wrap; gap: 0 2.5rem; align-items: flex-start; }
.wide { overflow-x: auto; max-width: 100%; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums;
  margin: .3rem 0 1rem; }
caption { text-align: left; font-weight: 600; padding: .8rem 0 .3rem; }
th, td { padding: .25rem .7rem; text-align: right; vertical-align: top; min-width: 7.5rem;
  max-width: 18rem; border-bottom: 1px solid var(--line); unicode-bidi: isolate; }
th { font-weight: 600; }
thead th { background: var(--shade); }
tr > :first-child { text-align: left; min-width: 9rem; font-weight: 400; }
footer { margin-top: 3rem; border-top: 1px solid var(--line); padding-top: .6rem; }
@media screen and (prefers-color-scheme: dark) {
  :root { --page: #141414; --text: #e9e9e9; --soft: #ababab; --line: #3b3b3b; --shade: #202124;
    --mark: #56b4e9; }
  figure img { filter: invert(.92) hue-rotate(180deg); }
}
@media print {
  :root { color-scheme: light; }
  body { font-size: 10pt; max-width: none; padding: 0; }
  .wide { overflow: visible; }
  .pictures { grid-template-columns: repeat(2, 1fr); }
  figure, tr, caption, h2 { break-inside: avoid; }
  h2, caption { break-after: avoid; }
}
"""


# A title, the heads of the columns, and the rows.
Table = tuple[str, tuple[str, ...], tuple[tuple[str, ...], ...]]


class Content(NamedTuple):
    """What a page is made of: words, tables, and the numbers that are drawn.

    Args:
        about: what was judged, in a few words.
        names: of the targets.
        verdict: a sentence a line, the most important one first.
        tables: all figures; the first of them is shown beside the verdict.
        gains: in log-likelihood over simple models.
        tests, bins, rows, weights: as those of a `Report`.
    """

    about: str
    names: tuple[str, ...]
    verdict: str
    tables: Sequence[Table]
    gains: Mapping[str, Score]
    tests: Sequence[Test]
    bins: Bins | None
    rows: Mapping[str, Array]
    weights: Array | None


class Picture(NamedTuple):
    """A picture to be drawn on axes of a size in inches, and what it shows, in words.

    A title goes on top, where the drawing itself has none.
    """

    about: str
    draw: "Callable[[Axes], object]"
    width: float = 4.6
    height: float = 3.4
    title: str = ""


class Chapter(NamedTuple):
    """Pictures of one kind, and how to read them."""

    title: str
    how: str
    pictures: tuple[Picture, ...]


def page(content: Content, *, progress: bool | None = None) -> str:
    """Return a page of HTML."""
    headline, *findings = content.verdict.splitlines()
    chapters = [one for one in plot_chapters(content) if one.pictures]
    first, rest = content.tables[:1], content.tables[1:]
    names = ", ".join(_short(name, MAX_CELL) for name in content.names[:MAX_NAMES])
    more = len(content.names) - MAX_NAMES
    names += f" and {more} more" if more > 0 else ""
    with Progress("drawing", sum(len(one.pictures) for one in chapters), show=progress) as line:
        drawn = [_chapter(one, line) for one in chapters]
    items = "".join(f"<li>{_text(finding)}</li>" for finding in findings)
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{_text(f'How good is it: {content.about}')}</title>",
            f"<style>{_STYLE}</style>\n</head>\n<body>",
            f'<header>\n<p class="about">{_text(content.about)}: {_text(names)}</p>',
            f"<h1>{_text(headline)}</h1>\n<ul>{items}</ul>\n</header>\n<main>",
            *map(_table, first),
            *drawn,
            "<section>\n<h2>All figures</h2>\n"
            f'<div class="tables">\n{"".join(map(_table, rest))}</div>\n</section>',
            f"</main>\n<footer>Written by condens {__version__}.</footer>\n</body>\n</html>\n",
        ]
    )


def plot_chapters(content: Content) -> Iterator[Chapter]:
    """Yield the pictures, those of the targets and columns that fit worst."""
    from condens.plots.rows import coverage_by_bin

    chosen = _worst_targets(content)
    note = "" if len(chosen) == len(content.names) else f" Shown: the worst {len(chosen)} targets."
    yield _plot_gains(content)
    yield _plot_coverage(content, chosen[:MAX_CURVES])
    yield _plot_transforms(content, chosen, note)
    yield Chapter(
        "How calibrated is it where?",
        "Rows inside their regions, by bins of X and of the predicted spread, with 95 % "
        "intervals; orange diamonds leave out what was stated. The columns with the worst bins "
        "come first.",
        tuple(_bin_pictures(content.bins, coverage_by_bin)),
    )
    yield _plot_residuals(content, chosen, note)
    yield _plot_spreads(content, chosen, note)


def _plot_gains(content: Content) -> Chapter:
    from condens.plots.comparison import differences

    finite = {name: gain for name, gain in content.gains.items() if np.isfinite(gain).all()}
    values = np.array([gain.value for gain in finite.values()])
    reach = 1.96 * np.array([gain.standard_error for gain in finite.values()])
    picture = Picture(
        f"gain over {', '.join(finite)}",
        _drawing(
            differences,
            [f"over {name}" for name in finite],
            values,
            values - reach,
            values + reach,
            label="gain in nats a row",
        ),
        height=1.4 + 0.45 * len(finite),
    )
    return Chapter(
        "Better than simple models?",
        "Gains in log-likelihood with their 95 % intervals: to the right of zero the model is "
        "better.",
        (picture,) if finite else (),
    )


def _plot_coverage(content: Content, chosen: Sequence[int]) -> Chapter:
    from condens.plots.calibration import coverage_curve

    curves = _curves(content, chosen)
    drawing = _drawing(coverage_curve, curves, weights=content.weights)
    picture = Picture("coverage observed against coverage stated", drawing, 4.8, 4.6)
    return Chapter(
        "Do regions hold what they state?",
        "The fraction of rows inside highest-density regions of the joint, and inside central "
        "intervals of each target. Below the diagonal the densities are too narrow; within "
        "the band it may be chance.",
        (picture,) if curves else (),
    )


def _plot_transforms(content: Content, chosen: Sequence[int], note: str) -> Chapter:
    from condens.plots.calibration import pit_histogram

    return Chapter(
        "Does each target fall where its density says?",
        "Probability integral transforms: flat where the densities are right, high at both ends "
        f"where they are too narrow, in the middle too wide, on one side biased.{note}",
        tuple(
            Picture(
                f"probability integral transforms of {content.names[d]}",
                _drawing(pit_histogram, column, weights=content.weights),
                title=content.names[d],
            )
            for d in chosen
            if (column := _column(content.rows, "pit", d)) is not None
        ),
    )


def _plot_residuals(content: Content, chosen: Sequence[int], note: str) -> Chapter:
    from condens.plots.rows import residuals

    columns = [content.rows.get(name) for name in ("mean", "spread", "target")]
    return Chapter(
        "What was observed against what was predicted",
        f"At most 1000 rows are drawn.{note}",
        tuple(
            Picture(
                f"observed against predicted {content.names[d]}",
                _drawing(
                    residuals,
                    *(column[:, d] for column in columns if column is not None),
                    name=content.names[d],
                ),
                height=4.2,
            )
            for d in chosen
            if all(column is not None for column in columns)
            and _column(content.rows, "target", d) is not None
        ),
    )


def _plot_spreads(content: Content, chosen: Sequence[int], note: str) -> Chapter:
    from condens.plots.rows import spread_histogram

    return Chapter(
        "How sharp are the densities?",
        "Predicted standard deviations, beside that of the observed values: as far to the left "
        f"of it as X tells about the target.{note}",
        tuple(
            Picture(
                f"predicted standard deviations of {content.names[d]}",
                _drawing(
                    spread_histogram,
                    column,
                    overall=_deviation(_column(content.rows, "target", d)),
                    name=content.names[d],
                ),
            )
            for d in chosen
            if (column := _column(content.rows, "spread", d)) is not None
        ),
    )


def _drawing(
    plot: "Callable[..., Axes]", *args: object, **options: object
) -> "Callable[[Axes], object]":
    return lambda axes: plot(*args, **options, axes=axes)


def _worst_targets(content: Content) -> list[int]:
    """Return the numbers of the targets that have pictures, in their order."""
    if len(content.names) <= MAX_TARGETS:
        return list(range(len(content.names)))
    least: dict[str, float] = {}
    for test in content.tests:
        least[test.subject] = min(test.p_value, least.get(test.subject, 1.0))
    ranked = sorted(range(len(content.names)), key=lambda d: least.get(content.names[d], 1.0))
    return sorted(ranked[:MAX_TARGETS])


def _curves(content: Content, chosen: Sequence[int]) -> dict[str, Array]:
    """Return the coverage that regions need to hold each row: of the joint, and of intervals."""
    curves = {}
    joint = content.rows.get("hpd_coverage")
    if joint is not None and not np.isnan(joint).all():
        curves["joint"] = joint
    for d in chosen:
        column = _column(content.rows, "pit", d)
        if column is not None and len(curves) < MAX_CURVES:
            label = _short(content.names[d], MAX_LABEL)
            while label in curves:
                label += "′"
            curves[label] = np.abs(2 * column - 1)
    return curves


def _bin_pictures(bins: Bins | None, plot: "Callable[..., Axes]") -> Iterator[Picture]:
    """Yield a picture for each of the columns whose bins fit worst."""
    columns: dict[str, list[Bin]] = {}
    for one in () if bins is None else bins.bins:
        if one.coverages:
            columns.setdefault(one.column, []).append(one)
    worst = {name: min(one.worst.p_value for one in found) for name, found in columns.items()}
    for name in sorted(columns, key=lambda column: worst[column])[:MAX_COLUMNS]:
        found = columns[name]
        subject, coverage = found[0].coverages[0].subject, found[0].coverages[0].coverage
        reached = [one.coverages[0] for one in found]
        yield Picture(
            f"coverage of {subject} by bins of {name}",
            _drawing(
                plot,
                [one.label for one in found],
                [one.observed for one in reached],
                [one.lower for one in reached],
                [one.upper for one in reached],
                coverage=coverage,
                name=name,
            ),
            height=1.3 + 0.28 * len(found),
        )


def _short(text: str, length: int) -> str:
    """Return text, or its beginning and end.

    >>> _short("a long name", 7)
    'a l…ame'
    """
    if len(text) <= length:
        return text
    tail = (length - 1) // 2
    return f"{text[: length - 1 - tail]}…{text[len(text) - tail :]}"


def _column(rows: Mapping[str, Array], name: str, place: int) -> Array | None:
    """Return a column that has a value in some row."""
    if name not in rows:
        return None
    column = rows[name][:, place]
    return None if np.isnan(column).all() else column


def _deviation(column: Array | None) -> float | None:
    return None if column is None else float(np.nanstd(column))


def _chapter(chapter: Chapter, progress: Progress) -> str:
    figures = []
    for picture in chapter.pictures:
        data = base64.b64encode(plot_svg(picture)).decode()
        figures.append(
            f'<figure><img alt="{_text(picture.about)}" src="data:image/svg+xml;base64,{data}">'
            "</figure>"
        )
        progress.advance()
    return (
        f'<section>\n<h2>{_text(chapter.title)}</h2>\n<p class="how">{_text(chapter.how)}</p>\n'
        f'<div class="pictures">\n{"".join(figures)}</div>\n</section>'
    )


def plot_svg(picture: Picture) -> bytes:
    """Return a picture as SVG, the same bytes every time, whatever the style of the session."""
    try:
        from matplotlib import style
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "to_html needs matplotlib. Install it: pip install 'condens[plot]'."
        ) from error
    from condens.plots.style import literal

    stream = io.BytesIO()
    # Text stays text, which the browser shapes and finds fonts for.
    settings = {"svg.fonttype": "none", "svg.hashsalt": "condens", "font.size": 9.5}
    with style.context(["default", settings]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")
        figure = Figure((picture.width, picture.height), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.subplots()
        picture.draw(axes)
        if picture.title:
            axes.set_title(literal(picture.title))
        figure.savefig(
            stream, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type"))
        )
    return stream.getvalue()


def _table(table: Table) -> str:
    """Return a table of text; names that users chose are in cells of their own direction."""
    title, columns, rows = table
    heads = "".join(f'<th scope="col" dir="auto">{_cell(cell)}</th>' for cell in columns)
    body = "".join(
        f'<tr><th scope="row" dir="auto">{_cell(first)}</th>'
        + "".join(f'<td dir="auto">{_cell(cell)}</td>' for cell in cells)
        + "</tr>"
        for first, *cells in rows
    )
    return (
        f'<div class="wide" tabindex="0"><table><caption dir="auto">{_cell(title)}'
        f"</caption><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>\n"
    )


def _cell(text: str) -> str:
    """Return text of a cell, shortened, with all of it where the pointer rests."""
    short = _short(text, MAX_CELL)
    return _text(text) if short == text else f'<span title="{_text(text)}">{_text(short)}</span>'


def _text(text: str) -> str:
    """Return text as it is in HTML, without characters that control how others are shown.

    >>> _text('<b> & "c"')
    '&lt;b&gt; &amp; &quot;c&quot;'
    """
    return escape(printable(text))
