"""The state of a run: weights, optimiser, averages, position, history."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from condens.kernels import networks
from condens.nn import DensityNetwork
from condens.nn.randomness import RowDraws
from condens.scalars import refused
from condens.training.batches import Batch
from condens.training.history import History, record_from_dict, record_to_dict
from condens.training.members import Members
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
        stalled_epochs: since the best one, of each member.
        learning: the numbers of the members that are computed.
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
    stalled_epochs: list[int] = field(default_factory=list)
    learning: list[int] = field(default_factory=list)
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
            for number in value if isinstance(value, list) else [value]:
                if type(number) is int and not 0 <= number < 2**53:
                    raise refused(name, number, "0 to 2^53 was expected", "Pass what was saved.")
        if not 0 <= position.rate_factor <= 1:
            factor = position.rate_factor
            raise refused("rate_factor", factor, "0 to 1 was expected", "Pass what was saved.")
        return position


class State:
    """The mutable part of a run. `tensors` and `values` are all of it; `load` takes them back."""

    def __init__(self, network: DensityNetwork, settings: Settings, *, small: bool = False) -> None:
        self.network, self.settings = network, settings
        self.members = Members(network, settings, small=small)
        self.parameters = self.members.parameters
        stacked = self.members.stack is not None
        # Of AdamW. The parameters of a stack take all steps together, and count them once.
        steps = [torch.zeros((), dtype=torch.float32, device=p.device) for p in self.parameters]
        self._steps = steps[:1] if stacked else steps
        self.moments = [
            {
                "step": self._steps[0] if stacked else step,
                "exp_avg": torch.zeros_like(p),
                "exp_avg_sq": torch.zeros_like(p),
            }
            for p, step in zip(self.parameters, steps, strict=True)
        ]
        shrinking = {id(p) for p in self.members.matrices}
        self._shrinks = [id(p) in shrinking for p in self.parameters]
        self._adamw: networks.AdamW | None = None
        # By weight decay and kind, as AdamW computes them at once.
        self._groups: dict[tuple[float, torch.dtype, torch.device], list[tuple[Tensor, ...]]] = {}
        for p, held in zip(self.parameters, self.moments, strict=True):
            decay = settings.weight_decay if id(p) in shrinking else 0.0
            group = self._groups.setdefault((decay, p.dtype, p.device), [])
            group.append((p, *held.values()))
        # Of a stack; of other networks, modules may put new tensors in place of old ones.
        self._weights: Tensors | None = None
        if self.members.stack is not None:
            leaves = self.members.stack.parameters
            self._weights = {
                **{f"stack.{i}": p for i, p in enumerate(leaves)},
                **{f"network.{name}": buffer for name, buffer in network.named_buffers()},
            }
        self.average = [p.detach().clone() for p in self.parameters]
        self.position = Position(
            stalled_epochs=[0] * len(self.members), learning=self.members.learning
        )
        self.history = History()
        self.good: Tensors = _clones(self._now())
        self.best: Tensors = _clones(network.state_dict())

    def tensors(self) -> Tensors:
        """Return every tensor of the state, by name."""
        return {
            **{f"now.{name}": t for name, t in self._now().items()},
            **{f"good.{name}": t for name, t in self.good.items()},
            **{f"best.{name}": t for name, t in self.best.items()},
        }

    def values(self) -> dict[str, Any]:
        """Return everything else."""
        return {"position": record_to_dict(self.position), "history": self.history.to_dict()}

    def load(self, tensors: Tensors, values: Mapping[str, Any]) -> None:
        """Become the state that `tensors` and `values` were taken from."""
        self.position = Position.from_dict(values["position"])
        self.history = History.from_dict(values["history"])
        for of in (
            self.position.stalled_epochs,
            self.history.member_epochs,
            self.history.member_nlls,
        ):
            if len(of) != len(self.members):
                raise ValueError(f"it is of {len(of)} members, not {len(self.members)}")
        learning, known = self.position.learning, self.members.learning
        stalled, patience = self.position.stalled_epochs, self.settings.patience
        if learning != known:
            some = bool(learning) and sorted(set(learning) & set(known)) == learning
            left = [member for member in known if stalled[member] < patience]
            if not some or self.members.stack is None or (left and left != learning):
                raise ValueError(f"its members {learning} learn, of {left or known}")
            self.keep_learning(learning)
        _check_forms(self.tensors(), tensors)
        for name, count in tensors.items():
            if name.endswith(".step") and not 0 <= float(count) < 2**53:
                raise ValueError(f"it has {name} as {float(count)}")
        self._become(_below("now.", tensors))
        self.good, self.best = _below("good.", tensors), _below("best.", tensors)

    def keep_good(self) -> None:
        """Remember the weights to return to."""
        _copy(self._now(), self.good)

    def return_to_good(self) -> None:
        """Take the weights, the averages and the optimiser back; the position goes on."""
        self._become(self.good)

    def keep_learning(self, learning: Sequence[int]) -> None:
        """Go on with some members of a stack alone, of those that learn."""
        places = [self.members.learning.index(member) for member in learning]
        self.members.keep(learning)
        self.position.learning = self.members.learning
        moments = [t for held in self.moments for n, t in held.items() if n != "step"]
        # The weights are the stack's; buffers and counts of steps are the same for all.
        good = [
            tensor
            for name, tensor in self.good.items()
            if not name.startswith("network.") and not name.endswith(".step")
        ]
        for tensor in (*self.average, *moments, *good):
            tensor.data = tensor.data[places]

    def keep_best(self, member: int) -> None:
        """Remember a member as it is now, as the one to return."""
        network, prefix = self.members.networks[member], self.members.prefixes[member]
        _copy(network.state_dict(prefix=prefix), self.best)

    def close(self) -> None:
        """Leave the best members in the network."""
        self.network.load_state_dict(self.best)
        self.members.release()

    @torch.no_grad()
    def step(self, rate: float) -> bool:
        """Take a step of AdamW, and let the average follow; faster at the beginning.

        Each member's gradient is clipped. Return False, and change nothing, where one is not
        finite.
        """
        steps = self.position.step + 1
        average = self._average_after(steps)
        if self.members.native:
            lengths = self._step_natively(rate, average)
            if not all(map(math.isfinite, lengths)):
                return False
        else:
            found = self.members.gradient_lengths()
            lengths = found.tolist()
            if not all(map(math.isfinite, lengths)):
                return False
            if max(lengths) > self.settings.clip:
                self.members.clip(found)
            self._step_by_torch(rate)
            if self.settings.average:
                torch._foreach_lerp_(self.average, self.parameters, 1 - average)
        self.position.step = steps
        return True

    def several_steps(
        self, batches: Sequence[Batch], rates: Sequence[float], draws: RowDraws
    ) -> list[float] | None:
        """Take steps at once, until one is not finite; return the loss of each that was taken.

        None where only single steps are possible.
        """
        stack, settings, count = self.members.stack, self.settings, self._steps[0]
        if stack is None or not self.members.native:
            return None
        draws.begin(epoch=self.position.epoch, first=batches[0].first, rows=len(batches[0]))
        adamw, (condition, target, _) = self._adamw_of(range(len(self.parameters))), batches[0].rows
        known = stack.steps(adamw, condition, target, draws)
        if known is None:
            return None
        steps, dropped = known
        first = self.position.step + 1
        losses = steps.take(
            [networks.Batch(one.first, *one.rows) for one in batches],
            [
                networks.Schedule(rate, 1 - self._average_after(number))
                for number, rate in enumerate(rates, first)
            ],
            dropped=dropped,
            bases=draws.bases,
            step=int(count) + 1,
            decay=settings.weight_decay,
            clip=settings.clip,
        )
        count.add_(len(losses))
        self.position.step += len(losses)
        return [sum(each) for each in losses]

    def _average_after(self, steps: int) -> float:
        """Return the part of an average that stays in a step; less at the beginning."""
        return min(self.settings.average, (1 + steps) / (10 + steps))

    def _adamw_of(self, places: Sequence[int]) -> networks.AdamW:
        """Return what takes native steps of some parameters."""
        weights = [
            networks.Weights(
                self.parameters[place],
                self.moments[place]["exp_avg"],
                self.moments[place]["exp_avg_sq"],
                self.average[place] if self.settings.average else None,
            )
            for place in places
        ]
        if self._adamw is None or not self._adamw.holds(weights):
            self._adamw = networks.AdamW(weights, [self._shrinks[place] for place in places])
        return self._adamw

    def _step_natively(self, rate: float, average: float) -> list[float]:
        """Return the lengths of the gradients; where they are finite, all has changed."""
        count, settings = self._steps[0], self.settings
        pairs = [(i, p.grad) for i, p in enumerate(self.parameters) if p.grad is not None]
        lengths = self._adamw_of([place for place, _ in pairs]).step(
            [gradient for _, gradient in pairs],
            step=int(count) + 1,
            rate=rate,
            decay=settings.weight_decay,
            clip=settings.clip,
            follow=1 - average,
        )
        if all(map(math.isfinite, lengths)):
            count.add_(1)
        return lengths

    def _step_by_torch(self, rate: float) -> None:
        pairs = zip(self.parameters, self._steps, strict=False)  # of a stack, one count
        counted = [step for p, step in pairs if p.grad is not None]
        if counted:
            torch._foreach_add_(counted, 1)
        for (decay, *_), group in self._groups.items():
            parts = [(p, p.grad, *held) for p, *held in group if p.grad is not None]
            if parts:
                # What torch.optim.AdamW(fused=True) calls, which takes as long on the way there.
                parameters, gradients, taken, first, second = map(list, zip(*parts, strict=True))
                torch._fused_adamw_(
                    *(parameters, gradients, first, second, [], taken),
                    lr=rate,
                    beta1=networks.AdamW.BETA_1,
                    beta2=networks.AdamW.BETA_2,
                    weight_decay=decay,
                    eps=networks.AdamW.EPSILON,
                    amsgrad=False,
                    maximize=False,
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
        if self.settings.average:
            for parameter, average in zip(self.parameters, self.average, strict=True):
                parameter.data, average.data = average.data, parameter.data
            if self.members.stack is not None:
                self.members.stack.attach()

    def _now(self) -> Tensors:
        moments, weights = self.moments, self._weights
        return {
            **(self.network.state_dict(prefix="network.") if weights is None else weights),
            **{f"average.{i}": t for i, t in enumerate(self.average)},
            **{f"optimiser.{i}.{n}": t for i, held in enumerate(moments) for n, t in held.items()},
        }

    @torch.no_grad()
    def _become(self, held: Tensors) -> None:
        if self._weights is None:
            self.network.load_state_dict(_below("network.", held))
        for name, tensor in self._now().items():
            tensor.copy_(held[name])


def _check_forms(expected: Tensors, tensors: Tensors) -> None:
    """Refuse tensors of a state that are missing, unknown or of another shape."""
    for name in expected | tensors:
        if name not in tensors:
            raise ValueError(f"it lacks {name}")
        if name not in expected:
            raise ValueError(f"it has an unknown {name[:100]!r}")
        got, form = (f"{t.dtype} {list(t.shape)}" for t in (tensors[name], expected[name]))
        if got != form:
            raise ValueError(f"it has {name} as {got} for {form}")


def _clones(tensors: Tensors) -> Tensors:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


@torch.no_grad()
def _copy(tensors: Tensors, held: Tensors) -> None:
    """Copy tensors into those that are held by the same names."""
    torch._foreach_copy_([held[name] for name in tensors], list(tensors.values()))


def _below(prefix: str, tensors: Tensors) -> Tensors:
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
