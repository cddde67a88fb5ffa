"""The examples run."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.parametrize("name", ["images", "sequences"])
def test_example_runs(name):
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), "--rows", "300", "--epochs", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "test NLL" in done.stdout
