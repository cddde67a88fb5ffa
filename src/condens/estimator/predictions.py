"""What a fitted model answers, as arrays: everything is asked of its densities."""

import sys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from numbers import Integral
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils import check_random_state
from torch import Generator, Tensor

from condens.data import TableEncoder
from condens.distributions import checks
from condens.errors import ArgumentError, ExtrapolationWarning
from condens.estimator.construction import check_flag
from condens.evaluation.conformal import Calibration
from condens.nn import DensityNetwork

Array = NDArray[np.float64]

# Rows whose densities exist at a time where only numbers taken from them are asked for.
BLOCK = 5000
# Columns listed in a warning.
LISTED = 5


class Predictions(ABC):
    """Predictions of a model that maps rows to densities.

    y may have been one column without an axis of its own; then no answer has that axis.
    """

    flat_: bool
    encoder_: TableEncoder
    network_: DensityNetwork

    @abstractmethod
    def _condition(self, X: Any) -> Tensor:  # noqa: N803
        """Return rows as the network reads them [n, C]."""

    @abstractmethod
    def _densities(self, condition: Tensor) -> Any:
        """Return a batch of densities in y's own units, in double precision on the CPU."""

    @abstractmethod
    def _calibration(self) -> Calibration:
        """Return the scores that `calibrate` took; refuse where it was not called."""

    @abstractmethod
    def _for_moments(self, densities: Any) -> Any:
        """Return densities whose moments are bounded by what the data were like."""

    def predict_dist(self, X: Any) -> Any:  # noqa: N803
        """Return the joint densities of the targets, a batch of n, in y's own units.

        A `GaussianMixture`; a `LowRankMixture` for the covariance `low_rank`, and a
        `TransformedMixture` where targets are transformed.

        As every prediction, it warns of rows of X that are far outside those of the fit (by more
        than half of a column's range). Their densities are finite, and no narrower than at the
        edge of the fitted rows, but no data support them.
        """
        return self._densities(self._familiar(X))

    def predict(
        self,
        X: Any,  # noqa: N803
        return_std: bool = False,
        return_cov: bool = False,
    ) -> Array | tuple[Array, Array]:
        """Return the means, [n] or [n, D] as y was.

        With `return_std` the standard deviations too, of the same shape; with `return_cov`
        the covariances of each row's targets, [n, D, D].

        Positive targets and counts have moments that a component's width decides more than
        its weight. Here no component counts as wider, in log y, than three times the targets
        of the fit; `predict_dist(X).mean` has no such bound. What is beyond double precision
        comes as its largest number.
        """
        check_flag("return_std", return_std)
        check_flag("return_cov", return_cov)
        if return_std and return_cov:
            raise ArgumentError(
                "return_std and return_cov",
                got="are both true",
                expected="one of them was expected",
                fix="The diagonal of the covariance holds the squares of the deviations.",
            )
        if not return_std and not return_cov:
            return self._each(X, lambda part: _held(self._for_moments(part).mean))
        spread = "stddev" if return_std else "covariance_matrix"
        parts = map(self._for_moments, self._parts(X))
        answers = [(_held(part.mean), _held(getattr(part, spread))) for part in parts]
        mean, other = (torch.cat(column) for column in zip(*answers, strict=True))
        return self._shaped(mean, 1), self._shaped(other, 1 if return_std else None)

    def predict_quantiles(
        self,
        X: Any,  # noqa: N803
        quantiles: Any = (0.05, 0.5, 0.95),
    ) -> Array:
        """Return quantiles of each target alone, [n, Q] or [n, D, Q]."""
        levels = _levels(quantiles)[:, None]

        def ask(part: Any) -> Tensor:
            each = torch.stack([part.quantile(levels, dim) for dim in range(part.dimensions)])
            # Only the ends of the real line are infinite.
            return torch.where((levels > 0) & (levels < 1), _held(each), each).permute(2, 0, 1)

        return self._each(X, ask)

    def predict_interval(
        self,
        X: Any,  # noqa: N803
        coverage: float = 0.9,
        *,
        calibrated: bool = False,
    ) -> Array:
        """Return intervals that the model gives this probability, [n, 2] or [n, D, 2].

        For each target alone, with equal tails. `calibrated` ones hold this share of new
        targets, on average over rows like those of `calibrate`, be the model right or not.
        """
        check_flag("calibrated", calibrated)
        coverage = checks.check_coverage("coverage", coverage)
        calibration = self._calibration() if calibrated else None

        def ask(part: Any) -> Tensor:
            if calibration is not None:
                return _held(torch.stack(calibration.interval(part, coverage), -1))
            ends = [part.marginal(dim).interval(coverage) for dim in range(part.dimensions)]
            return _held(torch.stack([torch.cat(pair, -1) for pair in ends], 1))

        return self._each(X, ask)

    def sample(
        self,
        X: Any,  # noqa: N803
        n_samples: int = 1,
        random_state: Any = None,
    ) -> Array:
        """Draw targets, [S, n] or [S, n, D]."""
        whole = isinstance(n_samples, Integral) and not isinstance(n_samples, bool)
        if not whole or int(n_samples) < 1:
            raise ArgumentError(
                "n_samples",
                got=f"is {n_samples!r}",
                expected="a whole number from 1 was expected",
                fix="Pass 1000, for instance.",
            )
        seed = draw_seed(random_state)
        drawn = self.predict_dist(X).sample(
            (int(n_samples),), generator=Generator().manual_seed(seed)
        )
        return self._shaped(drawn, 2)

    def _parts(self, X: Any) -> Iterator[Any]:  # noqa: N803
        """Yield the densities of some rows at a time."""
        return map(self._densities, self._familiar(X).split(BLOCK))

    def _familiar(self, X: Any) -> Tensor:  # noqa: N803
        """Return rows as the network reads them, with a warning of those that are far out."""
        condition, scaling = self._condition(X), self.network_.condition_scaling
        if scaling is None:
            return condition
        outside = scaling.outside(condition)
        counts = outside.sum(0)
        columns = counts.nonzero().flatten().tolist()
        if columns:
            labels = self.encoder_.labels
            told = [
                f"{labels[c]} in {counts[c]} row(s), where {scaling.lower[c]:.6g} to "
                f"{scaling.upper[c]:.6g} was fitted"
                for c in columns[:LISTED]
            ]
            if len(columns) > LISTED:
                told.append(f"and {len(columns) - LISTED} more column(s)")
            warnings.warn(
                f"X is far outside the rows of the fit in {int(outside.any(1).sum())} of "
                f"{len(condition)} row(s): {'; '.join(told)}. No data support these predictions: "
                "leave such rows out, or fit on rows like them.",
                ExtrapolationWarning,
                stacklevel=_callers(),
            )
        return condition

    def _each(self, X: Any, ask: Callable[[Any], Tensor]) -> Array:  # noqa: N803
        """Ask the densities of some rows at a time for answers [n, D, ...]."""
        return self._shaped(torch.cat([ask(part) for part in self._parts(X)]), 1)

    def _shaped(self, answer: Tensor, axis: int | None) -> Array:
        """Return an array without the axis of the targets, if y had none."""
        array: Array = (answer if axis is None or not self.flat_ else answer.squeeze(axis)).numpy()
        return array


