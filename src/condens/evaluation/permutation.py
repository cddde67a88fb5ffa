"""Importance of columns: what a model loses when it is not told one of them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Generator, Tensor

from condens.data import Rows, TableEncoder, TableLike, TargetColumns
from condens.data.frames import is_frame, names_of
from condens.data.groups import number_groups, read_groups
from condens.distributions import Mixture
from condens.errors import ArgumentError, DimensionError, KindError
from condens.evaluation.models import unwrapped
from condens.evaluation.statistics import Score, paired_difference, weighted_mean
from condens.nn import DensityNetwork
from condens.nn.randomness import seeded_generator
from condens.progress import Progress
from condens.scalars import as_whole, printable

# Columns by name or number; several in a list are permuted together.
Columns = Sequence[str | int | Sequence[str | int]]
# Whatever maps conditions [n, C] to densities, such as a network.
Densities = Callable[[Tensor], Mixture]

Array = NDArray[np.float64]

ROWS_PER_BLOCK = 5000


class TablePredictor(Protocol):
    """A fitted estimator that encodes tables for a network, such as `MDNRegressor`."""

    network_: DensityNetwork

    @property
    def encoder_(self) -> TableEncoder:
        """What turns X into what the network reads."""
        ...

    def read_rows(
        self,
        X: TableLike,  # noqa: N803
        y: TableLike,
        sample_weight: ArrayLike | None = None,
    ) -> Rows:
        """Return X as the network reads it, and y in the order of the fit."""
        ...


@dataclass(frozen=True)
class Importance:
    """How much each column tells about the targets, in nats a row, the most important first.

    Args:
        columns: the mean drop in log-likelihood by the name of the column, or the names of
            several, with its standard error.
        log_likelihood: of the rows as they are, mean and standard error.
        n_repeats: permutations of each column.
    """

    columns: dict[str, Score]
    log_likelihood: Score
    n_repeats: int

    def __getitem__(self, name: str) -> Score:
        return self.columns[name]

    def __str__(self) -> str:
        width = max(map(len, ("column", *self.columns)))
        lines = [f"{printable(name):<{width}}  {score}" for name, score in self.columns.items()]
        return "\n".join([f"{'column':<{width}}  nats a row", *lines])

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {
            "columns": {name: score.to_dict() for name, score in self.columns.items()},
            "log_likelihood": self.log_likelihood.to_dict(),
            "n_repeats": self.n_repeats,
        }


def importance(
    model: TablePredictor | Densities,
    X: TableLike,  # noqa: N803
    y: TableLike,
    *,
    columns: Columns | None = None,
    sample_weight: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    n_repeats: int = 5,
    seed: int = 0,
    progress: bool | None = None,
) -> Importance:
    """Estimate how much the log-likelihood drops when a column of X is permuted.

    Iⱼ = mean of log p(y | x) − log p(y | x with column j of another row)

    A column that another one could replace has little importance: permute both together then. A
    negative one says that the model would do better without the column, if it is larger than its
    standard error.

    Args:
        model: a fitted `MDNRegressor` (in a pipeline, by the columns that reach it), or a
            function from conditions [n, C] to densities, such as a `DensityNetwork`.
        X, y: rows that the model was not fitted to; NaN in y was not observed.
        columns: names or numbers; all of them, one by one, by default. Those in a list are
            permuted together: `columns=["area", ["lat", "lon"]]`.
        sample_weight: [n]; the other row is then drawn by its weight.
        groups: the group of each row [n]; standard errors are then those of groups.
        n_repeats: permutations of each column.
        seed: of the permutations.
        progress: show progress; by default on a terminal.

    >>> c = torch.randn(500, 2, generator=Generator().manual_seed(0))
    >>> def densities(condition):
    ...     from condens import GaussianMixture
    ...     zero = torch.zeros(len(condition), 1, 1)
    ...     return GaussianMixture(zero[:, 0], condition[:, :1, None], zero)
    >>> found = importance(densities, c, c[:, :1])
    >>> round(found["0"].value), found["1"].value
    (1, 0.0)
    """
    repeats = as_whole("n_repeats", n_repeats, 1, fix="Pass 5, for instance.")
    rows, densities, names, places = _read(model, X, y, sample_weight)
    useful = rows.useful.nonzero().flatten()
    if len(useful) < 2:
        raise ArgumentError(
            "y",
            got=f"has {len(useful)} row(s) that count",
            expected="columns are exchanged between rows",
            fix="Pass two rows or more with an observed target and a weight above zero.",
        )
    clusters = None
    if groups is not None:
        clusters = number_groups(read_groups(groups, len(rows)))[useful].numpy()
    rows = rows.take(useful)
    weights = None if rows.weights is None else (rows.weights / rows.weights.amax()).numpy()
    generator = seeded_generator(seed)
    asked = _asked(names if columns is None else columns, names)
    scores: dict[str, Score] = {}
    with Progress("permuting", len(asked) * repeats, progress) as line:
        plain = _log_prob(densities, rows.condition, rows.target)
        for name, chosen in asked.items():
            encoded = sorted(place for column in chosen for place in places[column])
            pairs = []
            for _ in range(repeats):
                other = _others(rows, generator)
                changed = _log_prob(densities, rows.condition, rows.target, other, encoded)
                pairs.append((paired_difference(plain, changed), other.numpy()))
                line.advance()
            scores[name] = _mean_drop(pairs, weights, clusters)
    ordered = dict(sorted(scores.items(), key=lambda item: -item[1].value))
    return Importance(ordered, weighted_mean(plain, weights, clusters), repeats)


def _mean_drop(
    pairs: Sequence[tuple[Array, NDArray[np.int64]]],
    weights: Array | None,
    clusters: NDArray[np.int64] | None,
) -> Score:
    """Return the mean of drops [n] in several repeats, each with the rows [n] it is due to.

    A row counts twice, where its column was replaced and where its column went: the error is that
    of the sum of both, as for a mean over all pairs of rows.
    """
    drop = np.mean([each for each, _ in pairs], 0)
    mean = weighted_mean(drop, weights, clusters)
    if not np.isfinite(drop).all():
        return mean
    share = np.full(len(drop), 1 / len(drop)) if weights is None else weights / weights.sum()
    given = np.zeros(len(drop))
    for each, other in pairs:
        np.add.at(given, other, share * (each - mean.value) / len(pairs))
    error = weighted_mean(drop + given / share, weights, clusters).standard_error
    return Score(mean.value, error)


def _read(
    model: Any,
    X: TableLike,  # noqa: N803
    y: TableLike,
    sample_weight: ArrayLike | None,
) -> tuple[Rows, Densities, list[str], list[list[int]]]:
    """Return rows, what predicts them, and the names and encoded columns of those of X."""
    model, X = unwrapped(model, X)  # noqa: N806
    encoder = getattr(model, "encoder_", None)
    if isinstance(encoder, TableEncoder):
        names = encoder.feature_names or map(str, range(encoder.n_features))
        rows = model.read_rows(X, y, sample_weight)
        return rows, model.network_, list(names), encoder.places
    if not callable(model):
        raise ArgumentError(
            "model",
            got=f"is a {type(model).__name__}",
            expected="a fitted MDNRegressor or a network was expected",
            fix="Fit it, or pass a function from conditions [n, C] to densities.",
        )
    target = TargetColumns.of(y, "y", observed=False).values
    condition: Any = X
    rows = Rows.of(condition, target, sample_weight, names=("X", "y", "sample_weight"))
    count = rows.condition.shape[1]
    names = map(str, names_of(condition) if is_frame(condition) else range(count))
    return rows, model, list(names), [[place] for place in range(count)]


def _asked(columns: Any, names: Sequence[str]) -> dict[str, list[int]]:
    """Return the numbers of the columns that are permuted together, by their names."""
    asked = {}
    for entry in _listed(columns):
        chosen = [_place(column, names) for column in _listed(entry)]
        if not chosen or len(set(chosen)) < len(chosen):
            raise ArgumentError(
                "columns",
                got=f"holds {entry!r}",
                expected="different columns were expected",
                fix="Name each of those that are permuted together once.",
            )
        asked[" + ".join(names[place] for place in chosen)] = chosen
    if not asked:
        raise ArgumentError(
            "columns",
            got="is empty",
            expected="at least one was expected",
            fix="Leave it out for all columns.",
        )
    return asked


def _listed(entry: Any) -> list[Any]:
    """Return the entries of a list, or a single name or number as a list."""
    if isinstance(entry, str) or not isinstance(entry, Iterable):
        return [entry]
    return list(entry)


def _place(column: Any, names: Sequence[str]) -> int:
    if isinstance(column, str) and column in names:
        return names.index(column)
    if (
        isinstance(column, int | np.integer)
        and not isinstance(column, bool)
        and -len(names) <= column < len(names)
    ):
        return int(column) % len(names)
    raise DimensionError(
        "columns",
        got=f"names {column!r}",
        expected=f"X has {len(names)} columns ({', '.join(names[:10])}{', …' * (len(names) > 10)})",
        fix="Pass names or numbers of these.",
    )


def _others(rows: Rows, generator: Generator) -> Tensor:
    """Return for each row another one: a permutation in which none stays; with weights, draws."""
    if rows.weights is not None:
        weights = rows.weights / rows.weights.amax()
        # Not torch.multinomial, which takes 2²⁴ rows at most.
        drawn = torch.rand(len(rows), generator=generator, dtype=torch.float64)
        ends = weights.cumsum(0)
        return torch.searchsorted(ends, drawn * ends[-1]).clamp(max=len(rows) - 1)
    order = torch.randperm(len(rows), generator=generator)
    other = torch.empty_like(order)
    other[order] = order.roll(1)
    return other


@torch.no_grad()
def _log_prob(
    densities: Densities,
    condition: Tensor,
    target: Tensor,
    other: Tensor | None = None,
    columns: Sequence[int] = (),
) -> Array:
    """Return the log density of the observed entries [n], given some columns of other rows."""
    found = np.empty(len(target))
    for start in range(0, len(target), ROWS_PER_BLOCK):
        part = slice(start, start + ROWS_PER_BLOCK)
        rows = condition[part]
        if other is not None:
            rows = rows.clone()
            rows[:, list(columns)] = condition[other[part]][:, list(columns)]
        density = densities(rows)
        if not isinstance(density, Mixture):
            raise KindError(
                "model(…)",
                got=f"is a {type(density).__name__}",
                expected="mixtures were expected",
                fix="Return a batch of mixtures, one for each row.",
            )
        found[part] = density.observed_log_prob(target[part]).double().numpy()
    return found
