"""Trim, limit, spread and tail of a trained network, by rows that had no part in its training.

The limit follows from the training targets. With q the squared distance of a row from a component,
d the number of its observed targets and g its density under the tail, the density of a row is

    p(t, ε) = (1 − ε) Σₖ πₖ pₖ t⁻ᵈ exp(½ q (1 − t⁻²)) + ε g

so that the distances, once known, answer for every t and ε.
"""

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from condens.data import Data, Rows
from condens.errors import ArgumentError
from condens.nn import DensityNetwork
from condens.nn.adjustment import Limit, Spread, Tail, Trim
from condens.nn.randomness import loan
from condens.training.batches import Batches
from condens.training.history import Adjustment
from condens.training.settings import Settings

# The weight of the tail: at least, at most, and how many rows without a surprise speak for the
# least before any is seen.
MIN_TAIL, MAX_TAIL, PRIOR_ROWS = 0.001, 0.05, 100.0
# Beyond these bounds a network is wrong in more than its scale.
MAX_SPREAD = 4.0
# What log t is before a target is seen: −0.04 + min(2/n, 0.2) − d. Few held-out rows n mean few
# training rows, of which networks are too sure; an average of members is wider than they are by d,
# and need not be. Of 88 fits of 28 tables, ensembles and networks alone, half were best within
# 0.04 of it, and nearly noiseless ones far below: a Cauchy distribution.
USUAL, FEW_ROWS, MAX_FEW_ROWS, PRIOR_SCALE = -0.04, 2.0, 0.2, 0.05
# Members that know their errors, which are independent, have d = ½ log(2 − 1/M) at most, beside
# what every average has: a row that one member fails on is held by the others, and needs no width.
# If they differ by more, each is too sure, and the average is not too wide.
MAX_WIDENING, COVERED = 0.3, 0.04
# Rows at which d is measured, at most.
WIDENING_ROWS = 1024
# Places between the bounds where the likelihood is compared first, for it may have several maxima;
# and around the likeliest one, and what is usual, as far as REACH times their widths.
PLACES = torch.linspace(-math.log(MAX_SPREAD), math.log(MAX_SPREAD), 17, dtype=torch.float64)
PLACES_AROUND, REACH = 33, 6.0
# Halvings of an interval: to nine digits of ε, and to 10⁻¹² of log t.
TAIL_HALVINGS, SPREAD_HALVINGS = 30, 38
# Rows that are looked at together: few, because there are numbers for each of their components.
ROWS_PER_BLOCK = 1024
# Log density of a row that no component can hold: a number, so that sums stay numbers.
LOST = -1e50


@torch.no_grad()
def adjust(
    network: DensityNetwork,
    rows: Data | None,
    settings: Settings | None = None,
    *,
    training: Data | None = None,
) -> Adjustment:
    """Set `trim` and `limit` of a trained network; `spread` and `tail` as held-out rows prefer.

    Spread and tail maximise the likelihood of the rows together, so that an outlier asks for a
    heavier tail and not for wider components. Nothing else of the network changes, and nothing is
    random.

    - The lightest components of a condition, with 0.002 of the weight together, are left out.
    - No component is wider than training targets are from their mean at most, before the spread.
    - log t is its mean under the likelihood of the rows and a Cauchy distribution of scale 0.05
      around what is usual, −0.04 + min(2/n, 0.2) − d, with n rows and, for an ensemble, d = 0.04 +
      the logarithm by which it is wider than its members, 0.3 at most. Rows that say little leave
      it there; where they clearly say something else, they are believed. Where the rows' scores
      vary more than the curvature of the likelihood says, as where the density has another shape,
      it counts for as much less. Rows of unequal weights tell as much as (Σw)²/Σw² rows.
    - ε counts the surprises among the rows and 100 more without any, and is at least 0.001 and at
      most 0.05: one row in ten that asks for a tail makes it 0.01, twenty in a thousand 0.018.

    Args:
        network: trained; what it had of them is replaced.
        rows: used for no training, no stopping and no selection; None for none, then t is 1 and ε
            is 0.001 unless the settings say otherwise. Missing targets count by the exact
            marginal density of the others.
        settings: see `trim`, `limit`, `spread` and `tail` of `Settings`.
        training: the rows that the network was trained on, around whose targets limit and tail
            are; by default `rows`.

    >>> from condens.nn import MixtureNetwork
    >>> network = MixtureNetwork.of(1, 1, n_components=1, generator=Generator().manual_seed(0))
    >>> _ = network.prepare(torch.zeros(2, 1), torch.tensor([[-1.0], [1.0]]))
    >>> x, y = torch.zeros(500, 1), 2 * torch.randn(500, 1, generator=Generator().manual_seed(0))
    >>> found = adjust(network, (x, y))
    >>> f"{found.spread:.2f}, {found.tail:.3f}"
    '1.97, 0.001'
    """
    settings = Settings.given(settings)
    held_out = None if rows is None else Rows.given(rows, "rows").observed()
    known = held_out if training is None else Rows.given(training, "training").observed()
    if known is None:
        raise ArgumentError(
            "training",
            got="is None, as rows are",
            expected="limit and tail are around the training targets",
            fix="Pass the rows that the network was trained on.",
        )
    for part in filter(None, (held_out, known)):
        network.check(part.condition, part.target)
    wide = network.tail_around(known.target, known.weights)
    reach = network.reach_of(known.target, known.weights)
    return set_adjustment(network, held_out, settings, wide, reach)


