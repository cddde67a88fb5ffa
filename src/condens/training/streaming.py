"""Training on shards that are larger than memory."""

import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from condens.data import Rows
from condens.data.statistics import Moments
from condens.data.stream import Integers, Part, Shards, give_back_freed
from condens.data.survey import (
    TRAINING,
    Apart,
    Block,
    Roles,
    Segment,
    Survey,
    TableColumns,
    blocks,
    read_block,
    segments,
    survey_segment,
)
from condens.errors import ArgumentError, CondensError
from condens.nn import DensityNetwork, Ensemble
from condens.nn.randomness import mixed_seed
from condens.nn.scaling import ColumnStatistics
from condens.scalars import printable
from condens.training.batches import Batch, Batches, Noise
from condens.training.distributed import Group
from condens.training.settings import Settings
from condens.training.sources import Source
from condens.training.threads import one_thread
from condens.transforms import Transform

# Memory of the rows that are shuffled among each other; as much again is read ahead.
WINDOW_BYTES = 1 << 26

Booleans = NDArray[np.bool_]
T = TypeVar("T")


class Stream(Source):
    """A table in shards, of which every process reads its part, in an order of its own.

    Made by `Stream.open`. Members of an ensemble get the same batches, in which the rows of a
    member's fold have weight zero for it.

    Attributes:
        survey: what is known of all rows.
        sample: training rows that stand for all, in memory.
    """

    divided = True

    def __init__(self, survey: Survey, group: Group, n_members: int) -> None:
        self.survey, self.shards, self.group = survey, survey.shards, group
        self._n_members = n_members
        self.rows_left_out = survey.found.rows - survey.found.useful
        sample = survey.apart("sample")
        if sample is None:
            raise ArgumentError(
                "the table",
                got=f"has {survey.found.useful} rows to train on",
                expected="enough for a sample were expected",
                fix="Pass more rows.",
            )
        self.sample: Apart = sample
        self._check_folds()

    def _check_folds(self) -> None:
        """Refuse a fold that leaves its members without rows to train on, or to validate on."""
        weights, held = self.survey.weights, self.apart("validation")
        for fold in range(self.survey.roles.n_folds):
            lacks = []
            if not weights[-1] - weights[fold] > 0 or bool((self.sample.folds == fold).all()):
                lacks.append("train")
            if held is not None and not bool((held.folds == fold).any()):
                lacks.append("validate")
            if lacks:
                groups = self.survey.columns.groups is not None
                raise ArgumentError(
                    "the table",
                    got=f"leaves member {fold} no row to {lacks[0]} on"
                    + (", as all rows of a group are for the same" if groups else ""),
                    expected="each member validates on some and trains on others",
                    fix="Pass more rows or groups, fewer members, or validation_fraction=0.",
                )

    def folds(self) -> list[int]:
        """Return the fold that each member validates on: there may be fewer than members."""
        return [member % self.survey.roles.n_folds for member in range(self.n_members)]

    @classmethod
    def open(
        cls,
        shards: Shards,
        *,
        targets: Sequence[str],
        conditions: Sequence[str] | None = None,
        weights: str | None = None,
        groups: str | None = None,
        test: float = 0.0,
        calibration: float = 0.0,
        adjustment: float = 0.0,
        validation: float = 0.1,
        n_members: int = 1,
        seed: int = 0,
    ) -> "Stream":
        """Survey shards, every process its part of them.

        Args:
            shards: the files.
            targets, conditions: names of columns; conditions are all others by default.
            weights, groups: a column of each, or none. Rows of a group have the same role.
            test, calibration, adjustment: fractions of the rows, or of the groups, that nothing
                is trained on, see `apart`; at most 100 000 rows each.
            validation: fraction that each member validates on, at most 100 000 rows in all.
            n_members: of the network.
            seed: of the hash that decides what a row is for.
        """
        columns = TableColumns.of(targets, conditions, weights, groups)
        if not columns.conditions:
            others = [name for name in shards.columns if name not in columns.names]
            columns = columns._replace(conditions=tuple(others))
        _check_columns(shards, columns)
        roles = Roles.of(
            shards.n_rows,
            seed=seed,
            test=test,
            calibration=calibration,
            adjustment=adjustment,
            fold=validation,
            n_folds=n_members,
        )
        group = Group.current()
        group.check_same(
            {"shards": {"": shards.digest()}, "Stream.open": {"": repr((columns, roles))}},
            fix={
                "shards": "Name the same files in every process, in the same order.",
                "Stream.open": "Pass the same columns, fractions and seed in every process.",
            },
        )
        found = Segment(weights=np.zeros(roles.n_folds + 1, np.longdouble))
        for part in _by_segment(shards, group, lambda p: survey_segment(shards, p, columns, roles)):
            found.merge(part)
        return cls(Survey(shards, columns, roles, found), group, n_members)

    def apart(self, name: str) -> Apart | None:
        """Return the rows for "test", "calibration", "adjustment" or "validation", if any."""
        return self.survey.apart(name)

    @property
    def n_rows(self) -> int:
        """The rows of all files: those that are set apart have weight zero in their batches."""
        return self.shards.n_rows

    @property
    def typical(self) -> Rows:
        """The sample."""
        return self.sample.rows

    @property
    def n_members(self) -> int:
        """How many members there are rows to validate for."""
        return self._n_members

    def check(self, network: DensityNetwork) -> None:
        """Refuse a network of other columns or another number of members."""
        network.check(self.sample.rows.condition, self.sample.rows.target)
        members = len(network.members) if isinstance(network, Ensemble) else 1
        if members != self.n_members:
            raise ArgumentError(
                "network",
                got=f"has {members} member(s)",
                expected=f"the shards were opened for {self.n_members}",
                fix=f"Pass n_members={members} to Stream.open.",
            )

    def digest(self) -> str:
        """Return a hash of the files' form and of the statistics of all their rows."""
        return self.survey.digest()

    def prepare(self, network: DensityNetwork, settings: Settings) -> None:
        """Take scales from all rows, and first components from the sample."""
        rows = self.sample.rows.to(network.target_scaling.scale.device)
        if settings.start == "keep":
            found = self.survey.statistics()
            count = self.survey.encoder.columns
            ends = torch.tensor(np.stack([found["lower"][:count], found["upper"][:count]]))
            network.extend_range(ends)
            return
        folds = torch.from_numpy(self.sample.folds)
        parts = [(folds != fold).nonzero()[:, 0] for fold in self.folds()]
        network.prepare(
            *rows[:2],
            generator=Generator().manual_seed(settings.seed),
            from_data=settings.start == "data",
            parts=parts,
            statistics=(self._conditions(), self._targets(network)),
        )

    def batches(self, network: DensityNetwork) -> tuple["StreamedBatches", Batches | None]:
        """Return the batches of the shards, and the validation rows, which are in memory."""
        held = self.apart("validation")
        batches = StreamedBatches(self, network, self._offsets(network))
        if held is None:
            return batches, None
        device = network.target_scaling.scale.device
        folds = torch.from_numpy(held.folds)
        parts = [(folds == fold).nonzero()[:, 0].to(device) for fold in self.folds()]
        validation = Batches(network, held.rows.to(device), parts)
        give_back_freed()
        return batches, validation

    def noise(self, settings: Settings, network: DensityNetwork) -> Noise:
        """Return noise by the number of all rows."""
        codes = network.condition_codes
        columns = self.survey.encoder.columns - codes + len(self.survey.columns.targets)
        return Noise(settings, self.survey.found.useful, columns, codes)

    def _conditions(self) -> ColumnStatistics:
        return self._statistics(slice(0, self.survey.encoder.columns))

    def _statistics(self, part: slice) -> ColumnStatistics:
        found = {n: torch.from_numpy(v[part].copy()) for n, v in self.survey.statistics().items()}

        def quantiles(levels: Sequence[float]) -> Tensor:
            return torch.from_numpy(self.survey.quantiles(levels)[:, part].copy())

        return ColumnStatistics(
            found["mean"], found["deviation"], found["lower"], found["upper"], quantiles
        )

    def _targets(self, network: DensityNetwork) -> ColumnStatistics:
        """Return the statistics of the real coordinates of all targets."""
        raw = self._statistics(slice(self.survey.encoder.columns, None))
        if network.transforms is None:
            return raw
        moments = self._second_pass(network).moments
        assert moments is not None  # there are rows

        def quantiles(levels: Sequence[float]) -> Tensor:
            return network.real_target(raw.quantiles(levels))  # which is monotone

        each = (moments.mean, moments.deviation, moments.lower, moments.upper)
        mean, deviation, lower, upper = (torch.from_numpy(part) for part in each)
        return ColumnStatistics(mean, deviation, lower, upper, quantiles)

    def _offsets(self, network: DensityNetwork) -> list[float]:
        """Return, for each member, the mean NLL correction of the rows that it trains on."""
        scales = network.target_scaling.scale.log().cpu()
        if network.transforms is None and self.survey.complete:
            return [float(scales.sum())] * self.n_members
        found, total = self._second_pass(network), self.survey.weights
        weighted = found.observed @ scales.numpy() - found.slopes
        return [float((weighted[-1] - weighted[m]) / (total[-1] - total[m])) for m in self.folds()]

    def _second_pass(self, network: DensityNetwork) -> "_Targets":
        """Return sums over the targets of all training rows, as the network transforms them."""
        key = tuple(map(repr, network.transforms or ()))
        if key not in self._passes:
            columns, roles = self.survey.columns, self.survey.roles
            found = _Targets.none(roles.n_folds, len(columns.targets))

            def look(pieces: Sequence[int]) -> _Targets:
                one = _Targets.none(roles.n_folds, len(columns.targets))
                for part in _target_blocks(self.survey, pieces):
                    self._check_targets(part, network.transforms or ())
                    one.add(part, network)
                return one

            for one in _by_segment(self.shards, self.group, look):
                found.merge(one)
            self._passes[key] = found
        return self._passes[key]

    def check_targets(self, transforms: Sequence[Transform]) -> None:
        """Refuse targets outside the support of their transforms, by their file and row.

        Of all rows that count, whatever they are for, in this process.
        """
        for rows in _target_blocks(self.survey, range(len(self.shards.pieces))):
            self._check_targets(rows, transforms)

    def _check_targets(self, rows: "_TargetRows", transforms: Sequence[Transform]) -> None:
        for name, transform, values in zip(
            self.survey.columns.targets, transforms, rows.target.unbind(1), strict=False
        ):
            wrong = ~(transform.contains(values) | values.isnan()) & rows.useful
            if bool(wrong.any()):
                row = int(wrong.int().argmax())
                where = f"in row {rows.first + row}, column {name!r}"
                try:  # whose words say what to do
                    transform.check("the table", values[row])
                except ArgumentError as error:
                    reason = str(error).partition(", but ")[2]
                    path = printable(str(self.shards.paths[rows.file]))
                    got = f"{path} has {float(values[row]):g} {where}"
                    raise ArgumentError(f"{got}, but {reason}") from None

    @cached_property
    def _passes(self) -> dict[Any, "_Targets"]:
        return {}


