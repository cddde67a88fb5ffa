"""The source is what the map says: places, files, directions of import, dependencies."""

import ast
import re
import subprocess
import sys
from dataclasses import dataclass
from functools import cache

import pytest
from helpers import architecture
from helpers.architecture import PAGE, ROWS, SOURCE, files_of, modules, row_of

ROOT = architecture.ROOT
# What imports by a string: modules of the standard library, and functions.
STRING_MODULES = {"importlib", "importlib.util", "pkgutil", "runpy"}
STRING_FUNCTIONS = {"__import__", "eval", "exec"}
# The public names are imported when first used, and the extension in C may be missing.
MAY_IMPORT_BY_STRING = {SOURCE / "__init__.py", SOURCE / "kernels" / "native.py"}
# A method may draw what its class holds.
DRAWS = re.compile(r"plot\w*|to_html")
OPTIONAL = {name for row in ROWS for name in row.packages + row.lazy} - {"torch", "numpy"}


@dataclass(frozen=True)
class Import:
    """An import of a dotted name, where it stands."""

    name: str
    line: int
    function: str | None
    typing_only: bool


@cache
def tree(path):
    return ast.parse(path.read_text())


@cache
def imported(path):
    """Return every import of a file, those in functions and for type checkers too."""

    def visit(node, function, typing_only):
        for child in ast.iter_child_nodes(node):
            where, typed = function, typing_only
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                where = child.name
            elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
                for statement in child.body:
                    yield from visit(ast.Module([statement], []), function, True)
                child = ast.Module(child.orelse, [])
            elif isinstance(child, ast.Import):
                for alias in child.names:
                    yield Import(alias.name, child.lineno, where, typed)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{path}: a relative import hides where it goes"
                for alias in child.names:
                    yield Import(f"{child.module}.{alias.name}", child.lineno, where, typed)
            yield from visit(child, where, typed)

    return list(visit(tree(path), None, False))


@cache
def file_of(name):
    """Return the file that an import of a dotted name runs: the longest part that is a module."""
    parts = name.split(".")[1:]
    for length in range(len(parts), -1, -1):
        place = SOURCE.joinpath(*parts[:length])
        for file in (place.with_suffix(".py"), place / "__init__.py"):
            if file.exists() and file != SOURCE.with_suffix(".py"):
                return file
    raise AssertionError(name)


def may_draw(found):
    """Whether this is the exception to the order: a method `plot…` or `to_html` uses plots."""
    return (
        found.function is not None
        and DRAWS.fullmatch(found.function) is not None
        and found.name.split(".")[1] == "plots"
    )


def ours(path):
    return [found for found in imported(path) if found.name.split(".")[0] == "condens"]


def short(path):
    return str(path.relative_to(SOURCE))


every_file = pytest.mark.parametrize("path", modules(), ids=short)


def test_the_map_has_every_file_and_no_other():
    there, mapped = set(modules()), set().union(*map(files_of, ROWS))
    missing = sorted(short(path) for path in mapped - there)
    unmapped = sorted(short(path) for path in there - mapped)
    assert not missing, f"in the map and not in src: {missing}"
    assert not unmapped, f"in src and not in the map (tests/helpers/architecture.py): {unmapped}"
    built = sorted(row.place for row in ROWS if row.to_come and (SOURCE / row.place).exists())
    assert not built, f"no longer to come: {built}"


def test_layers_rise_from_row_to_row():
    layers = [row.layer for row in ROWS]
    assert layers == sorted(layers)
    assert len({row.name for row in ROWS}) == len(ROWS)


@every_file
def test_imports_go_downwards(path):
    row = row_of(path)
    for found in ours(path):
        other = row_of(file_of(found.name))
        allowed = ROWS.index(other) <= ROWS.index(row) or may_draw(found)
        assert allowed, (
            f"{short(path)}:{found.line}: {row.place} (layer {row.layer}) imports {found.name}, "
            f"which is above it (layer {other.layer})"
        )


@every_file
def test_no_module_asks_the_package_for_a_name(path):
    """It would wait for the lock of lazy names, whose holder may wait for this module."""
    if path != SOURCE / "__init__.py":
        nodes = list(ast.walk(tree(path)))
        asked = [node.lineno for node in nodes if getattr(node, "module", None) == "condens"]
        assert not asked, f"{short(path)}:{asked[0]}: from condens import …"


@every_file
def test_third_parties_are_those_of_the_row(path):
    row = row_of(path)
    for found in imported(path):
        package = found.name.split(".")[0]
        if package not in {"condens", "_typeshed", *sys.stdlib_module_names}:
            assert package in row.packages + row.lazy, f"{short(path)}:{found.line}: {found.name}"