@torch.no_grad()
def set_adjustment(
    network: DensityNetwork,
    rows: Rows | None,
    settings: Settings,
    wide: Tail,
    reach: Tensor,
) -> Adjustment:
    """Set all by checked rows, with a tail of the components of `wide`.

    The limit is in units of the `reach` [D] of standardised training targets.
    """
    kept = network.trim, network.limit, network.spread, network.tail
    set_limits(network, settings, reach)
    spread = 1.0 if settings.spread == "fit" else settings.spread
    weight = MIN_TAIL if settings.tail == "fit" else settings.tail
    error = before = after = math.nan
    if rows is not None:
        try:
            seen = _Distances.of(network, rows, wide)
        except BaseException:
            network.trim, network.limit, network.spread, network.tail = kept
            raise
        if settings.spread == "fit":
            spread, error = _fit_spread(seen, settings)
        if settings.tail == "fit":
            weight = _fit_tail(seen, math.log(spread))
        before = seen.offset - seen.mean(0.0, 0.0)
        after = seen.offset - seen.mean(math.log(spread), weight)
    network.spread = None if spread == 1 else Spread(spread).to(wide.weight.device)
    wide.weight.fill_(weight)
    network.tail = wide if weight else None
    return Adjustment(spread, error, weight, before, after, 0 if rows is None else len(rows))


def set_limits(network: DensityNetwork, settings: Settings, reach: Tensor) -> None:
    """Set which components are left out and how wide the others are, and nothing else."""
    network.drop_adjustment()
    if settings.trim:
        network.trim = Trim(settings.trim).to(reach.device)
    if settings.limit < math.inf:
        network.limit = Limit(settings.limit, reach)


