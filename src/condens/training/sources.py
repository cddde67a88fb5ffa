"""What a run is trained on: rows in memory here; shards and loaders in files of their own."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Generator, Tensor

from condens.data import Rows
from condens.errors import ArgumentError
from condens.nn import DensityNetwork
from condens.training.batches import Batch, Batches, Noise, batch_size, random_folds
from condens.training.distributed import Group
from condens.training.run_directory import hash_numbers
from condens.training.settings import Settings


class TrainingBatches(Protocol):
    """An epoch's batches, in an order that only seed and epoch decide."""

    complete: bool
    offsets: list[float]

    def __len__(self) -> int:
        """Return the rows of an epoch, of one member."""

    def shuffled(
        self, seed: int, epoch: int, start: int, size: int, group: Group | None = None
    ) -> Iterator[Batch]:
        """Yield a process's part of every batch, from number `start` on."""


class Source(ABC):
    """The rows of a run, and how they are divided among its members.

    Attributes:
        rows_left_out: rows without an observed target or with weight zero.
        divided: whether one process always computes batches in the parts of two; see `Batch`.
    """

    rows_left_out: int = 0
    divided: bool = False

    @property
    @abstractmethod
    def n_rows(self) -> int:
        """The rows of an epoch: those of the member that trains on the most."""

    def batch_size(self, settings: Settings) -> int:
        """Return the number of rows in a step."""
        return batch_size(settings, self.n_rows)

    @property
    @abstractmethod
    def typical(self) -> Rows:
        """Rows in memory that stand for all training rows."""

    @abstractmethod
    def check(self, network: DensityNetwork) -> None:
        """Refuse rows that do not fit the network."""

    @abstractmethod
    def digest(self) -> str:
        """Return a hash of everything that is learned from."""

    @abstractmethod
    def prepare(self, network: DensityNetwork, settings: Settings) -> None:
        """Give a network its scales and first components, or widen its range of conditions."""

    @abstractmethod
    def batches(self, network: DensityNetwork) -> tuple[TrainingBatches, Batches | None]:
        """Return the batches to train on, and the rows to validate on, if there are any."""

    @abstractmethod
    def noise(self, settings: Settings, network: DensityNetwork) -> Noise:
        """Return the noise that is added to every batch."""


class RowsInMemory(Source):
    """Rows of which each member trains on some and validates on the others.

    Args:
        rows: observed ones.
        validation: rows to validate on, of all members; by default those of a member's fold.
        folds: of the rows [n]; by default random ones of the settings' `validation_fraction`.
        settings: of the run.
        n_members: of the network.
    """

    def __init__(
        self,
        rows: Rows,
        validation: Rows | None,
        folds: Tensor | None,
        settings: Settings,
        n_members: int,
    ) -> None:
        self.rows, self.validation, self.folds = rows, validation, folds
        order = torch.arange(len(rows))
        if folds is None and validation is None and settings.validation_fraction and len(rows) > 1:
            folds, order = random_folds(len(rows), settings.validation_fraction, settings.seed)
        self._validates = folds is not None
        self.trained, self._validated = _parts(folds, order, n_members, rows.target.device)

    @property
    def n_rows(self) -> int:
        """The rows of the largest part."""
        return max(map(len, self.trained))

    @property
    def typical(self) -> Rows:
        """All rows."""
        return self.rows

    def check(self, network: DensityNetwork) -> None:
        """Refuse rows that do not fit the network, or are on another device."""
        for part in filter(None, (self.rows, self.validation)):
            check_rows(network, part)

    def digest(self) -> str:
        """Return a hash of the bytes of rows, validation rows and folds."""
        parts = (
            ("rows", self.rows),
            ("validation", self.validation or ()),
            ("folds", (self.folds,)),
        )
        hashes = [
            (name, place, hash_numbers(tensor))
            for name, part in parts
            for place, tensor in enumerate(part)
            if tensor is not None
        ]
        return hashlib.sha256(repr(hashes).encode()).hexdigest()

    def prepare(self, network: DensityNetwork, settings: Settings) -> None:
        """Take scales and first components from the rows that members train on."""
        # Rows that no member trains on have no say in the scales.
        rows, parts = _used(self.rows, self.trained)
        if settings.start == "keep":
            network.extend_range(rows.condition)
            return
        network.prepare(
            *rows[:2],
            generator=Generator().manual_seed(settings.seed),
            from_data=settings.start == "data",
            parts=parts,
        )

    def batches(self, network: DensityNetwork) -> tuple[Batches, Batches | None]:
        """Return the rows, standardised once."""
        batches = Batches(network, self.rows, self.trained)
        if self.validation is not None:
            every = torch.arange(len(self.validation), device=self.validation.target.device)
            return batches, Batches(network, self.validation, [every] * len(self.trained))
        return batches, batches.with_parts(self._validated) if self._validates else None

    def noise(self, settings: Settings, network: DensityNetwork) -> Noise:
        """Return noise by the number of rows that the first member trains on."""
        columns = self.rows.target.shape[1]
        if self.rows.condition.dim() == 2:
            columns += self.rows.condition.shape[1] - network.condition_codes
        return Noise(settings, len(self.trained[0]), columns, network.condition_codes)


def check_rows(network: DensityNetwork, rows: Rows) -> None:
    """Refuse rows that do not fit the network, or are on another device."""
    device = network.target_scaling.scale.device
    if rows.target.device != device:
        raise ArgumentError(
            "target",
            got=f"is on {rows.target.device}",
            expected=f"the network is on {device}",
            fix="Move one of them with .to(device).",
        )
    network.check(rows.condition, rows.target)


def _parts(
    folds: Tensor | None, order: Tensor, members: int, device: torch.device
) -> tuple[list[Tensor], list[Tensor]]:
    """Return the numbers of the rows that each member trains on, and validates on, in an order."""
    if folds is None:
        return [order.to(device)] * members, [order.to(device)] * members
    count = max(int(folds.max()) + 1, 1)
    held = [(folds == member % count)[order] for member in range(members)]
    for fold, part in enumerate(held[:count]):
        if not bool(part.any()) or bool(part.all()):
            raise ArgumentError(
                "folds",
                got=f"has {int(part.sum())} of {len(order)} observed rows in fold {fold}",
                expected="a member validates on some rows and trains on others",
                fix="Pass folds 0, 1, … that each hold some of the rows.",
            )
    return [order[~part].to(device) for part in held], [order[part].to(device) for part in held]


def _used(rows: Rows, parts: list[Tensor]) -> tuple[Rows, list[Tensor]]:
    """Return the rows that are in any part, in the order of a single one, and their parts."""
    if len(parts) == 1:
        return rows.take(parts[0]), [torch.arange(len(parts[0]), device=parts[0].device)]
    seen = torch.zeros(len(rows), dtype=torch.bool, device=parts[0].device)
    for part in parts:
        seen[part] = True
    if bool(seen.all()):
        return rows, parts
    places = seen.cumsum(0) - 1
    return rows.take(seen.nonzero().flatten()), [places[part] for part in parts]
