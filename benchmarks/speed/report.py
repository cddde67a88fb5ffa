"""results.md from what was measured."""

from collections.abc import Callable, Iterable
from typing import Any

Results = dict[str, Any]
Cells = Iterable[str]

_SIZES = ("name", "b", "K", "D")
_OURS = {"batch-first": "condens", "batch-last": "condens batch-last"}
_PEERS = ("FrEIA", "torch tril", "torch prec", "sbi", "zuko")
_GRIDS: dict[str, Callable[[dict[str, float]], bool]] = {
    "b = 256": lambda row: row["b"] == 256,
    "b = 4096, D ≥ 2": lambda row: row["b"] == 4096 and row["D"] >= 2,
    "b = 4096, D ≥ 10": lambda row: row["b"] == 4096 and row["D"] >= 10,
}


def write(results: Results) -> str:
    """Return the report: a section for each table that there is."""
    text = ["# Speed and memory, measured", "", *_machine(results["machine"])]
    for name, section in _SECTIONS.items():
        if results.get(name):
            text += ["", *section(results)]
    return "\n".join([*text, ""])


def _table(header: Cells, rows: Iterable[Cells]) -> str:
    lines = [list(header), *map(list, rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _times(rows: list[dict[str, float]], keys: str, unit: str) -> str:
    """Return a table: the unit's time in milliseconds, the others in multiples of it."""
    names = [n for n in max(rows, key=len) if n not in _SIZES and n != unit]
    return _table(
        [*keys, f"{unit}, ms", *names],
        [
            [f"{row[k]:.0f}" for k in keys]
            + [f"{1e3 * row[unit]:.3f}"]
            + [f"{row[n] / row[unit]:.2f}" if n in row else "" for n in names]
            for row in rows
        ],
    )


def _machine(machine: dict[str, str]) -> list[str]:
    return [
        "Times: the contenders of a line run in one process, interleaved round by round; the best",
        "of the rounds counts. The unit's column is in milliseconds, the others are multiples of",
        "it: 2 is twice as long.",
        "",
        _table(["what", "which"], machine.items()),
    ]


def _loss(results: Results) -> list[str]:
    return [
        "## Loss and gradients",
        "",
        "The mean negative log-likelihood of b targets and its gradients with respect to logits,",
        "means and packed factors. *condens* is `functional.loss`, *rows* is",
        "`functional.nll` and a mean, *eager* is the kernel in plain torch; *batch-last* says how",
        "the parameters lie in memory, all others are batch-first. *copy* copies as many bytes as",
        "the parameters have: it reads and writes as much as reading the parameters and writing",
        "their gradients once.",
        "",
        _times(results["loss"], "bKD", "condens"),
        "",
        "### Bars",
        "",
        "The smallest ratio of a peer's time to condens' in the table above, and where it is.",
        "",
        _bars(results["loss"]),
    ]


def _bars(rows: list[dict[str, float]]) -> str:
    def least(peer: str, ours: str, within: Callable[[dict[str, float]], bool]) -> str:
        ratios = [(r[peer] / r[ours], r["K"], r["D"]) for r in rows if within(r) and peer in r]
        return "{:.2f} (K = {}, D = {})".format(*min(ratios)) if ratios else ""

    return _table(
        ["peer", *(f"{grid}, {layout}" for grid in _GRIDS for layout in _OURS)],
        [
            [peer, *(least(peer, ours, g) for g in _GRIDS.values() for ours in _OURS.values())]
            for peer in _PEERS
        ],
    )


def _diagonal(results: Results) -> list[str]:
    return [
        "## Diagonal covariances",
        "",
        "Loss and gradients as above, with D instead of D(D+1)/2 numbers a factor.",
        "",
        _times(results["diagonal"], "bKD", "condens"),
    ]


def _step(results: Results) -> list[str]:
    rows = results["step"]
    names = [n for n in rows[0] if n not in ("D", "GEMM floor")]
    return [
        "## Training step",
        "",
        "b = 256, K = 10, network 10-128-128 with a linear head, backward pass and fused Adam.",
        "*condens chunked* is `functional.linear_loss`, head and loss together. *GEMM floor* is",
        "the same step with the sum of the outputs as its loss.",
        "",
        _times(rows, "D", "condens chunked"),
        "",
        "The floor's share of a step: 100 % would be a loss that costs nothing.",
        "",
        _table(
            ["D", *names],
            [[str(r["D"]), *(f"{r['GEMM floor'] / r[n]:.0%}" for n in names)] for r in rows],
        ),
    ]


def _sample(results: Results) -> list[str]:
    return [
        "## A million draws",
        "",
        "1000 draws for each of 1000 conditions, K = 10. *randn* makes as many normal numbers.",
        "",
        _times(results["sample"], "D", "condens"),
    ]


def _memory(results: Results) -> list[str]:
    found = results["memory"]
    worst = max(abs(row["extra"] - row["expected"]) for row in found["known"])
    return [
        "## Memory",
        "",
        "The most that loss and gradients need beside their inputs, the gradients included:",
        "resident pages of a process of its own, so that allocations outside torch count. What a",
        "library keeps between calls (scratch, pools) counts in full, as the growth of the",
        "process over the first calls. Memory that is reserved but never touched does not count.",
        "Known allocations of 16 to 64 MB, measured in the same way, were off by at most",
        f"{worst / 1e6:.2f} MB.",
        "",
        "In multiples of the parameters' bytes; in brackets the peak by torch's profiler, which",
        "sees torch's allocations only, touched or not.",
        "",
        _memory_of_losses(found["loss"]),
        "",
        "A linear head of 128 features and its loss, with the gradients of features, weight and",
        "bias. *chunked* is `functional.linear_loss`, *unchunked* a linear layer and",
        "`functional.loss`. The gradients are the result, and those of the features grow with",
        "b; without them, extra is the price of the method.",
        "",
        _memory_of_heads(found["head"]),
    ]


def _memory_of_losses(rows: list[dict[str, Any]]) -> str:
    names = list(dict.fromkeys(row["name"] for row in rows))
    by_size: dict[tuple[int, ...], dict[str, dict[str, float]]] = {}
    for row in rows:
        by_size.setdefault((row["b"], row["K"], row["D"]), {})[row["name"]] = row

    def cell(row: dict[str, float]) -> str:
        size = row["parameters"]
        return f"{row['extra'] / size:.2f} ({row['profiled'] / size:.2f})"

    return _table(
        ["b", "K", "D", "parameters, MB", *names],
        [
            [*map(str, size), f"{row[names[0]]['parameters'] / 1e6:.1f}"]
            + [cell(row[name]) for name in names]
            for size, row in by_size.items()
        ],
    )


def _memory_of_heads(rows: list[dict[str, Any]]) -> str:
    unit = "in one chunk's outputs"
    header = ["b", "K", "D", "head", "all outputs, MB", "extra, MB", "of which gradients, MB"]
    header += ["by torch's profiler, MB", f"extra, {unit}", f"extra without gradients, {unit}"]
    lines = []
    for row in rows:
        megabytes = [row[k] / 1e6 for k in ("outputs", "extra", "gradients", "profiled")]
        chunks = [row["extra"] / row["chunk"], (row["extra"] - row["gradients"]) / row["chunk"]]
        figures = (f"{number:.1f}" for number in megabytes + chunks)
        lines.append([*(str(row[k]) for k in "bKD"), row["name"], *figures])
    return _table(header, lines)


def _bandwidth(results: Results) -> list[str]:
    rows = results["bandwidth"]
    size = rows[0]["large"] / 1e6
    rate = max(2 * row["large"] / row["large copy"] for row in rows)
    return [
        "## Bandwidth",
        "",
        "Bytes moved are twice the parameters' (read them, write their gradients), b = 4096.",
        f"A copy of {size:.0f} MB to another {size:.0f} MB moves {rate / 1e9:.1f} GB/s, read and",
        "written together, beyond the caches: *of large copy* is the share of that rate.",
        "*Of same copy* is the share of the rate of a copy of the parameters' own size,",
        "which caches speed up. *Kernel alone* is the same without autograd. The copies",
        "run in the same rounds.",
        "",
        _rates(rows, rate),
    ]


def _rates(rows: list[dict[str, float]], large: float) -> str:
    header = ["K", "D", "parameters, MB", "layout", "what", "ms", "GB/s"]
    header += ["of large copy", "of same copy"]
    lines = []
    for row in rows:
        for key, what in (("kernel", "kernel alone"), ("call", "differentiated call")):
            for layout, suffix in (("batch-first", ""), ("batch-last", " batch-last")):
                if key + suffix not in row:  # no native kernel
                    continue
                time = row[key + suffix]
                rate = 2 * row["bytes"] / time
                sizes = [str(row["K"]), str(row["D"]), f"{row['bytes'] / 1e6:.1f}"]
                figures = [f"{1e3 * time:.3f}", f"{rate / 1e9:.1f}"]
                shares = [f"{rate / large:.0%}", f"{row['copy'] / time:.0%}"]
                lines.append([*sizes, layout, what, *figures, *shares])
    return _table(header, lines)


def _growth(results: Results) -> list[str]:
    found = results["growth"]
    return [
        "## Growth",
        "",
        "![Time of loss and gradients against D, K and b](growth.png)",
        "",
        "Loss and gradients against the number of components:",
        "",
        _times(found["K"], "bKD", "condens"),
        "",
        "and against the batch:",
        "",
        _times(found["b"], "bKD", "condens"),
    ]


_SECTIONS: dict[str, Callable[[Results], list[str]]] = {
    "loss": _loss,
    "diagonal": _diagonal,
    "step": _step,
    "sample": _sample,
    "memory": _memory,
    "bandwidth": _bandwidth,
    "growth": _growth,
}
