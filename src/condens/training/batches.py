"""Batches: rows standardised once, and shuffled by seed and epoch alone."""

from collections.abc import Iterator

import torch
from torch import Generator, Tensor

from condens.data import Rows
from condens.nn import DensityNetwork
from condens.nn.randomness import mixed_seed
from condens.training.settings import Settings

# Few rows need small batches to get enough steps; beyond the largest a step only costs more.
MIN_BATCH_SIZE, MAX_BATCH_SIZE = 32, 256
STEPS_PER_EPOCH = 100


def batch_size(settings: Settings, n_rows: int) -> int:
    """Return the number of rows in a step."""
    if settings.batch_size != "rule":
        return settings.batch_size
    power: int = 1 << max(n_rows // STEPS_PER_EPOCH, 1).bit_length() - 1
    return min(max(power, MIN_BATCH_SIZE), MAX_BATCH_SIZE)


class Batches:
    """Standardised rows, and the NLL correction from standardised to original units.

    Weights have mean one, so that a row of a batch of b rows counts w/b.
    """

    def __init__(self, network: DensityNetwork, rows: Rows) -> None:
        weights = rows.normalised_weights
        # Integer targets are spread over their cells, anew in every epoch.
        self.discrete = (network, rows.target) if network.discrete else None
        real = network.real_target(rows.target, Generator(rows.target.device).manual_seed(0))
        self.offset = float(network.log_scale(real, weights))
        self.rows = Rows(
            network.standardise_condition(rows.condition),
            network.target_scaling(real).to(network.dtype),
            None if weights is None else (weights * len(rows)).to(network.dtype),
        )
        self.complete = not bool(self.rows.target.isnan().any())

    def __len__(self) -> int:
        return len(self.rows)

    def in_order(self, size: int) -> Iterator[Rows]:
        """Yield every row, `size` at a time."""
        return _slices(self.rows, 0, size)

    def shuffled(self, seed: int, epoch: int, start: int, size: int) -> Iterator[Rows]:
        """Yield an epoch's batches from its batch number `start` on."""
        # One gather for the epoch: a slice for each batch costs nothing.
        device = self.rows.target.device
        generator = Generator(device).manual_seed(mixed_seed(seed, epoch))
        order = torch.randperm(len(self), generator=generator, device=device)
        rows = self.rows.take(order)
        if self.discrete is not None:
            network, target = self.discrete
            spread = network.standardise_target(target[order], generator)
            rows = Rows(rows.condition, spread, rows.weights)
        return _slices(rows, start * size, size)


def _slices(rows: Rows, start: int, size: int) -> Iterator[Rows]:
    for first in range(start, len(rows), size):
        part = slice(first, first + size)
        condition, target = rows.condition[part], rows.target[part]
        weights = None if rows.weights is None else rows.weights[part] / len(target)
        yield Rows(condition, target, weights)


class Noise:
    """Noise on the condition and the target of every batch; not on NaN and category codes."""

    def __init__(self, settings: Settings, rows: Rows, codes: int = 0) -> None:
        self.codes = codes
        columns = rows.target.shape[1]
        if rows.condition.dim() == 2:
            columns += rows.condition.shape[1] - codes
        # The bandwidth of a kernel density estimate of as many columns.
        rule = 1.06 * len(rows) ** (-1 / (4 + columns))
        given = (settings.condition_noise, settings.target_noise)
        self.condition, self.target = (rule if n == "rule" else float(n) for n in given)

    def add(self, batch: Rows, generator: Generator) -> Rows:
        """Return the batch with noise from a generator."""
        condition = batch.condition
        if condition.is_floating_point():
            condition = _noisy(condition, self.condition, generator)
        if self.codes and self.condition:
            condition[:, -self.codes :] = batch.condition[:, -self.codes :]
        return Rows(condition, _noisy(batch.target, self.target, generator), batch.weights)


def _noisy(values: Tensor, scale: float, generator: Generator) -> Tensor:
    if not scale:
        return values
    noise = torch.randn(
        values.shape, generator=generator, dtype=values.dtype, device=generator.device
    )
    return values + scale * noise.to(values.device)
