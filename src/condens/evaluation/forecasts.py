"""`Forecast`: predictive distributions of any origin, asked the same questions.

A mixture answers them exactly. Draws, and distributions of other libraries, answer from draws
what they have no closed form for; every such estimate is unbiased, row by row, so that its mean
over rows is right and its noise is part of the standard error.
"""

import copy
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor
from torch.distributions import (
    Categorical,
    Distribution,
    Independent,
    MixtureSameFamily,
    MultivariateNormal,
    Normal,
    Transform,
)
from torch.distributions.transforms import _InverseTransform

from condens.distributions import GaussianMixture, Mixture, TransformedMixture, conversions
from condens.errors import ArgumentError, NotFiniteError
from condens.nn.randomness import torch_seeded_by
from condens.transforms import Integer, Positive, Real

# Draws are clamped to this size, so that their squares stay finite.
MAX_DRAW = 1e150


class Forecast(ABC):
    """A batch of b predictive distributions over D targets, in double precision on the CPU.

    What a kind has no answer for is None. `draws` [S, b, D] are those of `sample`: one set of them
    serves every estimate.
    """

    @property
    @abstractmethod
    def dimensions(self) -> int:
        """The number of targets, D."""

    @property
    def discrete(self) -> tuple[bool, ...]:
        """Which targets are whole numbers, with probabilities in place of densities."""
        return (False,) * self.dimensions

    @property
    def has_density(self) -> bool:
        """Whether `log_prob` has an answer."""
        return True

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of rows, b."""

    @abstractmethod
    def take(self, rows: Tensor) -> "Forecast":
        """Return the distributions of some rows, by their numbers."""

    @abstractmethod
    def marginal(self, dims: Sequence[int]) -> "Forecast":
        """Return the distributions of some of the targets."""

    @abstractmethod
    def sample(self, n_samples: int, generator: Generator) -> Tensor:
        """Draw [S, b, D]."""

    @abstractmethod
    def log_prob(self, target: Tensor) -> Tensor | None:
        """Return the log density [b] at targets [b, D]; −inf outside the support."""

    def level(self, target: Tensor, log_prob: Tensor) -> Tensor:  # noqa: ARG002
        """Return the log density [b] that is comparable with `log_prob_at`; most have one only."""
        return log_prob

    def log_prob_at(self, draws: Tensor) -> Tensor | None:
        """Return the log densities [S, b] at draws."""
        if not self.has_density:
            return None
        return torch.stack([part for each in draws if (part := self.log_prob(each)) is not None])

    def relative_log_prob_at(self, draws: Tensor) -> Tensor | None:
        """Return the log densities [S, b] at draws, up to a constant for each row."""
        return self.log_prob_at(draws)

    def mean(self, draws: Tensor) -> Tensor:
        """Return the means [b, D]."""
        return draws.mean(0)

    def spread(self, draws: Tensor) -> Tensor:
        """Return the standard deviations [b, D]."""
        return draws.std(0)

    def pit(self, target: Tensor, draws: Tensor, generator: Generator) -> Tensor:
        """Return P(Y ≤ y) [b, D] of each target alone, uniform where the forecast is right.

        Of whole numbers a uniform number between P(Y < y) and P(Y ≤ y), of draws the randomised
        rank among them.
        """
        return randomised_rank((draws < target).sum(0), (draws == target).sum(0), draws, generator)

    def crps(self, target: Tensor, draws: Tensor) -> Tensor:
        """Return E|Y − y| − ½E|Y − Y′| [b, D] of each target alone."""
        count = len(draws)
        order = draws.sort(0).values
        place = 2 * torch.arange(1, count + 1, dtype=order.dtype) - count - 1
        # Half the mean distance of distinct draws, which is unbiased.
        apart = torch.einsum("s,s...->...", place, order) / (count * (count - 1))
        return (draws - target).abs().mean(0) - apart

    def quantiles(self, levels: Tensor, draws: Tensor) -> Tensor:
        """Return quantiles [b, D, Q] of each target alone."""
        order, count = draws.sort(0).values, len(draws)
        place = levels * (count - 1)
        below = place.floor().long().clamp(0, count - 1)
        above, part = (below + 1).clamp(max=count - 1), (place - below)[:, None, None]
        return torch.lerp(order[below], order[above], part).permute(1, 2, 0)

    def rosenblatt(self, target: Tensor, generator: Generator) -> Tensor | None:  # noqa: ARG002
        """Return P(Yⱼ ≤ yⱼ | the targets before it) [b, D], uniform and independent if right."""
        return None

    def in_cells(self, discrete: Sequence[bool]) -> "Forecast | None":  # noqa: ARG002
        """Return the same with the probabilities of the cells y ± ½ of the given targets."""
        return None


def randomised_rank(before: Tensor, equal: Tensor, draws: Tensor, generator: Generator) -> Tensor:
    """Return (before + u·(equal + 1)) / (S + 1) for u uniform: exactly uniform among S draws."""
    uniform = torch.rand(before.shape, dtype=torch.float64, generator=generator)
    return (before + uniform * (equal + 1)) / (len(draws) + 1)


class MixtureForecast(Forecast):
    """Mixtures [b]: every answer but the draws is exact.

    Args:
        mixture: that all answers come from but one.
        tailed: the same with a tail, for `log_prob`; None where there is no tail.
    """

    def __init__(self, mixture: Mixture, tailed: Mixture | None = None) -> None:
        self.mixture, self.tailed = mixture, tailed

    @property
    def dimensions(self) -> int:
        """The number of targets, D."""
        return self.mixture.dimensions

    @property
    def discrete(self) -> tuple[bool, ...]:
        """Which targets are whole numbers."""
        return tuple(transform.discrete for transform in self.mixture.transforms)

    def __len__(self) -> int:
        return len(self.mixture)

    def take(self, rows: Tensor) -> "MixtureForecast":
        """Return the mixtures of some rows."""
        return self._each(lambda mixture: mixture[rows])

    def marginal(self, dims: Sequence[int]) -> "MixtureForecast":
        """Return the exact marginals."""
        return self._each(lambda mixture: mixture.marginal(list(dims)))

    def _each(self, change: Callable[[Mixture], Mixture]) -> "MixtureForecast":
        tailed = None if self.tailed is None else change(self.tailed)
        return MixtureForecast(change(self.mixture), tailed)

    def sample(self, n_samples: int, generator: Generator) -> Tensor:
        """Draw [S, b, D]."""
        drawn = self.mixture.sample((n_samples,), generator=generator)
        return drawn.clamp(-MAX_DRAW, MAX_DRAW)

    def log_prob(self, target: Tensor) -> Tensor:
        """Return the log density [b], the tail included."""
        return (self.mixture if self.tailed is None else self.tailed).log_prob(target)

    def level(self, target: Tensor, log_prob: Tensor) -> Tensor:
        """Return the log density [b] without the tail, which is never drawn from."""
        return log_prob if self.tailed is None else self.mixture.log_prob(target)

    def log_prob_at(self, draws: Tensor) -> Tensor:
        """Return the log densities [S, b] at draws, by the fused kernel where it takes them."""
        transforms = self.mixture.transforms
        if any(self.discrete):
            return torch.stack([self.mixture.log_prob(each) for each in draws])
        slope: Tensor | float = 0.0
        real = []
        for transform, column in zip(transforms, draws.unbind(-1), strict=True):
            if isinstance(transform, Real):
                real.append(column)
            else:
                real.append(transform.to_real(column))
                slope = slope + transform.log_slope(column)
        return self.mixture._log_prob_at(torch.stack(real, -1)).double() + slope

    def mean(self, draws: Tensor) -> Tensor:  # noqa: ARG002
        """Return the means [b, D]."""
        return self.mixture.mean

    def spread(self, draws: Tensor) -> Tensor:  # noqa: ARG002
        """Return the standard deviations [b, D]."""
        return self.mixture.stddev

    def pit(self, target: Tensor, draws: Tensor, generator: Generator) -> Tensor:  # noqa: ARG002
        """Return the distribution functions [b, D], randomised for whole numbers."""
        columns = []
        for alone, y in zip(self._alone, target.unsqueeze(-1).unbind(1), strict=True):
            column = alone.cdf(y)
            if alone.transforms[0].discrete:
                below = alone.cdf(y.ceil() - 1)
                uniform = torch.rand(len(y), dtype=torch.float64, generator=generator)
                column = below + uniform * (column - below)
            columns.append(column)
        return torch.stack(columns, -1)

    def crps(self, target: Tensor, draws: Tensor) -> Tensor:  # noqa: ARG002
        """Return the exact scores [b, D]."""
        pairs = zip(self._alone, target.unbind(-1), strict=True)
        return torch.stack([alone.crps(y[:, None]) for alone, y in pairs], -1)

    def quantiles(self, levels: Tensor, draws: Tensor) -> Tensor:  # noqa: ARG002
        """Return exact quantiles [b, D, Q]."""
        each = [alone.icdf(levels[:, None]).squeeze(-1) for alone in self._alone]
        return torch.stack(each).permute(2, 0, 1)

    def rosenblatt(self, target: Tensor, generator: Generator) -> Tensor:
        """Return the conditional distribution functions [b, D]."""
        return self.mixture.rosenblatt(target, generator=generator)

    def in_cells(self, discrete: Sequence[bool]) -> "Forecast | None":
        """Return the mixture of the whole numbers nearest to real targets."""
        own = self.mixture.transforms
        pairs = list(zip(own, discrete, strict=True))
        if not isinstance(self.mixture, GaussianMixture | TransformedMixture) or any(
            whole and not (isinstance(transform, Real) or transform.discrete)
            for transform, whole in pairs
        ):
            return None if self.dimensions > 1 else CellForecast(self, self._cdf)
        moved = [whole and not transform.discrete for transform, whole in pairs]
        transforms = [Integer() if new else old for old, new in zip(own, moved, strict=True)]

        def change(mixture: Mixture) -> Mixture:
            base = mixture.base if isinstance(mixture, TransformedMixture) else mixture
            assert isinstance(base, GaussianMixture)  # as that of the mixture, above
            # A whole number is the cell from it to the next one.
            shifted = base.affine(1.0, torch.tensor(moved).double() / 2)
            return TransformedMixture(shifted, transforms)

        return self._each(change)

    def _cdf(self, target: Tensor) -> Tensor:
        return self.mixture.cdf(target).unsqueeze(-1)

    @cached_property
    def _alone(self) -> list[Mixture]:
        if self.dimensions == 1:
            return [self.mixture]
        return [self.mixture.marginal(dim) for dim in range(self.dimensions)]


class DrawsForecast(Forecast):
    """Draws [S, b, D] of distributions that are not known otherwise."""

    def __init__(self, draws: Tensor) -> None:
        self.draws = draws

    @property
    def dimensions(self) -> int:
        """The number of targets, D."""
        return self.draws.shape[-1]

    @property
    def has_density(self) -> bool:
        """Draws have none."""
        return False

    def __len__(self) -> int:
        return self.draws.shape[1]

    def take(self, rows: Tensor) -> "DrawsForecast":
        """Return the draws of some rows."""
        return DrawsForecast(self.draws[:, rows])

    def marginal(self, dims: Sequence[int]) -> "DrawsForecast":
        """Return some columns."""
        return DrawsForecast(self.draws[..., list(dims)])

    def sample(self, n_samples: int, generator: Generator) -> Tensor:  # noqa: ARG002
        """Return all draws that are there."""
        return self.draws

    def log_prob(self, target: Tensor) -> None:  # noqa: ARG002
        """Return None: draws have no density."""
        return


class PartForecast(Forecast):
    """Some rows and targets of a forecast that cannot be taken apart: only its draws can."""

    def __init__(self, whole: Forecast, rows: Tensor, dims: Sequence[int]) -> None:
        self.whole, self.rows, self.dims = whole, rows, list(dims)

    @property
    def dimensions(self) -> int:
        """The number of targets, D."""
        return len(self.dims)

    @property
    def discrete(self) -> tuple[bool, ...]:
        """Which targets are whole numbers."""
        return tuple(self.whole.discrete[dim] for dim in self.dims)

    @property
    def has_density(self) -> bool:
        """No marginal is known."""
        return False

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, rows: Tensor) -> "PartForecast":
        """Return some of the rows."""
        return PartForecast(self.whole, self.rows[rows], self.dims)

    def marginal(self, dims: Sequence[int]) -> "PartForecast":
        """Return some of the targets."""
        return PartForecast(self.whole, self.rows, [self.dims[dim] for dim in dims])

    def sample(self, n_samples: int, generator: Generator) -> Tensor:
        """Draw [S, b, D]."""
        return self.whole.sample(n_samples, generator)[:, self.rows][..., self.dims]

    def log_prob(self, target: Tensor) -> None:  # noqa: ARG002
        """Return None: no marginal is known."""
        return


class DistributionForecast(Forecast):
    """A torch distribution with batch shape [b] and event shape [D], or [] for one target."""

    def __init__(self, distribution: Distribution) -> None:
        self.distribution = distribution
        self.flat = not distribution.event_shape
        with torch.random.fork_rng(devices=[]):
            self._inside = distribution.sample()
        _check_finite(distribution, [self._inside])

    @property
    def dimensions(self) -> int:
        """The number of targets, D."""
        return 1 if self.flat else self.distribution.event_shape[0]

    @property
    def discrete(self) -> tuple[bool, ...]:
        """Whether the support is discrete."""
        support = conversions.support_of(self.distribution)
        return (support is not None and support.is_discrete,) * self.dimensions

    def __len__(self) -> int:
        return self.distribution.batch_shape[0]

    def take(self, rows: Tensor) -> Forecast:
        """Return the distributions of some rows, or only draws of them if it has to be."""
        if torch.equal(rows, torch.arange(len(self))):
            return self
        part = _rows_of(self.distribution, rows)
        at, inside = self._inside[rows], self._inside
        try:
            found, expected = part.log_prob(at), self.distribution.log_prob(inside)[rows]
            alike = found.shape == expected.shape and torch.allclose(
                found, expected, equal_nan=True
            )
        except Exception:  # of any class that others wrote
            alike = False
        if alike:
            return DistributionForecast(part)
        return PartForecast(self, rows, range(self.dimensions))

    def marginal(self, dims: Sequence[int]) -> Forecast:
        """Return the distribution, or draws where these are not all of its targets."""
        if list(dims) == list(range(self.dimensions)):
            return self
        return PartForecast(self, torch.arange(len(self)), dims)

    def sample(self, n_samples: int, generator: Generator) -> Tensor:
        """Draw [S, b, D]; torch's own generator stays as it was."""
        with torch_seeded_by(generator):
            drawn = self.distribution.sample((n_samples,)).double().cpu()
        return (drawn.unsqueeze(-1) if self.flat else drawn).clamp(-MAX_DRAW, MAX_DRAW)

    def log_prob(self, target: Tensor) -> Tensor:
        """Return the log density [b]."""
        given = self._event(target)
        support = conversions.support_of(self.distribution)
        if support is None:
            return self.distribution.log_prob(given).detach().double().cpu()
        inside = support.check(given)
        within = inside if self.flat else inside.unsqueeze(-1)
        density = self.distribution.log_prob(torch.where(within, given, self._inside))
        return torch.where(inside, density, -torch.inf).detach().double().cpu()

    def mean(self, draws: Tensor) -> Tensor:
        """Return the means [b, D], from draws where torch has none."""
        try:
            mean = self.distribution.mean.detach().double().cpu()
        except NotImplementedError:
            return super().mean(draws)
        # Codes of categories have a mean, of which torch says NaN.
        if self.discrete[0] and bool(mean.isnan().any()):
            return super().mean(draws)
        return mean.unsqueeze(-1) if self.flat else mean

    def pit(self, target: Tensor, draws: Tensor, generator: Generator) -> Tensor:
        """Return the distribution function where torch has it, or ranks among draws."""
        if not self.flat or self.discrete[0]:
            return super().pit(target, draws, generator)
        found = self._cdf(target)
        return super().pit(target, draws, generator) if found is None else found

    def in_cells(self, discrete: Sequence[bool]) -> Forecast | None:
        """Return the probabilities P(Y ≤ y + ½) − P(Y ≤ y − ½), if torch has them."""
        if list(discrete) == list(self.discrete):
            return self
        if not self.flat or self._cdf(self._inside.double().cpu().unsqueeze(-1)) is None:
            return None
        return CellForecast(self, self._cdf)

    def _cdf(self, target: Tensor) -> Tensor | None:
        """Return the distribution function [b, 1] of one target."""
        given, support = self._event(target), conversions.support_of(self.distribution)
        inside = torch.ones_like(given, dtype=torch.bool)
        if support is not None:
            inside = support.check(given)
        try:
            found = self.distribution.cdf(torch.where(inside, given, self._inside))
        except (NotImplementedError, ValueError):
            return None
        # Outside an interval of support all of it is above, or below.
        outer = (given > self._inside).to(found.dtype)
        return torch.where(inside, found, outer).detach().double().cpu().unsqueeze(-1)

    def _event(self, target: Tensor) -> Tensor:
        given = target.to(self._inside)
        return given.squeeze(-1) if self.flat else given


