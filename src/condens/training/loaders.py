"""Training on a `Dataset` or a `DataLoader` of torch, for conditions such as images."""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Generator, Tensor
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

from condens.data import Rows
from condens.errors import ArgumentError, ShapeError
from condens.nn import DensityNetwork
from condens.nn.randomness import mixed_seed
from condens.training.batches import Batch, Batches, Noise, random_folds
from condens.training.distributed import Group
from condens.training.run_directory import hash_numbers
from condens.training.settings import Settings
from condens.training.sources import Source

# Rows that give the scales, and memory of these and of the rows to validate on.
SAMPLE_ROWS, SAMPLE_BYTES = 20_000, 1 << 28
# Rows of a batch where neither the settings nor the loader say how many.
BATCH_SIZE = 64
# What a loader of ours takes over from the user's.
_TAKEN_OVER = (
    *("num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn"),
    *("multiprocessing_context", "prefetch_factor"),
)


class LoadedRows(Source):
    """Rows that a dataset of torch loads one by one, or that an iterable one yields.

    Each item is (condition, target) or (condition, target, weight). The order of a map-style
    dataset is that of condens, by seed and epoch, whatever the loader says; an iterable one keeps
    its own, and so does a loader with a sampler of its own. Several processes all iterate over
    such, and take their part of every batch: all of them need the same rows in the same order, and
    as many in every epoch, so no `DistributedSampler`.

    Args:
        data: a map-style or iterable `Dataset`, or a `DataLoader` of one. Of a loader, its workers,
            `collate_fn`, batch size and the like are used.
        validation: rows to validate on, in memory; by default the settings' fraction of a
            map-style dataset, as far as it fits into 256 MB, and none of an iterable one.
        settings: of the run.
        n_members: of the network; all get the same batches, in which the rows of a member's fold
            have weight zero for it.
    """

    def __init__(
        self,
        data: "Dataset[Any] | DataLoader[Any]",
        validation: Rows | None,
        settings: Settings,
        n_members: int,
    ) -> None:
        given = data if isinstance(data, DataLoader) else None
        self.dataset: Any = data if given is None else given.dataset
        self.loader, self.n_members = given, n_members
        self.mapped = not isinstance(self.dataset, IterableDataset) and _is_plain(given)
        size = BATCH_SIZE if given is None or given.batch_size is None else given.batch_size
        self.size = size if settings.batch_size == "rule" else settings.batch_size
        self.validation, self._n_rows = validation, 0
        self.folds: Tensor | None = None
        self.fold_rows: Rows | None = None
        if self.mapped:
            self._n_rows = _length(self.dataset)
            if not self._n_rows:
                raise ShapeError(
                    "data", got="has no rows", expected="at least one is needed", fix="Pass some."
                )
            self._divide(settings)
        else:
            self._count()

    def _divide(self, settings: Settings) -> None:
        """Hold out rows of a map-style dataset, and load them and a sample of the others."""
        n, fraction = self._n_rows, settings.validation_fraction
        first = self._load([0])
        most = max(SAMPLE_BYTES // max(_bytes(first), 1), 1)
        order = torch.randperm(n, generator=Generator().manual_seed(settings.seed))
        if self.validation is None and fraction and n > 1:
            fraction = min(fraction, most / (self.n_members * n))
            self.folds, order = random_folds(n, fraction, settings.seed)
            self.folds = torch.where(self.folds < self.n_members, self.folds, -1)
            held = order[self.folds[order] >= 0]
            self.fold_rows, self.held = self._load(held.tolist()), self.folds[held]
        rest = order if self.folds is None else order[self.folds[order] < 0]
        self.order = torch.arange(n) if self.n_members > 1 or self.folds is None else rest
        self.sample = self._load(rest[: min(SAMPLE_ROWS, most)].tolist())

    def _count(self) -> None:
        """Go through an iterable dataset once, to count its rows and take a sample."""
        sample: list[Rows] = []
        for rows in self._iterate():
            self._n_rows += len(rows)
            known = sum(map(len, sample))
            if (
                known < SAMPLE_ROWS
                and (known + len(rows)) * _bytes(rows) / len(rows) < SAMPLE_BYTES
            ):
                sample.append(rows)
        if not sample:
            raise ShapeError(
                "data",
                got=f"yields {self._n_rows} rows",
                expected="at least one is needed",
                fix="Pass an iterable that can be iterated over again, once in every epoch.",
            )
        self.sample = _joined(sample)

    @property
    def n_rows(self) -> int:
        """The rows of an epoch."""
        return len(self.order) if self.mapped else self._n_rows

    def batch_size(self, settings: Settings) -> int:  # noqa: ARG002
        """Return the number of rows in a step: the settings', or the loader's."""
        return self.size

    @property
    def typical(self) -> Rows:
        """The sample."""
        return self.sample

    def check(self, network: DensityNetwork) -> None:
        """Refuse rows that do not fit the network, or of which none counts."""
        self.sample.observed("data")
        for rows in filter(None, (self.sample, self.validation, self.fold_rows)):
            network.check(rows.condition, rows.target)

    def digest(self) -> str:
        """Return a hash of the number of rows, the sample and the rows to validate on."""
        held = self.validation or self.fold_rows or ()
        parts = [hash_numbers(part) for part in (*self.sample, *held) if part is not None]
        return hashlib.sha256(repr((self._n_rows, self.size, parts)).encode()).hexdigest()

    def prepare(self, network: DensityNetwork, settings: Settings) -> None:
        """Take scales and first components from the sample."""
        device = network.target_scaling.scale.device
        condition, target, _ = self.sample.to(device)
        if settings.start == "keep":
            network.extend_range(condition)
            return
        network.prepare(
            condition,
            target,
            generator=Generator().manual_seed(settings.seed),
            from_data=settings.start == "data",
        )

    def batches(self, network: DensityNetwork) -> tuple["LoadedBatches", Batches | None]:
        """Return the batches to load, and the rows to validate on, which are in memory."""
        device = network.target_scaling.scale.device
        batches = LoadedBatches(self, network)
        if self.validation is not None:
            held = self.validation.observed().to(device)
            every = torch.arange(len(held), device=device)
            return batches, Batches(network, held, [every] * self.n_members)
        if self.fold_rows is None:
            return batches, None
        parts = [(self.held == m).nonzero()[:, 0].to(device) for m in range(self.n_members)]
        return batches, Batches(network, self.fold_rows.to(device), parts)

    def noise(self, settings: Settings, network: DensityNetwork) -> Noise:
        """Return noise by the number of rows."""
        columns = self.sample.target.shape[1]
        if self.sample.condition.dim() == 2:
            columns += self.sample.condition.shape[1] - network.condition_codes
        return Noise(settings, self.n_rows, columns, network.condition_codes)

    def _load(self, numbers: Sequence[int]) -> Rows:
        """Return rows of a map-style dataset."""
        parts = [list(numbers[i : i + self.size]) for i in range(0, len(numbers), self.size)]
        return _joined([read_rows(items) for items in self.loading(parts, seed=0)])

    def loading(self, numbers: Sequence[Sequence[int]], seed: int) -> Iterator[Any]:
        """Yield batches of a map-style dataset, as its `collate_fn` makes them."""
        options = {} if self.loader is None else {n: getattr(self.loader, n) for n in _TAKEN_OVER}
        if self.loader is not None and not self.loader.num_workers:
            del options["prefetch_factor"]
        generator = Generator().manual_seed(seed)
        loader: DataLoader[Any] = DataLoader(
            self.dataset, batch_sampler=list(map(list, numbers)), generator=generator, **options
        )
        yield from loader

    def _iterate(self) -> Iterator[Rows]:
        """Yield the batches of an iterable dataset, or of a loader with an order of its own."""
        loader = self.loader
        if loader is None:
            loader = DataLoader(self.dataset, batch_size=self.size)
        yield from map(read_rows, loader)


class LoadedBatches:
    """The batches of `LoadedRows`."""

    def __init__(self, source: LoadedRows, network: DensityNetwork) -> None:
        self.source, self.network = source, network
        self.device = network.target_scaling.scale.device
        self.complete = False
        sample = source.sample.to(self.device)
        weights = _counting(sample)
        # The mean weight of a row, for each member, by which the rows count one on average.
        means = [float(weights.mean())] * source.n_members
        if source.fold_rows is not None and source.n_members > 1:
            held, n = _counting(source.fold_rows), len(source.order)
            rest = means[0] * (n - len(held))
            means = [(rest + float(held[source.held != m].sum())) / n for m in range(len(means))]
        self.mean_weights = torch.tensor(means, dtype=torch.float64, device=self.device)
        real = network.real_target(sample.target, Generator(self.device).manual_seed(0))
        offset = float(weights @ network.row_log_scale(real) / weights.sum())
        self.offsets = [offset] * source.n_members

    def __len__(self) -> int:
        return self.source.n_rows

    def shuffled(
        self, seed: int, epoch: int, start: int, size: int, group: Group | None = None
    ) -> Iterator[Batch]:
        """Yield a process's part of every batch, from number `start` on."""
        group = group or Group()
        if not self.source.mapped:
            first = 0
            for number, rows in enumerate(self.source._iterate()):
                if not group.alone and first + len(rows) > self.source.n_rows:
                    raise self._uneven(group, epoch, f"more than {self.source.n_rows}")
                if number >= start and len(rows):
                    begin, end = group.share(len(rows))
                    part = rows.take(torch.arange(begin, end))
                    place = first + begin, len(rows), group.cut(len(rows))
                    yield self._batch(part, None, place, seed, epoch)
                first += len(rows)
            if not first:
                raise ShapeError(
                    "data",
                    got=f"yields no rows in epoch {epoch}",
                    expected=f"it had {self.source.n_rows} before",
                    fix="Pass an iterable that can be iterated over again, once in every epoch.",
                )
            if not group.alone and first < self.source.n_rows:
                raise self._uneven(group, epoch, str(first))
            return
        shuffle = Generator().manual_seed(mixed_seed(seed, epoch))
        known = self.source.order
        order = known[torch.randperm(len(known), generator=shuffle)]
        whole = list(order.split(size))[start:]
        ours = [numbers[slice(*group.share(len(numbers)))] for numbers in whole]
        loaded = self.source.loading([part.tolist() for part in ours if len(part)], seed + epoch)
        for number, (all_, part) in enumerate(zip(whole, ours, strict=True), start):
            begin, _ = group.share(len(all_))
            if len(part):
                rows = read_rows(next(loaded))
            else:
                rows = self.source.sample.take(torch.arange(0))
            folds = None if self.source.folds is None else self.source.folds[part]
            place = number * size + begin, len(all_), group.cut(len(all_))
            yield self._batch(rows, folds, place, seed, epoch)

    def _uneven(self, group: Group, epoch: int, rows: str) -> ShapeError:
        """Return the error of an epoch in which processes would meet at different batches."""
        return ShapeError(
            "data",
            got=f"yields {rows} rows in epoch {epoch + 1} of process {group.rank}",
            expected=f"processes share its batches, of {self.source.n_rows} rows before",
            fix="Yield the same rows in every epoch and process, or train in one process.",
        )

    def _batch(
        self,
        rows: Rows,
        folds: Tensor | None,
        place: tuple[int, int, int | None],
        seed: int,
        epoch: int,
    ) -> Batch:
        """Return rows as a batch; its place is `first`, `total` and `cut` of it."""
        (first, total, cut), network = place, self.network
        members = self.source.n_members
        if len(rows):
            network.check(rows.condition, rows.target)
        condition, target, _ = rows = rows.to(self.device)
        each = _counting(rows) / self.mean_weights.unsqueeze(1)
        if folds is not None and members > 1:
            own = folds.to(self.device) == torch.arange(members, device=self.device)[:, None]
            each = torch.where(own, 0.0, each)
        stand_in = self.source.sample.target[:1].to(self.device)
        target = torch.where(rows.useful[:, None], target, stand_in.to(target))
        generator = None
        if network.discrete:
            generator = Generator(self.device).manual_seed(mixed_seed(seed, epoch, first))
        standard = network.standardise_target(target, generator)
        read = network.standardise_condition(condition)
        return Batch(
            Rows(
                read.expand(members, *read.shape),
                standard.expand(members, *standard.shape).contiguous(),
                (each / total).to(standard.dtype).contiguous(),
            ),
            first,
            total,
            cut,
        )


def read_rows(items: Any) -> Rows:
    """Return the rows of a batch that a loader has made."""
    if not isinstance(items, tuple | list) or len(items) not in (2, 3):
        raise ArgumentError(
            "data",
            got=f"yields a {type(items).__name__}"
            + (f" of {len(items)}" if isinstance(items, tuple | list) else ""),
            expected="(condition, target) or (condition, target, weight) was expected",
            fix="Let every item of the dataset be such a tuple.",
        )
    return Rows.of(*items)


def _is_plain(loader: "DataLoader[Any] | None") -> bool:
    """Tell whether a loader only says whether to shuffle."""
    if loader is None:
        return True
    return loader.batch_size is not None and isinstance(
        loader.sampler, RandomSampler | SequentialSampler
    )


def _length(dataset: Any) -> int:
    try:
        return len(dataset)
    except (TypeError, ValueError, NotImplementedError) as error:
        raise ArgumentError(
            "data",
            got=f"is a {type(dataset).__name__} without a length ({error})",
            expected="a dataset with __len__ and __getitem__ was expected",
            fix="Add __len__, or make it an IterableDataset.",
        ) from error


def _counting(rows: Rows) -> Tensor:
    """Return the weights of rows [n]: 0 for those without a target, 1 where none were given."""
    useful = rows.useful.double()
    return useful if rows.weights is None else rows.weights * useful


def _bytes(rows: Rows) -> int:
    return sum(part.numel() * part.element_size() for part in rows if part is not None)


def _joined(parts: Sequence[Rows]) -> Rows:
    condition, target, weights = zip(*parts, strict=True)
    known = [part for part in weights if part is not None]
    return Rows(torch.cat(condition), torch.cat(target), torch.cat(known) if known else None)
