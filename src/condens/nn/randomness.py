"""Random generators of a run: initial weights, dropout, and torch's generator on loan.

torch has one generator for all threads of a process. condens draws from generators that belong
to one run, so that runs in parallel threads do not disturb one another, nor the user's draws.
Modules from elsewhere always draw from torch's generator: they borrow it, one run at a time.
"""

import hashlib
import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Generator, Tensor, nn

from condens.scalars import as_whole

# Held while torch's generator is on loan; the same thread may borrow it again within.
_LOAN = threading.RLock()
# Values of 16 random bits.
_HALVES = 1 << 16

# Modules of torch that draw nothing when they are called.
_QUIET = {
    *(nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict),
    *(nn.Identity, nn.Flatten, nn.Unflatten, nn.Linear, nn.Bilinear, nn.Embedding),
    *(nn.Conv1d, nn.Conv2d, nn.Conv3d),
    *(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm),
    *(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
    *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d),
    *(nn.ReLU, nn.LeakyReLU, nn.PReLU, nn.ELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish, nn.Tanh),
    *(nn.Sigmoid, nn.Softplus, nn.Softmax, nn.Hardtanh, nn.Hardswish),
}


def mixed_seed(*parts: int | str) -> int:
    """Return a seed that differs from those of other parts, and from each of them.

    >>> mixed_seed(0, 1) == mixed_seed(0, 1), mixed_seed(0, 1) == mixed_seed(1, 0)
    (True, False)
    """
    return int.from_bytes(hashlib.sha256(" ".join(map(str, parts)).encode()).digest()[:7], "little")


def seeded_generator(seed: int, *parts: int | str) -> Generator:
    """Return a generator for a seed, whose numbers are not those of torch with the same seed.

    Rows that a user drew after `torch.manual_seed(0)` would depend on what is drawn to judge them.
    """
    checked = as_whole("seed", seed, 0, fix="Pass 0, for instance.")
    return Generator().manual_seed(mixed_seed("condens", checked, *parts))


def linear(inputs: int, outputs: int, generator: Generator | None) -> nn.Linear:
    """Return a linear layer, initialised as torch does but drawn from the generator."""
    layer = nn.utils.skip_init(nn.Linear, inputs, outputs, device=torch.get_default_device())
    nn.init.kaiming_uniform_(layer.weight, a=math.sqrt(5), generator=generator)
    bound = 1 / math.sqrt(inputs)
    nn.init.uniform_(layer.bias, -bound, bound, generator=generator)
    return layer


def kept(shape: Sequence[int], p: float, dtype: torch.dtype, generator: Generator) -> Tensor:
    """Return a mask: 0 with probability p, else 1/(1 − p), p to 16 bits.

    From 16 random bits an entry, four entries a draw: many times faster than `bernoulli_`.

    >>> mask = kept([4, 100], 0.25, torch.float32, Generator().manual_seed(0))
    >>> mask.unique().tolist()
    [0.0, 1.3333333730697632]
    """
    count, dropped = math.prod(shape), round(p * _HALVES)
    if dropped == _HALVES:
        return torch.zeros(*shape, dtype=dtype, device=generator.device)
    drawn = torch.empty(-(-count // 4), dtype=torch.int64, device=generator.device)
    drawn.random_(-(2**63), None, generator=generator)
    halves = drawn.view(torch.int16)[:count].view(*shape)
    return (halves >= dropped - _HALVES // 2).to(dtype).mul_(_HALVES / (_HALVES - dropped))


class Dropout(nn.Dropout):
    """torch's dropout, which draws from another generator within `drawing_from`."""

    generator: Generator | None = None

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """Return the input with a fraction of its entries zero, the others scaled up."""
        generator = self.generator
        if generator is None or not self.training:
            return super().forward(input)
        return input * kept(input.shape, self.p, input.dtype, generator).to(input.device)

    def __getstate__(self) -> dict[str, object]:
        # A copy made during a run does not belong to the run.
        return {name: value for name, value in self.__dict__.items() if name != "generator"}


@contextmanager
def drawing_from(network: nn.Module, generator: Generator) -> Iterator[None]:
    """Let the dropout of condens' modules draw from a generator."""
    ours = [module for module in network.modules() if isinstance(module, Dropout)]
    for module in ours:
        module.generator = generator
    try:
        yield
    finally:
        for module in ours:
            del module.generator


def draws_from_torch(network: nn.Module) -> bool:
    """Tell whether a network has modules or hooks that may draw from torch's generator."""
    return any(
        not (type(module).__module__.startswith("condens.nn.") or type(module) in _QUIET)
        or "forward" in module.__dict__
        or bool(module._forward_hooks or module._forward_pre_hooks)
        for module in network.modules()
    )


@contextmanager
def torch_seeded_by(generator: Generator) -> Iterator[None]:
    """Seed torch's generators with a draw from ours, and restore their state at the end.

    Only one thread does so at a time. Other code that draws from torch's generator meanwhile is
    not locked out: it sees our seed, and its draws are undone.
    """
    seed = int(torch.randint(2**63 - 1, (), generator=generator, device=generator.device))
    # Where nothing has used CUDA yet, asking for its state would start it.
    cuda = torch.cuda.is_initialized()
    with _LOAN, torch.random.fork_rng(range(torch.cuda.device_count()) if cuda else ()):
        torch.default_generator.manual_seed(seed)
        if cuda:
            torch.cuda.manual_seed_all(seed)
        yield


def loan(network: nn.Module, generator: Generator) -> AbstractContextManager[None]:
    """Return `torch_seeded_by` where the network needs it, else a context that does nothing."""
    return torch_seeded_by(generator) if draws_from_torch(network) else nullcontext()
