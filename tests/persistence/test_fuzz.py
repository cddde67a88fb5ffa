"""Damaged model files by the thousand: the model that is there, or `ModelFileError`; never else."""

import json
import os
import random
import subprocess
import sys
import time
import warnings
from collections import Counter

import numpy as np
import pytest
from helpers import model_files as files
from helpers import mutants

from condens.errors import ModelFileError
from condens.persistence import load, save

ORIGINALS = {
    "network": files.small,
    "double": lambda: files.small(normalise=True, dropout=0.1, depth=3).double(),
    "low rank": lambda: files.small(covariance="low_rank", rank=2, names=None),
    "ensemble": lambda: files.ensemble(covariance="tied"),
    "custom": files.custom,
}
SECONDS = 5.0


def assert_is_what_the_file_says(model, data, path):
    """Hold the law that a model which is loaded would be saved as it lies in the file."""
    save(model, path.with_name("again"))
    (ours, one), (theirs, two) = map(files.arrays, (path.with_name("again").read_bytes(), data))
    assert files.canonical(ours["document"]["network"]) == files.canonical(
        theirs["document"]["network"]
    )
    assert one.keys() == two.keys()
    for name, array in one.items():
        assert array.dtype == two[name].dtype
        assert array.shape == two[name].shape
        assert array.tobytes() == two[name].tobytes()
        assert np.isfinite(array).all()


def outcome(path, data, **options):
    path.write_bytes(data)
    start = time.monotonic()
    model, text = None, f"{path}: "
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        try:
            model = load(path, **options)
        except ModelFileError as error:
            text = str(error)
    assert text.startswith(f"{path}: ")
    assert len(text) < 1000
    assert not seen, [str(warning.message) for warning in seen]
    assert time.monotonic() - start < SECONDS
    return model


def search(tmp_path, kind, mutate, count, seed):
    """Return how many mutants were loaded and how many refused."""
    options = {"backbone": files.Convolution} if kind == "custom" else {}
    path = tmp_path / "model"
    save(ORIGINALS[kind](), path)
    original = path.read_bytes()
    generator, outcomes = random.Random(seed), Counter()
    for _ in range(count):
        data = mutate(original, generator)
        model = outcome(path, data, **options)
        outcomes["refused" if model is None else "loaded"] += 1
        if model is not None:
            same = original if mutate is mutants.of_bytes else data
            assert_is_what_the_file_says(model, same, path)
    return outcomes


@pytest.mark.parametrize("kind", ORIGINALS)
def test_bytes(tmp_path, kind):
    outcomes = search(tmp_path, kind, mutants.of_bytes, 400, seed=1)
    assert outcomes["refused"] > 300


@pytest.mark.parametrize("kind", ORIGINALS)
def test_documents_with_a_right_hash(tmp_path, kind):
    outcomes = search(tmp_path, kind, mutants.of_document, 100, seed=2)
    assert outcomes["refused"] > 50
    assert outcomes["loaded"] > 3  # those that change nothing a network is made of


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3, 7))
@pytest.mark.parametrize("mutate", [mutants.of_bytes, mutants.of_document])
@pytest.mark.parametrize("kind", ORIGINALS)
def test_many(tmp_path, kind, mutate, seed):
    search(tmp_path, kind, mutate, 1000, seed)


AUDITED = """
import random, sys
from pathlib import Path
from helpers import model_files as files, mutants
from condens.errors import ModelFileError
from condens.persistence import load, save

path, seen, armed = Path(sys.argv[1]), [], False
FORBIDDEN = ("exec", "compile", "import", "os.", "subprocess.", "pickle.", "marshal.", "ctypes.",
             "socket.", "code.", "function.", "builtins.", "cpython.", "shutil.", "urllib.")

def hook(event, arguments):
    # A number is a file that is open already.
    other = event == "open" and not isinstance(arguments[0], int) and str(arguments[0]) != str(path)
    if armed and event != "builtins.id" and (event.startswith(FORBIDDEN) or other):
        seen.append(f"{event} {arguments!r}"[:200])

save(files.small(), path)
original = path.read_bytes()
sys.addaudithook(hook)

def attempt(data):
    global armed
    path.write_bytes(data)
    armed = watched
    try:
        load(path)
        return 1
    except ModelFileError:
        return 0
    finally:
        armed = False

loaded = 0
# The first round lets Python and torch import what they import late.
for watched in (False, True):
    for mutate in (mutants.of_bytes, mutants.of_document):
        generator = random.Random(5 + watched)
        loaded += sum(attempt(mutate(original, generator)) for _ in range(150))
        loaded += attempt(original)
events, armed = len(seen), True
compile("1", "the hook works", "eval")
armed = False
assert len(seen) > events
print(loaded)
sys.exit("\\n".join(seen[:events]) or 0)
"""


def test_loading_runs_and_imports_nothing(tmp_path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "error", "-c", AUDITED, str(tmp_path / "model")]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout) > 10