class _Distances(NamedTuple):
    """Rows as all spreads and tails see them.

    Args:
        joint: log πₖpₖ of each component at t = 1 [n, K].
        squares: squared distances q [n, K].
        observed: number d of observed targets [n].
        wide: log density under the tail [n].
        weights: of the rows, with mean one [n].
        widening: d, by how much an average is wider than it need be.
        offset: of the NLL, from standardised to original units.
    """

    joint: Tensor
    squares: Tensor
    observed: Tensor
    wide: Tensor
    weights: Tensor
    widening: float
    offset: float

    @classmethod
    def of(cls, network: DensityNetwork, rows: Rows, wide: Tail) -> "_Distances":
        batches = Batches(network, rows)
        training = [module for module in network.modules() if module.training]
        network.eval()
        try:
            with loan(network, Generator().manual_seed(0)):
                parts = (_distances(network, some) for some in batches.in_order(ROWS_PER_BLOCK))
                joint, squares = _filled(parts, len(rows))
                widening = _widening(network, batches.rows)
        finally:
            for module in training:
                module.training = True
        target, weights = batches.rows.target.double(), batches.rows.weights
        return cls(
            joint,
            squares,
            (~target.isnan()).sum(-1).double(),
            -network.form.nll_of(wide.components, target),
            torch.ones_like(joint[:, 0]) if weights is None else weights * batches.factors[0],
            widening,
            batches.offsets[0],
        )

    @property
    def n_rows(self) -> float:
        """As many rows of one weight would tell as much: (Σw)²/Σw²."""
        return float(self.weights.sum().square() / self.weights.square().sum())

    @property
    def usual(self) -> float:
        """What log t is before a target is seen."""
        return USUAL + min(FEW_ROWS / self.n_rows, MAX_FEW_ROWS) - self.widening

    @property
    def blocks(self) -> list["_Distances"]:
        """Some rows at a time, which fit into the cache."""
        *columns, widening, offset = self
        parts = zip(*(column.split(ROWS_PER_BLOCK) for column in columns), strict=True)
        return [_Distances._make([*part, widening, offset]) for part in parts]

    def _body(self, log_spread: float) -> Tensor:
        """Return log πₖpₖ at t [n, K]."""
        gain = 0.5 * self.squares * -math.expm1(-2 * log_spread)
        return (self.joint + gain).clamp(min=LOST) - log_spread * self.observed.unsqueeze(-1)

    def body(self, log_spread: float) -> Tensor:
        """Return the log density of the body at t [n]."""
        return torch.cat([some._body(log_spread).logsumexp(-1) for some in self.blocks])

    def mean(self, log_spread: float, weight: float) -> float:
        """Return the mean log-likelihood, in standardised units."""
        return float((self.weights * self._log_prob(log_spread, weight)).mean())

    def _log_prob(self, log_spread: float, weight: float) -> Tensor:
        body = self.body(log_spread)
        if not weight:
            return body
        return torch.logaddexp(math.log1p(-weight) + body, math.log(weight) + self.wide)

    def derivatives(self, log_spread: float, weight: float) -> tuple[Tensor, Tensor]:
        """Return the first two derivatives of the rows' log-likelihoods in log t [n].

        With rₖ the responsibilities and aₖ = q/t² − d: Σ r a, and Σ r (a² − 2q/t²) − (Σ r a)².
        """
        parts = [some._derivatives(log_spread, weight) for some in self.blocks]
        score, second = (torch.cat(part) for part in zip(*parts, strict=True))
        return score, second

    def _derivatives(self, log_spread: float, weight: float) -> tuple[Tensor, Tensor]:
        joint = math.log1p(-weight) + self._body(log_spread)
        responsibilities = (joint - self._log_prob(log_spread, weight).unsqueeze(-1)).exp()
        squares = self.squares * math.exp(-2 * log_spread)
        slope = squares - self.observed.unsqueeze(-1)
        # Beyond the reach of the body a row says nothing: 0 · inf is NaN.
        first = torch.where(responsibilities > 0, responsibilities * slope, 0.0)
        second = torch.where(
            responsibilities > 0, responsibilities * (slope.square() - 2 * squares), 0.0
        )
        score = first.sum(-1)
        return score, second.sum(-1) - score.square()


def _filled(parts: Iterable[tuple[Tensor, ...]], n_rows: int) -> list[Tensor]:
    """Return the columns of parts [b, …] as wholes [n, …], without a second copy of them."""
    wholes, start = list[Tensor](), 0
    for part in parts:
        wholes = wholes or [one.new_empty(n_rows, *one.shape[1:]) for one in part]
        for whole, one in zip(wholes, part, strict=True):
            whole[start : start + len(one)] = one
        start += len(part[0])
    return wholes


def _distances(network: DensityNetwork, rows: Rows) -> tuple[Tensor, Tensor]:
    """Return log πₖpₖ and squared distances [b, K] of standardised rows."""
    mixture, target = network.mixture_of(rows.condition).to(torch.float64), rows.target.double()
    density, peak = (torch.empty_like(mixture.logits) for _ in range(2))
    patterns, pattern = (~target.isnan()).unique(dim=0, return_inverse=True)
    for number, seen in enumerate(patterns):
        some, dims = (pattern == number).nonzero().flatten(), seen.nonzero().flatten().tolist()
        part = mixture[some] if len(dims) == target.shape[1] else mixture[some].marginal(dims)
        density[some] = part.component_log_prob(target[some][:, dims])
        peak[some] = part.peak_log_prob()
    density = density.clamp(min=LOST)
    return torch.log_softmax(mixture.logits, -1) + density, 2 * (peak - density).clamp(min=0.0)


def _widening(network: DensityNetwork, rows: Rows) -> float:
    """Return d: 0.04, and the mean of rows' log σ/σₘ, over members and targets, from 0 to 0.3."""
    if len(network.member_sizes) == 1:
        return 0.0
    every = slice(None, None, math.ceil(len(rows) / WIDENING_ROWS))
    body = network.parameters_of(rows.condition[every], tail=False).to(torch.float64)
    parts = zip(*(tensor.split(network.member_sizes, 1) for tensor in body), strict=True)
    members = [network.form.mixture(type(body)(*part), network.names) for part in parts]
    means = torch.stack([member.mean for member in members])
    variances = torch.stack([member.variance for member in members])
    whole = variances.mean(0) + means.var(0, correction=0)
    widening = 0.5 * (whole.log() - variances.log().mean(0)).mean(-1)
    # Where a variance is beyond all numbers: inf, or inf - inf.
    widening = widening.nan_to_num(nan=MAX_WIDENING).clamp(0.0, MAX_WIDENING)
    if rows.weights is None:
        return COVERED + float(widening.mean())
    weights = rows.weights[every].double()
    return COVERED + float((weights * widening).sum() / weights.sum())


