"""The examples run."""

import runpy
import sys
from pathlib import Path

import matplotlib as mpl
import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture
def run(monkeypatch, capsys):
    """Run an example as a script, in this process, which has imported torch already."""
    mpl.use("agg")

    def run(name, *arguments):
        path = EXAMPLES / f"{name}.py"
        monkeypatch.setattr(sys, "argv", [str(path), *map(str, arguments)])
        runpy.run_path(str(path), run_name="__main__")
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize("name", ["images", "sequences", "freia_inverse_kinematics"])
@pytest.mark.filterwarnings("default")
def test_example_runs(name, run):
    assert "test NLL" in run(name, "--rows", 300, "--epochs", 1)


@pytest.mark.filterwarnings("default")
def test_the_example_on_bundled_data_draws_its_picture(run, tmp_path):
    printed = run("cells", tmp_path, "--epochs", 5)
    assert "test NLL" in printed
    assert "inside their 90 % region" in printed
    assert (tmp_path / "cells.png").stat().st_size > 10_000