class ScipyForecast(Forecast):
    """One target by frozen distributions of scipy, as NGBoost predicts them: one for each row."""

    def __init__(self, frozen: Any) -> None:
        self.frozen = frozen
        self.whole = hasattr(self.frozen, "pmf") and not hasattr(self.frozen, "pdf")

    @property
    def dimensions(self) -> int:
        """One."""
        return 1

    @property
    def discrete(self) -> tuple[bool, ...]:
        """Whether it has probabilities."""
        return (self.whole,)

    def __len__(self) -> int:
        given = (*self.frozen.args, *self.frozen.kwds.values())
        return int(np.broadcast_shapes(*map(np.shape, given))[0])

    def take(self, rows: Tensor) -> "ScipyForecast":
        """Return the distributions of some rows."""

        def some(values: Any) -> Any:
            return np.broadcast_to(values, len(self))[rows.numpy()]

        given = {name: some(values) for name, values in self.frozen.kwds.items()}
        return ScipyForecast(self.frozen.dist(*map(some, self.frozen.args), **given))

    def marginal(self, dims: Sequence[int]) -> "ScipyForecast":  # noqa: ARG002
        """Return the only target there is."""
        return self

    def sample(self, n_samples: int, generator: Generator) -> Tensor:
        """Draw [S, b, 1]."""
        seed = int(torch.randint(2**31 - 1, (), generator=generator))
        drawn = self.frozen.rvs(size=(n_samples, len(self)), random_state=seed)
        return torch.from_numpy(drawn).double().unsqueeze(-1).clamp(-MAX_DRAW, MAX_DRAW)

    def log_prob(self, target: Tensor) -> Tensor:
        """Return the log density, or the log probability, [b]."""
        ask = self.frozen.logpmf if self.whole else self.frozen.logpdf
        return _tensor(ask(target.squeeze(-1).numpy()))

    def mean(self, draws: Tensor) -> Tensor:  # noqa: ARG002
        """Return the means [b, 1]."""
        return _tensor(self.frozen.mean()).expand(len(self)).unsqueeze(-1)

    def pit(self, target: Tensor, draws: Tensor, generator: Generator) -> Tensor:
        """Return the distribution function [b, 1], or ranks among draws for whole numbers."""
        return super().pit(target, draws, generator) if self.whole else self._cdf(target)

    def quantiles(self, levels: Tensor, draws: Tensor) -> Tensor:  # noqa: ARG002
        """Return exact quantiles [b, 1, Q]."""
        return _tensor(self.frozen.ppf(levels.numpy()[:, None])).T.unsqueeze(1)

    def in_cells(self, discrete: Sequence[bool]) -> Forecast:
        """Return the probabilities P(Y ≤ y + ½) − P(Y ≤ y − ½)."""
        return self if self.whole or not discrete[0] else CellForecast(self, self._cdf)

    def _cdf(self, target: Tensor) -> Tensor:
        return _tensor(self.frozen.cdf(target.squeeze(-1).numpy())).unsqueeze(-1)


