"""One pass over shards: what a network must know of all rows, and the rows that are set apart.

A row's role is decided by a hash of its file and number, or of its group, so that it is the same
in every pass and every process. Shards are surveyed in up to 64 segments, each from beginning to
end, and the segments are merged in their order: the result does not depend on who surveyed which.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from condens.data.encoder import MAX_CATEGORIES, Categories, Numbers, TableEncoder
from condens.data.frames import Codes
from condens.data.rows import Rows
from condens.data.statistics import Moments, Sketch
from condens.data.stream import Part, Shards, hash_rows, hash_values
from condens.data.table import Table
from condens.errors import ArgumentError, TableFileError

if TYPE_CHECKING:
    import pyarrow as pa

# Rows that stand for all where all are not needed: first components, baselines, a summary.
SAMPLE_ROWS = 100_000
# Rows of each part that is set apart, at most: they stay in memory.
MAX_PART_ROWS = 100_000
MAX_SEGMENTS = 64
# Tables of such rows, of a few each, before they are made one.
MAX_TABLES = 64
# What rows are for; those for training alone, and of fold 0, 1, ….
TEST, CALIBRATION, ADJUSTMENT, TRAINING = -4, -3, -2, -1
_SALTS = {"role": 0, "sample": 1, "fold": 2}


class TableColumns(NamedTuple):
    """The columns of a table, by what they are for."""

    conditions: tuple[str, ...]
    targets: tuple[str, ...]
    weights: str | None = None
    groups: str | None = None

    @classmethod
    def of(
        cls,
        targets: Sequence[str],
        conditions: Sequence[str] | None = None,
        weights: str | None = None,
        groups: str | None = None,
    ) -> "TableColumns":
        """Return these columns; refuse what are no names, or a text in place of a list."""
        ours = _names("targets", targets)
        theirs = () if conditions is None else _names("conditions", conditions)
        for option, name in (("weights", weights), ("groups", groups)):
            if name is not None and not isinstance(name, str):
                raise ArgumentError(
                    option,
                    got=f"is {name!r}",
                    expected="the name of a column was expected",
                    fix="Name one, or leave it out.",
                )
        return cls(theirs, ours, weights, groups)

    @property
    def names(self) -> list[str]:
        """All of them, each once."""
        others = [name for name in (self.weights, self.groups) if name is not None]
        return [*dict.fromkeys([*self.conditions, *self.targets, *others])]


def _names(option: str, names: Any) -> tuple[str, ...]:
    given = None if isinstance(names, str) or not isinstance(names, Iterable) else tuple(names)
    if given is None or not all(isinstance(name, str) for name in given):
        raise ArgumentError(
            option,
            got=f"is {names!r}",
            expected="a list of the names of columns was expected",
            fix=f"Pass [{names!r}]." if isinstance(names, str) else 'Pass ["y"], for instance.',
        )
    return tuple(map(str, given))


@dataclass(frozen=True)
class Roles:
    """Fractions of the rows, or of the groups, that are set apart.

    Args:
        seed: of the hash.
        test, calibration, adjustment: of rows that nothing is trained on.
        fold: of each fold, which one member validates on.
        n_folds: how many there are.
        sample: of the training rows.
    """

    seed: int = 0
    test: float = 0.0
    calibration: float = 0.0
    adjustment: float = 0.0
    fold: float = 0.0
    n_folds: int = 1
    sample: float = 1.0

    @classmethod
    def of(
        cls,
        n_rows: int,
        *,
        seed: int,
        test: float = 0.0,
        calibration: float = 0.0,
        adjustment: float = 0.0,
        fold: float = 0.0,
        n_folds: int = 1,
    ) -> "Roles":
        """Return these fractions, but of no more rows than stay in memory.

        There are no more folds than fit beside the other parts: members share them in turn.

        >>> Roles.of(100, seed=0, test=0.2, fold=0.25, n_folds=5).n_folds
        3
        """
        most = MAX_PART_ROWS / n_rows
        parts = min(test, most), min(calibration, most), min(adjustment, most)
        fold = min(fold, most / n_folds)
        if fold:
            n_folds = min(n_folds, max(int((1 - sum(parts)) / fold + 1e-9), 1))
        return cls(seed, *parts, fold, n_folds, SAMPLE_ROWS / n_rows)

    def trained(self, roles: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Tell which rows some member trains on: a single one does on no row of its fold."""
        return roles >= TRAINING if self.n_folds > 1 else roles == TRAINING

    def assign(self, numbers: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the roles of rows by their hashes."""
        ends = np.cumsum(
            [self.test, self.calibration, self.adjustment, *[self.fold] * self.n_folds]
        )
        places = np.searchsorted(ends, numbers, side="right")
        roles = np.array([TEST, CALIBRATION, ADJUSTMENT, *range(self.n_folds), TRAINING])
        return roles[places]


class Block(NamedTuple):
    """Consecutive rows of a file, read.

    Args:
        part: as they are in the file.
        table: the conditions.
        target, weights: [n, D] and [n].
        roles: [n]; training rows that do not count have weight zero.
    """

    part: Part
    table: Table
    target: NDArray[np.float64]
    weights: NDArray[np.float64]
    roles: NDArray[np.int64]

    @property
    def useful(self) -> NDArray[np.bool_]:
        """Whether a row has an observed target and a weight above zero."""
        return ~np.isnan(self.target).all(1) & (self.weights > 0)


def read_block(part: Part, columns: TableColumns, roles: Roles, path: str) -> Block:
    """Read rows: numbers, codes of categories, and roles."""
    table = _conditions(part, columns, path)
    target = np.column_stack([_numbers(part.table[name]) for name in columns.targets])
    weights = np.ones(len(target))
    if columns.weights is not None:
        weights = _numbers(part.table[columns.weights])
        wrong = ~(np.isfinite(weights) & (weights >= 0))
        if wrong.any():
            row = int(wrong.argmax())
            raise TableFileError(
                path,
                got=f"has the weight {weights[row]:g} in row {part.first + row}",
                expected="finite numbers that are not negative were expected",
                fix="Use zero to leave a row out.",
            )
    return Block(part, table, target, weights, roles.assign(_hashes(part, columns, roles, "role")))


def _conditions(part: Part, columns: TableColumns, path: str) -> Table:
    """Return the conditions; of numbers alone at once, as `Shards.read` has checked them."""
    table, names = part.table.select(list(columns.conditions)), columns.conditions
    if not all(_is_float(dtype) for dtype in table.schema.types):
        return _without_values(Table.read(table, path), part)
    numbers = np.stack([column.to_numpy() for column in table.columns], 1, dtype=np.float64)
    return Table(numbers, list(range(len(names))), {}, [f"column {n!r}" for n in names], names)


def _is_float(dtype: "pa.DataType") -> bool:
    return str(dtype) in ("float", "double")


def _without_values(table: Table, part: Part) -> Table:
    """Return a table in which categories that are all missing in these rows are categories."""
    assert table.names is not None  # columns of files have names
    types = [part.table.schema.field(table.names[place]).type for place in table.places]
    empty = [i for i, dtype in enumerate(types) if not _is_float(dtype)]
    if not empty:
        return table
    missing = np.full(len(table.numbers), -1)
    return table._replace(
        numbers=np.delete(table.numbers, empty, 1),
        places=[place for i, place in enumerate(table.places) if i not in empty],
        codes=table.codes | {table.places[i]: Codes(missing, []) for i in empty},
    )


def _hashes(part: Part, columns: TableColumns, roles: Roles, what: str) -> NDArray[np.float64]:
    seed = roles.seed * len(_SALTS) + _SALTS[what]
    if columns.groups is not None and what != "sample":
        return hash_values(seed, part.table[columns.groups])
    return hash_rows(seed, part.file, np.arange(part.first, part.first + len(part.table)))


def _numbers(column: "pa.ChunkedArray") -> NDArray[np.float64]:
    # Nulls become NaN.
    return np.asarray(column.to_numpy(), dtype=np.float64)


@dataclass
class Segment:
    """What was found in consecutive row groups; `merge` adds those that follow.

    Args:
        moments: of the columns of numbers, then of the targets, over training rows.
        quantiles: of the same columns, as sketches pass them on.
        categories: how often every value occurs, by column; None stands for missing.
        apart: tables of rows that are set apart, or sampled, by role.
        weights: of useful rows, by fold and, last, of all that are not set apart.
        rows, useful: rows that some member trains on, and those of them that count.
        missing: whether a target is missing somewhere.
        lacking: whether a column of numbers lacks one in any row, whatever the row is for: all
            rows are encoded.
    """

    moments: Moments | None = None
    quantiles: list[Any] = field(default_factory=list)
    categories: dict[int, Counter[Any]] = field(default_factory=dict)
    apart: dict[str, list["pa.Table"]] = field(default_factory=dict)
    # A sum of large weights would overflow a double.
    weights: NDArray[Any] = field(default_factory=lambda: np.zeros(1, np.longdouble))
    rows: int = 0
    useful: int = 0
    missing: bool = False
    lacking: NDArray[np.bool_] | None = None

    def merge(self, other: "Segment") -> None:
        """Add what was found in the row groups that follow."""
        if other.moments is not None:
            known = self.moments
            self.moments = other.moments if known is None else known.merged(other.moments)
        self.quantiles = self.quantiles or [Sketch() for _ in other.quantiles]
        for sketch, passed in zip(self.quantiles, other.quantiles, strict=False):
            sketch.take(passed)
        for place, counter in other.categories.items():
            self.categories.setdefault(place, Counter()).update(counter)
        for role, tables in other.apart.items():
            self.apart.setdefault(role, []).extend(tables)
        self.weights = self.weights + other.weights
        self.rows, self.useful = self.rows + other.rows, self.useful + other.useful
        self.missing = self.missing or other.missing
        if other.lacking is not None:
            self.lacking = other.lacking if self.lacking is None else self.lacking | other.lacking


def segments(shards: Shards) -> list[range]:
    """Return the numbers of the pieces of each segment."""
    count, pieces = min(MAX_SEGMENTS, len(shards.pieces)), len(shards.pieces)
    return [range(pieces * i // count, pieces * (i + 1) // count) for i in range(count)]


def blocks(
    shards: Shards, pieces: Sequence[int], columns: TableColumns, roles: Roles
) -> Iterator[Block]:
    """Yield the rows of some row groups."""
    for number in pieces:
        piece = shards.pieces[number]
        for part in shards.read(piece, columns.names):
            yield read_block(part, columns, roles, str(shards.paths[piece.file]))


def survey_segment(
    shards: Shards, pieces: Sequence[int], columns: TableColumns, roles: Roles
) -> Segment:
    """Return what is found in some row groups."""
    found = Segment(weights=np.zeros(roles.n_folds + 1, np.longdouble))
    sketches: list[Sketch] = []
    for block in blocks(shards, pieces, columns, roles):
        useful = block.useful
        trained = roles.trained(block.roles) & useful
        numbers = np.column_stack([block.table.numbers, block.target])[trained]
        sketches = sketches or [Sketch() for _ in range(numbers.shape[1])]
        if len(numbers):
            moments = Moments.of(numbers)
            found.moments = moments if found.moments is None else found.moments.merged(moments)
            for sketch, column in zip(sketches, numbers.T, strict=True):
                sketch.add(column)
        lacking = np.asarray(np.isnan(block.table.numbers).any(0))
        found.lacking = lacking if found.lacking is None else found.lacking | lacking
        _count(found, block, roles, trained)
        _set_apart(found, block, columns, roles, useful)
    found.quantiles = [sketch.passed_on() for sketch in sketches]
    for tables in found.apart.values():
        _join(tables)
    return found


def _count(found: Segment, block: Block, roles: Roles, trained: NDArray[np.bool_]) -> None:
    for place, codes in block.table.codes.items():
        seen = codes.codes[trained]
        each = np.bincount(seen[seen >= 0], minlength=len(codes.values))
        counter = found.categories.setdefault(place, Counter())
        counter.update({v: int(n) for v, n in zip(codes.values, each, strict=True) if n})
        if len(seen) > each.sum():
            counter[None] += len(seen) - int(each.sum())
        if len(counter) > 2 * MAX_CATEGORIES:  # which is refused in the end
            for value, _ in counter.most_common()[2 * MAX_CATEGORIES :]:
                del counter[value]
    found.rows += int(roles.trained(block.roles).sum())
    found.useful += int(trained.sum())
    found.missing = found.missing or bool(np.isnan(block.target[trained]).any())
    weights = np.where((block.roles >= TRAINING) & block.useful, block.weights, 0.0)
    found.weights[-1] += weights.sum(dtype=np.longdouble)
    for fold in range(len(found.weights) - 1):
        found.weights[fold] += weights[block.roles == fold].sum(dtype=np.longdouble)


def _set_apart(
    found: Segment, block: Block, columns: TableColumns, roles: Roles, useful: NDArray[np.bool_]
) -> None:
    import pyarrow as pa

    table = block.part.table
    hashes = {
        "role": block.roles,
        "fold": _hashes(block.part, columns, roles, "fold"),
        "sample": _hashes(block.part, columns, roles, "sample"),
    }
    for name, values in hashes.items():
        table = table.append_column(_hidden(name, columns), pa.array(values))
    picked = {
        "test": (block.roles == TEST) & useful,
        "calibration": (block.roles == CALIBRATION) & useful,
        "adjustment": (block.roles == ADJUSTMENT) & useful,
        "validation": (block.roles >= 0) & useful,
        "sample": roles.trained(block.roles) & useful & (hashes["sample"] < roles.sample),
    }
    for name, chosen in picked.items():
        if chosen.any():
            tables = found.apart.setdefault(name, [])
            tables.append(table.filter(pa.array(chosen)))
            if len(tables) >= MAX_TABLES:
                _join(tables)


def _join(tables: list["pa.Table"]) -> None:
    """Make one table of many: of a few rows each, their columns take more memory than the values.

    Those of categories that cannot be joined stay as they are.
    """
    import pyarrow as pa

    with suppress(pa.ArrowInvalid, pa.ArrowNotImplementedError):
        tables[:] = [pa.concat_tables(tables, promote_options="permissive").combine_chunks()]


def _hidden(name: str, columns: TableColumns) -> str:
    """Return a name for a column of ours that is none of the table's."""
    while name in columns.names:
        name += "\0"
    return name


class Apart(NamedTuple):
    """Rows that are in memory, and their folds [n], by role and for trials on a sample."""

    rows: Rows
    table: "pa.Table"
    folds: NDArray[np.int64]
    numbers: NDArray[np.float64]


class Survey:
    """What is known of all rows, once every segment was merged.

    Args:
        shards: the files.
        columns: by what they are for.
        roles: of the rows.
        found: all segments.
    """

    def __init__(self, shards: Shards, columns: TableColumns, roles: Roles, found: Segment) -> None:
        self.shards, self.columns, self.roles, self.found = shards, columns, roles, found
        if found.moments is None or not found.useful:
            raise ArgumentError(
                "the table",
                got="has no row to train on",
                expected="some with an observed target and a weight above zero were expected",
                fix="Check the columns, and what is held out.",
            )
        for name, count in zip(
            columns.targets, found.moments.count[-len(columns.targets) :], strict=True
        ):
            if not count:
                raise _valueless(name)
        self.encoder = self._encoder()
        # A power of two, by which weights are divided before anything is done with them.
        _, exponent = np.frexp(found.weights[-1] / shards.n_rows)
        self._exponent = int(exponent)

    @property
    def weights(self) -> NDArray[np.float64]:
        """The weights of training rows, by fold and, last, in all; see `scaled`."""
        return np.ldexp(self.found.weights, -self._exponent).astype(np.float64)

    def scaled(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return weights in a unit of which their sums are neither too large nor too small."""
        return np.ldexp(weights, -self._exponent)

    def _encoder(self) -> TableEncoder:
        found = self.found
        features: list[Numbers | Categories] = []
        assert found.moments is not None  # checked above
        assert found.lacking is not None  # with the moments
        every = zip(found.moments.count, found.quantiles, found.lacking, strict=False)
        numbers = iter(every)
        for place, name in enumerate(self.columns.conditions):
            if self.shards.kinds[name] != "numbers":
                counter = found.categories.get(place, Counter())
                features.append(_categories(counter, name))
                continue
            count, sketch, lacking = next(numbers)
            if not count:
                raise _valueless(name)
            fill = float(sketch.quantiles([0.5])[0]) if lacking else None
            features.append(Numbers(fill))
        return TableEncoder(tuple(features), tuple(self.columns.conditions))

    @property
    def complete(self) -> bool:
        """Whether no target is missing."""
        return not self.found.missing

    def rows(self, table: "pa.Table") -> Rows:
        """Return rows in memory, encoded."""
        names = self.columns
        target = np.column_stack([_numbers(table[name]) for name in names.targets])
        conditions = Table.read_compact(table.select(list(names.conditions)), "the table")
        return Rows.of(
            self.encoder.encode(conditions, "the table"),
            torch.from_numpy(target),
            None if names.weights is None else _numbers(table[names.weights]),
            names=("the table", "the targets", "the weights"),
        )

    def apart(self, name: str) -> Apart | None:
        """Return the rows of a role, or of the sample; None where there are none."""
        import pyarrow as pa

        tables = self.found.apart.get(name)
        if not tables:
            return None
        # Some files may have a column in single precision, others in double.
        table = pa.concat_tables(tables, promote_options="permissive")
        return Apart(
            self.rows(table),
            table.select(self.columns.names),
            _numbers(table[_hidden("role", self.columns)]).astype(np.int64),
            _numbers(table[_hidden("fold", self.columns)]),
        )

    def statistics(self) -> dict[str, NDArray[np.float64]]:
        """Return mean, deviation and range of the encoded conditions, then of the targets."""
        moments, n = self.found.moments, float(self.found.useful)
        assert moments is not None  # checked in the beginning
        count = len(moments.mean) - len(self.columns.targets)
        fills = [f.fill for f in self.encoder.features if isinstance(f, Numbers)]
        mean, squares = moments.mean.copy(), moments.squares.copy()
        flags = []
        for place, fill in enumerate(fills):
            if fill is not None:
                seen = moments.count[place]
                gap = fill - mean[place]
                squares[place] = squares[place] + gap**2 * (seen / n) * (n - seen)
                mean[place] += gap * (n - seen) / n
                flags.append((n - seen) / n)
        deviation = np.sqrt(squares / np.maximum(moments.count, 1)).astype(np.float64)
        deviation[:count] = np.sqrt(squares[:count] / n).astype(np.float64)
        share, codes = np.array(flags), np.zeros(len(self.encoder.categories))
        spread = np.sqrt(share * (1 - share))
        return {
            "mean": np.concatenate([mean[:count], share, codes, mean[count:]]),
            "deviation": np.concatenate([deviation[:count], spread, codes, deviation[count:]]),
            "lower": np.concatenate(
                [moments.lower[:count], 0 * share, codes, moments.lower[count:]]
            ),
            "upper": np.concatenate(
                [moments.upper[:count], 0 * share + 1, codes, moments.upper[count:]]
            ),
        }

    def quantiles(self, levels: Sequence[float]) -> NDArray[np.float64]:
        """Return quantiles of the encoded conditions, then of the targets. Shapes: [L] → [L, C+D].

        Missing numbers count as what they are filled with; codes have none.
        """
        found, n = self.found, float(self.found.useful)
        assert found.moments is not None  # checked in the beginning
        fills = [f.fill for f in self.encoder.features if isinstance(f, Numbers)]
        columns, flags = [], []
        for place, fill in enumerate(fills):
            lacking = n - found.moments.count[place]
            repeated = (0.0, 0.0) if fill is None else (fill, lacking)
            columns.append(found.quantiles[place].quantiles(levels, repeated))
            if fill is not None:
                flags.append((np.asarray(levels) > 1 - lacking / n).astype(np.float64))
        codes = [np.zeros(len(levels))] * len(self.encoder.categories)
        targets = [sketch.quantiles(levels) for sketch in found.quantiles[len(fills) :]]
        return np.stack([*columns, *flags, *codes, *targets], 1)

    def digest(self) -> str:
        """Return a hash of what was found in all rows, and of how they are divided."""
        moments = self.found.moments
        assert moments is not None  # checked in the beginning
        numbers = (moments.count, moments.mean, moments.squares.astype(np.float64))
        parts = [part.tobytes() for part in (*numbers, moments.lower, moments.upper)]
        text = repr((self.shards.digest(), self.columns, self.roles, self.encoder.to_dict()))
        return hashlib.sha256(b"".join([text.encode(), *parts])).hexdigest()


def _categories(counter: Counter[Any], name: str) -> Categories:
    values = sorted(value for value in counter if value is not None)
    if len(values) > MAX_CATEGORIES:
        raise ArgumentError(
            "the table",
            got=f"has more than {MAX_CATEGORIES} categories in column {name!r}",
            expected="fewer were expected",
            fix="If it identifies the rows, drop the column; otherwise group the rare ones.",
        )
    if not values:
        raise _valueless(name)
    return Categories(tuple(values), None in counter)


def _valueless(name: str) -> ArgumentError:
    return ArgumentError(
        "the table",
        got=f"has no value at all in column {name!r} of the rows to train on",
        expected="at least one is needed",
        fix="Drop the column.",
    )
