"""The examples run."""

import re
import runpy
import subprocess
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


CLUSTER = EXAMPLES / "cluster"
COMMAND = [
    "--rdzv-backend c10d",
    "--max-restarts",
    "-m condens fit",
    "--resume",
    "--seed",
]


def test_the_slurm_example_is_a_script_with_the_options_of_torchrun_and_fit():
    path = CLUSTER / "slurm.sbatch"
    subprocess.run(["bash", "-n", str(path)], check=True)
    text = path.read_text()
    assert "#SBATCH --signal=TERM@120" in text
    assert "#SBATCH --requeue" in text
    assert "export CONDENS_WAIT_SECONDS=" in text
    assert not [option for option in COMMAND if option not in text]


def test_the_kubernetes_example_is_a_job_with_the_same_command():
    yaml = pytest.importorskip("yaml")
    job = yaml.safe_load((CLUSTER / "pytorchjob.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v1", "PyTorchJob")
    elastic, worker = job["spec"]["elasticPolicy"], job["spec"]["pytorchReplicaSpecs"]["Worker"]
    assert elastic["minReplicas"] == elastic["maxReplicas"] == worker["replicas"]
    pod = worker["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] >= 60
    (container,) = pod["containers"]
    (command,) = container["args"]
    assert not [option for option in COMMAND if option not in command]
    assert {each["name"] for each in container["env"]} == {
        "OMP_NUM_THREADS",
        "CONDENS_WAIT_SECONDS",
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE",
    }


@pytest.mark.parametrize("name", ["slurm.sbatch", "pytorchjob.yaml"])
def test_the_options_of_the_cluster_examples_are_those_of_the_command(name):
    text = (CLUSTER / name).read_text()
    command = text[text.index("-m condens fit") :].split("env:")[0]
    given = set(re.findall(r"(?<=\s)--?[a-z-]+", command)) - {"-m"}
    known = {parameter for each in _fit_options() for parameter in each.opts}
    assert given
    assert given <= known


def _fit_options():
    typer = pytest.importorskip("typer")
    from condens.cli.app import app

    return typer.main.get_command(app).commands["fit"].params
