"""Calibration: whether targets fall where their densities say, and where they do not.

Everything here works on plain arrays of numbers that are uniform on [0, 1] where the model is
right: the probability integral transform (PIT) of each target, the coordinates of
`Mixture.rosenblatt`, and the coverage that a region needs to hold its target
(`Mixture.hpd_coverage`, or |2u − 1| for central intervals). Answers are effect sizes with 95 %
intervals first and tests second: with enough rows every model fails a test.

Rows may have weights and come in groups. Rows of one group may depend on each other in any way;
groups are taken as independent. NaN stands for a target that was not observed, and is left out.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse, special, stats

from condens.errors import ArgumentError, NotFiniteError, ShapeError
from condens.scalars import as_levels, as_whole

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]

# Intervals of effects have this coverage, and tests reject at what is left.
CONFIDENCE = 0.95
# Fewer independent rows, or groups, say nothing about a distribution.
MIN_UNITS = 8
# Rows, or groups, that a bin has at least, but for categories: those of `MIN_UNITS` are kept.
UNITS_PER_BIN = 50
# Double precision has no number nearer to one: farther out both tails end, at 8.3.
_SMALLEST_TAIL = 2.0**-54
# Where the distribution function of weighted or grouped rows is compared with the diagonal, and
# how many simulated ones its distance is compared with.
_GRID, _SIMULATIONS = 64, 5_000


@dataclass(frozen=True)
class Test:
    """A test that numbers are uniform, in one respect, and by how much they are not.

    Args:
        name: `bias`, `spread`, `shape`, or `coverage`.
        subject: what was tested, such as the name of a target.
        effect: its size, in the units that `uniformity_tests` gives.
        lower, upper: the ends of its 95 % interval.
        statistic: what the p-value comes from.
        p_value: the probability of an effect as large where the model is right.
        adjusted: the same, corrected for all tests that were made together.
    """

    # Not one of pytest's, whatever its name.
    __test__: ClassVar[bool] = False

    name: str
    subject: str
    effect: float
    lower: float
    upper: float
    statistic: float
    p_value: float
    adjusted: float

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the test that `to_dict` wrote."""
        return cls(**values)


@dataclass(frozen=True)
class Coverage:
    """How many targets lie in regions of a stated coverage.

    Args:
        subject: what was covered, such as the name of a target.
        coverage: what the regions state.
        observed: the fraction of rows inside, by weight.
        lower, upper: its 95 % interval (Clopper and Pearson).
        expected_lower, expected_upper: between these it lies for 95 % of samples of this size,
            at least, where the model is right.
        n_effective: the number of independent rows that are worth as much as these.
    """

    subject: str
    coverage: float
    observed: float
    lower: float
    upper: float
    expected_lower: float
    expected_upper: float
    n_effective: float

    @property
    def is_expected(self) -> bool:
        """Whether what was observed is within what chance allows."""
        return self.expected_lower <= self.observed <= self.expected_upper

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the coverage that `to_dict` wrote."""
        return cls(**values)


@dataclass(frozen=True)
class Bin:
    """Rows with similar values of a column, and how calibrated the model is there."""

    column: str
    label: str
    n_rows: int
    coverages: tuple[Coverage, ...]
    tests: tuple[Test, ...]

    @property
    def worst(self) -> Test:
        """The test that is least likely by chance."""
        return min(self.tests, key=_unlikeliness)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the bin that `to_dict` wrote."""
        coverages = tuple(map(Coverage.from_dict, values["coverages"]))
        tests = tuple(map(Test.from_dict, values["tests"]))
        return cls(**{**values, "coverages": coverages, "tests": tests})