def _check_columns(shards: Shards, columns: TableColumns) -> None:
    if not columns.targets:
        raise ArgumentError(
            "targets",
            got="is empty",
            expected="the name of a column at least was expected",
            fix="Name the columns to predict.",
        )
    both = [n for n in columns.targets if n in (*columns.conditions, columns.weights)]
    if both:
        raise ArgumentError(
            f"the column {both[0]!r}",
            got="is a target, and also a condition or the weights",
            expected="it can be only one of these",
            fix="Leave it out of either.",
        )
    if not columns.conditions:
        raise ArgumentError(
            "the shards",
            got="have no column beside the targets, the weights and the groups",
            expected="a condition at least is needed",
            fix="Add one, such as a column of zeros for a density without conditions.",
        )
    for name in columns.names:
        if name not in shards.kinds:
            raise ArgumentError(
                "the shards",
                got=f"have no column {name!r}",
                expected=f"the columns are {', '.join(map(repr, shards.columns[:12]))}",
                fix="Use one of these.",
            )
    for name in (*columns.targets, *filter(None, [columns.weights])):
        if shards.kinds[name] != "numbers":
            raise ArgumentError(
                f"column {name!r}",
                got="holds categories",
                expected="targets and weights are numbers",
                fix="Convert it, or leave it out.",
            )


