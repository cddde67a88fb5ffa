"""Batches: rows standardised once, divided into folds, and shuffled by seed and epoch alone."""

import copy
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import islice
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from condens.data import Rows
from condens.nn import DensityNetwork
from condens.nn.randomness import RowDraws, mixed_seed
from condens.training.distributed import Group
from condens.training.settings import Settings

# Few rows need small batches to get enough steps; beyond the largest a step only costs more.
MIN_BATCH_SIZE, MAX_BATCH_SIZE = 32, 512
STEPS_PER_EPOCH = 50
# Rows of all members that are put into order at a time.
ROWS_PER_GATHER = 1 << 16


def batch_size(settings: Settings, n_rows: int) -> int:
    """Return the number of rows in a step."""
    if settings.batch_size != "rule":
        return settings.batch_size
    power: int = 1 << max(n_rows // STEPS_PER_EPOCH, 1).bit_length() - 1
    return min(max(power, MIN_BATCH_SIZE), MAX_BATCH_SIZE)


class Batch(NamedTuple):
    """The part of a batch that a process has.

    Args:
        rows: [M, b, …], with weights of sum one over the whole batch, on average over an epoch.
        first: the place of the first of them in the order of the epoch.
        total: the rows of the whole batch, of one member.
        cut: how many rows come before those of a second process, where a process alone computes the
            parts of two: their gradients have the same bits. None where there is one part.
    """

    rows: Rows
    first: int
    total: int
    cut: int | None = None

    def __len__(self) -> int:
        return self.rows.target.shape[1]

    def halves(self) -> list["Batch"]:
        """Return the parts of two processes, or the whole where it is one process's own."""
        if self.cut is None:
            return [self]
        return [self._part(0, self.cut), self._part(self.cut, len(self))]

    def divided(self, passes: int) -> Iterator["Batch"]:
        """Yield the batch in about equal parts, none of them empty."""
        size = -(-len(self) // passes) or 1
        for start in range(0, len(self), size):
            yield self._part(start, start + size)

    def of_members(self, numbers: Tensor) -> "Batch":
        """Return the batch of some members."""
        return Batch(self.rows.take(numbers), self.first, self.total, self.cut)

    def _part(self, start: int, end: int) -> "Batch":
        condition, target, weights = self.rows
        part = slice(start, end)
        some = None if weights is None else weights[:, part]
        rows = Rows(condition[:, part], target[:, part], some)
        return Batch(rows, self.first + start, self.total)


class Batches:
    """Standardised rows, and the NLL correction from standardised to original units.

    Each of M members has its own part of the rows, and its own order of them. Weights have mean one
    over a part, so that a row of a batch of b rows counts w/b.

    Args:
        network: whose scales the rows get.
        rows: of all members.
        parts: the numbers of each member's rows; by default one member has all.
    """

    def __init__(
        self, network: DensityNetwork, rows: Rows, parts: Sequence[Tensor] | None = None
    ) -> None:
        # Integer targets are spread over their cells, anew in every epoch.
        self.discrete = (network, rows.target) if network.discrete else None
        real = network.real_target(rows.target, Generator(rows.target.device).manual_seed(0))
        self._corrections = network.row_log_scale(real)
        self.rows = Rows(
            network.standardise_condition(rows.condition),
            network.target_scaling(real).to(network.dtype),
            None if rows.weights is None else rows.weights / rows.weights.amax(),
        )
        self.complete = not bool(self.rows.target.isnan().any())
        every = torch.arange(len(rows), device=rows.target.device)
        self._divide([every] if parts is None else parts)

    def _divide(self, parts: Sequence[Tensor]) -> None:
        self.parts, weights = parts, self.rows.weights
        # By which the weights of a part get mean one.
        self.factors = [1.0 if weights is None else 1 / float(weights[p].mean()) for p in parts]
        pairs = zip(parts, self.factors, strict=True)
        self.offsets = [
            float((self._corrections[p] * (1.0 if weights is None else f * weights[p])).mean())
            for p, f in pairs
        ]

    def with_parts(self, parts: Sequence[Tensor]) -> "Batches":
        """Return the same rows, divided otherwise."""
        other = copy.copy(self)
        vars(other).pop("_aligned", None)
        other._divide(parts)
        return other

    def __len__(self) -> int:
        """Return the rows of an epoch: those of the largest part."""
        return max(map(len, self.parts))

    def in_order(self, size: int, member: int = 0, group: Group | None = None) -> Iterator[Rows]:
        """Yield every row of a member, `size` at a time; of several processes, each some."""
        group = group or Group()
        for numbers in self.parts[member].split(size)[group.rank :: group.size]:
            condition, target, weights = self.rows.take(numbers)
            if weights is not None:
                weights = (weights * (self.factors[member] / len(numbers))).to(target.dtype)
            yield Rows(condition, target, weights)

    def shuffled(
        self, seed: int, epoch: int, start: int, size: int, group: Group | None = None
    ) -> Iterator[Batch]:
        """Yield an epoch's batches [M, b, …], a process's part, from its batch number `start` on.

        A member with fewer rows than another begins its order again where the others go on.
        """
        order = self.parts[0].new_empty(len(self.parts), len(self))
        spread = []
        for member, part in enumerate(self.parts):
            generator = Generator(part.device).manual_seed(
                mixed_seed(member_seed(seed, member), epoch)
            )
            shuffled = part[torch.randperm(len(part), generator=generator, device=part.device)]
            for first in range(0, len(self), len(part)):
                order[member, first : first + len(part)] = shuffled[: len(self) - first]
            if self.discrete is not None:
                network, target = self.discrete
                spread.append(network.standardise_target(target[order[member]], generator))
        targets = torch.stack(spread) if spread else None
        group = group or Group()
        # A gather for many batches: a slice for each costs nothing.
        many = max(1, ROWS_PER_GATHER // (size * len(order))) if group.alone else 1
        for first in range(start * size, len(self), size * many):
            numbers = order[:, first : first + size * many]
            begin, end = group.share(numbers.shape[1])
            condition, target, weights = self.rows.take(numbers[:, begin:end])
            if targets is not None:
                target = targets[:, first + begin : first + end]
            if weights is not None:
                weights = weights * weights.new_tensor(self.factors).unsqueeze(1)
                weights = weights.to(target.dtype)
            local = Rows(condition, target, weights)
            if group.alone:
                yield from _slices(local, size, first, group)
            else:
                yield _part(local, first + begin, numbers.shape[1])

    def aligned(self, size: int, group: Group | None = None) -> Iterator[Rows]:
        """Yield every member's rows [M, b, …] in order, with weights of sum one over a part.

        Of several processes, each gets some.

        In a part that is shorter than others, rows of weight zero follow.
        """
        order, weights = self._aligned
        group, parts = (
            group or Group(),
            zip(order.split(size, 1), weights.split(size, 1), strict=True),
        )
        for numbers, w in islice(parts, group.rank, None, group.size):
            condition, target, _ = self.rows.take(numbers)
            yield Rows(condition, target, w)

    @cached_property
    def _aligned(self) -> tuple[Tensor, Tensor]:
        """The numbers of every member's rows, and their weights [M, n]."""
        order = self.parts[0].new_zeros(len(self.parts), len(self))
        weights = torch.zeros(order.shape, dtype=torch.float64, device=order.device)
        for m, (part, factor) in enumerate(zip(self.parts, self.factors, strict=True)):
            order[m, : len(part)], order[m, len(part) :] = part, part[0]
            each = 1.0 if self.rows.weights is None else factor * self.rows.weights[part]
            weights[m, : len(part)] = each / len(part)
        return order, weights


def _slices(rows: Rows, size: int, first: int, group: Group) -> Iterator[Batch]:
    for start in range(0, rows.target.shape[1], size):
        part = slice(start, start + size)
        condition, target = rows.condition[:, part], rows.target[:, part]
        weights = None if rows.weights is None else rows.weights[:, part]
        total = target.shape[1]
        yield _part(Rows(condition, target, weights), first + start, total, group.cut(total))


def _part(rows: Rows, first: int, total: int, cut: int | None = None) -> Batch:
    weights = None if rows.weights is None else rows.weights / total
    return Batch(Rows(rows.condition, rows.target, weights), first, total, cut)


def member_seed(seed: int, member: int) -> int:
    """Return the seed by which a member's rows are shuffled; the first member has the run's own.

    >>> member_seed(7, 0), member_seed(7, 1) != member_seed(7, 2)
    (7, True)
    """
    return mixed_seed(seed, "member", member) if member else seed


def random_folds(n_rows: int, fraction: float, seed: int) -> tuple[Tensor, Tensor]:
    """Return the fold of each row [n], and the order of the rows by which they were made [n].

    As many folds as fit, each a random fraction of the rows: at least one row, and not all. Rows
    that are left over have −1.

    >>> folds, order = random_folds(5, 0.4, seed=0)
    >>> folds[order]
    tensor([ 0,  0,  1,  1, -1])
    """
    count = min(max(round(fraction * n_rows), 1), n_rows - 1)
    folds = torch.arange(n_rows) // count
    folds[n_rows // count * count :] = -1
    order = torch.randperm(n_rows, generator=Generator().manual_seed(seed))
    return torch.empty_like(folds).index_copy_(0, order, folds), order


class Noise:
    """Noise on the condition and the target of every batch; not on NaN and category codes."""

    def __init__(self, settings: Settings, n_rows: int, columns: int, codes: int = 0) -> None:
        self.codes = codes
        # The bandwidth of a kernel density estimate of as many columns.
        rule = 1.06 * n_rows ** (-1 / (4 + columns))
        given = (settings.condition_noise, settings.target_noise)
        self.condition, self.target = (rule if n == "rule" else float(n) for n in given)

    def add(self, batch: Rows, draws: RowDraws) -> Rows:
        """Return the batch with noise, drawn by rows."""
        condition = batch.condition
        if condition.is_floating_point():
            condition = _noisy(condition, self.condition, draws)
        if self.codes and self.condition:
            condition[..., -self.codes :] = batch.condition[..., -self.codes :]
        return Rows(condition, _noisy(batch.target, self.target, draws), batch.weights)


def _noisy(values: Tensor, scale: float, draws: RowDraws) -> Tensor:
    if not scale:
        return values
    return values + scale * draws.normal(values.shape, values.dtype).to(values.device)