@dataclass(frozen=True)
class Bins:
    """Calibration by bins of each column; the tests are corrected for the number of them all."""

    bins: tuple[Bin, ...]

    @property
    def worst(self) -> Bin | None:
        """The bin whose calibration is least likely by chance; None without bins."""
        return min(self.bins, key=lambda one: _unlikeliness(one.worst), default=None)

    @property
    def alarm(self) -> bool:
        """Whether the worst bin is worse than chance: in 5 % of cases where the model is right."""
        worst = self.worst
        return worst is not None and worst.worst.adjusted < 1 - CONFIDENCE

    def __str__(self) -> str:
        worst = self.worst
        if worst is None:
            return "too few rows for bins"
        test = worst.worst
        text = (
            f"{worst.column}: {worst.label} ({worst.n_rows} rows): {test.name} of {test.subject} "
            f"is {test.effect:.3g} ({test.lower:.3g} to {test.upper:.3g})"
        )
        return text if self.alarm else f"{text}, which may be chance"

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the bins that `to_dict` wrote."""
        return cls(tuple(map(Bin.from_dict, values["bins"])))


def _unlikeliness(test: Test) -> tuple[float, float]:
    # Where both probabilities have underflown, the larger statistic is the less likely.
    return test.p_value, -abs(test.statistic)


def holm(p_values: ArrayLike) -> Floats:
    """Return p-values corrected for their number (Holm 1979).

    The chance that any true hypothesis has one below 5 % is 5 % at most, whatever the tests
    have to do with each other.

    >>> holm([0.01, 0.04, 0.03]).tolist()
    [0.03, 0.06, 0.06]
    """
    given = _numbers("p_values", p_values)
    if not bool(((given >= 0) & (given <= 1)).all()):
        raise ArgumentError(
            "p_values",
            got="has an entry outside [0, 1]",
            expected="probabilities were expected",
            fix="Leave out tests that could not be made.",
        )
    order = given.argsort()
    steps = given[order] * np.arange(len(given), 0, -1)
    adjusted = np.empty_like(given)
    adjusted[order] = np.maximum.accumulate(steps).clip(max=1.0)
    return adjusted


def adjust(tests: Iterable[Test]) -> tuple[Test, ...]:
    """Return the tests with their p-values corrected for the number of them."""
    found = tuple(tests)
    pairs = zip(found, holm([test.p_value for test in found]).tolist(), strict=True)
    return tuple(replace(test, adjusted=value) for test, value in pairs)


def normal_scores(uniform: ArrayLike) -> Floats:
    """Return Φ⁻¹(u), within ±8.3: where double precision ends, for 0 and 1 too.

    >>> normal_scores([0.0, 0.5, 1.0]).round(2).tolist()
    [-8.29, 0.0, 8.29]
    """
    given = _uniform("uniform", uniform)
    upper = given > 0.5
    scores = special.ndtri(np.maximum(np.where(upper, 1 - given, given), _SMALLEST_TAIL))
    return np.where(upper, -scores, scores)


def uniformity_tests(
    uniform: ArrayLike,
    weights: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    *,
    subject: str = "",
) -> tuple[Test, ...]:
    """Test numbers u [n] for uniformity on [0, 1], in three respects.

    - `bias`: the mean of the normal scores z = Φ⁻¹(u). Targets lie that many predicted standard
      deviations above what was predicted. By Student's t.
    - `spread`: the standard deviation of z, the factor by which densities are too narrow
      (above 1) or too wide (below 1). By χ², its degrees of freedom lowered where z has heavier
      tails than a normal variable, or rows of a group resemble each other.
    - `shape`: the largest distance between the distribution function of u and the diagonal, in
      which bias and spread show too (Kolmogorov and Smirnov). Chance makes it larger, by some
      0.9/√n where the model is right; its interval comes from the band about the whole function.

    With `groups` [n], labels of any kind, errors are those of independent groups: by the sums
    of each group in `bias` and `spread`; in `shape` by simulating the distance of processes
    with the covariance between groups, as with `weights` [n]. `adjusted` is the p-value itself:
    see `adjust`. At least eight rows, or groups, are needed.

    >>> tests = uniformity_tests(np.linspace(0.3, 0.8, 101), subject="price")
    >>> [(test.name, round(test.effect, 2)) for test in tests]
    [('bias', 0.14), ('spread', 0.39), ('shape', 0.3)]
    """
    given = _uniform("uniform", uniform)
    rows = _Rows.of(len(given), weights, groups)
    seen = rows.observed(given)
    rows, given = rows.only(seen), given[seen]
    if rows.n_units < MIN_UNITS:
        raise ArgumentError(
            "uniform",
            got=f"has {rows.n_units} rows or groups that were observed",
            expected=f"at least {MIN_UNITS} are needed",
            fix="Test more rows together.",
        )
    (bias, spread) = _normal_tests(normal_scores(given), rows.in_one_bin(), subject)[0]
    return bias, spread, _shape_test(given, rows, subject)


def coverage_table(
    needed: ArrayLike,
    coverages: Sequence[float],
    weights: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    *,
    subject: str = "",
) -> tuple[Coverage, ...]:
    """Return how many of n targets lie in regions of each coverage.

    A target lies inside where the region that just holds it needs no more than the coverage;
    those needed coverages [n] are `Mixture.hpd_coverage`, or |2u − 1| for central intervals. With
    `weights` or `groups` the bounds are those of n_effective rows, as many as have the same
    standard error.

    >>> (half,) = coverage_table(np.linspace(0, 1, 100), [0.5])
    >>> half.observed, half.expected_lower, half.expected_upper
    (0.5, 0.4, 0.6)
    """
    given = _uniform("needed", needed)
    rows = _Rows.of(len(given), weights, groups)
    seen = rows.observed(given)
    if not seen.any():
        raise ArgumentError(
            "needed",
            got="has no row that was observed",
            expected="a fraction is of rows",
            fix="Leave this target out.",
        )
    part = rows.only(seen).in_one_bin()
    levels = as_levels("coverages", coverages)
    return tuple(_coverages(given[seen], level, part, subject)[0] for level in levels)


def conditional_calibration(
    columns: Mapping[str, ArrayLike],
    uniform: Mapping[str, ArrayLike],
    needed: Mapping[str, ArrayLike],
    *,
    coverage: float = 0.9,
    weights: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    n_bins: int = 10,
) -> Bins:
    """Return the calibration within bins of each column, to find where a model goes wrong.

    Args:
        columns: name → [n], what to bin by: conditions, and the predicted spread. Numbers are
            binned by quantiles, at least 50 rows or groups each; words, truth values and
            numbers with few values as they are, rare ones together. NaN and None are a bin.
        uniform: subject → [n], tested for `bias` and `spread` as in `uniformity_tests`.
        needed: subject → [n], tested for `coverage` as in `coverage_table`.
        coverage: of the regions.
        weights, groups: [n], as there.
        n_bins: the largest number of bins of a column of numbers.

    All tests of all bins are corrected together (`holm`).

    >>> age, u = np.arange(400) / 5, np.random.default_rng(0).random(400)
    >>> u = np.where(age < 70, u, u**3)
    >>> bins = conditional_calibration({"age": age}, {"income": u}, {"all": u})
    >>> bins.alarm, bins.worst.column, bins.worst.label
    (True, 'age', '70 to 79.8')
    """
    n_bins = as_whole("n_bins", n_bins, 1, fix="Pass 10, for instance.")
    (coverage,) = as_levels("coverage", coverage)
    lengths = {len(np.asarray(column)) for column in columns.values()}
    targets = {name: _uniform(f"uniform[{name!r}]", each) for name, each in uniform.items()}
    regions = {name: _uniform(f"needed[{name!r}]", each) for name, each in needed.items()}
    lengths.update(len(each) for each in (*targets.values(), *regions.values()))
    if len(lengths) > 1:
        raise ShapeError(
            "columns, uniform and needed",
            got=f"have {sorted(lengths)} rows",
            expected="one number of rows was expected",
            fix="Pass all of the same rows.",
        )
    rows = _Rows.of(lengths.pop() if lengths else 0, weights, groups)
    scores = {name: normal_scores(each) for name, each in targets.items()}
    bins: list[Bin] = []
    for column, values in columns.items():
        place, labels = _binned(np.asarray(values), rows, n_bins)
        tests: list[list[Test]] = [[] for _ in labels]
        coverages: list[list[Coverage]] = [[] for _ in labels]
        for subject, each in scores.items():
            seen = rows.observed(each)
            part = rows.only(seen).binned(place[seen], len(labels))
            for b, pair in _normal_tests(each[seen], part, subject).items():
                tests[b] += pair
        for subject, each in regions.items():
            seen = rows.observed(each)
            part = rows.only(seen).binned(place[seen], len(labels))
            for b, one in _coverages(each[seen], coverage, part, subject, MIN_UNITS).items():
                coverages[b].append(one)
                tests[b].append(_coverage_test(one))
        sizes = np.bincount(place, minlength=len(labels)).tolist()
        bins += [
            Bin(column, label, size, tuple(held), tuple(made))
            for label, size, held, made in zip(labels, sizes, coverages, tests, strict=True)
            if made
        ]
    adjusted = iter(adjust(test for one in bins for test in one.tests))
    return Bins(tuple(replace(one, tests=tuple(_take(adjusted, one.tests))) for one in bins))


def _take(tests: Iterator[Test], like: Sequence[Test]) -> Iterator[Test]:
    return (next(tests) for _ in like)


class _Rows(NamedTuple):
    """Weights [n] of rows, and the codes of their groups [n]; None where each is its own."""

    weights: Floats
    groups: Codes | None

    @classmethod
    def of(cls, count: int, weights: ArrayLike | None, groups: ArrayLike | None) -> "_Rows":
        """Return checked weights, and groups of any labels as codes."""
        sizes = np.ones(count) if weights is None else _numbers("weights", weights)
        if sizes.shape != (count,) or not bool((np.isfinite(sizes) & (sizes >= 0)).all()):
            raise ArgumentError(
                "weights",
                got=f"has shape {list(sizes.shape)}, from {sizes.min(initial=0.0):.4g} to "
                f"{sizes.max(initial=0.0):.4g}",
                expected=f"{count} finite numbers, none of them negative, were expected",
                fix="Pass one for each row.",
            )
        if groups is None:
            return cls(sizes, None)
        labels = np.asarray(groups)
        if labels.shape != (count,):
            raise ShapeError(
                "groups",
                got=f"has shape {list(labels.shape)}",
                expected=f"there are {count} rows",
                fix="Pass one label for each row.",
            )
        labels = labels.astype(str) if labels.dtype.kind == "O" else labels
        return cls(sizes, np.unique(labels, return_inverse=True)[1].astype(np.int64))

    @property
    def is_plain(self) -> bool:
        """Whether all rows are independent and count the same."""
        return self.groups is None and bool((self.weights == self.weights[:1]).all())

    @property
    def n_units(self) -> int:
        """How many independent rows, or groups, there are."""
        return len(self.weights) if self.groups is None else len(np.unique(self.groups))

    def observed(self, values: Floats) -> NDArray[np.bool_]:
        """Tell which rows have a value, and a weight."""
        return ~np.isnan(values) & (self.weights > 0)

    def only(self, kept: NDArray[np.bool_]) -> "_Rows":
        """Return some of the rows."""
        return _Rows(self.weights[kept], None if self.groups is None else self.groups[kept])

    def in_one_bin(self) -> "_Binned":
        """Return all rows as one bin."""
        return self.binned(np.zeros(len(self.weights), dtype=np.int64), 1)

    def binned(self, place: Codes, count: int) -> "_Binned":
        """Return the rows in bins [n], of which there are `count`."""
        if self.groups is None:
            unit, bin_of_unit = None, place
        else:
            # A group within a bin is a unit.
            pairs, unit = np.unique(self.groups * count + place, return_inverse=True)
            bin_of_unit = pairs % count
        return _Binned(self.weights, place, count, unit, bin_of_unit)


class _Binned(NamedTuple):
    """Rows in bins, and the independent units that they come in."""

    weights: Floats
    place: Codes
    n_bins: int
    unit: Codes | None
    bin_of_unit: Codes

    def sums(self, values: Floats) -> Floats:
        """Return the sums of values [n] in each bin."""
        return _sums(self.place, values, self.n_bins)

    def mean(self, values: Floats) -> Floats:
        """Return the weighted means of values [n] in each bin; NaN in an empty one."""
        with np.errstate(invalid="ignore"):
            return self.sums(self.weights * values) / self.sums(self.weights)

    def unit_squares(self, values: Floats) -> Floats:
        """Return Σ over units of (Σ of values in the unit)² in each bin."""
        each = values if self.unit is None else _sums(self.unit, values)
        return _sums(self.bin_of_unit, each**2, self.n_bins)

    def variance(self, centred: Floats) -> Floats:
        """Return the squared standard errors of means, from deviations [n] from them."""
        units = self.n_effective_units
        with np.errstate(invalid="ignore", divide="ignore"):
            spread = self.unit_squares(self.weights * centred) / self.sums(self.weights) ** 2
            return spread * units / (units - 1)

    @property
    def n_units(self) -> Codes:
        """The number of units in each bin."""
        return np.bincount(self.bin_of_unit, minlength=self.n_bins)

    @property
    def n_effective_units(self) -> Floats:
        """(ΣW)²/ΣW² of the units' weights W: as many equal ones are worth as much (Kish)."""
        with np.errstate(invalid="ignore"):
            return self.sums(self.weights) ** 2 / self.unit_squares(self.weights)

    @property
    def n_effective_rows(self) -> Floats:
        """The same of the rows."""
        with np.errstate(invalid="ignore"):
            return self.sums(self.weights) ** 2 / self.sums(self.weights**2)


