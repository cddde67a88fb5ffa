"""Tables of conditions, encoded as the numbers and codes that a network reads."""

import json
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from condens.data.arrays import Floats, row_blocks, text_advice
from condens.data.frames import Category, Codes, kind_of
from condens.data.table import Table, TableLike
from condens.errors import ArgumentError, DimensionError, NotFiniteError, ShapeError

# A column with more categories identifies its rows,
MAX_CATEGORIES = 1000
# and so does one with a category for each of more rows than these.
MAX_DISTINCT_ROWS = 50
# Names listed in a message.
MAX_LISTED_NAMES = 10


class Numbers(NamedTuple):
    """A column of numbers; `fill` is the median, if some were missing."""

    fill: float | None = None


class Categories(NamedTuple):
    """A column of categories with the codes 1, 2, …, and one more code if some were missing."""

    values: tuple[Category, ...]
    missing: bool = False

    @property
    def size(self) -> int:
        """The number of codes, that of unknown categories included."""
        return 1 + len(self.values) + self.missing


@dataclass(frozen=True)
class TableEncoder:
    """Turns tables into a tensor: numbers first, then codes of categories.

    The encoded columns are: the numbers (booleans are 0 and 1; a missing number is the median);
    for each column of numbers in which some were missing when fitted, 1 where one is missing
    and 0 elsewhere; and the codes of every column of categories, 0 where a category is unknown
    and 1, 2, … in sorted order. A missing category has the last code if one was missing when
    fitted, and is unknown otherwise.

    Args:
        features: the kind of every column of the table.
        feature_names: of the columns, if all of them are text.

    >>> encoder = TableEncoder.fit([[1.0, True], [None, False], [5.0, True]])
    >>> encoder.encode([[None, True], [2.0, False]]).tolist()
    [[3.0, 1.0, 1.0], [2.0, 0.0, 0.0]]
    """

    features: tuple[Numbers | Categories, ...]
    feature_names: tuple[str, ...] | None = None

    @classmethod
    def fit(cls, table: TableLike | Table, name: str = "table") -> Self:
        """Learn the columns of an array, a tensor, a list of rows, or a frame.

        A frame is one of pandas, polars or pyarrow; its columns of text and of categories are
        categories. Messages call the table by its `name`.
        """
        given = Table.read(table, name)
        learned: dict[int, Numbers | Categories] = {
            place: _learn_categories(codes, name, given.labels[place])
            for place, codes in given.codes.items()
        }
        for place, column in zip(given.places, given.numbers.T, strict=True):
            learned[place] = _learn_numbers(column, name, given.labels[place])
        return cls(tuple(learned[place] for place in sorted(learned)), given.names)

    @property
    def n_features(self) -> int:
        """The number of columns of the table."""
        return len(self.features)

    @property
    def description(self) -> str:
        """The columns of the table, in words."""
        names = "" if self.feature_names is None else f" ({_listed(self.feature_names)})"
        return f"the {self.n_features} column(s) that were fitted{names}"

    @property
    def columns(self) -> int:
        """The number of encoded columns C."""
        return self.numeric + len(self.categories)

    @property
    def numeric(self) -> int:
        """The number of encoded columns that are numbers; they come first."""
        return sum(1 + (f.fill is not None) for f in self.features if isinstance(f, Numbers))

    @property
    def categories(self) -> list[int]:
        """The number of codes of every column of categories, that of unknown ones included."""
        return [feature.size for feature in self.features if isinstance(feature, Categories)]

    @property
    def labels(self) -> list[str]:
        """The encoded columns in words, by the name or number of their column of the table."""
        names = self.feature_names or range(self.n_features)
        columns = [(f"column {n!r}", f) for n, f in zip(names, self.features, strict=True)]
        numbers = [(label, f) for label, f in columns if isinstance(f, Numbers)]
        return [
            *(label for label, _ in numbers),
            *(f"the gaps of {label}" for label, f in numbers if f.fill is not None),
            *(label for label, f in columns if isinstance(f, Categories)),
        ]

    @property
    def gaps(self) -> list[tuple[int, int]]:
        """The encoded columns of numbers that may be missing, each with the one that says so."""
        numbers = [feature for feature in self.features if isinstance(feature, Numbers)]
        filled = [place for place, feature in enumerate(numbers) if feature.fill is not None]
        return [(place, len(numbers) + flag) for flag, place in enumerate(filled)]

    @property
    def places(self) -> list[list[int]]:
        """The encoded columns of each column of the table."""
        flags, number, code = dict(self.gaps), 0, self.numeric
        found = []
        for feature in self.features:
            if isinstance(feature, Categories):
                found.append([code])
                code += 1
            else:
                found.append([number, flags[number]] if number in flags else [number])
                number += 1
        return found

    def encode(self, table: TableLike | Table, name: str = "table") -> Tensor:
        """Return the rows of a table [n, C] in double precision; an array may share its memory.

        Those of a `Table` that was read compactly are in single precision too, if it holds the
        medians exactly.
        """
        given = Table.read(table, name)
        self._check_columns(given, name)
        fills = {i: f.fill for i, f in enumerate(self.features) if isinstance(f, Numbers)}
        numbers = _numbers(given, list(fills), name)
        fill = np.array(list(fills.values()), dtype=np.float64)  # NaN where none was missing
        whole, blocks = np.isnan(fill), row_blocks(len(numbers))
        if any((np.isnan(numbers[some]) & whole).any() for some in blocks):
            column, row = np.argwhere((np.isnan(numbers) & whole).T)[0]
            raise NotFiniteError(
                name,
                got=f"lacks a number in row {row}, {given.labels[list(fills)[column]]}",
                expected="none was missing there when fitted, so what it means was never learned",
                fix="Fill it, drop the row, or fit on a table in which some are missing.",
            )
        if numbers.shape[1] == self.columns:
            return torch.from_numpy(numbers)
        with np.errstate(over="ignore"):
            exact = np.array_equal(fill, fill.astype(numbers.dtype), equal_nan=True)
        encoded = np.empty((len(numbers), self.columns), numbers.dtype if exact else np.float64)
        for some in blocks:
            missing = np.isnan(numbers[some])
            encoded[some, : len(fill)] = np.where(missing, fill, numbers[some])
            encoded[some, len(fill) : self.numeric] = missing[:, ~whole]
        coded = [(i, f) for i, f in enumerate(self.features) if isinstance(f, Categories)]
        for column, (place, feature) in enumerate(coded, self.numeric):
            encoded[:, column] = _codes(given, place, feature, name)
        return torch.from_numpy(encoded)

    def _check_columns(self, given: Table, name: str) -> None:
        """Raise unless a table has the columns that were fitted, in their order."""
        ours, theirs = self.feature_names, given.names
        if ours is not None and theirs is not None and ours != theirs:
            raise _other_names(ours, theirs, name)
        if len(given.labels) != self.n_features:
            listed = f" ({_listed(ours)})" if ours else ""
            raise ShapeError(
                name,
                got=f"has {len(given.labels)} columns",
                expected=f"{self.n_features} were fitted{listed}",
                fix="Pass those columns, or fit again.",
            )

    def to_dict(self) -> dict[str, Any]:
        """Return the encoder as JSON values."""
        return {
            "features": [feature._asdict() for feature in self.features],
            "feature_names": self.feature_names,
        }

    @classmethod
    def from_dict(cls, values: Any) -> Self:
        """Return the encoder that `to_dict` described; refuse anything else."""
        try:
            features, names = values["features"], values["feature_names"]
            made = cls(tuple(map(_feature, features)), None if names is None else tuple(names))
            texts = {label for label in names or () if isinstance(label, str)}
            named = names is None or len(texts) == len(names) == len(features)
            # Compared as JSON: neither another type nor a further key.
            json_of = partial(json.dumps, sort_keys=True, allow_nan=False)
            if not features or not named or json_of(made.to_dict()) != json_of(values):
                raise ValueError("features, and for each a name or none, and nothing else")
            return made
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise ArgumentError(
                "encoder",
                got="does not describe an encoder",
                expected=f"the values of to_dict were expected ({error})",
                fix="Save the model again: its file is damaged or of another version.",
            ) from None


