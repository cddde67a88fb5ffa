"""Models of any kind, asked for their forecasts of rows."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.distributions import Distribution

from condens.data import Rows, Table, TableEncoder, TableLike, TargetColumns
from condens.data.arrays import as_doubles
from condens.data.frames import is_frame, names_of
from condens.data.table import in_order
from condens.distributions import Mixture
from condens.errors import ArgumentError, CondensError, KindError, NotFiniteError, ShapeError
from condens.evaluation.baselines import Baselines
from condens.evaluation.forecasts import (
    MAX_DRAW,
    DrawsForecast,
    Forecast,
    MixtureForecast,
    PosteriorForecast,
    of_distribution,
    of_ngboost,
)
from condens.nn import DensityNetwork
from condens.transforms import Transform

NAMES = ("X", "y", "sample_weight")
# What tests and coverages of all targets together are called.
JOINT = "joint density"
TRAIN_NAMES = ("train[0]", "train[1]", "train[2]")


@runtime_checkable
class Predictor(Protocol):
    """A fitted estimator around a network, such as `MDNRegressor`."""

    network_: DensityNetwork

    def read_rows(
        self,
        X: TableLike,  # noqa: N803
        y: TableLike,
        sample_weight: ArrayLike | None = None,
    ) -> Rows:
        """Return X as the network reads it, and y in the order of the fit."""
        ...

    def predict(self, X: TableLike) -> NDArray[np.float64]:  # noqa: N803
        """Return the means."""
        ...


# Whatever predicts distributions, or is a batch of them.
Model = (
    Predictor
    | DensityNetwork
    | Mixture
    | Distribution
    | Tensor
    | NDArray[np.float64]
    | object  # sbi's posteriors and NGBoost's models, which are not imported
)


@dataclass
class Source:
    """A model and the rows it is judged by.

    Args:
        kind: what the model is, in a word.
        forecast: the forecasts of some rows, by their numbers.
        target: [n, D], NaN where it was not observed.
        weights: [n], or None.
        names: of the targets.
        columns: of X, to bin by.
        labels: of the rows, None where they are their numbers.
        mean: [n, D], where the model predicts another than that of its densities.
        n_components: of the mixtures, 1 elsewhere.
        whole: whether all rows have to be asked at once.
        baselines: mixtures of some rows by name.
        left_out: name → reason.
    """

    kind: str
    forecast: Callable[[Tensor], Forecast]
    target: Tensor
    weights: Tensor | None
    names: tuple[str, ...]
    columns: dict[str, NDArray[Any]]
    labels: list[str] | None = None
    mean: Tensor | None = None
    n_components: int = 1
    whole: bool = False
    baselines: Callable[[Tensor], dict[str, Mixture]] | None = None
    left_out: dict[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.target)

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of rows and of targets."""
        return len(self.target), self.target.shape[1]


def read_source(
    model: Model,
    X: TableLike | None,  # noqa: N803
    y: TableLike,
    sample_weight: ArrayLike | None = None,
    *,
    train: tuple[Any, ...] | None = None,
) -> Source:
    """Return a model with its rows, checked; see `evaluate` for what may come."""
    if train is not None and (not isinstance(train, tuple | list) or len(train) not in (2, 3)):
        raise ArgumentError(
            "train",
            got=f"is a {type(train).__name__}",
            expected="(X, y) or (X, y, sample_weight) was expected",
            fix="Pass the rows that the model was fitted to.",
        )
    model, X = unwrapped(model, X)  # noqa: N806
    given = TargetColumns.of(y, "y", observed=False)
    labels = row_labels(X, y)
    if isinstance(model, Predictor):
        return _of_predictor(model, X, y, sample_weight, given, labels, train)
    n_rows, n_targets = given.values.shape
    kind, forecast, names, whole = forecasts_of(model, X, n_rows)
    source = Source(kind, forecast, given.values, None, (), {}, labels, whole=whole)
    first = forecast(torch.arange(n_rows if whole else 1))
    source.n_components = _n_components(first)
    if first.dimensions != n_targets:
        raise ShapeError(
            "y",
            got=f"has {n_targets} column(s)",
            expected=f"the densities are over {first.dimensions}",
            fix="Pass one column for each target.",
        )
    expected = f"the densities are over {', '.join(names or ()) or n_targets}"

    def order(y: Any, name: str = "train[1]") -> Tensor:
        columns, fix = TargetColumns.of(y, name, observed=False), "Pass those columns."
        if columns.values.shape[1] != n_targets:
            got = f"has {columns.values.shape[1]} column(s)"
            raise ShapeError(name, got=got, expected=expected, fix=fix)
        return in_order(columns.values, columns.names, names, name, expected=expected, fix=fix)

    rows = Rows.of(torch.zeros(n_rows, 1), order(y, "y"), sample_weight, names=NAMES)
    source.target, source.weights = rows.target.double(), _moderate(rows.weights)
    source.names = _target_names(names or given.names, n_targets)
    source.columns = columns_of(X, n_rows, source.left_out)
    if isinstance(model, DensityNetwork):
        ready = _network_encoding(model, _condition(X), train, order)
    else:
        ready = _table_encoding(X, first, train, order)
    _of_baselines(source, None, train, ready)
    return source