def test_a_row_loads_no_package_of_a_higher_one_and_leaves_torch_as_it_is():
    # In one process from the bottom up, so that every row adds to what was allowed so far.
    rows = [(row.name, row.packages) for row in ROWS if not row.to_come and row.name != "__init__"]
    code = f"""
import sys
import torch
distribution = torch.distributions.Distribution
def state():
    return distribution._validate_args, torch.get_default_dtype(), torch.get_num_threads()
before, drawn, allowed = state(), torch.get_rng_state(), set()
for name, packages in {rows}:
    __import__("condens." + name)
    allowed.update(packages)
    found = {OPTIONAL} & set(sys.modules) - allowed
    assert not found, (name, found)
from condens import *
assert state() == before and torch.equal(torch.get_rng_state(), drawn)
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def cycle(graph):
    """Return a cycle of a graph as a list of its nodes, None if there is none.

    >>> cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}})
    ['b', 'c', 'b']
    """
    done = set()

    def visit(node, way):
        if node in way:
            return [*way[way.index(node) :], node]
        if node in done:
            return None
        done.add(node)
        rounds = (visit(other, [*way, node]) for other in sorted(graph.get(node, ())))
        return next(filter(None, rounds), None)

    return next(filter(None, (visit(node, []) for node in sorted(graph))), None)


def test_no_cycle_between_files():
    graph = {
        short(path): {short(file_of(found.name)) for found in ours(path) if not may_draw(found)}
        for path in modules()
    }
    assert cycle(graph) is None


def test_no_cycle_between_folders():
    graph = {}
    for path in modules():
        for found in ours(path):
            one, other = row_of(path).place, row_of(file_of(found.name)).place
            if one != other and not may_draw(found):
                graph.setdefault(one, set()).add(other)
    assert cycle(graph) is None


def is_module(text):
    """Whether a constant is the dotted path of a module of the library."""
    dotted = re.fullmatch(r"condens(\.\w+)+", str(text))
    return dotted is not None and file_of(text) != SOURCE / "__init__.py"


def hidden_imports(path):
    """Return the lines of a file that import by a string, or hold the path of a module."""
    for found in imported(path):
        if STRING_MODULES & {found.name, found.name.rpartition(".")[0]}:
            yield found.line
    for node in ast.walk(tree(path)):
        by_name = isinstance(node, ast.Name) and node.id in STRING_FUNCTIONS
        if by_name or (isinstance(node, ast.Constant) and is_module(node.value)):
            yield node.lineno


@every_file
def test_no_import_is_hidden_in_a_string(path):
    if path not in MAY_IMPORT_BY_STRING:
        assert not [*hidden_imports(path)]


@pytest.mark.parametrize(
    "code",
    [
        'import importlib; importlib.import_module("json")',
        'from importlib import import_module as get; get("js" + "on")',
        "from importlib.util import find_spec",
        '__import__("json")',
        'exec("import json")',
        'KINDS = {"network": "condens.nn.network"}',
        'load("condens.nn")',
    ],
)
def test_a_hidden_import_is_found(code, tmp_path):
    (tmp_path / "file.py").write_text(code)
    assert [*hidden_imports(tmp_path / "file.py")] == [1]


def test_words_about_a_module_are_no_import(tmp_path):
    text = 'raise ImportError("condens.nn needs FrEIA.")\nname = "condens.Mixture"\n'
    (tmp_path / "file.py").write_text("from importlib.metadata import version\n" + text)
    assert not [*hidden_imports(tmp_path / "file.py")]


def test_no_drawer_for_everything():
    assert not [p for p in modules() if p.stem in ("utils", "util", "helpers", "misc", "common")]


def test_the_tests_mirror_the_source():
    folders = {path.name for path in (ROOT / "tests").iterdir() if any(path.glob("test_*.py"))}
    assert folders <= {row.name for row in ROWS} | {"benchmarks", "hostile", "helpers"}
    assert not [*(ROOT / "tests" / "helpers").rglob("test_*.py")]


@pytest.mark.parametrize("folder", ["benchmarks", "examples"])
def test_examples_use_public_names(folder):
    """They import from folders, not from files; a benchmark may time a kernel alone."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        for found in ours(path):
            file, constant = file_of(found.name), found.name.rpartition(".")[2].isupper()
            public = file.name == "__init__.py" or file.parent.name in ("condens", "integrations")
            measured = folder == "benchmarks" and (constant or file.parent.name == "kernels")
            assert public or measured, f"{path.relative_to(ROOT)}:{found.line}: {found.name}"


def test_contributing_has_the_map():
    assert PAGE.read_text() == architecture.page(), "run `python tests/helpers/architecture.py`"