def _by_segment(shards: Shards, group: Group, look: Callable[[Sequence[int]], T]) -> Iterator[T]:
    """Return what is found in each segment, in their order; every process looks at some."""
    every = segments(shards)
    ours: dict[int, T] | CondensError
    try:
        ours = {number: look(every[number]) for number in range(group.rank, len(every), group.size)}
    except CondensError as error:  # which the others need to know: they wait
        if group.alone:
            raise
        ours = error
    found: dict[int, T] = {}
    for theirs in group.gather(ours):
        if isinstance(theirs, CondensError):
            raise theirs
        found |= theirs
    return (found[number] for number in range(len(every)))


class _TargetRows(NamedTuple):
    """Targets [n, D], weights [n] and roles [n] of rows; those that do not count have weight 0.

    Some member trains on the rows that are `trained` [n]; those that are `useful` [n] count for
    something.
    """

    file: int
    first: int
    target: Tensor
    weights: NDArray[np.float64]
    roles: Integers
    trained: Booleans
    useful: Tensor


def _target_blocks(survey: Survey, pieces: Sequence[int]) -> Iterator[_TargetRows]:
    columns, roles = survey.columns, survey.roles
    # A table has a column at least: the first target stands for the conditions.
    some = columns._replace(conditions=columns.targets[:1])
    for block in blocks(survey.shards, pieces, some, roles):
        counts = block.useful & (block.roles >= TRAINING)
        weights = np.where(counts, survey.scaled(block.weights), 0.0)
        target = torch.from_numpy(block.target)
        trained = counts & roles.trained(block.roles)
        place = block.part.file, block.part.first
        useful = torch.from_numpy(block.useful)
        yield _TargetRows(*place, target, weights, block.roles, trained, useful)