def _sums(place: Codes, values: Floats, count: int = 0) -> Floats:
    """Return the sums of values [n] at each place."""
    return np.asarray(np.bincount(place, values, count), dtype=np.float64)


def _normal_tests(scores: Floats, rows: _Binned, subject: str) -> dict[int, tuple[Test, Test]]:
    """Return bias and spread of normal scores [n] in every bin of `MIN_UNITS` or more."""
    mean = rows.mean(scores)
    centred = scores - mean[rows.place]
    error = np.sqrt(rows.variance(centred))
    # The mean lies within its own error of the true one, which the deviations lack.
    square = rows.mean(centred**2) + error**2
    with np.errstate(invalid="ignore", divide="ignore"):
        relative = np.where(square > 0, 1 / square, 0.0)[rows.place] * centred**2
        noise = rows.variance(relative - rows.mean(relative)[rows.place])
        degrees = np.minimum(
            _degrees(np.where(square > 0, error**2 / square, 1.0), rows), 2 / noise
        )
    tail, units = 0.5 * (1 - CONFIDENCE), rows.n_effective_units
    found = {}
    for b in (rows.n_units >= MIN_UNITS).nonzero()[0].tolist():
        reach = float(special.stdtrit(units[b] - 1, 1 - tail) * error[b])
        statistic = float(mean[b] / error[b]) if error[b] > 0 else _certain(mean[b])
        p_value = float(min(1.0, 2 * special.stdtr(units[b] - 1, -abs(statistic))))
        effect = float(mean[b])
        bias = Test(
            "bias", subject, effect, effect - reach, effect + reach, statistic, p_value, p_value
        )
        factor, nu = float(np.sqrt(square[b])), float(degrees[b])
        sides = special.chdtr(nu, nu * square[b]), special.chdtrc(nu, nu * square[b])
        p_value = float(min(1.0, 2 * min(sides)))
        lower, upper = (
            factor * float(np.sqrt(nu / special.chdtri(nu, q))) for q in (tail, 1 - tail)
        )
        # √(2ν)·log s is nearly standard normal.
        statistic = float(np.sqrt(2 * nu) * np.log(factor)) if factor > 0 else -np.inf
        found[b] = bias, Test("spread", subject, factor, lower, upper, statistic, p_value, p_value)
    return found


