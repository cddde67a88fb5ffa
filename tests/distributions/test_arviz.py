"""Draws as ArviZ's trees, with the real arviz_base."""

import sys

import numpy as np
import pytest
import torch
from torch import Generator

from condens import GaussianMixture
from condens.distributions.arviz import to_tree
from condens.errors import ArgumentError
from condens.evaluation.simulators import sbc

NAMES = ["lat", "km/h", "draw", "<img onerror=1>", "posterior"]


def mixture(names=NAMES, batch=()):
    dimensions = len(names) if names else 2
    generator = Generator().manual_seed(0)
    return GaussianMixture(
        torch.zeros(2),
        torch.randn(*batch, 2, dimensions, generator=generator),
        torch.zeros(2, dimensions * (dimensions + 1) // 2),
        names=names,
    )


def test_variables_have_the_names_and_the_draws():
    tree = mixture().to_arviz(50, n_chains=3, generator=Generator().manual_seed(1))
    draws = mixture().sample((3, 50), generator=Generator().manual_seed(1))
    group = tree["posterior"]
    assert [array.attrs["long_name"] for array in group.data_vars.values()] == NAMES
    for place, array in enumerate(group.data_vars.values()):
        assert array.dims == ("chain", "draw")
        np.testing.assert_array_equal(array.to_numpy(), draws[..., place].numpy())
    assert {"lat", "km_h"} <= set(group.data_vars)
    assert tree.attrs["inference_library"] == "condens"


@pytest.mark.parametrize(
    ("batch", "axes"), [((4,), ("row",)), ((2, 3), ("row_0", "row_1"))], ids=str
)
def test_a_batch_has_its_own_axes(batch, axes):
    group = mixture(None, batch).to_arviz(10, group="prior")["prior"]
    assert set(group.data_vars) == {"x0", "x1"}
    assert group["x1"].dims == ("chain", "draw", *axes)
    assert group["x1"].shape == (4, 10, *batch)


def test_the_summary_of_arviz_reads_them():
    from arviz_base import extract

    stacked = extract(mixture(["a", "b"]).to_arviz(25), group="posterior")
    assert stacked["a"].sizes == {"sample": 100}


def test_ranks_become_prior_sbc():
    density = mixture(["a", "b"], (30,))
    found = sbc(density, density.sample(), functions={"a/b": lambda t, _: t[..., 0] / t[..., 1]})
    tree = found.to_arviz()
    for place, name in enumerate(["a", "b", "a_b"]):
        values = tree["prior_sbc"][name]
        assert values.dims == ("chain", "draw")
        np.testing.assert_array_equal(values.to_numpy(), found.uniform[None, :, place])
        np.testing.assert_array_equal(tree["ranks"][name].to_numpy()[0], found.ranks[:, place])
    assert tree.attrs["n_samples"] == 199


@pytest.mark.parametrize("group", ["", "a/b", "..", None, 3])
def test_a_group_is_a_word(group):
    with pytest.raises(ArgumentError, match="group"):
        mixture().to_arviz(group=group)


def test_counts_are_whole_and_positive():
    with pytest.raises(ArgumentError, match="n_chains is 0"):
        mixture().to_arviz(n_chains=0)
    with pytest.raises(ArgumentError, match=r"n_samples is 1\.5"):
        mixture().to_arviz(1.5)


def test_the_error_without_arviz_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "arviz_base", None)
    with pytest.raises(ImportError, match=r"condens\[arviz\]"):
        to_tree({"posterior": np.zeros((1, 2, 1))}, ["a"])