def _learn_categories(column: Codes, name: str, label: str) -> Categories:
    seen = column.codes[column.codes >= 0]
    counts = np.bincount(seen, minlength=len(column.values))
    # Those that a frame declares but does not hold stay unknown: nothing is learned about them.
    values = sorted(value for value, count in zip(column.values, counts, strict=True) if count)
    if len(values) > MAX_CATEGORIES or (len(values) == len(seen) > MAX_DISTINCT_ROWS):
        raise ArgumentError(
            name,
            got=f"has {len(values)} categories in {len(seen)} rows of {label}",
            expected=f"at most {MAX_CATEGORIES} were expected, and fewer than rows",
            fix=text_advice([value for value in values if isinstance(value, str)])
            or "If it identifies the rows, drop the column; otherwise group the rare ones.",
        )
    return Categories(tuple(values), len(seen) < len(column.codes))


def _learn_numbers(column: Floats, name: str, label: str) -> Numbers:
    observed = column[~np.isnan(column)]
    if len(observed) == len(column):
        return Numbers()
    if not len(observed):
        raise ArgumentError(
            name,
            got=f"has no value at all in {label}",
            expected="at least one is needed",
            fix="Drop the column.",
        )
    low, high = (float(np.quantile(observed, 0.5, method=m)) for m in ("lower", "higher"))
    # Halved before the sum, which might be too large.
    return Numbers(low / 2 + high / 2)