def _certain(difference: float) -> float:
    """Return the statistic of a difference without an error."""
    return float(np.copysign(np.inf, difference)) if difference else 0.0


def _degrees(relative_error: Floats, rows: _Binned) -> Floats:
    """Return the degrees of freedom of the spread of normal scores, by those of the mean.

    With the correlation ρ within units the mean has the variance ρ/units + (1 − ρ)/rows, and
    squares of normal variables have the correlation ρ². That is much less noisy for few units
    than the variance of the squares themselves.
    """
    units, count = rows.n_effective_units, rows.n_effective_rows
    within = np.where(units < count, (relative_error - 1 / count) / (1 / units - 1 / count), 0.0)
    square = within.clip(0.0, 1.0) ** 2
    return 1 / (square / units + (1 - square) / count) - 1


def _shape_test(uniform: Floats, rows: _Rows, subject: str) -> Test:
    """Return the test of Kolmogorov and Smirnov."""
    if rows.is_plain:
        count, distance = len(uniform), _distance(np.sort(uniform))
        p_value, reach = stats.kstwo.sf(distance, count), _reach(count)
        scale = np.sqrt(count)
    else:
        distance, reach = _grid_distance(uniform, rows)
        # The tail beyond, as that of independent rows with the same quantile.
        scale = special.kolmogi(1 - CONFIDENCE) / reach
        p_value = special.kolmogorov(scale * distance)
    lower, upper = max(0.0, distance - reach), min(1.0, distance + reach)
    values = (distance, lower, upper, scale * distance, p_value, p_value)
    return Test("shape", subject, *map(float, values))


