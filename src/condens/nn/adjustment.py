"""What a trained network's density gets: fewer and narrower components, one scale, and a tail.

With p the density as it was trained, components of next to no weight are left out (`Trim`), those
that are wider than the training targets reach are scaled down (`Limit`), Σ → t²Σ in all of them
(`Spread`), and then

    p → (1 − ε) p + ε Σₛ wₛ N(m, s²C),   s = 4⁰ … 4¹⁰,   wₛ ∝ s⁻³                    (`Tail`)

with mean m and covariance C of the training targets: still a Gaussian mixture. The tail decays like
a Student-t of three degrees of freedom, and adds 1.3 ε variances of the training targets. All are
set after training, see `condens.training.adjust`.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from condens.functional.mixture import log_total
from condens.functional.precision import working_dtype
from condens.functional.tracing import checks_values
from condens.nn.heads.base import FLOOR, Head, P, Parameters, change_some, chooses_places, places
from condens.nn.initialise import Start
from condens.nn.scaling import HEAVY_TAIL_RATIO, Exact, Standardiser
from condens.transforms import Transform

# The scales s of the tail's components, and the power by which their weights fall.
SCALES = 4.0 ** torch.arange(11, dtype=torch.float64, device="cpu")
DECAY = 3.0
# Part of the covariances between targets that is left out, so that equal targets have a factor.
RIDGE = 1e-6
# Deviation of log y from which on a component holds numbers beyond double precision only.
MAX_LOG_DEVIATION = 27.0
# Largest log E[Y²] of a component, and log E[Y²] / E[Y]² beyond which it is not computed.
MAX_LOG_SQUARE, MAX_LOG_RATIO = 700.0, 300.0

# What a component is scaled by at least: 1/scale², a slope, is still a number.
LEAST_SCALE = 1e-140
# How far a logit is below others that leave it no weight: e^-1000 is 0.
NO_WEIGHT = 1000.0


class Trim(Exact):
    """The lightest components of a condition, those with a part of the weight together, get none.

    What has next to no weight was fitted to next to no rows: it is where chance left it, and as
    wide. Where these components explain nothing, leaving them out gains up to −log(1 − part).

    Args:
        part: of the weight, above 0 and below 1; as much or less is left out.

    >>> from condens.functional.algebra import Parameters
    >>> weights = torch.tensor([0.001, 0.9, 0.097, 0.002])
    >>> body = Parameters(weights.log(), torch.zeros(4, 1), torch.zeros(4, 1))
    >>> torch.softmax(Trim(0.002)(body).logits, -1)
    tensor([0.0000, 0.9009, 0.0971, 0.0020])
    """

    def __init__(self, part: float) -> None:
        super().__init__()
        self.part = nn.Buffer(torch.tensor(part, dtype=torch.float64))

    def forward(self, body: P) -> P:
        """Return the parameters without them; how many there are stays."""
        logits, *rest = body
        if logits.shape[-1] == 1:
            return body
        weights = torch.softmax(logits.detach().to(working_dtype(logits)), -1)
        ascending = _sorted(weights)
        # The heaviest stays, however the sum of all is rounded.
        dropped = (ascending.cumsum(-1)[..., :-1] <= self.part).sum(-1, keepdim=True)
        light = weights < ascending.gather(-1, dropped)
        # Not −∞, of which no number can be taken.
        least = logits.detach().amax(-1, keepdim=True) - NO_WEIGHT
        return type(body)(torch.where(light, least, logits), *rest)


def _sorted(values: Tensor) -> Tensor:
    if values.device.type == "cpu" and checks_values(values):
        # By numpy in the same memory, twenty times as fast as by torch.
        values = values.clone()
        values.numpy().sort(-1)
        return values
    return values.sort(-1).values


class Limit(Exact):
    """The largest deviation of a component in each target; correlations stay.

        Σₖ → S Σₖ S,   Sⱼⱼ = min(1, factor · reachⱼ/σₖⱼ)

    A component that has next to no weight for a condition costs no likelihood there, however wide
    it is: nothing holds its covariance. A weight of 10⁻⁴ at a hundred deviations of the targets is
    a draw in ten thousand that is impossible, and more variance than all other components have.
    One that targets speak for is no wider than they are far from its mean.

    Args:
        factor: the limit, in units of the reach.
        reach: how far standardised training targets are from their mean, at most [D].

    >>> from condens.functional.algebra import Parameters
    >>> body = Parameters(torch.zeros(1), torch.zeros(1, 2), torch.tensor([[0.0, 0.0, 12.0]]))
    >>> Limit(4.0, torch.ones(2))(body).deviations
    tensor([[4., 1.]])
    """

    def __init__(self, factor: float, reach: Tensor) -> None:
        super().__init__()
        self.reach = nn.Buffer(reach.detach().to(torch.float64, copy=True))
        self.factor = nn.Buffer(self.reach.new_tensor(factor))

    def forward(self, body: P) -> P:
        """Return the parameters with no component beyond the limits."""
        if not chooses_places(body.means):
            return self._shrunk(body)
        # Few are, and bounds tell of most that they are not. The margin is for their rounding.
        with torch.no_grad():
            some = ~(body.deviation_bounds < 0.999 * self.factor * self.reach).all(-1)
        if checks_values(some) and not bool(some.any()):
            return body
        return change_some(body, places(some), self._shrunk)

    def _shrunk(self, body: P) -> P:
        most = (self.factor * self.reach).to(working_dtype(body.means))
        with torch.no_grad():
            deviations = body.to(most.dtype).deviations
            # What no number holds, or none by far, stays as it is.
            wide = (deviations > most).any(-1) & (most / deviations > LEAST_SCALE).all(-1)
        known = body
        if torch.is_grad_enabled():
            # Others have no slope, which may be none that a number holds.
            known = type(body)(*(_where(wide, tensor, tensor.detach() * 0) for tensor in body))
            deviations = known.to(most.dtype).deviations
        # Where it is no wider: one.
        exceeds = wide.unsqueeze(-1) & (deviations > most)
        shrunk = known.scaled(scale := most / torch.where(exceeds, deviations, most))
        # Half precision may not hold the factors of a covariance that is singular nearly.
        every = [t for t in shrunk if t.dim() >= scale.dim()]
        held = [wide, *(t.isfinite().flatten(scale.dim() - 1).all(-1) for t in every)]
        pairs = zip(shrunk, body, strict=True)
        whole = torch.stack(held).all(0)
        return type(body)(*(_where(whole, tensor, before) for tensor, before in pairs))


def _where(some: Tensor, tensor: Tensor, other: Tensor) -> Tensor:
    """Return a tensor for some components, and another for the others. Shapes: some [..., K]."""
    return torch.where(some.reshape(*some.shape, *[1] * (tensor.dim() - some.dim())), tensor, other)


class Spread(Exact):
    """One factor t for the deviations of all components: Σ → t²Σ; weights and means stay.

    >>> from condens.functional.algebra import Parameters
    >>> body = Parameters(torch.zeros(1), torch.zeros(1, 2), torch.tensor([[0.0, 0.0, 3.0]]))
    >>> Spread(2.0)(body).factors
    tensor([[-0.6931, -0.6931,  1.5000]])
    """

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.factor = nn.Buffer(torch.tensor(factor, dtype=torch.float64))

    def forward(self, body: P) -> P:
        """Return the parameters with scaled covariances."""
        return body.scaled(self.factor.expand(body.means.shape[-1]))


class Tail(Exact):
    """A wide density of all training targets, with a small weight ε beside a network's own.

    A target that the network did not foresee then costs about log 1/ε + (3 + D) log r + 2 nats at
    r training deviations, where a Gaussian's costs grow with r².

    Args:
        weight: ε, above 0 and below 1.
        form: of the components, the class of the network's head.
        components: of the tail, over standardised targets; see `surround`.
    """

    def __init__(self, weight: float, form: type[Head[Any]], components: Parameters) -> None:
        super().__init__()
        self.form, self.kind = form, type(components)
        self.weight = nn.Buffer(torch.tensor(weight, dtype=torch.float64))
        tensors = zip(self.kind._fields, components, strict=True)  # type: ignore[attr-defined]
        for name, tensor in tensors:
            self.register_buffer(name, tensor.detach().to(torch.float64).contiguous())

    @property
    def components(self) -> Parameters:
        """The parameters of the components, of no batch."""
        fields = self.kind._fields  # type: ignore[attr-defined]
        return self.kind(*(getattr(self, name) for name in fields))

    @property
    def _log_weights(self) -> Tensor:
        """The logarithms of 1 − ε and ε [2]."""
        return torch.stack([torch.log1p(-self.weight), self.weight.log()])

    def forward(self, body: P) -> P:
        """Return the parameters of body and tail together."""
        batch, dtype = body.logits.shape[:-1], body.means.dtype
        wide = self.kind(*(t.expand(*batch, *t.shape) for t in self.components.to(dtype)))
        joined: P = self.form.join([body, wide], self._log_weights.to(dtype))
        return joined

    def nll(self, body: Tensor, target: Tensor) -> Tensor:
        """Return −log p(target) of each row from that of the body. Shapes: [b], [b, D] → [b]."""
        own = self.form.nll_of(self.components, target.double())
        joint = self._log_weights - torch.stack([body.double(), own], -1)
        return -log_total(joint).to(body.dtype)


def surround(
    target: Tensor,
    weights: Tensor | None = None,
    transforms: Sequence[Transform] | None = None,
    scaling: Standardiser | None = None,
) -> tuple[Tensor, Start]:
    """Return the logits, means and covariances of a tail around targets.

    Their mean and covariance are those of `moments`.

    The moments of an exponential target, y = eˣ, grow with exp(s²): there the component at scale s
    moves down, by the least that keeps E(Y − Ȳ)² ≤ s² Var Ȳ, where Ȳ is the training target, as
    Gaussian x have it. So the tail adds 1.3 ε training variances to such a target too, and reaches
    down to 0. With v₁ = Var x and v = s²v₁, the shift a = v − log(b + √(b² + s²(e^v₁ − 1)e^v₁ −
    e^v₁)), b = exp ½(v₁ − v), solves the quadratic equation for e⁻ᵃ.

    Shapes: target [n, D], standardised; weights [n] → [S], [S, D] and [S, D, D].
    """
    centre, covariance = moments(target, weights)
    scales = SCALES.to(target.device)
    means = centre.expand(len(scales), -1)
    factors = scales.unsqueeze(-1).expand_as(means)
    if transforms is not None and scaling is not None:
        unit = scaling.scale
        place, deviation = scaling.location + unit * centre, unit * covariance.diagonal().sqrt()
        exponential = torch.tensor([one.exponential for one in transforms], device=target.device)
        limit = (MAX_LOG_DEVIATION / deviation).clamp(min=1.0)
        factors = torch.where(exponential, torch.minimum(factors, limit), factors)
        shift = _shift(place, deviation, factors)
        means = torch.where(exponential, means - shift / unit, means)
    spread = factors.unsqueeze(-1) * covariance * factors.unsqueeze(-2)
    return -DECAY * scales.log(), Start(means, spread)


def moments(target: Tensor, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the mean [D] and the covariance [D, D] of the observed entries of targets.

    Outliers count as 20 deviations, as the targets are standardised by their quartiles where there
    are such. Shapes: target [n, D], standardised; weights [n].
    """
    target = target.double().clamp(-HEAVY_TAIL_RATIO, HEAVY_TAIL_RATIO)
    seen = (~target.isnan()).double()
    counts = seen if weights is None else seen * weights.double().unsqueeze(-1)
    # A column that nobody observed has mean 0.
    total = counts.sum(0).clamp(min=torch.finfo(torch.float64).tiny)
    centre = target.nan_to_num(nan=0.0).mul_(counts).sum(0) / total
    # In place, both ours: of many rows every copy counts.
    rest = target.sub_(centre).nan_to_num_(nan=0.0)
    offset = counts.div_(total).sqrt_().mul_(rest)
    # Each column by the rows it has: the variances are right, the matrix is never indefinite.
    covariance = (1 - RIDGE) * offset.T @ offset
    variance = offset.square().sum(0)
    # A constant column has scale one.
    variance = torch.where(variance > FLOOR**2, variance, 1.0)
    return centre, covariance + torch.diag(variance - covariance.diagonal())


def _shift(place: Tensor, deviation: Tensor, factors: Tensor) -> Tensor:
    """Return how far the components of x = log y move down; see `surround`. Shapes: → [S, D]."""
    first, variance = deviation.square(), (factors * deviation).square()
    ratio = first.clamp(max=MAX_LOG_RATIO).exp()
    root = (0.5 * (first - variance)).exp()
    square = root.square() + factors.square() * (ratio - 1) * ratio - ratio
    shift = variance - (root + square.clamp(min=0.0).sqrt()).log()
    # Beyond double precision no moment is finite.
    return torch.maximum(shift, place + variance - 0.5 * MAX_LOG_SQUARE).clamp(min=0.0)
