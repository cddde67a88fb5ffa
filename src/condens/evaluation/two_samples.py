"""How far apart two sets of draws are: by a classifier, and by a kernel."""

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Generator, Tensor

from condens.data import TableLike, TargetColumns
from condens.data.table import in_order
from condens.errors import ArgumentError, NotFiniteError, ShapeError
from condens.evaluation.statistics import Score
from condens.nn.randomness import seeded_generator
from condens.progress import Progress
from condens.scalars import as_real, as_whole

if TYPE_CHECKING:
    from condens.data.arrays import Doubles

# Entries of the kernel matrix held at a time.
ENTRIES_PER_BLOCK = 4_000_000
# Draws whose distances give the bandwidth of the kernel, by their median.
DRAWS_FOR_BANDWIDTH = 2000


@dataclass(frozen=True)
class MMD:
    """The squared maximum mean discrepancy of two sets of draws; see `mmd_squared`.

    Args:
        value: unbiased, so that it may be below zero.
        standard_error: of the value, if the two distributions differ.
        p_value: of the two being the same, by permutation; NaN without permutations.
        bandwidth: of the Gaussian kernel.
    """

    value: float
    standard_error: float
    p_value: float
    bandwidth: float


def c2st(
    first: TableLike,
    second: TableLike,
    *,
    n_folds: int = 5,
    seed: int = 1,
    progress: bool | None = None,
) -> Score:
    """Return how often a classifier tells which of two sets a draw is from.

    One half where the sets cannot be told apart, 1 where they always can. The definition of
    sbibm (Lueckmann et al. 2021): both sets are standardised by the first; scikit-learn's
    `MLPClassifier` with two hidden layers of 10 D units is trained by Adam for up to 10 000
    epochs; the answer is its mean accuracy over the held-out folds. The standard error
    √(a(1 − a)/2N) of an accuracy a is that of N + N draws that are each predicted once.

    Args:
        first, second: [N, D] each, as many draws of one as of the other.
        n_folds: of the cross-validation.
        seed: of the folds and of the classifier.
        progress: show a line; by default where stderr is a terminal.

    >>> noise = torch.randn(2, 100, 1, generator=Generator().manual_seed(0))
    >>> c2st(noise[0], noise[1] + 20).value
    1.0
    """
    try:
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.model_selection import KFold
        from sklearn.neural_network import MLPClassifier
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "sklearn":
            raise
        raise ImportError(
            "c2st needs scikit-learn. Install it: pip install 'condens[evaluation]'."
        ) from error

    a, b = _read(first, second)
    seed = as_whole("seed", seed, 0, 2**32 - 1, fix="Pass a seed such as 1.")
    n_folds = as_whole("n_folds", n_folds, 2, len(a), fix="Pass 5, for instance.")
    if len(a) != len(b):
        raise ShapeError(
            "second",
            got=f"has {len(b)} draws",
            expected=f"first has {len(a)}, and guessing the larger set would be right too often",
            fix=f"Pass the first {min(len(a), len(b))} of both.",
        )
    # In units of the draws: what sbi takes for a constant is then one, whatever their scale.
    unit = torch.cat([a, b]).abs().amax(0)
    unit = torch.where(unit > 0, unit, 1.0)
    a, b = a / unit, b / unit
    spread = a.std(0)
    spread = torch.where(spread < 1e-14, 1.0, spread)  # as sbi does
    data: Doubles = ((torch.cat([a, b]) - a.mean(0)) / spread).numpy()
    labels = torch.arange(2.0).repeat_interleave(len(a)).numpy()
    accuracies = []
    with Progress("classifying", n_folds, show=progress) as line:
        for train, test in KFold(n_folds, shuffle=True, random_state=seed).split(data):
            classifier = MLPClassifier(
                hidden_layer_sizes=(10 * a.shape[1],) * 2,
                activation="relu",
                solver="adam",
                max_iter=10_000,
                random_state=seed,
            )
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                classifier.fit(data[train], labels[train])
            accuracies.append(float(classifier.score(data[test], labels[test])))
            line.advance()
    accuracy = math.fsum(accuracies) / n_folds
    return Score(accuracy, math.sqrt(accuracy * (1 - accuracy) / len(data)))


