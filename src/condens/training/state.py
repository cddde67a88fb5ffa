"""Everything a run needs to go on: weights, optimiser, averages, position, history."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Generator, Tensor

from condens.nn import DensityNetwork
from condens.training.history import History
from condens.training.settings import Settings

Tensors = dict[str, Tensor]


class State:
    """The mutable part of a run. `tensors` and `values` are all of it; `load` takes them back."""

    def __init__(self, network: DensityNetwork, settings: Settings) -> None:
        self.network = network
        # Of the noise and the dropout.
        self.generator = Generator(network.target_scaling.scale.device).manual_seed(settings.seed)
        self.parameters: list[Tensor] = [p for p in network.parameters() if p.requires_grad]
        # Only matrices shrink: a bias places a component, and has no reason to be small. We
        # shrink them ourselves: a second group would cost a step more than its arithmetic.
        self.matrices = [p for p in self.parameters if p.dim() > 1]
        self.optimiser = torch.optim.AdamW(
            self.parameters, lr=settings.learning_rate, weight_decay=0.0, fused=True
        )
        self.decay = settings.weight_decay
        self.averages = settings.average > 0
        self.average = [p.detach().clone() for p in self.parameters]
        self.best: Tensors = {}
        self.good: Tensors = {}
        self.position: dict[str, Any] = {
            "epoch": 0,
            "batch": 0,
            "step": 0,
            "loss": 0.0,
            "rows": 0,
            "seconds": 0.0,
            "skipped": 0,
            "streak": 0,
            "restores": 0,
            "reduction": 1.0,
            "stalled": 0,
            "done": False,
        }
        self.history = History()

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
        return {"position": self.position, "history": self.history.to_dict()}

    def load(self, tensors: Tensors, values: dict[str, Any]) -> None:
        """Become the state that `tensors` and `values` were taken of."""

        def part(prefix: str) -> Tensors:
            return {
                name.removeprefix(prefix): t
                for name, t in tensors.items()
                if name.startswith(prefix)
            }

        self._become(part("now."))
        self.good, self.best = part("good."), part("best.")
        self.generator.set_state(tensors["generator"])
        self.position = values["position"]
        self.history = History.from_dict(values["history"])

    def keep_good(self) -> None:
        """Remember the weights to return to."""
        self.good = {name: t.detach().clone() for name, t in self._now().items()}

    def return_to_good(self) -> None:
        """Take the weights, the averages and the optimiser back; the position goes on."""
        self._become({name: t.clone() for name, t in self.good.items()})

    def keep_best(self) -> None:
        """Remember the network as it is now, as the one to return."""
        self.best = {name: t.detach().clone() for name, t in self.network.state_dict().items()}

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Let the optimiser take a step."""
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        if self.decay and self.matrices:
            torch._foreach_mul_(self.matrices, 1 - rate * self.decay)
        self.optimiser.step()

    @torch.no_grad()
    def follow(self, decay: float) -> None:
        """Move the average towards the weights; faster at the beginning."""
        step = self.position["step"]
        torch._foreach_lerp_(
            self.average, self.parameters, 1 - min(decay, (1 + step) / (10 + step))
        )

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Let the network have the averaged weights for a while."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _swap(self) -> None:
        if self.averages:
            for parameter, average in zip(self.parameters, self.average, strict=True):
                parameter.data, average.data = average.data, parameter.data

    def _now(self) -> Tensors:
        held = {f"network.{name}": t for name, t in self.network.state_dict().items()}
        held |= {f"average.{i}": t for i, t in enumerate(self.average)}
        for i, entry in self.optimiser.state_dict()["state"].items():
            held |= {f"optimiser.{i}.{name}": t for name, t in entry.items()}
        return held

    @torch.no_grad()
    def _become(self, held: Tensors) -> None:
        prefix = "network."
        self.network.load_state_dict(
            {n.removeprefix(prefix): t for n, t in held.items() if n.startswith(prefix)}
        )
        for i, average in enumerate(self.average):
            average.copy_(held[f"average.{i}"])
        record = self.optimiser.state_dict()
        record["state"] = {}
        for name, tensor in held.items():
            kind, _, rest = name.partition(".")
            if kind == "optimiser":
                number, _, field = rest.partition(".")
                record["state"].setdefault(int(number), {})[field] = tensor
        self.optimiser.load_state_dict(record)