class _Targets:
    """Sums over targets: by fold, and in all; moments of their real coordinates."""

    def __init__(self, observed: Any, slopes: Any, moments: Moments | None) -> None:
        self.observed, self.slopes, self.moments = observed, slopes, moments

    @classmethod
    def none(cls, folds: int, targets: int) -> "_Targets":
        return cls(np.zeros((folds + 1, targets)), np.zeros(folds + 1), None)

    def add(self, rows: _TargetRows, network: DensityNetwork) -> None:
        counts = torch.from_numpy(rows.weights > 0)
        seed = mixed_seed("targets", rows.file, rows.first)
        device = network.target_scaling.scale.device
        generator = Generator(device).manual_seed(seed)
        target = torch.where(counts[:, None], rows.target, torch.nan).to(device)
        real = network.real_target(target, generator)
        slopes = torch.zeros(len(target), dtype=torch.float64, device=device)
        for transform, values in zip(network.transforms or (), real.unbind(1), strict=False):
            slopes += transform.log_slope_at(values).nan_to_num(nan=0.0)
        seen = (~real.isnan()).double().cpu().numpy() * rows.weights[:, None]
        slope = slopes.cpu().numpy() * rows.weights
        for fold in range(len(self.slopes) - 1):
            chosen = rows.roles == fold
            self.observed[fold] += seen[chosen].sum(0)
            self.slopes[fold] += slope[chosen].sum()
        self.observed[-1] += seen.sum(0)
        self.slopes[-1] += slope.sum()
        self._add_moments(Moments.of(real.cpu().numpy()[rows.trained]))

    def merge(self, other: "_Targets") -> None:
        self.observed, self.slopes = self.observed + other.observed, self.slopes + other.slopes
        if other.moments is not None:
            self._add_moments(other.moments)

    def _add_moments(self, found: Moments) -> None:
        self.moments = found if self.moments is None else self.moments.merged(found)


