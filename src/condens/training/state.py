"""The state of a run: weights, optimiser, averages, position, history."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from condens.nn import DensityNetwork
from condens.scalars import refused
from condens.training.history import History, record_from_dict, record_to_dict
from condens.training.settings import Settings

Tensors = dict[str, Tensor]


@dataclass
class Position:
    """Where a run is.

    Args:
        epoch, batch: the next ones.
        step: steps taken so far.
        loss_sum, rows: of this epoch's steps, the sum of the rows' losses and their number.
        seconds: spent in this epoch.
        skipped_steps: in this epoch, those whose loss or gradient was not finite.
        skipped_in_a_row: the last of them.
        returns: how often the weights went back to the last good ones.
        rate_factor: by which the learning rate was lowered.
        stalled_epochs: since the best one.
        done: whether the run has ended.
    """

    epoch: int = 0
    batch: int = 0
    step: int = 0
    loss_sum: float = 0.0
    rows: int = 0
    seconds: float = 0.0
    skipped_steps: int = 0
    skipped_in_a_row: int = 0
    returns: int = 0
    rate_factor: float = 1.0
    stalled_epochs: int = 0
    done: bool = False

    def next_epoch(self) -> None:
        """Move to the beginning of the next epoch."""
        self.epoch += 1
        self.batch, self.rows, self.skipped_steps = 0, 0, 0
        self.loss_sum, self.seconds = 0.0, 0.0

    @classmethod
    def from_dict(cls, values: Any) -> "Position":
        """Return the position of what `record_to_dict` returned; others are refused by name."""
        position = cls(**record_from_dict(cls, values))
        for name, value in vars(position).items():
            if type(value) is int and not 0 <= value < 2**53:
                raise refused(name, value, "0 to 2^53 was expected", "Pass what was saved.")
        return position


class State:
    """The mutable part of a run. `tensors` and `values` are all of it; `load` takes them back."""

    def __init__(self, network: DensityNetwork, settings: Settings) -> None:
        self.network, self.settings = network, settings
        # Of the noise and the dropout.
        self.generator = Generator(network.target_scaling.scale.device).manual_seed(settings.seed)
        self.parameters: list[Tensor] = [p for p in network.parameters() if p.requires_grad]
        # Only matrices shrink: a bias places a component, and has no reason to be small. We
        # shrink them ourselves: a second group would cost a step more than its arithmetic.
        self.matrices = [p for p in self.parameters if p.dim() > 1]
        self.optimiser = torch.optim.AdamW(
            self.parameters, lr=settings.learning_rate, weight_decay=0.0, fused=True
        )
        # As AdamW would at a parameter's first gradient: so every state has the same tensors.
        for p in self.parameters:
            self.optimiser.state[p] = {
                "step": torch.zeros((), dtype=torch.float32, device=p.device),
                "exp_avg": torch.zeros_like(p),
                "exp_avg_sq": torch.zeros_like(p),
            }
        self.average = [p.detach().clone() for p in self.parameters]
        self.position = Position()
        self.history = History()
        self.keep_good()
        self.keep_best()

    def tensors(self) -> Tensors:
        """Return every tensor of the state, by name, and the state of the generator."""
        return {
            **{f"now.{name}": t for name, t in self._now().items()},
            **{f"good.{name}": t for name, t in self.good.items()},
            **{f"best.{name}": t for name, t in self.best.items()},
            "generator": self.generator.get_state(),
        }

    def values(self) -> dict[str, Any]:
        """Return everything else."""
        return {"position": record_to_dict(self.position), "history": self.history.to_dict()}

    def load(self, tensors: Tensors, values: Mapping[str, Any]) -> None:
        """Become the state that `tensors` and `values` were taken from."""
        self.position = Position.from_dict(values["position"])
        self.history = History.from_dict(values["history"])
        self._become(_below("now.", tensors))
        self.good, self.best = _below("good.", tensors), _below("best.", tensors)
        self.generator.set_state(tensors["generator"])

    def keep_good(self) -> None:
        """Remember the weights to return to."""
        self.good = {name: t.detach().clone() for name, t in self._now().items()}

    def return_to_good(self) -> None:
        """Take the weights, the averages and the optimiser back; the position goes on."""
        self._become(self.good)

    def keep_best(self) -> None:
        """Remember the network as it is now, as the one to return."""
        self.best = {name: t.detach().clone() for name, t in self.network.state_dict().items()}

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Let the optimiser take a step, and the average follow; faster at the beginning."""
        self.optimiser.param_groups[0]["lr"] = rate
        if self.settings.weight_decay and self.matrices:
            torch._foreach_mul_(self.matrices, 1 - rate * self.settings.weight_decay)
        self.optimiser.step()
        self.position.step += 1
        if self.settings.average:
            steps = self.position.step
            decay = min(self.settings.average, (1 + steps) / (10 + steps))
            torch._foreach_lerp_(self.average, self.parameters, 1 - decay)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Let the network have the averaged weights for a while."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _swap(self) -> None:
        if self.settings.average:
            for parameter, average in zip(self.parameters, self.average, strict=True):
                parameter.data, average.data = average.data, parameter.data

    def _now(self) -> Tensors:
        moments = [self.optimiser.state[p] for p in self.parameters]
        return {
            **self.network.state_dict(prefix="network."),
            **{f"average.{i}": t for i, t in enumerate(self.average)},
            **{f"optimiser.{i}.{n}": t for i, held in enumerate(moments) for n, t in held.items()},
        }

    @torch.no_grad()
    def _become(self, held: Tensors) -> None:
        self.network.load_state_dict(_below("network.", held))
        for name, tensor in self._now().items():
            tensor.copy_(held[name])


def _below(prefix: str, tensors: Tensors) -> Tensors:
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
