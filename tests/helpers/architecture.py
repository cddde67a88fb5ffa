"""The map of the library: every folder, its files, its one responsibility and its dependencies.

`tests/test_architecture.py` holds the source to this table. Run this file to write the table
into CONTRIBUTING.md.
"""

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "condens"
PAGE = ROOT / "CONTRIBUTING.md"
BEGIN = "<!-- The map begins: written by `python tests/helpers/architecture.py`. -->"
END = "<!-- The map ends. -->"


@dataclass(frozen=True)
class Row:
    """A folder, or a single file, of `src/condens`; it may import the rows above it.

    Importing the folder loads its `packages` at most; `lazy` ones wait until they are used. A
    row to come says where a later part will go, and has no folder yet.
    """

    layer: int
    place: str
    responsibility: str
    files: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    lazy: tuple[str, ...] = ()
    to_come: bool = False

    @property
    def name(self):
        return self.place.removesuffix("/").removesuffix(".py")


ROWS = (
    Row(0, "_version.py", "the version, written once"),
    Row(0, "errors.py", "exceptions that build their own message, and warnings"),
    Row(0, "files.py", "atomic writes of whole files, never through a link"),
    Row(0, "laziness.py", "imports of names when they are first used, one thread at a time"),
    Row(0, "progress.py", "one progress line on a terminal"),
    Row(0, "scalars.py", "checks of single numbers and words"),
    Row(
        1,
        "kernels/",
        "the fused loss, draws and steps of training on raw tensors, in C (`_native.c` and its "
        "headers) and in torch; knows nothing of mixtures",
        files=(
            "checks",
            "choice",
            "eager",
            "memory",
            "native",
            "networks",
            "packing",
        ),
        packages=("torch",),
    ),
    Row(
        2,
        "functional/",
        "mathematics on tensors, for any batch shape",
        files=(
            "algebra",
            "bivariate",
            "boxes",
            "estimates",
            "fused",
            "fused_linear",
            "implicit",
            "losses",
            "low_rank/algebra",
            "low_rank/mixture",
            "missing",
            "mixture",
            "modes",
            "normal",
            "precision",
            "pushforward",
            "rosenblatt",
            "sampling",
            "scores",
            "shapes",
            "tails",
            "tracing",
            "triangular",
            "univariate",
        ),
        packages=("torch",),
    ),
    Row(
        3,
        "transforms/",
        "elementwise monotone transforms of constrained targets",
        files=(
            "base",
            "choice",
            "kinds",
            "links",
            "moments",
            "scores",
        ),
        packages=("torch",),
    ),
    Row(
        3,
        "distributions/",
        "mixtures as objects: one abstract class, three final ones",
        files=(
            "arviz",
            "base",
            "checks",
            "conversions",
            "dimensions",
            "entropies",
            "gaussian",
            "low_rank",
            "transformed",
        ),
        packages=("torch", "numpy"),
        lazy=("arviz_base", "matplotlib", "xarray"),
    ),
    Row(
        4,
        "nn/",
        "networks: from a condition to a mixture; the FrEIA-compatible block",
        files=(
            "adjustment",
            "backbones",
            "base",
            "embeddings",
            "ensemble",
            "extrapolation",
            "heads/base",
            "heads/low_rank",
            "heads/triangular",
            "initialise",
            "invertible",
            "network",
            "randomness",
            "scaling",
            "stack",
        ),
        packages=("torch",),
        lazy=("FrEIA",),
    ),
    Row(
        4,
        "data/",
        "tables in; rows are checked here once and trusted after",
        files=(
            "arrays",
            "cells",
            "encoder",
            "fingerprint",
            "formats",
            "frames",
            "groups",
            "readers",
            "rows",
            "sources",
            "statistics",
            "stream",
            "survey",
            "table",
            "text",
        ),
        packages=("torch", "numpy"),
        lazy=("pyarrow",),
    ),
    Row(
        5,
        "training/",
        "`train(network, data, settings)` returns a `History`",
        files=(
            "adjustment",
            "batches",
            "defaults",
            "diagnostics",
            "distributed",
            "history",
            "interruption",
            "loaders",
            "loop",
            "members",
            "objective",
            "progress",
            "run_directory",
            "selection",
            "settings",
            "sources",
            "state",
            "streaming",
            "threads",
        ),
        packages=("torch", "numpy", "safetensors"),
        lazy=("matplotlib", "pyarrow"),
    ),
    Row(
        5,
        "persistence/",
        "model files of networks, without pickle",
        files=(
            "container",
            "header",
            "networks",
        ),
        packages=("torch", "safetensors"),
    ),
    Row(
        5,
        "plots/",
        "plots of mixtures and arrays on given axes; knows no model",
        files=(
            "calibration",
            "comparison",
            "density",
            "grids",
            "prediction",
            "rows",
            "style",
            "training",
        ),
        packages=("torch", "numpy"),
        lazy=("matplotlib",),
    ),
    Row(
        6,
        "evaluation/",
        "how good a density is, and how far it may be trusted",
        files=(
            "assessment",
            "baselines",
            "calibration",
            "comparison",
            "conformal",
            "forecasts",
            "linear",
            "models",
            "novelty",
            "page",
            "permutation",
            "report",
            "scores",
            "simulators",
            "statistics",
            "two_samples",
        ),
        packages=("torch", "numpy"),
        lazy=("arviz_base", "matplotlib", "scipy", "sklearn", "xarray"),
    ),
    Row(
        7,
        "estimator/",
        "`MDNRegressor`, by scikit-learn's contract",
        files=(
            "construction",
            "document",
            "effects",
            "inputs",
            "predictions",
            "regressor",
            "scorers",
            "shards",
            "summary",
        ),
        packages=("torch", "numpy"),
        lazy=("sklearn", "matplotlib"),
    ),
    Row(
        7,
        "inference/",
        "simulation-based inference without another library",
        files=("posterior", "priors"),
        packages=("torch",),
    ),
    Row(
        7,
        "integrations/",
        "one neighbouring library or format a file",
        files=(
            "onnx",
            "pyro",
            "sbi",
        ),
        packages=("torch", "numpy"),
        lazy=("onnx", "onnxruntime", "onnxscript", "pyro", "sbi"),
    ),
    Row(
        7,
        "tuning/",
        "searches over parameters that many processes share",
        files=("space", "storage", "study"),
        lazy=("numpy", "optuna", "sklearn", "sqlalchemy", "torch"),
    ),
    Row(8, "loading.py", "`condens.load`: any model file", packages=("torch",)),
    Row(
        9,
        "explorer/",
        "the local web page and its API; its page is in `static/`",
        files=("app", "engine", "schema", "server", "views"),
        packages=("torch", "numpy"),
        lazy=("starlette", "uvicorn", "h11"),
    ),
    Row(
        10,
        "cli/",
        "one file a command: parse, call, print",
        files=(
            "app",
            "arm",
            "compare",
            "console",
            "demo",
            "doctor",
            "evaluate",
            "explore",
            "export",
            "fit",
            "fitting",
            "info",
            "models",
            "options",
            "plot",
            "predict",
            "query",
            "sample",
            "scoring",
            "shards",
            "tables",
            "tune",
        ),
        packages=("typer",),
        lazy=("matplotlib", "numpy", "pyarrow", "rich", "torch"),
    ),
    Row(11, "__init__.py", "the public names, imported when first used"),
    Row(11, "__main__.py", "`python -m condens`"),
)