class StreamedBatches:
    """The batches of a stream; see `condens.data.stream` for their order."""

    def __init__(self, stream: Stream, network: DensityNetwork, offsets: list[float]) -> None:
        self.stream, self.network, self.offsets = stream, network, offsets
        self.shards, self.complete = stream.shards, stream.survey.complete
        survey = stream.survey
        total = survey.weights
        # By which the weights of all rows have mean one, of each member.
        rows = self.shards.n_rows
        self.factors = [float(rows / (total[-1] - total[m])) for m in stream.folds()]
        self.device, self.dtype = network.target_scaling.scale.device, network.dtype
        size = torch.empty(0, dtype=self.dtype).element_size()
        columns = survey.encoder.columns + network.dimensions + stream.n_members
        self.window_rows = WINDOW_BYTES // (size * columns)

    def __len__(self) -> int:
        return self.shards.n_rows

    def shuffled(
        self, seed: int, epoch: int, start: int, size: int, group: Group | None = None
    ) -> Iterator[Batch]:
        """Yield a process's part of every batch, from number `start` on."""
        plan = _Plan.of(self.shards, size, self.window_rows, group or Group())
        first = start // plan.batches
        windows = _Ahead(self._windows(seed, epoch, first, plan))
        try:
            skipped = start - first * plan.batches
            for batches in windows:
                yield from batches[skipped:]
                skipped = 0
        finally:
            windows.close()

    def _windows(self, seed: int, epoch: int, first: int, plan: "_Plan") -> Iterator[list[Batch]]:
        """Yield the batches of a window, from those lanes that this process reads."""
        shuffle = Generator().manual_seed(mixed_seed(seed, "pieces", epoch))
        order = torch.randperm(len(self.shards.pieces), generator=shuffle).tolist()
        names, rows = self.stream.survey.columns.names, plan.batches * plan.each
        lanes = {
            lane: self.shards.rows(
                order, plan.ends[lane] + first * rows, plan.ends[lane + 1], names
            )
            for lane in plan.owned
        }
        with one_thread():
            for number in range(first, -(-plan.n_batches // plan.batches)):
                seeds = [mixed_seed(seed, "window", epoch, lane, number) for lane in lanes]
                parts = [lane.take(rows) for lane in lanes.values()]
                # In a call of its own: while the batches are in use, nothing here holds them.
                made = [self._window(plan, number, list(zip(parts, seeds, strict=True)))]
                give_back_freed()
                yield made.pop()

    def _window(
        self, plan: "_Plan", number: int, lanes: Sequence[tuple[Iterator[Part], int]]
    ) -> list[Batch]:
        """Return the batches of a window: rows of a lane go to their places as they are read."""
        first = number * plan.batches
        places = range(first, min(first + plan.batches, plan.n_batches))
        lengths = plan.lengths(places)
        low, high = np.array(list(plan.owned.values())).T
        # Of each batch and lane: how many rows are ours, and where they begin.
        counts = np.maximum(np.minimum(high, lengths[:, list(plan.owned)]) - low, 0)
        ends = counts.cumsum().reshape(counts.shape)
        widths = (self.stream.survey.encoder.columns, self.network.dimensions, len(self.factors))
        made = Rows(
            *(torch.empty(counts.sum(), n, dtype=self.dtype, device=self.device) for n in widths)
        )
        for lane, (read, seed) in enumerate(lanes):
            generator = Generator(self.device).manual_seed(seed)
            rows = self._read(read, generator)
            if rows is None:
                continue
            order = torch.randperm(len(rows), generator=generator, device=self.device)
            ours = counts[:, lane]
            within = np.arange(ours.sum()) - np.repeat(ours.cumsum() - ours, ours)
            starts = np.arange(len(places)) * plan.each + low[lane]
            taken = torch.from_numpy(np.repeat(starts, ours) + within).to(self.device)
            put = torch.from_numpy(np.repeat(ends[:, lane] - ours, ours) + within).to(self.device)
            chosen = rows.take(order[taken])
            for mine, theirs in zip(made, chosen, strict=True):
                assert mine is not None  # streamed rows have weights
                assert theirs is not None
                mine.index_copy_(0, put, theirs)
        # Before the first of ours come the lanes that others read, and some rows of its lane.
        lane, least = next(iter(plan.owned)), low[0]
        before = lengths[:, :lane].sum(1) + np.minimum(least, lengths[:, lane])
        begins = [place * plan.size + int(n) for place, n in zip(places, before, strict=True)]
        parts = _split(made, counts.sum(1).tolist())
        every = zip(parts, begins, lengths.sum(1).tolist(), plan.cuts(lengths), strict=True)
        return [self._batch(*each) for each in every]

    def _read(self, parts: Iterable[Part], generator: Generator) -> Rows | None:
        """Return rows of a lane, standardised, with weights [n, M]; None where none are left."""
        survey, network = self.stream.survey, self.network
        condition, target, weights = [], [], []
        for part in parts:
            path = str(self.shards.paths[part.file])
            block = read_block(part, survey.columns, survey.roles, path)
            encoded = survey.encoder.encode(block.table, "the table").to(self.device)
            condition.append(network.standardise_condition(encoded))
            # A row that does not count may hold anything.
            counts = (block.roles >= TRAINING) & block.useful
            target.append(self._target(block, counts, generator))
            weights.append(self._weights(block, counts))
        if not condition:
            return None
        return Rows(*(torch.cat(part) for part in (condition, target, weights)))

    def _target(self, block: Block, counts: Booleans, generator: Generator) -> Tensor:
        given = torch.from_numpy(np.where(counts[:, None], block.target, np.nan)).to(self.device)
        some = torch.where(given.isnan().all(1, keepdim=True), self._stand_in, given)
        return self.network.standardise_target(some, generator if self.network.discrete else None)

    @cached_property
    def _stand_in(self) -> Tensor:
        """A target for rows without any, which have weight zero."""
        target = self.stream.sample.rows.target
        whole = target[(~target.isnan()).sum(1).argmax()]
        return whole.to(self.device)

    def _weights(self, block: Block, counts: Booleans) -> Tensor:
        weights = np.where(counts, self.stream.survey.scaled(block.weights), 0.0)
        each = [
            np.where(block.roles == fold, 0.0, weights * factor)
            for fold, factor in zip(self.stream.folds(), self.factors, strict=True)
        ]
        return torch.from_numpy(np.stack(each, 1)).to(self.device, self.dtype)

    def _batch(self, rows: Rows, first: int, total: int, cut: int | None) -> Batch:
        """Return rows as a batch of every member; see `Batch`."""
        condition, target, weights = rows
        assert weights is not None  # streamed rows have some
        members = len(self.factors)
        every = Rows(
            condition.expand(members, *condition.shape),
            target.expand(members, *target.shape).contiguous(),
            (weights / total).T.contiguous(),
        )
        return Batch(every, first, total, cut)


def _split(rows: Rows, sizes: list[int]) -> Iterator[Rows]:
    parts = (part.split(sizes) for part in rows if part is not None)
    return (Rows(*each) for each in zip(*parts, strict=True))


class _Plan(NamedTuple):
    """How an epoch is cut: lanes, rows of a lane in a batch, batches of a window.

    `owned` has the lanes that a process reads, and which rows of each batch are its own; `alone`
    says whether these are all.
    """

    size: int
    lanes: int
    each: int
    ends: list[int]
    n_batches: int
    batches: int
    owned: dict[int, tuple[int, int]]
    alone: bool

    @classmethod
    def of(cls, shards: Shards, size: int, window_rows: int, group: Group) -> "_Plan":
        lanes = shards.n_lanes(size)
        each, rows = size // lanes, shards.n_rows
        ends = [rows * lane // lanes for lane in range(lanes + 1)]
        longest = max(high - low for low, high in pairwise(ends))
        begin, end = group.share(size)
        owned = {
            lane: (max(begin - lane * each, 0), min(end - lane * each, each))
            for lane in range(lanes)
            if begin < (lane + 1) * each and end > lane * each
        }
        if (
            not owned
        ):  # more processes than rows in a batch: one that has none takes part all the same
            lane = min(begin // each, lanes - 1)
            owned = {lane: (begin - lane * each, begin - lane * each)}
        n_batches = -(-longest // each)
        batches = max(1, window_rows // size)
        return cls(size, lanes, each, ends, n_batches, batches, owned, group.alone)

    def lengths(self, places: range) -> Integers:
        """Return how many rows each lane has for the batches at some places. Shapes: [B] → [B, L].

        The last batches have what is left.
        """
        left = np.diff(self.ends) - np.array(places)[:, None] * self.each
        return left.clip(0, self.each)

    def cuts(self, lengths: Integers) -> list[int | None]:
        """Return how many rows of batches the first of two processes would have; see `Batch`."""
        if not self.alone:
            return [None] * len(lengths)
        most = (self.size // 2 - np.arange(self.lanes) * self.each).clip(0, self.each)
        return [*np.minimum(lengths, most).sum(1).tolist()]


class _Ahead(Iterator[T]):
    """Items that a thread makes, one ahead of the one in use: the next once one was taken."""

    def __init__(self, items: Iterator[T]) -> None:
        self._taken = threading.Semaphore(0)
        self._made: queue.Queue[tuple[T | None, BaseException | None]] = queue.Queue(maxsize=1)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._make, args=(items,), daemon=True)
        self._thread.start()

    def __next__(self) -> T:
        item, error = self._made.get()
        self._taken.release()
        if error is not None:
            raise error
        assert item is not None  # the end is an error: StopIteration
        return item

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        self._taken.release()
        self._thread.join()

    def _make(self, items: Iterator[T]) -> None:
        try:
            for item in items:
                self._put(item, None)
                del item  # the next is made while one is in use, not two
                self._taken.acquire()
                if self._closed.is_set():
                    return
            self._put(None, StopIteration())
        except BaseException as error:
            self._put(None, error)

    def _put(self, item: T | None, error: BaseException | None) -> None:
        while not self._closed.is_set():
            with suppress(queue.Full):
                self._made.put((item, error), timeout=0.1)
                return