def _n_components(forecast: Forecast) -> int:
    return forecast.mixture.n_components if isinstance(forecast, MixtureForecast) else 1


def unwrapped(model: Any, X: Any) -> tuple[Any, Any]:  # noqa: N803
    """Return the estimator at the end of a search or a pipeline, and X as it gets it."""
    while True:
        if "best_estimator_" in getattr(model, "__dict__", {}):
            model = model.best_estimator_
        elif hasattr(type(model), "named_steps"):
            if len(model.steps) > 1:
                X = model[:-1].transform(X)  # noqa: N806
            model = model.steps[-1][1]
        else:
            return model, X


def _of_predictor(
    model: Predictor,
    X: Any,  # noqa: N803
    y: Any,
    sample_weight: Any,
    given: TargetColumns,
    labels: list[str] | None,
    train: tuple[Any, ...] | None,
) -> Source:
    rows = model.read_rows(X, y, sample_weight)
    target = rows.target.double()
    mean = torch.from_numpy(np.asarray(model.predict(X), dtype=np.float64)).reshape(target.shape)
    names = getattr(model, "target_names_", None) or given.names
    source = Source(
        type(model).__name__,
        _network_forecast(model.network_, rows.condition),
        target,
        _moderate(rows.weights),
        _target_names(names, target.shape[1]),
        {},
        labels,
        mean,
    )
    source.n_components = _n_components(source.forecast(torch.arange(1)))
    source.columns = columns_of(X, len(target), source.left_out)
    encoder = getattr(model, "encoder_", None)
    ready = _Encoding(
        rows.condition,
        () if encoder is None else encoder.categories,
        model.network_.transforms,
        model.read_rows,
    )
    _of_baselines(source, getattr(model, "baselines_", None), train, ready)
    return source


def _network_forecast(network: DensityNetwork, condition: Tensor) -> Callable[[Tensor], Forecast]:
    place = next(network.parameters()).device

    def ask(rows: Tensor) -> Forecast:
        with torch.no_grad(), _evaluating(network):
            read = condition[rows].to(place)
            found = of_distribution(network(read, tail=False))
            if network.tail is not None and isinstance(found, MixtureForecast):
                whole = of_distribution(network(read))
                assert isinstance(whole, MixtureForecast)  # as that without the tail
                found.tailed = whole.mixture
            return found

    return ask


@contextmanager
def _evaluating(network: DensityNetwork) -> Iterator[None]:
    """Switch dropout off, for as long as it takes."""
    training = [module for module in network.modules() if module.training]
    network.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


class Words(NamedTuple):
    """What a user calls the arguments, in messages."""

    model: str = "model"
    condition: str = "X"
    target: str = "y"


def forecasts_of(
    model: Any,
    X: Any,  # noqa: N803
    n_rows: int,
    words: Words = Words(),  # noqa: B008  # it is immutable
) -> tuple[str, Callable[[Tensor], Forecast], tuple[str, ...] | None, bool]:
    """Return the kind of a model, its forecasts, names of targets, and whether it is whole."""
    kind, names = type(model).__name__, None
    if isinstance(model, DensityNetwork):
        condition = _condition(X, words.condition)
        _check_length(words.condition, len(condition), n_rows, words)
        return kind, _network_forecast(model, condition), model.names, False
    # Asked of the type: the distributions of NGBoost answer any attribute, with None.
    for method in ("given", "pred_dist", "predict_dist"):
        if hasattr(type(model), method):
            with _reading(kind, words.condition):
                model = getattr(model, method)(needed(X, words.condition))
            break
    if hasattr(type(model), "sample_batched"):
        observations = _condition(X, words.condition).float()
        _check_length(words.condition, len(observations), n_rows, words)
        # Rejection sampling would never end.
        if not bool(observations.isfinite().all()):
            raise NotFiniteError(
                words.condition,
                got="is NaN or infinite in single precision",
                expected=f"observations were expected that {kind} can draw from",
                fix="Leave out such rows, or pass draws [S, n, D].",
            )
        with _reading(kind, words.condition):
            return kind, PosteriorForecast(model, observations).take, None, False
    if isinstance(model, Mixture):
        names = model.names
        mixture = model if model.batch_shape else model.expand((n_rows,))
        _check_batch(mixture, n_rows, words)
        ready = of_distribution(mixture)
        return kind, ready.take, names, False
    if isinstance(model, Distribution):
        if not model.batch_shape:
            model = model.expand((n_rows,))
        _check_batch(model, n_rows, words)
        forecast = of_distribution(model)
        # Where rows cannot be taken apart, all of them are asked at once.
        whole = n_rows > 1 and not forecast.take(torch.tensor([0])).has_density
        return kind, forecast.take, None, whole
    if type(model).__module__.split(".")[0] == "ngboost":
        predicted = of_ngboost(model)
        _check_length("model(X)", len(predicted), n_rows, words)
        return kind, predicted.take, None, False
    if isinstance(model, Tensor | np.ndarray | list | tuple):
        draws = torch.from_numpy(as_doubles(model, words.model))
        draws = _draws(draws, n_rows, words).clamp(-MAX_DRAW, MAX_DRAW)
        return "draws", DrawsForecast(draws).take, None, False
    raise KindError(
        words.model,
        got=f"is a {kind}",
        expected="a fitted MDNRegressor, a DensityNetwork, mixtures, draws [S, n, D], a torch "
        "distribution, or a model of sbi or NGBoost was expected",
        fix="Pass draws [S, n, D] of what it predicts.",
    )