@cache
def _reach(count: int) -> float:
    """Return the distance that 95 % of samples of independent rows stay below."""
    return float(stats.kstwo.isf(1 - CONFIDENCE, count))


def _distance(ordered: Floats) -> float:
    """Return the largest distance of an empirical distribution function from the diagonal."""
    steps = np.arange(len(ordered) + 1) / len(ordered)
    return float(max((steps[1:] - ordered).max(), (ordered - steps[:-1]).max()))


def _grid_distance(uniform: Floats, rows: _Rows) -> tuple[float, float]:
    """Return the largest distance on a grid, and what 95 % of samples stay below by chance.

    The distribution function minus the diagonal, at grid points t, is a mean over units of
    independent parts, nearly a Gaussian process with the covariance of those.
    """
    units = np.arange(len(uniform)) if rows.groups is None else rows.groups
    cell = np.minimum((uniform * _GRID).astype(np.int64), _GRID - 1)
    weights = rows.weights / rows.weights.sum()
    parts = sparse.csr_array((weights, (units, cell)), shape=(units.max() + 1, _GRID))
    parts.sum_duplicates()
    below = np.tri(_GRID - 1, _GRID)
    function = below @ np.bincount(cell, weights, _GRID)
    difference = below - function[:, None]
    n_units = rows.in_one_bin().n_effective_units[0]
    covariance = difference @ (parts.T @ parts).toarray() @ difference.T * n_units / (n_units - 1)
    values, vectors = np.linalg.eigh(covariance)
    noise = np.random.default_rng(0).standard_normal((_SIMULATIONS, _GRID - 1))
    distances = np.abs(noise * np.sqrt(values.clip(min=0.0)) @ vectors.T).max(-1)
    distance = np.abs(function - np.arange(1, _GRID) / _GRID).max()
    reach = float(np.quantile(distances, CONFIDENCE))
    return float(distance), max(reach, np.finfo(np.float64).tiny)