def _fit_tail(seen: _Distances, log_spread: float) -> float:
    """Return the best weight of the tail at some spread.

    The posterior mode of EM's fixed point ε = (Σ w r + 100 · 0.001) / (Σ w + 100), with r the
    probability that a row comes from the tail. The likelihood is concave in ε: by bisection.
    """
    # r = εg / (p + ε(g − p)), with the larger of the two as unit.
    body = seen.body(log_spread)
    unit = torch.maximum(body, seen.wide)
    own, wide = (body - unit).exp(), (seen.wide - unit).exp()

    gain = wide - own
    gained = seen.n_rows * seen.weights * gain / len(gain)

    def rises(weight: float) -> bool:
        slope = float((gained / (own + weight * gain)).sum())
        return slope + PRIOR_ROWS * (MIN_TAIL / weight - (1 - MIN_TAIL) / (1 - weight)) > 0

    low, high = MIN_TAIL, MAX_TAIL
    if not rises(low):
        return low
    for _ in range(TAIL_HALVINGS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if rises(middle) else (low, middle)
    return low


class _Likeliest(NamedTuple):
    """The log t that is likeliest by rows.

    Args:
        place: log t.
        power: of the likelihood, at most one. It makes its curvature that of the sandwich estimate,
            which holds where the density is wrong, if that is the smaller one: few rows seldom show
            how much scores vary. One row alone shows nothing of it.
        error: the standard error, inf where the likelihood has no curvature.
        width: of the likelihood's peak: the error, but at a bound how fast it falls.
    """

    place: float
    power: float
    error: float
    width: float


def _likeliest(seen: _Distances, weight_at: Callable[[float], float]) -> _Likeliest:
    places = PLACES.tolist()
    values = [seen.mean(place, weight_at(place)) for place in places]
    best = max(range(len(places)), key=values.__getitem__)
    low, high = places[max(best - 1, 0)], places[min(best + 1, len(places) - 1)]
    # The slope of the profile is that at the best weight, by the envelope theorem.
    for _ in range(SPREAD_HALVINGS):
        middle = 0.5 * (low + high)
        slopes, _ = seen.derivatives(middle, weight_at(middle))
        low, high = (middle, high) if float((seen.weights * slopes).sum()) > 0 else (low, middle)
    place = 0.5 * (low + high)
    slopes, seconds = (seen.weights * part for part in seen.derivatives(place, weight_at(place)))
    slope, curvature = float(slopes.sum()), max(-float(seconds.sum()), 0.0)
    variation = float((slopes - slopes.mean()).square().sum())
    count, n_rows = len(slopes), seen.n_rows
    # Right densities have a variation of curvature · count / n_rows.
    excess = variation * n_rows / count
    power = (n_rows - 1) / count * (curvature / excess if excess > curvature > 0 else 1.0)
    information = power * curvature
    error, width = (
        1 / math.sqrt(value) if value > 0 else math.inf
        for value in (information, information + (power * slope) ** 2)
    )
    return _Likeliest(place, power, error, width)


def _fit_spread(seen: _Distances, settings: Settings) -> tuple[float, float]:
    """Return t, drawn towards what is usual, and the standard error of log t by the rows alone."""

    def weight_at(place: float) -> float:
        return _fit_tail(seen, place) if settings.tail == "fit" else settings.tail

    found, usual = _likeliest(seen, weight_at), seen.usual
    around = torch.linspace(-REACH, REACH, PLACES_AROUND, dtype=torch.float64)
    peaks = [usual + PRIOR_SCALE * around, found.place + min(found.width, 1.0) * around]
    places = torch.cat([PLACES, *peaks]).clamp(PLACES[0], PLACES[-1]).unique()
    means = places.new_tensor([seen.mean(place, weight_at(place)) for place in places.tolist()])
    prior = torch.log1p(((places - usual) / PRIOR_SCALE).square())
    heights = torch.softmax(found.power * len(seen.joint) * means - prior, 0)
    mean = torch.trapezoid(heights * places, places) / torch.trapezoid(heights, places)
    return math.exp(float(mean)), found.error