@contextmanager
def _reading(kind: str, name: str) -> Iterator[None]:
    """Name X where a model of another library cannot read it."""
    try:
        yield
    except CondensError:
        raise
    except Exception as error:  # of any class that others wrote
        raise ArgumentError(
            name,
            got=f"cannot be read by {kind} ({type(error).__name__}: {error})",
            expected="a fitted model and the columns that it was fitted on were expected",
            fix="Fit it, or pass these columns.",
        ) from error


def _draws(draws: Tensor, n_rows: int, words: Words) -> Tensor:
    """Return draws [S, n, D], at least two for each row."""
    if draws.dim() == 2:
        draws = draws.unsqueeze(-1)
    if draws.dim() != 3 or draws.shape[1] != n_rows or len(draws) < 2:
        raise ShapeError(
            words.model,
            got=f"has shape {list(draws.shape)}",
            expected=f"draws [S, n, D] of n = {n_rows} rows, at least two each, were expected",
            fix="Put the draws first: transpose them if they come as [n, S, D].",
        )
    if not bool(draws.isfinite().all()):
        raise NotFiniteError(
            words.model,
            got="has draws that are NaN or infinite",
            expected="numbers were expected",
            fix="Leave out such rows, or such draws of all rows.",
        )
    return draws


def needed(X: Any, name: str) -> Any:  # noqa: N803
    """Return X, or refuse None."""
    if X is None:
        raise ArgumentError(
            name,
            got="is None",
            expected="this model predicts from it",
            fix="Pass what the model was fitted on.",
        )
    return X


def _check_length(name: str, count: int, n_rows: int, words: Words = Words()) -> None:  # noqa: B008
    if count != n_rows:
        raise ShapeError(
            name,
            got=f"has {count} rows",
            expected=f"{words.target} has {n_rows}",
            fix="Pass one for each.",
        )


def _check_batch(distribution: Distribution, n_rows: int, words: Words) -> None:
    if tuple(distribution.batch_shape) != (n_rows,) or len(distribution.event_shape) > 1:
        raise ShapeError(
            words.model,
            got=f"has batch shape {list(distribution.batch_shape)} and event shape "
            f"{list(distribution.event_shape)}",
            expected=f"one distribution over the targets for each of {n_rows} rows of "
            f"{words.target} was expected",
            fix="Pass one for each row."
            if len(distribution.batch_shape) == 1
            else "Wrap the axis of the targets in torch.distributions.Independent(…, 1).",
        )


def _target_names(names: tuple[str, ...] | None, count: int) -> tuple[str, ...]:
    default = ("y",) if count == 1 else tuple(f"y[{place}]" for place in range(count))
    # That of all targets together is taken.
    return tuple(f"target {name!r}" if name == JOINT else name for name in names or default)


def row_labels(*tables: Any) -> list[str] | None:
    """Return the index of the first pandas table that has more than the rows' numbers."""
    for table in tables:
        if hasattr(type(table), "iloc"):
            labels = [str(label) for label in table.index]
            if labels != [str(row) for row in range(len(labels))]:
                return labels
    return None


