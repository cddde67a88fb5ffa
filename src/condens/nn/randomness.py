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

from condens.kernels import native
from condens.kernels.choice import choose, traced
from condens.kernels.native import HALVES
from condens.scalars import as_whole

# Held while torch's generator is on loan; the same thread may borrow it again within.
_LOAN = threading.RLock()

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


class RowDraws:
    """Random numbers of rows, each a function of the seed, the epoch, and the row's place in it.

    Nothing is drawn in turn: a process that has some rows of a batch draws what one that has all of
    them would draw for these. Bits are those of SplitMix64 (Steele, Lea and Flood, 2014), keyed by
    row and then by the count of numbers.

    Args:
        seeds: of each member.
        device: where the numbers are needed.

    >>> draws = RowDraws([7])
    >>> draws.begin(epoch=0, first=0, rows=4)
    >>> whole = draws.normal([1, 4, 3], torch.float32)
    >>> draws.begin(epoch=0, first=2, rows=2)
    >>> torch.equal(draws.normal([1, 2, 3], torch.float32), whole[:, 2:])
    True
    """

    def __init__(self, seeds: Sequence[int], device: torch.device | str = "cpu") -> None:
        self.seeds, self.device = list(seeds), torch.device(device)
        self._calls, self._place, self._rows = 0, (0, 0), 0
        self._member: int | None = None
        self._known: tuple[int, Tensor] | None = None
        self._words: dict[tuple[int, int], Tensor] = {}

    def turn_to(self, seeds: Sequence[int]) -> None:
        """Draw for other members from now on."""
        self.seeds, self._known = list(seeds), None

    def begin(self, *, epoch: int, first: int, rows: int) -> None:
        """Turn to rows of an epoch's order, from number `first` on; of all members."""
        self._calls, self._place, self._rows = 0, (epoch, first), rows
        self._member = None

    def choose(self, member: int | None) -> None:
        """Draw for one member, whose rows come without an axis for members, or for all."""
        self._member, self._calls = member, 0

    @property
    def _lead(self) -> tuple[int, ...]:
        """The first axes of what is drawn."""
        return (self._rows,) if self._member is not None else (len(self.seeds), self._rows)

    @property
    def bases(self) -> Tensor:
        """What the keys of an epoch's rows are counted from, of each member [M] or of one [1]."""
        epoch, _ = self._place
        if self._known is None or self._known[0] != epoch:
            seeds = [mixed_seed(seed, epoch) for seed in self.seeds]
            self._known = epoch, torch.tensor(seeds, device=self.device)
        _, bases = self._known
        return bases if self._member is None else bases[self._member : self._member + 1]

    def knows(self, shape: Sequence[int]) -> bool:
        """Tell whether a tensor has the rows as its first axes."""
        return tuple(shape[: len(self._lead)]) == self._lead

    def kept(self, shape: Sequence[int], p: float, dtype: torch.dtype) -> Tensor:
        """Return a mask: 0 with probability p, else 1/(1 − p), p to 16 bits.

        From 16 random bits an entry, four entries a word: many times faster than `bernoulli_`.

        >>> draws = RowDraws([0])
        >>> draws.begin(epoch=0, first=0, rows=4)
        >>> draws.kept([1, 4, 100], 0.25, torch.float32).unique().tolist()
        [0.0, 1.3333333730697632]
        """
        count = math.prod(shape[len(self._lead) :])
        dropped = round(p * HALVES)
        if dropped == HALVES:
            self._calls += 1
            return torch.zeros(*shape, dtype=dtype, device=self.device)
        like = torch.empty(0, dtype=dtype, device=self.device)
        if choose(like) is native and not traced(like):
            self._calls += 1
            mask = native.mask(
                self.bases,
                self._rows,
                count,
                place=self._place[1],
                first=self._calls << 32,
                dropped=dropped,
                like=like,
            )
        else:
            words = self._bits(-(-count // 4)).view(torch.int16)[..., :count]
            mask = (words >= dropped - HALVES // 2).to(dtype).mul_(HALVES / (HALVES - dropped))
        return mask.view(*shape)

    def normal(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return standard normal numbers."""
        words = self._bits(math.prod(shape[len(self._lead) :])).view(*shape)
        # The middles of 2⁵³ cells of (0, 1): neither end, where a normal number is infinite.
        uniform = ((words >> 11) & ((1 << 53) - 1)).double().add_(0.5).mul_(2.0**-53)
        return torch.special.ndtri(uniform).to(dtype)

    def generator(self, *parts: int | str) -> Generator:
        """Return a new generator for what is not drawn by rows, seeded by where the rows begin."""
        self._calls += 1
        seed = mixed_seed(self.seeds[0], *self._place, self._calls, *parts)
        return Generator(self.device).manual_seed(seed)

    def _bits(self, count: int) -> Tensor:
        """Return 64 random bits, `count` times for each row."""
        self._calls += 1
        place = self._calls, count
        if place not in self._words:
            start = self._calls << 32
            words = torch.arange(start, start + count, device=self.device)
            self._words[place] = words.mul_(_GOLDEN)
        places = torch.arange(self._place[1], self._place[1] + self._rows, device=self.device)
        keys = _mix(self.bases.unsqueeze(-1) + places.mul_(_GOLDEN)).view(*self._lead, 1)
        return _mix(keys + self._words[place])


# 2⁶⁴ over the golden ratio, and the multipliers of SplitMix64, as signed numbers.
_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
_FACTORS = (0xBF58476D1CE4E5B9 - (1 << 64), 0x94D049BB133111EB - (1 << 64))


def _mix(words: Tensor) -> Tensor:
    """Return SplitMix64's hash of 64-bit words, in their place."""
    for shift, factor in ((30, _FACTORS[0]), (27, _FACTORS[1])):
        words ^= (words >> shift).bitwise_and_((1 << (64 - shift)) - 1)
        words *= factor
    words ^= (words >> 31).bitwise_and_((1 << 33) - 1)
    return words


class Dropout(nn.Dropout):
    """torch's dropout, which draws by rows within `drawing_from`."""

    draws: RowDraws | None = None

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """Return the input with a fraction of its entries zero, the others scaled up."""
        draws = self.draws
        if draws is None or not self.training:
            return super().forward(input)
        if draws.knows(input.shape):
            return input * self.mask(input.shape, input)
        # Within a backbone that changes the axes.
        scale = 0.0 if self.p == 1 else 1 / (1 - self.p)
        mask = torch.empty_like(input).bernoulli_(1 - self.p, generator=draws.generator())
        return input * mask.mul_(scale)

    def mask(self, shape: Sequence[int], like: Tensor) -> Tensor:
        """Return what a tensor of rows is multiplied by, drawn by rows, in the dtype of `like`."""
        assert self.draws is not None
        return self.draws.kept(shape, self.p, like.dtype)

    def __getstate__(self) -> dict[str, object]:
        # A copy made during a run does not belong to the run.
        return {name: value for name, value in self.__dict__.items() if name != "draws"}


@contextmanager
def drawing_from(network: nn.Module, draws: RowDraws) -> Iterator[None]:
    """Let the dropout of condens' modules draw by rows."""
    ours = [module for module in network.modules() if isinstance(module, Dropout)]
    for module in ours:
        module.draws = draws
    try:
        yield
    finally:
        for module in ours:
            del module.draws


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
