"""How much memory a fit takes, and that what it saves changes no number."""

import subprocess
import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from helpers.regressors import regressor
from numpy.testing import assert_array_equal

# A fit of a million rows with 25 columns in single precision, 0.1 GB, in a process that knows its
# own peak: above what the imports take. The hidden layers are small, and that of the frame compares
# no kinds of networks, which takes time and no memory.
FIT = """
import numpy as np, pandas, sklearn, torch
from condens import MDNRegressor
import condens.estimator.regressor

def memory(name):
    with open("/proc/self/status") as lines:
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith(name))

before, rng = memory("VmRSS"), np.random.default_rng(0)
X = rng.standard_normal((1_000_000, 25 - {targets}), dtype=np.float32)
y = X[:, :{targets}] + 0.3 * rng.standard_normal((len(X), {targets}), dtype=np.float32)
weights, options = None, {{}}
if {frame}:
    options = dict(n_bins=0, shortcut=False, directory={directory!r})
    X = pandas.DataFrame(X, columns=[f"c{{i}}" for i in range(X.shape[1])])
    y[::10, 0], weights = np.nan, rng.uniform(0.5, 2.0, len(y)).astype(np.float32)
MDNRegressor(epochs=1, width=8, depth=1, random_state=0, **options).fit(X, y, weights)
print(memory("VmHWM") - before)
"""
MAX_BYTES = 0.8e9


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(("targets", "frame"), [(2, False), (5, True)], ids=["array", "frame"])
def test_a_fit_of_a_million_rows_takes_less_than_eight_times_their_memory(targets, frame, tmp_path):
    code = FIT.format(targets=targets, frame=frame, directory=str(tmp_path))
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(run.stdout) < MAX_BYTES


def rows(n=300):
    rng = np.random.default_rng(0)
    x = (5 + 3 * rng.standard_normal((n, 3))).astype(np.float32)
    return x, (x[:, :2] + 0.3 * rng.standard_normal((n, 2))).astype(np.float32)


def same(one, other):
    assert one.keys() == other.keys()
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(
    "convert",
    [
        np.asfortranarray,
        torch.from_numpy,
        lambda x: pd.DataFrame(x).rename(columns=str),
        lambda x: pa.table({str(i): column for i, column in enumerate(x.T.copy())}),
    ],
    ids=["array", "tensor", "pandas", "pyarrow"],
)
@pytest.mark.parametrize("gaps", [False, True])
def test_single_and_double_precision_give_the_same_bytes(convert, gaps):
    x, y = rows()
    if gaps:  # an even number of values: their median needs more digits than they have
        x[::3, 1] = np.nan
    single = regressor(n_members=2).fit(convert(x), y)
    double = regressor(n_members=2).fit(convert(x.astype(float)), y.astype(float))
    assert same(single.network_.state_dict(), double.network_.state_dict())
    assert same(single.baselines_.tensors(), double.baselines_.tensors())
    assert same(single.novelty_.tensors(), double.novelty_.tensors())
    assert single.summary_ == double.summary_


def test_the_table_of_the_user_stays_as_it_is():
    x, y = rows()
    before = x.copy(), y.copy()
    regressor(n_members=2).fit(x, y).partial_fit(x, y)
    assert_array_equal(x, before[0])
    assert_array_equal(y, before[1])


def test_predictions_of_a_table_in_single_precision_are_in_double_precision():
    x, y = rows()
    model = regressor(calibration_fraction=0.3).fit(x, y)
    assert model.predict_dist(x[:2]).dtype == torch.float64
    again = regressor(calibration_fraction=0.3).fit(x.astype(float), y.astype(float))
    assert_array_equal(
        model.predict_interval(x[:5], calibrated=True),
        again.predict_interval(x[:5], calibrated=True),
    )
