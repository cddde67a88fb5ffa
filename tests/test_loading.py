"""`condens.load` opens every kind of model file."""

import subprocess
import sys

import pytest
from helpers import model_files as files
from helpers.regressors import Bent, X, Y, regressor
from numpy.testing import assert_array_equal

from condens import MDNRegressor
from condens.errors import ArgumentError, ModelFileError, ModelFileNotFoundError
from condens.loading import load
from condens.persistence import save, write


def test_networks(tmp_path):
    for network, options in (
        (files.small(), {}),
        (files.custom(), {"backbone": files.Convolution}),
    ):
        save(network, tmp_path / "model")
        loaded = load(tmp_path / "model", **options)
        assert files.predictions(loaded) == files.predictions(network)


def test_regressors(tmp_path):
    for options, given in (({}, {}), ({"backbone": Bent}, {"backbone": Bent})):
        model = regressor(**options).fit(X, Y)
        model.save(tmp_path / "model")
        loaded = load(tmp_path / "model", **given)
        assert type(loaded) is MDNRegressor
        assert_array_equal(loaded.score_samples(X, Y), model.score_samples(X, Y))


def test_what_is_no_model(tmp_path):
    with pytest.raises(ModelFileNotFoundError):
        load(tmp_path / "none")
    for document in ({}, {"kind": "toy"}, {"kind": "network"}, {"kind": "regressor"}):
        write(tmp_path / "model", document, {})
        with pytest.raises(ModelFileError) as raised:
            load(tmp_path / "model")
        assert str(raised.value).startswith(f"{tmp_path / 'model'}: its ")


def test_a_damaged_file_is_refused(tmp_path):
    save(files.small(), tmp_path / "model")
    data = (tmp_path / "model").read_bytes()
    (tmp_path / "model").write_bytes(data[:-1] + b"\7")
    with pytest.raises(ModelFileError, match="has changed since it was saved"):
        load(tmp_path / "model")


def test_a_backbone_that_is_not_needed(tmp_path):
    save(files.small(), tmp_path / "model")
    with pytest.raises(ArgumentError, match="backbone was given"):
        load(tmp_path / "model", backbone=files.Convolution)


def test_without_scikit_learn(tmp_path):
    regressor().fit(X, Y).save(tmp_path / "model")
    code = f"""
import sys
sys.modules["sklearn"] = None
import condens
from condens.errors import ModelFileError
from condens.loading import load
try:
    from condens import MDNRegressor
except ImportError as error:
    print(error)
try:
    load({str(tmp_path / "model")!r})
except ModelFileError as error:
    sys.exit(0 if "pip install 'condens[sklearn]'" in str(error) else str(error))
sys.exit("was loaded")
"""
    command = [sys.executable, "-c", code]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=120)
    assert run.stdout == (
        "MDNRegressor needs scikit-learn. Install it: pip install 'condens[sklearn]'.\n"
    )
