"""The public names: imported when first used, known to editors, typed."""

import ast
import copy
import importlib
import inspect
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import condens

HEAVY = ("torch", "numpy", "sklearn", "scipy", "pandas", "matplotlib", "safetensors")
LAZY = sorted({*condens.__all__} - {"__version__"})
# Arguments that may be Any: numbers, sequences, arrays, tensors and frames are all read as arrays,
ARRAY_LIKE = {
    "X", "condition", "coverage", "covariances", "direction", "factors", "groups", "level",
    "limits", "loadings", "loc", "log_scales", "logits", "lower", "matrix_or_scale", "means",
    "precisions", "quantiles", "random_state", "sample_weight", "samples", "scale_tril", "target",
    "truth", "upper", "validation_data", "value", "values", "weights", "y",
}  # fmt: skip
# and torch and scikit-learn have no types for some of theirs.
UNTYPED_ELSEWHERE = {"_instance", "args", "kwargs", "params", "splitter"}


def fresh(code):
    """Return what code prints in a new process."""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_a_name_loads_what_it_needs_when_it_is_used():
    code = f"""
import sys
def loaded():
    print(*sorted(set({HEAVY}) & set(sys.modules)))
import condens; loaded()
condens.__version__, dir(condens), hasattr(condens, "nothing"), condens.errors; loaded()
condens.plots, condens.integrations; loaded()
condens.GaussianMixture, condens.nn.MLP; loaded()
condens.training.train, condens.persistence.load, condens.inference.posterior; loaded()
condens.MDNRegressor; loaded()
"""
    steps = [set(line.split()) for line in fresh(code).splitlines()]
    assert steps[:3] == [set(), set(), set()]
    assert steps[3] == {"torch", "numpy"}
    assert steps[4] == {"torch", "numpy", "safetensors"}
    assert "sklearn" in steps[5]
    assert "matplotlib" not in steps[5]


def test_editors_know_the_names():
    """What a type checker reads is what a name gives."""
    tree = ast.parse(Path(condens.__file__).read_text())
    (branch,) = [node for node in tree.body if isinstance(node, ast.If)]
    assert ast.unparse(branch.test) == "TYPE_CHECKING"
    read = {alias.name: node.module for node in branch.body for alias in node.names}
    assert sorted(read) == LAZY
    for name, module in read.items():
        if module == "condens":
            assert getattr(condens, name) is importlib.import_module(f"condens.{name}")
        else:
            assert getattr(condens, name) is getattr(importlib.import_module(module), name)


def test_the_names_are_listed():
    assert dir(condens) == sorted(condens.__all__)
    assert sorted(condens.__all__) == [*dict.fromkeys(sorted(condens.__all__))]
    assert condens.__all__ == sorted(condens.__all__)


@pytest.mark.parametrize("name", ["nothing", "__path", "__deepcopy__", "_MODULE", "torch", ""])
def test_an_unknown_name_is_no_attribute(name):
    assert not hasattr(condens, name)
    with pytest.raises(AttributeError, match=f"module 'condens' has no attribute '{name}'"):
        getattr(condens, name)
    with pytest.raises(ImportError, match="cannot import name"):
        exec("from condens import nothing")


@pytest.mark.slow
def test_any_part_may_be_imported_first():
    for row in ("kernels", "estimator.regressor"):
        fresh(f"import condens.{row}")


@pytest.mark.slow
def test_threads_may_ask_for_names_at_once():
    code = f"""
import sys, threading
import condens, condens.estimator
asked = [(condens, name) for name in {LAZY}]
asked += [(condens.estimator, name) for name in condens.estimator.__all__]
barrier, found = threading.Barrier(len(asked)), {{}}
def ask(module, name):
    barrier.wait()
    try:
        found[module, name] = getattr(module, name)
    except BaseException as error:
        found[module, name] = error
threads = [threading.Thread(target=ask, args=pair) for pair in asked]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
for (module, name), value in found.items():
    if value is not getattr(module, name):
        print(name, repr(value))
print(len(found))
"""
    assert fresh(code).split() == [str(len(LAZY) + len(condens.estimator.__all__))]


def test_what_a_lazy_name_made_is_copied_and_pickled():
    mixture = condens.GaussianMixture(torch.zeros(1), torch.zeros(1, 2), torch.zeros(1, 2))
    for twin in (copy.deepcopy(mixture), pickle.loads(pickle.dumps(mixture))):
        assert type(twin) is condens.GaussianMixture
        assert torch.equal(twin.means, mixture.means)
    loaded = "import pickle, sys; print(type(pickle.loads(bytes.fromhex(sys.argv[1]))).__name__)"
    command = [sys.executable, "-c", loaded, pickle.dumps(mixture).hex()]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert run.stdout == "GaussianMixture\n"


def functions():
    """Return the public functions and methods of the public names, with their names."""
    for name in LAZY:
        thing = getattr(condens, name)
        if inspect.isclass(thing):
            for method, found in inspect.getmembers(thing, callable):
                ours = str(getattr(found, "__module__", "")).startswith("condens")
                if ours and (method == "__init__" or not method.startswith("_")):
                    yield f"{name}.{method}", found
        elif inspect.isfunction(thing):
            yield name, thing


@pytest.mark.parametrize(("name", "function"), [*functions()])
def test_signatures_are_typed(name, function):
    """An answer has a type, and so has every argument that is not read as an array."""

    def vague(annotation):
        # numpy has no type for a number of axes, and Python none for JSON.
        known = r"tuple\[typing\.Any, \.\.\.\]|(dict|Mapping)\[str, typing\.Any\]"
        return "Any" in re.sub(known, "", str(annotation))

    signature = inspect.signature(function)
    assert not vague(signature.return_annotation), f"{name} returns {signature.return_annotation}"
    for parameter in signature.parameters.values():
        if parameter.name not in ARRAY_LIKE | UNTYPED_ELSEWHERE:
            assert not vague(parameter.annotation), f"{name}({parameter})"