def draw_seed(random_state: Any) -> int:
    """Return a seed below 2³¹ from what scikit-learn calls a random state."""
    try:
        return int(check_random_state(random_state).randint(2**31 - 1))
    except (TypeError, ValueError):
        raise ArgumentError(
            "random_state",
            got=f"is {random_state!r}",
            expected="None, a whole number from 0 to 2**32 − 1 or a numpy RandomState was expected",
            fix="Pass 0.",
        ) from None


def _held(answers: Tensor) -> Tensor:
    """Return the largest number for what is beyond: no target is, and no score takes infinity."""
    largest = torch.finfo(answers.dtype).max
    return answers.clamp(-largest, largest)


def _levels(quantiles: Any) -> Tensor:
    """Return probabilities [Q]."""
    try:
        given = quantiles.detach().cpu() if isinstance(quantiles, Tensor) else quantiles
        levels = np.array(given, dtype=np.float64, ndmin=1)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        levels = np.full(1, np.nan)
    if levels.ndim != 1 or not levels.size or not np.all((levels >= 0) & (levels <= 1)):
        raise ArgumentError(
            "quantiles",
            got=f"is {quantiles!r}",
            expected="numbers from 0 to 1 were expected",
            fix="For the median, pass 0.5.",
        )
    return torch.from_numpy(levels)


def _callers() -> int:
    """Return the `stacklevel` of a warning's first caller outside the package."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals["__name__"].startswith("condens."):
        level, frame = level + 1, frame.f_back
    return level