def _coverages(
    needed: Floats, coverage: float, rows: _Binned, subject: str, min_units: int = 1
) -> dict[int, Coverage]:
    """Return the fraction of rows inside regions in every bin of `min_units` or more."""
    inside = (needed <= coverage).astype(np.float64)
    observed = rows.mean(inside)
    noise = rows.variance(inside - observed[rows.place])
    # Between units that are all alike, and rows that have nothing to do with each other.
    units, most = rows.n_effective_units, rows.n_effective_rows
    with np.errstate(invalid="ignore", divide="ignore"):
        worth = np.where(noise > 0, observed * (1 - observed) / noise, 0.0)
    tail = 0.5 * (1 - CONFIDENCE)
    # What few units leave open about the noise (Korn and Graubard 1998).
    few = (special.stdtrit(most - 1, tail) / special.stdtrit(units - 1, tail)) ** 2
    sizes = np.clip(worth, units, most) * np.where(units > 1, few, 1.0)
    found = {}
    for b in (rows.n_units >= min_units).nonzero()[0].tolist():
        share, size = float(observed[b]), float(sizes[b])
        hits, misses = share * size, (1 - share) * size
        # Clopper and Pearson, for numbers of rows that need not be whole.
        lower = float(special.betaincinv(hits, misses + 1, tail)) if hits > 0 else 0.0
        upper = float(special.betaincinv(hits + 1, misses, 1 - tail)) if misses > 0 else 1.0
        whole = max(1, round(size))
        smallest, largest = (
            float(stats.binom.ppf(q, whole, coverage)) / whole for q in (tail, 1 - tail)
        )
        found[b] = Coverage(subject, coverage, share, lower, upper, smallest, largest, size)
    return found