class CellForecast(PartForecast):
    """Whole numbers nearest to one continuous target, by its distribution function."""

    def __init__(self, whole: Forecast, cdf: Callable[[Tensor], Tensor | None]) -> None:
        super().__init__(whole, torch.arange(len(whole)), [0])
        self.cdf = cdf

    @property
    def discrete(self) -> tuple[bool, ...]:
        """True."""
        return (True,)

    @property
    def has_density(self) -> bool:
        """The probability of a cell is known."""
        return True

    def log_prob(self, target: Tensor) -> Tensor:  # type: ignore[override]
        """Return log P(y − ½ < Y ≤ y + ½) [b]."""
        above, below = self.cdf(target + 0.5), self.cdf(target - 0.5)
        assert above is not None  # or there would be no cells
        assert below is not None
        return (above - below).clamp(min=0.0).log().squeeze(-1)

    def sample(self, n_samples: int, generator: Generator) -> Tensor:
        """Draw whole numbers [S, b, 1]."""
        return (super().sample(n_samples, generator) + 0.5).floor()


class PosteriorForecast(Forecast):
    """A posterior of sbi given one observation for each row."""

    def __init__(self, posterior: Any, observations: Tensor, dimensions: int | None = None) -> None:
        self.posterior, self.observations = posterior, observations
        # The other posteriors of sbi know their density only up to a constant.
        self.normalised = type(posterior).__name__ == "DirectPosterior"
        if dimensions is None:
            with torch.random.fork_rng(devices=[]):
                dimensions = self._draw(1, observations[:1]).shape[-1]
        self._dimensions = dimensions

    @property
    def dimensions(self) -> int:
        """The number of parameters, D."""
        return self._dimensions

    @property
    def has_density(self) -> bool:
        """Whether the density is normalised."""
        return self.normalised

    def __len__(self) -> int:
        return len(self.observations)

    def take(self, rows: Tensor) -> "PosteriorForecast":
        """Return the posterior given some of the observations."""
        return PosteriorForecast(self.posterior, self.observations[rows], self._dimensions)

    def marginal(self, dims: Sequence[int]) -> Forecast:
        """Return the posterior, or draws of some of the parameters."""
        if list(dims) == list(range(self.dimensions)):
            return self
        return PartForecast(self, torch.arange(len(self)), dims)

    def sample(self, n_samples: int, generator: Generator) -> Tensor:
        """Draw [S, b, D]."""
        with torch_seeded_by(generator):
            return self._draw(n_samples, self.observations).double().cpu()

    def log_prob(self, target: Tensor) -> Tensor | None:
        """Return the log density [b]."""
        found = self.log_prob_at(target.unsqueeze(0))
        return None if found is None else found.squeeze(0)

    def log_prob_at(self, draws: Tensor) -> Tensor | None:
        """Return the log densities [S, b]."""
        return self.relative_log_prob_at(draws) - self._log_inside if self.normalised else None

    def relative_log_prob_at(self, draws: Tensor) -> Tensor:
        """Return the log densities [S, b], without what normalises them."""
        values = draws.to(self.observations)
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            if self.normalised:
                found = self.posterior.log_prob_batched(
                    values, self.observations, norm_posterior=False
                )
            else:
                pairs = zip(values.unbind(1), self.observations.split(1), strict=True)
                found = torch.stack([self.posterior.potential(v, x=x) for v, x in pairs], 1)
        return found.detach().double().cpu()

    @cached_property
    def _log_inside(self) -> Tensor:
        """The log share of the network's draws that are inside the prior [b].

        sbi would estimate it, slowly, for every density that is asked for.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # the same report every time
            share = self.posterior.leakage_correction(x=self.observations)
        return share.double().cpu().log()

    def _draw(self, n_samples: int, observations: Tensor) -> Tensor:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Capping max_sampling_batch_size")
            drawn = self.posterior.sample_batched(
                (n_samples,), x=observations, show_progress_bars=False
            )
        return drawn.detach()


def of_distribution(distribution: Distribution) -> Forecast:
    """Return the forecast of torch distributions: as a mixture where they are Gaussian."""
    if isinstance(distribution, Mixture):
        return MixtureForecast(_plain(distribution))
    roots = _scale_tril(distribution)
    if roots is not None:
        loc, root = roots
        one = loc.new_ones(*loc.shape[:-1], 1)
        return MixtureForecast(
            _plain(GaussianMixture.from_scale_tril(one, loc.unsqueeze(-2), root.unsqueeze(-3)))
        )
    if isinstance(distribution, MixtureSameFamily):
        with suppress(ArgumentError):
            return MixtureForecast(_plain(GaussianMixture.from_mixture_same_family(distribution)))
    return DistributionForecast(distribution)


def _scale_tril(distribution: Distribution) -> tuple[Tensor, Tensor] | None:
    """Return mean and Cholesky factor of the covariance of torch's Gaussians."""
    if isinstance(distribution, MultivariateNormal):
        return distribution.loc.double(), distribution.scale_tril.double()
    if isinstance(distribution, Normal) and len(distribution.batch_shape) == 1:
        loc, scale = distribution.loc.unsqueeze(-1), distribution.scale.unsqueeze(-1)
    elif isinstance(distribution, Independent) and isinstance(distribution.base_dist, Normal):
        loc, scale = distribution.base_dist.loc, distribution.base_dist.scale
    else:
        return None
    return loc.double(), torch.diag_embed(scale.double())