def columns_of(X: Any, n_rows: int, left_out: dict[str, str]) -> dict[str, NDArray[Any]]:  # noqa: N803
    """Return the columns of X to bin by; numbers, or categories as they are."""
    if X is None:
        left_out["conditional calibration"] = "there is no X to bin by"
        return {}
    if not is_frame(X):
        array = as_doubles(X, "X")
        _check_length("X", len(array) if array.ndim else 0, n_rows)
        if array.ndim == 1:
            array = array[:, None]
        if array.ndim != 2:
            left_out["conditional calibration"] = "X has no columns to bin by"
            return {}
        return {f"X[{place}]": column for place, column in enumerate(array.T)}
    table = Table.read(X, "X")
    _check_length("X", len(table.numbers), n_rows)
    names = [name if isinstance(name, str) else f"X[{name}]" for name in names_of(X)]
    columns: dict[int, NDArray[Any]] = dict(zip(table.places, table.numbers.T, strict=True))
    for place, codes in table.codes.items():
        values = np.array([*codes.values, None], dtype=object)
        columns[place] = values[codes.codes]
    return {names[place]: columns[place] for place in sorted(columns)}


class _Encoding(NamedTuple):
    """X as baselines read it, and how they read training rows."""

    condition: Tensor | None
    categories: Sequence[int]
    transforms: Sequence[Transform] | None
    read: Callable[..., Rows]


def _of_baselines(
    source: Source, baselines: Baselines | None, train: tuple[Any, ...] | None, ready: _Encoding
) -> None:
    """Add the baselines that a model keeps from its fit, or fit them to `train`."""
    if train is not None:
        rows = ready.read(*train)
        baselines = Baselines.fit(
            rows.condition, rows.target, rows.weights, ready.transforms, ready.categories
        )
    if baselines is None:
        source.left_out["baselines"] = (
            "the model has none from a fit; pass train=(X, y), the rows that it was fitted to"
        )
        return
    fitted, condition = baselines, ready.condition
    if condition is None:
        source.left_out["linear baseline"] = "there is no X to predict from"

    def ask(rows: Tensor) -> dict[str, Mixture]:
        linear = {} if condition is None else {"linear": fitted.linear(condition[rows])}
        return {**linear, "marginal": fitted.marginal(len(rows))}

    source.baselines = ask


def _network_encoding(
    network: DensityNetwork,
    condition: Tensor,
    train: tuple[Any, ...] | None,
    order: Callable[[Any], Tensor],
) -> _Encoding:
    """Return the condition of a bare network, whose last columns may be codes."""

    def read(X: Any, y: Any, sample_weight: Any = None) -> Rows:  # noqa: N803
        return Rows.of(_condition(X, "train[0]"), order(y), sample_weight, names=TRAIN_NAMES)

    codes, sizes = network.condition_codes, []
    if codes and train is not None:
        both = torch.cat([condition, _condition(train[0], "train[0]").to(condition)])
        sizes = (both[:, -codes:].amax(0).long() + 1).tolist()
    return _Encoding(condition, sizes, network.transforms, read)


def _table_encoding(
    X: Any,  # noqa: N803
    first: Forecast,
    train: tuple[Any, ...] | None,
    order: Callable[[Any], Tensor],
) -> _Encoding:
    """Return X as a linear model reads a table; without `train` there is nothing to read by."""
    transforms = first.mixture.transforms if isinstance(first, MixtureForecast) else None
    encoder = None
    if train is not None and X is not None:
        encoder = TableEncoder.fit(_table(train[0], "train[0]"), "train[0]")

    def read(X: Any, y: Any, sample_weight: Any = None) -> Rows:  # noqa: N803
        target = order(y)
        given = torch.zeros(len(target), 1)
        if encoder is not None:
            given = encoder.encode(_table(X, "train[0]"), "train[0]")
        return Rows.of(given, target, sample_weight, names=TRAIN_NAMES)

    condition = None if encoder is None else encoder.encode(_table(X), "X")
    return _Encoding(condition, () if encoder is None else encoder.categories, transforms, read)


def _table(X: Any, name: str = "X") -> Any:  # noqa: N803
    """Return X with an axis for its columns, several axes as one."""
    if is_frame(X):
        return X
    array = as_doubles(needed(X, name), name)
    return array.reshape(len(array), math.prod(array.shape[1:])) if array.ndim else array


def _condition(X: Any, name: str = "X") -> Tensor:  # noqa: N803
    """Return what a bare network reads, one column where X has no axis for them."""
    given = X if isinstance(X, Tensor) else torch.from_numpy(as_doubles(needed(X, name), name))
    return given.unsqueeze(1) if given.dim() == 1 else given


def read_weights(sample_weight: ArrayLike | None, n_rows: int) -> Tensor | None:
    """Return checked weights [n]."""
    zeros = torch.zeros(n_rows, 1)
    return _moderate(Rows.of(zeros, zeros, sample_weight, names=NAMES).weights)


def _moderate(weights: Tensor | None) -> Tensor | None:
    """Return weights as they are, or relative to the largest where their squares would overflow."""
    if weights is None or not bool(weights.any()) or 1e-100 < weights.amax() < 1e100:
        return weights
    return weights / weights.amax()