def mmd_squared(
    first: TableLike,
    second: TableLike,
    *,
    bandwidth: float | None = None,
    n_permutations: int = 200,
    seed: int = 0,
    progress: bool | None = None,
) -> MMD:
    """Return the unbiased squared maximum mean discrepancy of two sets of draws.

    E k(X, X′) + E k(Y, Y′) − 2 E k(X, Y) with k(x, y) = exp(−‖x − y‖²/2h²), each mean over
    distinct pairs (Gretton et al. 2012, equation 3). Zero on average if both sets have the same
    distribution, above zero otherwise. The standard error is that of the first-order terms of
    this U-statistic; the p-value compares it with the same draws in random sets.

    Args:
        first, second: [m, D] and [n, D]; put the columns on similar scales first.
        bandwidth: h; by default the median distance of two draws of either set (of 2000 of
            them at most).
        n_permutations: for the p-value, whose least is 1/(n_permutations + 1); 0 for none.
        seed: of the permutations.
        progress: show a line; by default where stderr is a terminal.

    >>> noise = torch.randn(2, 100, 1, generator=Generator().manual_seed(0))
    >>> mmd_squared(noise[0], noise[1] + 1).p_value
    0.004975124378109453
    """
    a, b = _read(first, second)
    n_permutations = as_whole(
        "n_permutations", n_permutations, 0, 10**6, fix="Pass 200, or 0 for no p-value."
    )
    generator = seeded_generator(seed)
    draws, m, n = torch.cat([a, b]), len(a), len(b)
    # Sums over subsets have more digits near zero.
    draws = draws - draws.mean(0)
    unit = float(draws.abs().amax()) or 1.0
    if bandwidth is not None:
        bandwidth = _check_bandwidth(bandwidth) / unit
    draws = draws / unit
    h = _median_distance(draws, generator) if bandwidth is None else bandwidth
    sets = torch.zeros(m + n, 1 + n_permutations, dtype=torch.float64)
    sets[:m, 0] = 1  # the sets as they are, then in random order
    for column in range(1, 1 + n_permutations):
        sets[torch.randperm(m + n, generator=generator)[:m], column] = 1
    to_first, to_all = torch.empty(m + n, dtype=torch.float64), torch.empty_like(sets[:, 0])
    within_first = torch.zeros(1 + n_permutations, dtype=torch.float64)
    first_all = torch.zeros_like(within_first)
    with Progress("comparing", m + n, show=progress) as line:
        for rows, kernel in _kernel_blocks(draws, h):
            sums, alls = kernel @ sets, kernel.sum(1)
            to_first[rows], to_all[rows] = sums[:, 0], alls
            within_first += (sets[rows] * sums).sum(0)
            first_all += alls @ sets[rows]
            line.advance(len(kernel))
    between = first_all - within_first
    within_second = to_all.sum() - within_first - 2 * between
    # k(x, x) = 1 of every draw with itself is no pair.
    values = (
        (within_first - m) / (m * (m - 1))
        + (within_second - n) / (n * (n - 1))
        - 2 * between / (m * n)
    )
    to_second = to_all - to_first
    gaps = (
        (to_first[:m] - 1) / (m - 1) - to_second[:m] / n,
        (to_second[m:] - 1) / (n - 1) - to_first[m:] / m,
    )
    error = 2 * math.sqrt(sum(float(gap.var()) / len(gap) for gap in gaps))
    # Equal sets in other orders of summation are equal but for rounding.
    reached = int((values[1:] >= values[0] - 1e-12).sum())
    p_value = (1 + reached) / (1 + n_permutations) if n_permutations else math.nan
    return MMD(float(values[0]), error, p_value, unit * h)


def _read(first: TableLike, second: TableLike) -> tuple[Tensor, Tensor]:
    """Return two sets of draws over the same columns, in double precision."""
    sets = [TargetColumns.of(first, "first"), TargetColumns.of(second, "second")]
    a, b = (part.values for part in sets)
    if a.shape[1] != b.shape[1]:
        raise ShapeError(
            "second",
            got=f"has {b.shape[1]} columns",
            expected=f"first has {a.shape[1]}",
            fix="Pass draws of the same parameters.",
        )
    for name, values in (("first", a), ("second", b)):
        if len(values) < 2:
            raise ShapeError(
                name,
                got="has one draw",
                expected="at least two are needed",
                fix="Pass hundreds of draws.",
            )
        if not bool(values.isfinite().all()):
            raise NotFiniteError(
                name,
                got=f"is NaN in row {int(values.isnan().any(1).nonzero()[0])}",
                expected="finite numbers were expected",
                fix="Leave such rows out.",
            )
    names = sets[0].names
    expected = f"first has {', '.join(names or ())}"
    return a, in_order(
        b, sets[1].names, names, "second", expected=expected, fix="Pass the same columns."
    )


def _check_bandwidth(bandwidth: float) -> float:
    return as_real(
        "bandwidth",
        bandwidth,
        "a finite number above 0 was expected",
        lambda h: 0 < h < math.inf,
        fix="Pass a distance, or None for the median.",
    )


def _median_distance(draws: Tensor, generator: Generator) -> float:
    """Return the median distance of pairs, the lower one of two."""
    if len(draws) > DRAWS_FOR_BANDWIDTH:
        draws = draws[torch.randperm(len(draws), generator=generator)[:DRAWS_FOR_BANDWIDTH]]
    found = float(torch.nn.functional.pdist(draws).median())
    if found == 0:
        raise ArgumentError(
            "bandwidth",
            got="is the median distance by default, which is 0",
            expected="more than half of the pairs of draws are equal",
            fix="Pass a bandwidth above 0.",
        )
    return found


def _kernel_blocks(draws: Tensor, bandwidth: float) -> Iterator[tuple[slice, Tensor]]:
    """Yield rows of exp(−‖x − y‖²/2h²) [rows, N], some at a time."""
    scaled = draws / (bandwidth * math.sqrt(2))
    size = max(1, ENTRIES_PER_BLOCK // len(draws))
    for start in range(0, len(draws), size):
        rows = slice(start, start + size)
        # By differences: by products, the distance of near points would be rounding.
        apart = torch.cdist(scaled[rows], scaled, compute_mode="donot_use_mm_for_euclid_dist")
        yield rows, apart.square_().neg_().exp_()
