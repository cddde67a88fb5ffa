"""The effect of one column: tables in which it takes many values and the others stay."""

from numbers import Integral
from typing import NamedTuple, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from condens.data import Table, TableEncoder, TableLike
from condens.data.encoder import Categories, Numbers
from condens.data.frames import Codes
from condens.distributions import Mixture
from condens.distributions.checks import as_tensor
from condens.errors import ArgumentError, DimensionError

# Rows whose densities are averaged.
MAX_EFFECT_ROWS = 30
# Values of a column of numbers.
N_VALUES = 100
# With as many rows the range of a column is that of 98 % of them.
MIN_RANGE_ROWS = 20


class Sweep(NamedTuple):
    """A table repeated for every value of one column.

    Args:
        name: of the column.
        values: that it takes [V]: numbers, or texts of categories.
        condition: the rows as the network reads them [V · R, C], value by value.
        column: what the rows had in it: numbers, or texts.
    """

    name: str
    values: list[float] | list[str]
    condition: Tensor
    column: list[float] | list[str]

    @classmethod
    def of(
        cls,
        encoder: TableEncoder,
        X: TableLike,  # noqa: N803
        column: str | int,
        values: ArrayLike | None,
        fitted_range: tuple[Tensor, Tensor],
    ) -> Self:
        """Vary a column, by name or number, of some rows.

        `fitted_range` are the least and the largest number of every encoded column [C]; the
        values run through that of the column, or through that of the rows, if they are many.
        """
        table = Table.read(X, "X")
        place = _place(encoder, column)
        name = str(encoder.feature_names[place]) if encoder.feature_names else f"column {place}"
        encoder.encode(table, "X")  # refuses another table than the fitted one
        feature, seen = encoder.features[place], _column(table, place)
        if isinstance(feature, Categories):
            known = list(feature.values) if values is None else np.asarray(values).tolist()
            shown: list[float] | list[str] = [str(value) for value in known]
        else:
            shown = known = _numbers(encoder, place, values, seen, fitted_range)
        chosen = np.linspace(0, len(table.numbers) - 1, min(len(table.numbers), MAX_EFFECT_ROWS))
        rows = np.tile(chosen.round().astype(int), len(known))
        which = np.arange(len(known)).repeat(len(chosen))
        numbers = table.numbers[rows]
        codes = {at: one._replace(codes=one.codes[rows]) for at, one in table.codes.items()}
        if isinstance(feature, Categories):
            codes[place] = Codes(which, known)
            kept = [at != place for at in table.places]
            numbers, places = numbers[:, kept], [at for at in table.places if at != place]
        else:
            places = table.places
            numbers[:, places.index(place)] = np.asarray(known)[which]
        swept = table._replace(numbers=numbers, places=places, codes=codes)
        return cls(name, shown, encoder.encode(swept, "X"), seen)

    def average(self, densities: Mixture) -> Mixture:
        """Return the mean density over the rows at each value [V], of densities [V · R]."""
        n_rows = len(densities) // len(self.values)
        return type(densities).ensemble([densities[row::n_rows] for row in range(n_rows)])


def _place(encoder: TableEncoder, column: str | int) -> int:
    names = encoder.feature_names
    if isinstance(column, str) and names is not None and column in names:
        return names.index(column)
    whole = isinstance(column, Integral) and not isinstance(column, bool)
    if whole and 0 <= int(column) < encoder.n_features:
        return int(column)
    raise DimensionError(
        "column",
        got=f"is {column!r}",
        expected=f"one of {encoder.description} was expected",
        fix="Pass its name." if names else f"Pass a number from 0 to {encoder.n_features - 1}.",
    )


def _column(table: Table, place: int) -> list[float] | list[str]:
    """Return what a table has in a column, categories as texts, "" where one is missing."""
    if place in table.codes:
        codes, values = table.codes[place]
        texts = [*map(str, values), ""]
        return [texts[code] for code in codes]
    found: list[float] = table.numbers[:, table.places.index(place)].tolist()
    return found


def _numbers(
    encoder: TableEncoder,
    place: int,
    values: ArrayLike | None,
    seen: list[float] | list[str],
    fitted_range: tuple[Tensor, Tensor],
) -> list[float]:
    """Return the values of a column of numbers."""
    if values is not None:
        given = as_tensor("values", values, torch.empty(0)).double().reshape(-1)
        if not len(given) or not bool(given.isfinite().all()):
            raise ArgumentError(
                "values",
                got="has no entries, or some that are not finite",
                expected="numbers were expected",
                fix="Pass np.linspace(low, high, 100), for instance.",
            )
        return given.tolist()
    numbers = [i for i, one in enumerate(encoder.features) if isinstance(one, Numbers)]
    low, high = (float(end[numbers.index(place)]) for end in fitted_range)
    observed = np.array([value for value in seen if value == value], dtype=np.float64)
    if len(observed) >= MIN_RANGE_ROWS:
        low, high = np.quantile(observed, [0.01, 0.99]).tolist()
    return np.linspace(low, high, N_VALUES).tolist() if high > low else [low]
