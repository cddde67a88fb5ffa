"""What may be passed to an `MDNRegressor` by mistake: named errors, or finite answers."""

import copy
import datetime
import warnings
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse
import torch
from helpers.regressors import regressor
from sklearn.exceptions import NotFittedError

from condens.errors import CondensError
from condens.inference import posterior
from condens.training import Settings

ROWS = 40
RNG = np.random.default_rng(0)
X = RNG.normal(size=(ROWS, 3))
Y = X[:, :2] + 0.1 * RNG.normal(size=(ROWS, 2))
DAY = datetime.date(2020, 1, 1)

# No table of 40 rows and 3 columns of numbers, each in another way.
WRONG = {
    "None": None,
    "empty list": [],
    "no rows": np.empty((0, 3)),
    "no columns": np.empty((ROWS, 0)),
    "number": 3.0,
    "vector": X[:, 0],
    "cube": X[..., None],
    "ragged": [[1.0, 2.0, 3.0], [1.0]],
    "objects": np.array([[object(), 1, 2]] * ROWS, dtype=object),
    "word": "hello",
    "bytes": b"x",
    "dictionary": {"a": [1, 2]},
    "set": {1, 2},
    "generator": (i for i in range(3)),
    "function": len,
    "class": dict,
    "ellipsis": ...,
    "text": np.array([["a", "b", "c"]] * ROWS),
    "dates": np.full((ROWS, 3), np.datetime64("2020-01-01")),
    "durations": np.full((ROWS, 3), np.timedelta64(1, "D")),
    "days": [[DAY] * 3] * ROWS,
    "sparse": scipy.sparse.csr_matrix(X),
    "sparse tensor": torch.from_numpy(X).to_sparse(),
    "meta tensor": torch.empty(ROWS, 3, device="meta"),
    "structured": np.zeros(ROWS, dtype=[("a", float), ("b", float)]),
    "void": np.zeros((ROWS, 3), dtype="V8"),
    "infinite": np.where(X > 1, np.inf, X),
    "complex": X + 1j,
    "complex tensor": torch.from_numpy(X + 1j),
    "beyond doubles": [[10**400, 1, 2]] * ROWS,
    "long doubles": np.full((ROWS, 3), np.longdouble("1e4000")),
    "infinite decimals": [[Decimal("inf")] * 3] * ROWS,
    "signalling decimals": [[Decimal("sNaN")] * 3] * ROWS,
    "all missing": np.full((ROWS, 3), np.nan),
    "all None": [[None] * 3] * ROWS,
    "same names": pd.DataFrame(X, columns=["a", "a", "b"]),
    "mixed names": pd.DataFrame(X, columns=["a", 1, "b"]),
    "periods": pd.DataFrame({"a": pd.period_range("2020", periods=ROWS)}),
    "time zones": pd.DataFrame({"a": pd.date_range("2020", periods=ROWS, tz="UTC")}),
    "lists": pd.DataFrame({"a": [[1]] * ROWS}),
    "polars lists": pl.DataFrame({"a": [[1.0]] * ROWS}),
    "polars structs": pl.DataFrame({"a": [{"q": 1}] * ROWS}),
    "polars dates": pl.DataFrame({"a": [DAY] * ROWS}),
    "polars objects": pl.DataFrame({"a": pl.Series([object()] * ROWS, dtype=pl.Object)}),
    "lazy": pl.DataFrame(X).lazy(),
}
# Unusual, but tables of numbers.
RIGHT = {
    "booleans": X > 0,
    "decimals": [[Decimal("1.5"), Decimal(2), Decimal("nan")]] * 20 + X[20:].tolist(),
    "large": [[10**30, 1, 2], *X[1:].tolist()],
    "unsigned": np.full((ROWS, 3), 2**64 - 1, dtype=np.uint64),
    "half": np.full((ROWS, 3), 60_000, dtype=np.float16),
    "smallest": np.full((ROWS, 3), 5e-324),
    "constant": np.ones((ROWS, 3)),
    "masked": np.ma.masked_array(X, X > 1),
    "matrix": np.asmatrix(X),
    "gradients": torch.from_numpy(X).requires_grad_(),
    "bfloat16": torch.from_numpy(X).bfloat16(),
    "levels": pd.DataFrame(X, columns=pd.MultiIndex.from_tuples([("a", 1), ("a", 2), ("b", 1)])),
    "missing": np.where(X > 1, np.nan, X),
}
FITTED = ("partial_fit", "score", "score_samples", "calibrate")
PREDICT = ("predict", "predict_dist", "predict_quantiles", "predict_interval", "sample")