def of_ngboost(predicted: Any) -> Forecast:
    """Return the forecast of NGBoost's predicted distributions: as a mixture where Gaussian."""
    frozen = getattr(predicted, "dist", None)
    # Whatever it lacks is None.
    if getattr(predicted, "probs", None) is not None:
        _check_finite(predicted, [predicted.probs])
        return DistributionForecast(Categorical(torch.from_numpy(predicted.probs).T))
    if getattr(predicted, "cov_inv", None) is not None:
        _check_finite(predicted, [predicted.loc, predicted.cov_inv])
        loc, precision = torch.from_numpy(predicted.loc), torch.from_numpy(predicted.cov_inv)
        return MixtureForecast(
            GaussianMixture.from_precisions(
                loc.new_ones(len(loc), 1), loc.unsqueeze(1), precision.unsqueeze(1)
            )
        )
    if frozen is None or not hasattr(frozen, "cdf"):
        raise ArgumentError(
            "model",
            got=f"predicts {type(predicted).__name__}",
            expected="a distribution with cdf, ppf and draws was expected",
            fix="Pass draws [S, n, D] of it.",
        )
    _check_finite(predicted, [*frozen.args, *frozen.kwds.values()])
    family = frozen.dist.name
    if family in ("norm", "lognorm"):
        positive = family == "lognorm"
        given = frozen.kwds
        loc = np.log(given["scale"]) if positive else given["loc"]
        scale = given["s"] if positive else given["scale"]
        mean, log_precision = torch.as_tensor(loc).double(), -torch.as_tensor(scale).double().log()
        mean, log_precision = torch.broadcast_tensors(mean, log_precision)
        normal = GaussianMixture(
            torch.zeros(len(mean), 1, dtype=torch.float64),
            mean[:, None, None],
            log_precision[:, None, None],
        )
        return MixtureForecast(TransformedMixture(normal, [Positive()]) if positive else normal)
    return ScipyForecast(frozen)


