import os
import warnings

import pytest
from helpers.commands import Result, finished, write_houses
from helpers.runs import wait_for

from condens.cli.app import run

FIT = ("--target", "lat", "--target", "lon", "--members", "1", "--epochs", "4")


@pytest.fixture
def call(capfd, monkeypatch):
    """Run a command in this process."""

    def call(*arguments, columns="100"):
        monkeypatch.setenv("COLUMNS", columns)
        capfd.readouterr()
        with warnings.catch_warnings(), pytest.raises(SystemExit) as ended:
            run([str(argument) for argument in arguments])
        return Result(ended.value.code, *capfd.readouterr())

    return call


@pytest.fixture(scope="session")
def fitted(tmp_path_factory):
    """Return a directory with tables and models, made by the first worker that needs them."""
    base = tmp_path_factory.getbasetemp()
    place = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "houses"
    try:
        place.mkdir()
    except FileExistsError:
        wait_for((place / "done").exists)
        return place
    write_houses(place / "houses.csv")
    write_houses(place / "new.csv", rows=40, seed=1)
    for name, more in (
        ("model", ("--calibrate", "0.2")),
        ("other", ("--seed", "1")),
        ("numbers", ("--ignore", "kind", "--test", "0")),
    ):
        arguments = ["fit", place / "houses.csv", *FIT, *more, "-o", place / f"{name}.condens"]
        assert finished(arguments, place).code == 0
    (place / "done").touch()
    return place


@pytest.fixture
def houses(fitted, tmp_path, monkeypatch):
    """Work in a directory with copies of these files."""
    for path in [*fitted.glob("*.csv"), *fitted.glob("*.condens")]:
        (tmp_path / path.name).write_bytes(path.read_bytes())
    monkeypatch.chdir(tmp_path)
    return tmp_path