@pytest.fixture(scope="module", params=["array", "frame"])
def model(request):
    quick = regressor(calibration_fraction=0.4, settings=Settings(epochs=1))
    if request.param == "array":
        return quick.fit(X, Y)
    return quick.fit(pd.DataFrame(X, columns=list("abc")), pd.DataFrame(Y, columns=list("uv")))


def refused(ask):
    """Assert that a call is refused by name, in words that say what to do."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(CondensError) as raised:
            ask()
    text = str(raised.value)
    assert len(text.split(". ")) > 1, text
    assert "Change it" not in text


@pytest.mark.parametrize("case", WRONG)
def test_wrong_tables_are_refused_at_every_door(case, model):
    wrong = WRONG[case]
    refused(lambda: regressor().fit(wrong, Y))
    for door in FITTED:
        refused(lambda door=door: getattr(copy.copy(model), door)(wrong, Y))
    for door in (*PREDICT, "predict_region"):
        refused(lambda door=door: getattr(model, door)(wrong))
    refused(lambda: model.predict_interval(wrong, calibrated=True))
    if case not in ("vector", "cube"):  # observations of any shape
        refused(lambda: posterior(Y, wrong, settings=Settings(epochs=1)))
    if case != "vector":  # one target
        refused(lambda: regressor().fit(X, wrong))
    if case not in ("all missing", "all None"):  # not observed
        for door in FITTED:
            refused(lambda door=door: getattr(copy.copy(model), door)(X, wrong))
    if wrong is not None:
        refused(lambda: regressor().fit(X, Y, np.ones((ROWS, 2)) if case == "vector" else wrong))


@pytest.mark.parametrize("case", RIGHT)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_unusual_tables_have_finite_answers(case):
    right = RIGHT[case]
    model = regressor(settings=Settings(epochs=1)).fit(right, Y)
    for door in (*PREDICT[:1], *PREDICT[2:]):
        assert np.isfinite(getattr(model, door)(right)).all()
    assert np.isfinite(model.score_samples(right, Y)).all()
    model = regressor(settings=Settings(epochs=1)).fit(X, right)
    assert np.isfinite(model.predict(X)).all()
    assert np.isfinite(model.score_samples(X, right)).all()


NONSENSE = {
    key: WRONG[key]
    for key in (
        "empty list",
        "no rows",
        "number",
        "vector",
        "objects",
        "word",
        "bytes",
        "dictionary",
    )
} | {
    "minus one": -1,
    "nan": np.nan,
    "object": object(),
    "frame": pd.DataFrame(X),
    "polars": pl.DataFrame(X),
    "sparse": scipy.sparse.csr_matrix(X),
    "tensor": torch.full((3,), 2.0),
    "ellipsis": ...,
}
# What is nonsense elsewhere and means something here.
MEANT = {
    ("store_summary", "minus one"),
    ("verbose", "minus one"),
    ("warm_start", "minus one"),
    ("floor", "number"),
    ("learning_rate", "number"),
    ("directory", "word"),
    ("callbacks", "empty list"),
}


@pytest.mark.parametrize("case", NONSENSE)
@pytest.mark.parametrize("name", sorted(regressor().get_params()))
def test_nonsense_in_every_parameter_is_refused(name, case):
    if (name, case) not in MEANT:
        refused(lambda: regressor().set_params(**{name: NONSENSE[case]}).fit(X, Y))


@pytest.mark.parametrize("case", NONSENSE)
def test_nonsense_in_every_question_is_refused(model, case):
    value = NONSENSE[case]
    x = X if model.target_names_ is None else pd.DataFrame(X, columns=list("abc"))
    for ask in (
        lambda: model.predict_interval(x, value),
        lambda: model.predict_interval(x, value, calibrated=True),
        lambda: model.predict_region(x, value),
        lambda: model.predict_quantiles(x, value),
        lambda: model.predict_region(x).volume(n_samples=value),
    ):
        refused(ask)
    if case != "minus one":
        for flag in ("return_std", "return_cov"):
            refused(lambda flag=flag: model.predict(x, **{flag: value}))
        refused(lambda: model.predict_interval(x, calibrated=value))
    if case != "number":
        refused(lambda: model.sample(x, value))
        refused(lambda: model.sample(x, 1, value))


def test_a_target_that_nobody_observed_is_refused():
    refused(lambda: regressor().fit(X, np.column_stack([Y[:, 0], np.full(ROWS, np.nan)])))


@pytest.mark.parametrize("door", [*FITTED[1:], *PREDICT, "predict_region"])
def test_nothing_is_asked_of_a_model_that_was_not_fitted(door):
    arguments = (X, Y) if door in FITTED else (X,)
    with pytest.raises(NotFittedError, match=r"not fitted yet\. Call 'fit'"):
        getattr(regressor(), door)(*arguments)