def _check_finite(distribution: object, parameters: Iterable[Any]) -> None:
    """Refuse parameters, or draws, of which one is NaN or infinite."""
    if not all(np.isfinite(np.asarray(each)).all() for each in parameters):
        raise NotFiniteError(
            "model",
            got=f"has a {type(distribution).__name__} with NaN or infinity in it",
            expected="a distribution for each row was expected",
            fix="Leave out the rows that it has none for.",
        )


def _plain(mixture: Mixture) -> Mixture:
    """Return a mixture in double precision on the CPU, without gradients."""
    with torch.no_grad():
        wide = mixture.to("cpu", torch.float64)
        return wide._rearranged(tensor.detach() for tensor in wide.parameters)


def _rows_of(thing: Any, rows: Tensor, size: int | None = None) -> Any:
    """Return a copy of a distribution with some rows of every tensor in it that has rows."""
    size = thing.batch_shape[0] if size is None else size
    new = copy.copy(thing)
    for name, value in vars(thing).items():
        if name == "_inv" and not isinstance(thing, _InverseTransform):
            vars(new)[name] = None  # the inverse of a transform refers back to it
        elif isinstance(value, Tensor) and value.shape[:1] == (size,):
            vars(new)[name] = value[rows]
        elif isinstance(value, Distribution | Transform):
            vars(new)[name] = _rows_of(value, rows, size)
        elif isinstance(value, list) and all(isinstance(each, Transform) for each in value):
            vars(new)[name] = [_rows_of(each, rows, size) for each in value]
        elif name == "_batch_shape" and value[:1] == (size,):
            vars(new)[name] = torch.Size((len(rows), *value[1:]))
    return new


def _tensor(values: Any) -> Tensor:
    return torch.from_numpy(np.atleast_1d(np.asarray(values, dtype=np.float64)))