def _numbers(given: Table, places: list[int], name: str) -> Floats:
    """Return the columns that were numbers when fitted."""
    for place in places:
        if place in given.codes:
            raise ArgumentError(
                name,
                got=f"holds categories ({kind_of(given.codes[place].values)}) in "
                f"{given.labels[place]}",
                expected="numbers were fitted",
                fix="Pass numbers there, such as by .astype(float), or fit again.",
            )
    wanted = np.isin(given.places, places)
    return given.numbers if wanted.all() else given.numbers[:, wanted]


def _codes(given: Table, place: int, feature: Categories, name: str) -> NDArray[np.integer[Any]]:
    last = feature.size - 1 if feature.missing else 0
    column, fitted = given.codes.get(place), kind_of(list(feature.values))
    if column is None:
        if np.isnan(given.numbers[:, given.places.index(place)]).all():
            return np.full(len(given.numbers), last)
        kind = "numbers"
    elif (kind := kind_of(column.values) or "") == fitted:
        codes = {value: code for code, value in enumerate(feature.values, 1)}
        # The code −1 of a missing category reads the last entry.
        return np.array([*(codes.get(value, 0) for value in column.values), last])[column.codes]
    raise ArgumentError(
        name,
        got=f"holds {kind} in {given.labels[place]}",
        expected=f"categories ({fitted}) were fitted",
        fix='Pass the same kind, such as by .astype("category") for numbers, or fit again.',
    )


def _other_names(ours: tuple[str, ...], theirs: tuple[str, ...], name: str) -> DimensionError:
    differences = {
        "lacks the columns": sorted(set(ours).difference(theirs), key=ours.index),
        "has the unknown columns": sorted(set(theirs).difference(ours), key=theirs.index),
    }
    parts = [f"{verb} {_listed(labels)}" for verb, labels in differences.items() if labels]
    got, expected = " and ".join(parts), "the columns that were fitted are needed"
    if not parts:
        place = next(i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b)
        got, expected = f"has {theirs[place]} as column {place}", f"{ours[place]} was fitted there"
    return DimensionError(
        name,
        got=got,
        expected=expected,
        fix=f"Pass them in the order {_listed(ours)}, or fit again.",
    )


def _listed(names: Any) -> str:
    rest = ["…"] if len(names) > MAX_LISTED_NAMES else []
    return ", ".join([*names[:MAX_LISTED_NAMES], *rest])


def _feature(record: Any) -> Numbers | Categories:
    if record.keys() == {"fill"}:
        return Numbers(None if record["fill"] is None else float(record["fill"]))
    values = tuple(record["values"])
    if not values or kind_of(values) is None or any(a >= b for a, b in pairwise(values)):
        raise ValueError("categories are of one kind, and sorted")
    return Categories(values, bool(record["missing"]))
