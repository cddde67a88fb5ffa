"""The layers: a file imports lower layers and what its row names, and nothing upwards."""

import ast
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "condens"

# Layer of each module, and the third-party packages its row names.
LAYERS = {
    "_version": (0, set()),
    "errors": (0, set()),
    "files": (0, set()),
    "scalars": (0, set()),
    "functional": (1, {"torch"}),
    "kernels": (1, {"torch"}),
    "tracing": (1, {"torch"}),
    "arguments": (2, {"torch", "numpy"}),
    "dimensions": (2, {"torch", "numpy"}),
    "gaussians": (2, {"torch"}),
    "batched": (2, {"torch"}),
    "sampled": (2, {"torch"}),
    "distribution": (2, {"torch"}),
    "low_rank": (2, {"torch"}),
    "conformal": (2, {"torch"}),
    "support": (2, {"torch"}),
    "transforms": (2, {"torch"}),
    "map_choice": (2, {"torch"}),
    "moments": (2, {"torch"}),
    "mapped": (2, {"torch"}),
    "transformed": (2, {"torch"}),
    "nn": (3, {"torch", "FrEIA"}),
    "data": (4, {"torch", "numpy"}),
    "training": (4, {"torch", "safetensors", "matplotlib"}),
    "persistence": (5, {"torch", "safetensors"}),
    "parameters": (5, {"torch"}),
    "tables": (5, {"torch", "sklearn"}),
    "regressor_file": (5, {"torch", "numpy"}),
    "predictions": (5, {"torch", "numpy", "sklearn"}),
    "estimator": (5, {"torch", "numpy", "sklearn"}),
    "scorers": (5, {"torch", "numpy", "sklearn"}),
    "inference": (5, {"torch"}),
    "integrations": (5, {"torch", "numpy", "sbi", "onnx", "onnxruntime", "onnxscript", "pyro"}),
    "__init__": (9, set()),
}


def modules():
    return sorted(SOURCE.rglob("*.py"))


def unit(path):
    """Return the row a file belongs to: its folder under condens, or its own name."""
    relative = path.relative_to(SOURCE)
    return relative.parts[0].removesuffix(".py")


def imported(path):
    """Return the dotted names a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide the layer"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_go_downwards(path):
    layer, allowed = LAYERS[unit(path)]
    for name in imported(path):
        package, *rest = name.split(".")
        if package == "condens":
            other = LAYERS[rest[0]][0]
            assert other <= layer, f"{path.name} (layer {layer}) imports {name} (layer {other})"
        else:
            assert package in sys.stdlib_module_names | allowed, f"{path.name} imports {package}"


def test_no_import_cycle():
    graph = {}
    for path in modules():
        name = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
        graph[name] = {
            found
            for target in imported(path)
            if target.startswith("condens.")
            for found in [
                max(
                    (
                        m
                        for m in names_in(target)
                        if (SOURCE / f"{m.replace('.', '/')}.py").exists()
                    ),
                    key=len,
                    default=None,
                )
            ]
            if found
        }
    done, path_now = set(), []

    def visit(name):
        assert name not in path_now, f"cycle: {[*path_now, name]}"
        if name in done:
            return
        path_now.append(name)
        for target in graph.get(name, ()):
            visit(target)
        path_now.pop()
        done.add(name)

    for name in graph:
        visit(name)


def names_in(target):
    parts = target.split(".")[1:]
    return [".".join(parts[:n]) for n in range(1, len(parts) + 1)]


def test_no_utils():
    assert not [p for p in modules() if p.stem in ("utils", "helpers", "misc")]


def test_import_has_no_side_effect_on_torch():
    import subprocess

    code = (
        "import torch; d = torch.distributions.Distribution; before = d._validate_args; "
        "dtype = torch.get_default_dtype(); threads = torch.get_num_threads(); "
        "state = torch.get_rng_state(); import condens; "
        "assert d._validate_args == before and torch.get_default_dtype() == dtype; "
        "assert torch.get_num_threads() == threads and torch.equal(torch.get_rng_state(), state)"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