def _coverage_test(found: Coverage) -> Test:
    """Return the two-sided binomial test of a coverage; the effect is the fraction inside."""
    size, level = found.n_effective, found.coverage
    hits, misses = found.observed * size, (1 - found.observed) * size
    # P(at most as many) and P(at least as many), for numbers that need not be whole.
    few = special.betainc(misses, hits + 1, 1 - level) if misses > 0 else 1.0
    many = special.betainc(hits, misses + 1, level) if hits > 0 else 1.0
    p_value = float(min(1.0, 2 * few, 2 * many))
    statistic = float((found.observed - level) / np.sqrt(level * (1 - level) / size))
    return Test(
        "coverage",
        found.subject,
        found.observed,
        found.lower,
        found.upper,
        statistic,
        p_value,
        p_value,
    )


def _binned(values: NDArray[Any], rows: _Rows, n_bins: int) -> tuple[Codes, list[str]]:
    """Return the bin of every row [n], and the names of the bins."""
    if values.ndim != 1:
        raise ShapeError(
            "columns",
            got=f"has a column of shape {list(values.shape)}",
            expected="one value a row was expected",
            fix="Pass columns one by one.",
        )
    if values.dtype.kind in "fiu":
        numbers = values.astype(np.float64)
        missing = np.isnan(numbers)
        most = max(1, min(n_bins, rows.n_units // UNITS_PER_BIN))
        distinct = np.unique(numbers[~missing])
        if len(distinct) > most:
            return _by_quantiles(numbers, missing, most)
        words = [f"{value:.6g}" for value in distinct.tolist()]
        place = np.searchsorted(distinct, np.where(missing, 0.0, numbers))
    else:
        missing = np.array([value is None or value != value for value in values.tolist()], bool)
        texts = np.where(missing, "", values.astype(str))
        distinct, place = np.unique(texts, return_inverse=True)
        words = distinct.tolist()
    place = np.where(missing, len(words), place)
    return _without_rare(place.astype(np.int64), [*words, "missing"], rows)


def _by_quantiles(
    numbers: Floats, missing: NDArray[np.bool_], most: int
) -> tuple[Codes, list[str]]:
    """Return bins with as many rows each, as far as equal numbers stay together."""
    seen = numbers[~missing]
    # Numbers themselves, not between them: what is infinite has no middle.
    inner = np.quantile(seen, np.arange(1, most) / most, method="higher")
    edges = np.unique(inner[inner > seen.min()])
    place = np.where(missing, len(edges) + 1, np.searchsorted(edges, numbers, side="right"))
    ends = [float(seen.min()), *edges.tolist(), float(seen.max())]
    for digits in range(3, 18):
        words = [f"{end:.{digits}g}" for end in ends]
        if len(set(words)) == len(set(ends)):
            break
    labels = [f"{low} to {high}" for low, high in pairwise(words)]
    return place.astype(np.int64), [*labels, "missing"]


def _without_rare(place: Codes, words: list[str], rows: _Rows) -> tuple[Codes, list[str]]:
    """Return bins with those of too few rows or groups in one."""
    few = rows.binned(place, len(words)).n_units < MIN_UNITS
    few[-1] = False
    if few.sum() < 2:
        return place, words
    return np.where(few[place], len(words), place), [*words, f"{int(few.sum())} rare values"]


def _numbers(name: str, values: ArrayLike) -> Floats:
    """Return numbers as an array in double precision."""
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise ArgumentError(
            name,
            got=f"is {type(values).__name__}",
            expected="numbers were expected",
            fix="Pass an array or a list of numbers.",
        ) from None


def _uniform(name: str, values: ArrayLike) -> Floats:
    """Return numbers [n] between 0 and 1, or NaN."""
    given = _numbers(name, values)
    if given.ndim != 1:
        raise ShapeError(
            name,
            got=f"has shape {list(given.shape)}",
            expected="one number a row was expected",
            fix="Pass one target at a time.",
        )
    outside = ~((given >= 0) & (given <= 1) | np.isnan(given))
    if outside.any():
        raise NotFiniteError(
            name,
            got=f"has {given[outside][0]:.4g} at row {int(outside.nonzero()[0][0])}",
            expected="numbers from 0 to 1, or NaN, were expected",
            fix="Pass probabilities, such as the PIT or coverages of regions.",
        )
    return given
