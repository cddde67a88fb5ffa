"""Answers that need nothing of a mixture but its draws and its density."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn, Self

import torch
from torch import Generator, Tensor
from torch.distributions import Distribution

from condens.distributions import checks
from condens.distributions.dimensions import Dimension
from condens.errors import NoClosedFormError
from condens.functional import estimates, scores
from condens.functional.estimates import Estimate
from condens.functional.precision import widen
from condens.functional.tracing import checks_values

# A number whose sums over any number of draws are finite too.
_FAR = 1e290


class SampledMixture(Distribution, ABC):
    """A density that estimates by sampling, each answer with its standard error."""

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """The dtype of every answer."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """The device of every parameter."""

    @abstractmethod
    def _event(self, value: Any, *, allow_nan: bool | None = None) -> Tensor:
        """Return value as a tensor [..., D]."""

    @abstractmethod
    def _finite_event(self, value: Any) -> Tensor:
        """Return value as a tensor [..., D] of finite numbers."""

    @abstractmethod
    def _masked_log_prob(self, value: Tensor) -> Tensor:
        """Return `observed_log_prob` without a look at the values, for graphs and torch.func."""

    @abstractmethod
    def _exact_score(self, target: Tensor) -> Tensor | None:
        """Return the exact energy score [...], if there is one."""

    @abstractmethod
    def sample(
        self, sample_shape: Sequence[int] = (), *, generator: Generator | None = None
    ) -> Tensor:
        """Draw `[*sample_shape, *batch_shape, D]`."""

    @abstractmethod
    def marginal(self, dims: Dimension | Iterable[Dimension]) -> Self:
        """Return the mixture of the given dimensions, in the order given."""

    @abstractmethod
    def entropy(  # type: ignore[override]  # an estimate is not passed off as exact
        self, *, n_samples: int = 10_000, generator: Generator | None = None
    ) -> Estimate:
        """Estimate the differential entropy."""

    def observed_log_prob(self, value: Any) -> Tensor:
        """Return the log density of the entries of value [..., D] that are not NaN.

        By the exact marginal over them; 0 where there is none.
        """
        value = self._event(value, allow_nan=True)
        if not checks_values(value):
            return self._masked_log_prob(value)
        batch = torch.broadcast_shapes(value.shape[:-1], self.batch_shape)
        wide: Any = self.expand(batch)
        value = value.expand(*batch, value.shape[-1])
        result = torch.zeros(batch, dtype=self.dtype, device=value.device)
        if not batch.numel():  # unique takes no empty tensor
            return result
        patterns, which = torch.unique(
            ~value.isnan().reshape(batch.numel(), value.shape[-1]),
            dim=0,
            sorted=False,
            return_inverse=True,
        )
        which = which.view(batch)
        for i, seen in enumerate(patterns):
            rows, dims = which == i, seen.nonzero().flatten()
            if len(dims):
                part = wide[rows] if len(dims) == len(seen) else wide[rows].marginal(dims)
                result[rows] = part.log_prob(value[rows][:, dims])
        return result

    def enumerate_support(self, expand: bool = True) -> NoReturn:  # noqa: ARG002
        """Refuse: there is no end of values."""
        raise NoClosedFormError(
            "the support",
            got="has no end of values",
            expected="enumerate_support lists all of them",
            fix="Draw with sample(…).",
        )

    def quantile(self, level: Any, dim: Dimension | None = None) -> Tensor:
        """Return quantiles of one dimension; probabilities [...] → [...], as `icdf` takes them.

        `dim` is its index or name; it may be left out if there is one only.

        >>> from condens import GaussianMixture
        >>> m = GaussianMixture(torch.zeros(1), torch.zeros(1, 2), torch.zeros(1, 3),
        ...                     names=["lat", "lon"])
        >>> m.quantile(0.975, "lon")
        tensor(1.9600)
        """
        one: Any = self if dim is None else self.marginal(dim)
        quantiles: Tensor = one.icdf(level)
        return quantiles.squeeze(-1)

    def perplexity(self) -> Estimate:  # type: ignore[override]  # as for the entropy
        """Estimate exp of the entropy."""
        value, error = self.entropy()
        return Estimate(value.exp(), value.exp().detach() * error)

    @checks.within_memory
    def hpd_threshold(
        self, coverage: float, *, n_samples: int = 10_000, generator: Generator | None = None
    ) -> Estimate:
        """Estimate the log density level whose region {x : log p(x) ≥ level} holds the mass.

        The mass actually inside has the standard error √(mass(1 − mass)/n_samples):
        0.003 for 90 % and the default number. Carries no gradient.
        """
        coverage = checks.check_coverage("coverage", coverage)
        count = self._count(n_samples, generator, coverage=coverage)
        with torch.no_grad():
            levels = self.log_prob(self.sample((count,), generator=generator))
        return estimates.hpd_threshold(levels, coverage)

    def hpd_contains(
        self,
        value: Any,
        coverage: float,
        *,
        n_samples: int = 10_000,
        generator: Generator | None = None,
    ) -> Tensor:
        """Tell whether value [..., D] lies in the highest-density region of the given mass.

        Points within a few standard errors of the threshold may go either way.
        """
        threshold = self.hpd_threshold(coverage, n_samples=n_samples, generator=generator).value
        return self.log_prob(value) >= threshold

    @checks.within_memory
    def energy_score(
        self, value: Any, *, n_samples: int = 1_000, generator: Generator | None = None
    ) -> Estimate:
        """Estimate E‖X − value‖ − ½E‖X − X′‖ [...]; exact where the CRPS is, in one dimension.

        Carries no gradient where it is estimated.
        """
        count = self._count(n_samples, generator)
        target = self._finite_event(value)
        exact = self._exact_score(target)
        if exact is not None:
            return Estimate(exact, torch.zeros_like(exact))
        with torch.no_grad():
            return self._sampled_score(target, count, generator).to(self.dtype)

    def _sampled_score(self, target: Tensor, count: int, generator: Generator | None) -> Estimate:
        """Return the energy score by independent pairs of draws."""
        # Draws beyond all numbers count as far: the difference of two infinities is NaN.
        draws = widen(self.sample((2, count), generator=generator)).clamp(-_FAR, _FAR)
        return scores.energy_score(widen(target.to(self.dtype)), *draws)

    # What is asked of draws.

    def _shape(self, sample_shape: Any, generator: Any) -> tuple[int, ...]:
        """Return a checked shape of draws."""
        shape = checks.check_shape("sample_shape", sample_shape)
        self._check_draws("sample_shape", sample_shape, shape, generator)
        return shape

    def _count(self, n_samples: Any, generator: Any, *, coverage: float | None = None) -> int:
        """Return a checked number of draws that an estimate rests on."""
        count = checks.check_count("n_samples", n_samples, coverage=coverage)
        self._check_draws("n_samples", n_samples, (count,), generator)
        return count

    def _check_draws(self, name: str, came: Any, shape: Sequence[int], generator: Any) -> None:
        numbers = (*shape, *self.batch_shape, *self.event_shape)
        checks.check_room(name, came, numbers, torch.empty(0, dtype=self.dtype))
        checks.check_generator(generator, self.device)