def modules():
    """Return every Python file of the library."""
    return sorted(SOURCE.rglob("*.py"))


def files_of(row):
    """Return the files that a row stands for, the `__init__.py` of its folders included."""
    if row.to_come:
        return set()
    if not row.place.endswith("/"):
        return {SOURCE / row.place}
    folder = SOURCE / row.place
    files = {folder / f"{name}.py" for name in row.files}
    return files | {file.parent / "__init__.py" for file in files} | {folder / "__init__.py"}


def row_of(path):
    """Return the row that a file belongs to, None if there is none."""
    name = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    return next((row for row in ROWS if row.name == name), None)


def table():
    """Return the map in Markdown."""
    lines = [
        "| layer | where | one responsibility | files | third party |",
        "|---|---|---|---|---|",
    ]
    for row in ROWS:
        if row.name == "_version":
            continue
        what = row.responsibility + (" (to come)" if row.to_come else "")
        third = [*row.packages, *(f"{name} (lazy)" for name in row.lazy)]
        cells = (row.layer, f"`{row.place}`", what, ", ".join(row.files), ", ".join(third))
        lines.append("| " + " | ".join(str(cell) or "–" for cell in cells) + " |")
    return "\n".join(lines)


def page():
    """Return CONTRIBUTING.md with the map as it should be."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page())
