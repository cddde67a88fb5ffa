"""The examples run."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.parametrize("name", ["images", "sequences", "freia_inverse_kinematics"])
def test_example_runs(name):
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), "--rows", "300", "--epochs", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "test NLL" in done.stdout


def test_the_example_on_bundled_data_draws_its_picture(tmp_path):
    command = [sys.executable, str(EXAMPLES / "cells.py"), str(tmp_path), "--epochs", "5"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "test NLL" in done.stdout
    assert "inside their 90 % region" in done.stdout
    assert (tmp_path / "cells.png").stat().st_size > 10_000
