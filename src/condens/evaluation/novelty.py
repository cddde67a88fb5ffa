"""How unfamiliar a condition is, by a density of the conditions of the training rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
from torch import Tensor

from condens.errors import ArgumentError, ModelFileError, NotFiniteError, ShapeError
from condens.functional.mixture import joint_log_prob
from condens.functional.triangular import from_upper_root, packed_size
from condens.nn.randomness import seeded_generator
from condens.nn.scaling import ROWS_PER_BLOCK, Standardiser

# Rows that are looked at, and the part of them that the density is not fitted to.
MAX_ROWS, HELD_OUT_FRACTION = 5000, 0.2
# Numbers of components to choose from, each with this many rows at least,
COMPONENTS, ROWS_PER_COMPONENT = (1, 2, 4, 8, 16), 5
# and this many numbers in all; variances alone where a single covariance has more.
MAX_NUMBERS = 50_000
# Smallest standard deviation of a component, in standard deviations of a column.
FLOOR = 0.02
# Expectation-maximisation ends when the mean log density rises by less than this, or after so
# many steps.
TOLERANCE, MAX_STEPS = 1e-3, 30
# Standardised numbers beyond are drawn in, so that their squares are finite and keep their order.
FAR = 1e3
# Levels that a file keeps of the scores of rows held out.
MAX_LEVELS = 201
# Scores that differ by less, relative to 1 + their size, are equal: batches may round differently.
SLACK = 1e-9
NUMBERS_PER_BLOCK = 500_000


class Familiar(NamedTuple):
    """The density of standardised conditions, as a mixture.

    In each component the numbers are Gaussian and the categories independent:

    p(x, c) = Σₖ πₖ N(x; μₖ, Σₖ) Πⱼ θₖⱼ(cⱼ)

    Args:
        logits: [K], log π.
        means: [K, N].
        factors: packed, [K, N(N+1)/2], or [K, N] for variances alone.
        codes: log θ of each column of codes, [K, number of codes].
    """

    logits: Tensor
    means: Tensor
    factors: Tensor
    codes: tuple[Tensor, ...]

    def joint(self, numbers: Tensor, codes: Tensor) -> Tensor:
        """Return log πₖ pₖ [n, K] of rows."""
        found = torch.log_softmax(self.logits, -1).expand(len(numbers), -1)
        if numbers.shape[1]:
            found = joint_log_prob(numbers, self.logits, self.means, self.factors)
        for column, logs in zip(codes.unbind(1), self.codes, strict=True):
            found = found + logs[:, column].mT
        return found

    def surprise(self, numbers: Tensor, codes: Tensor) -> Tensor:
        """Return −log p of rows [n]."""
        width = self.factors.shape[-1] + self.means.shape[-1] + 1
        size = max(1, NUMBERS_PER_BLOCK // (len(self.logits) * width))
        parts = zip(numbers.split(size), codes.split(size), strict=True)
        return -torch.cat([self.joint(*part).logsumexp(1) for part in parts])


@dataclass(frozen=True, eq=False)
class Novelty:
    """How unfamiliar conditions are: a number from 0 on, calling it gives one for each row.

    The fraction of training rows, kept apart, that are more familiar, where familiar means a high
    density of the conditions; above 1, 1 plus how many nats a row is less familiar than the least
    familiar of those. The density is a small mixture with full covariances of the standardised
    numbers, and of the categories, see `Familiar`: so it knows ranges, correlations, clusters and
    the holes between them. No training row is kept. Made by `fit`, of ``n_rows`` rows.

    >>> generator = torch.Generator().manual_seed(0)
    >>> line = torch.randn(500, 1, generator=generator)
    >>> rows = torch.cat([line, line + 0.1 * torch.randn(500, 1, generator=generator)], 1)
    >>> novelty = Novelty.fit(rows)
    >>> asked = torch.tensor([[0.0, 0.0], [2.0, 2.0], [1.0, -1.0]])
    >>> novelty(asked) > torch.tensor([0.0, 0.5, 1.0])
    tensor([False,  True,  True])
    """

    n_rows: int
    categories: tuple[int, ...]
    location: Tensor
    scale: Tensor
    familiar: Familiar
    levels: Tensor

    @classmethod
    @torch.no_grad()
    def fit(
        cls,
        condition: Tensor,
        weights: Tensor | None = None,
        categories: Sequence[int] = (),
        gaps: Sequence[tuple[int, int]] = (),
    ) -> Self:
        """Learn what conditions are usual.

        Args:
            condition: [n, ...], read as [n, C]; its last columns are codes of categories.
            weights: [n]; one each by default. Rows of weight zero are left out.
            categories: the number of codes of every column of codes.
            gaps: pairs of columns: numbers in which some were missing, and the column that is 1
                where one was. What a number was filled with is then no value that it has often.
        """
        condition = _as_rows(condition)
        weights = torch.ones(len(condition)) if weights is None else weights
        if weights.shape != condition.shape[:1]:
            raise ShapeError(
                "weights",
                got=f"has shape {list(weights.shape)}",
                expected=f"there are {len(condition)} rows",
                fix="Pass one for each.",
            )
        useful = (weights > 0).nonzero().flatten()
        if not len(useful):
            raise ArgumentError(
                "condition",
                got="has no row that counts",
                expected="at least one is needed",
                fix="Pass rows with a weight above zero.",
            )
        # In a random order: the last ones are held out.
        order = torch.randperm(len(useful), generator=seeded_generator(0))[:MAX_ROWS]
        rows = condition[useful[order]].double()
        share = weights[useful[order]].double()
        share = share / share.amax()
        free = rows.shape[1] - len(categories)
        scaling = Standardiser(free)
        if free:
            scaling.fit(rows[:, :free])
        location, scale = scaling.location, scaling.scale.clamp(min=torch.finfo(share.dtype).tiny)
        numbers, codes = _read(rows, location, scale, categories)
        filled = torch.zeros_like(numbers)
        for number, flag in gaps:
            filled[:, number] = rows[:, flag]
        held = round(HELD_OUT_FRACTION * len(rows))
        # A single row is judged by itself.
        first, last = slice(0, len(rows) - held), slice(len(rows) - max(held, 1), None)
        ours, theirs = (
            Conditions(numbers[part], codes[part], filled[part], share[part] / share[part].sum())
            for part in (first, last)
        )
        familiar = _choose(ours, theirs, categories)
        levels = _levels(familiar.surprise(theirs.numbers, theirs.codes), theirs.weights)
        return cls(len(useful), tuple(categories), location, scale, familiar, levels)

    @torch.no_grad()
    def __call__(self, condition: Tensor) -> Tensor:
        """Return how unfamiliar conditions are. Shapes: [n, ...] → [n]."""
        rows, columns = _as_rows(condition), len(self.location) + len(self.categories)
        if rows.shape[1] != columns:
            raise ShapeError(
                "condition",
                got=f"has {rows.shape[1]} columns",
                expected=f"{columns} were fitted",
                fix="Pass those columns.",
            )
        size = max(1, NUMBERS_PER_BLOCK // columns)
        parts = (
            _read(part, self.location, self.scale, self.categories) for part in rows.split(size)
        )
        scores = torch.cat([self.familiar.surprise(*part) for part in parts])
        levels, last = self.levels, len(self.levels) - 1
        above = torch.searchsorted(levels, scores - SLACK * (1 + scores.abs()))
        before, after = levels[(above - 1).clamp(min=0)], levels[above.clamp(max=last)]
        part = ((scores - before) / (after - before)).clamp(0.0, 1.0)
        inside = (above - 1 + part) / max(last, 1)
        beyond = 1 + scores - levels[-1]
        return torch.where(above == 0, 0.0, torch.where(above > last, beyond, inside))

    # Files.

    def tensors(self) -> dict[str, Tensor]:
        """Return what is known, by name."""
        codes = {f"codes.{place}": logs for place, logs in enumerate(self.familiar.codes)}
        plain = {n: t for n, t in self.familiar._asdict().items() if n != "codes"}
        own = {"location": self.location, "scale": self.scale, "levels": self.levels}
        return {**own, **plain, **codes}

    @classmethod
    def from_tensors(
        cls, tensors: Mapping[str, Tensor], n_rows: int, columns: int, categories: Sequence[int]
    ) -> Self:
        """Return the novelty of `tensors()`; raise `ModelFileError` where these cannot be."""
        free = columns - len(categories)
        names = ["location", "scale", "levels", "logits", "means", "factors"]
        codes = [f"codes.{place}" for place in range(len(categories))]
        if tensors.keys() != {*names, *codes}:
            raise _refused("is another", f"{[*names, *codes]} were expected")
        count, width = tensors["logits"].numel(), tensors["factors"].shape[-1:].numel()
        shapes: dict[str, tuple[int, ...]] = {
            "location": (free,),
            "scale": (free,),
            "levels": (tensors["levels"].numel(),),
            "logits": (count,),
            "means": (count, free),
            "factors": (count, width),
            **{name: (count, size) for name, size in zip(codes, categories, strict=True)},
        }
        for name, shape in shapes.items():
            found = tensors[name]
            if found.shape != shape or found.dtype != torch.float64:
                got = f"has {found.dtype} {list(found.shape)} as {name}"
                raise _refused(got, f"double precision {list(shape)} was expected")
            if not bool(found.isfinite().all()):
                raise _refused(f"holds NaN or infinity in {name}", "finite numbers were expected")
        faults = {
            "no components": count == 0,
            "factors of another size": width not in (packed_size(free), free),
            "a scale that is not positive": not bool((tensors["scale"] > 0).all()),
            "no levels in rising order": not len(tensors["levels"])
            or not bool((tensors["levels"].diff() >= 0).all()),
            "means far from all rows": not bool((tensors["means"].abs() <= 1e6).all()),
            "impossible factors": not bool((tensors["factors"].abs() <= 1e6).all()),
            "impossible probabilities": any(
                not bool(((tensors[name] <= 0) & (tensors[name] > -1e3)).all()) for name in codes
            )
            or not bool((tensors["logits"].abs() <= 1e3).all()),
        }
        for fault, there in faults.items():
            if there:
                raise _refused(f"has {fault}", "what was saved was expected")
        location, scale, levels, logits, means, factors = (tensors[name] for name in names)
        familiar = Familiar(logits, means, factors, tuple(tensors[name] for name in codes))
        return cls(n_rows, tuple(categories), location, scale, familiar, levels)


def _refused(got: str, expected: str) -> ModelFileError:
    return ModelFileError("its novelty", got=got, expected=expected)


class Conditions(NamedTuple):
    """Rows of conditions.

    Args:
        numbers: [n, N], standardised.
        codes: of categories [n, J].
        filled: [n, N], 1 where a number was missing and 0 elsewhere.
        weights: [n], with sum one.
    """

    numbers: Tensor
    codes: Tensor
    filled: Tensor
    weights: Tensor


def _as_rows(condition: Tensor) -> Tensor:
    """Return conditions [n, ...] as [n, C], all of them finite."""
    if not isinstance(condition, Tensor) or condition.dim() < 2:
        raise ShapeError(
            "condition",
            got=f"has shape {list(condition.shape)}"
            if isinstance(condition, Tensor)
            else f"is a {type(condition).__name__}",
            expected="a tensor [rows, columns] was expected",
            fix="Pass rows as the network reads them.",
        )
    if not all(bool(some.isfinite().all()) for some in condition.split(ROWS_PER_BLOCK)):
        raise NotFiniteError(
            "condition",
            got="has entries that are NaN or infinite",
            expected="finite numbers were expected",
            fix="Fill them, and add a column that marks them.",
        )
    return condition.flatten(1)


def _read(
    rows: Tensor, location: Tensor, scale: Tensor, categories: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Return standardised numbers [n, N] and codes of categories [n, J]."""
    free = len(location)
    # Halved: the difference of numbers near the largest would overflow.
    numbers = (0.5 * rows[:, :free].double() - 0.5 * location) / (0.5 * scale)
    codes, sizes = rows[:, free:].long(), torch.tensor(categories, dtype=torch.int64)
    if bool(((codes < 0) | (codes >= sizes)).any()):
        raise ArgumentError(
            "condition",
            got="has codes that are no categories",
            expected=f"codes from 0 to below {list(categories)} were expected",
            fix="Pass rows as the encoder makes them.",
        )
    size = numbers.abs().clamp(max=torch.finfo(numbers.dtype).max)
    drawn = FAR * (1 + (size / FAR).clamp(min=1.0).log())
    return torch.where(size > FAR, numbers.sign() * drawn, numbers), codes


def _levels(scores: Tensor, weights: Tensor) -> Tensor:
    """Return evenly spaced quantiles of scores, from the least to the largest."""
    ordered, order = scores.sort()
    below = weights[order].cumsum(0)
    asked = torch.linspace(0, 1, min(MAX_LEVELS, len(scores)), dtype=torch.float64)
    places = torch.searchsorted(below, asked * below[-1] - 1e-12).clamp(max=len(scores) - 1)
    # The last is the largest, whatever the sums round to.
    places[-1] = len(scores) - 1
    return ordered[places]


# The density.


def _choose(ours: Conditions, theirs: Conditions, categories: Sequence[int]) -> Familiar:
    """Return the density of our rows, with as many components as make theirs most likely."""
    count, columns = ours.numbers.shape
    frequencies = [_frequencies(ours, place, size) for place, size in enumerate(categories)]
    diagonal = packed_size(columns) > MAX_NUMBERS
    each = (columns if diagonal else packed_size(columns)) + sum(categories)
    best, least, worse = None, torch.inf, 0
    for components in COMPONENTS:
        if components > 1 and (
            components * ROWS_PER_COMPONENT > count or components * each > MAX_NUMBERS
        ):
            break
        found = _expectation_maximisation(ours, frequencies, components, diagonal)
        surprise = float(theirs.weights @ found.surprise(theirs.numbers, theirs.codes))
        worse = 0 if surprise < least else worse + 1
        if best is None or surprise < least:
            best, least = found, surprise
        if worse == 2:
            break
    assert best is not None
    return best


def _frequencies(rows: Conditions, place: int, size: int) -> Tensor:
    """Return the frequencies of codes [size], half a row added to each: any may come."""
    counts = torch.bincount(rows.codes[:, place], rows.weights, minlength=size) * len(rows.codes)
    return (counts + 0.5) / (counts + 0.5).sum()


def _expectation_maximisation(
    rows: Conditions, frequencies: Sequence[Tensor], components: int, diagonal: bool
) -> Familiar:
    shares, last = _start(rows, components), -torch.inf
    for _ in range(MAX_STEPS):
        found = _maximise(rows, shares, frequencies, diagonal)
        if components == 1:
            break
        joint = found.joint(rows.numbers, rows.codes)
        total = joint.logsumexp(1)
        value = float(rows.weights @ total)
        if value - last < TOLERANCE:
            break
        shares, last = (joint - total[:, None]).exp(), value
    return found


def _start(rows: Conditions, components: int) -> Tensor:
    """Return which of some rows, drawn far from each other, is the nearest one to each [n, K]."""
    generator = seeded_generator(0)
    nearest = torch.zeros(len(rows.weights), dtype=torch.int64)
    distance = torch.full_like(rows.weights, torch.inf)
    chance = rows.weights
    for component in range(components):
        seed = int(torch.multinomial(chance, 1, generator=generator))
        apart = (rows.numbers - rows.numbers[seed]).square().sum(1)
        apart = apart + 2 * (rows.codes != rows.codes[seed]).sum(1)
        nearest = torch.where(apart < distance, component, nearest)
        distance = torch.minimum(distance, apart)
        # Outliers would be drawn first: they are not groups of rows.
        chance = rows.weights * distance.clamp(max=100.0 * max(1, rows.numbers.shape[1]))
        if not bool(chance.sum() > 0):
            chance = rows.weights
    return torch.nn.functional.one_hot(nearest, components).double()


def _maximise(
    rows: Conditions, shares: Tensor, frequencies: Sequence[Tensor], diagonal: bool
) -> Familiar:
    """Return the mixture of rows that belong to components by their shares [n, K].

    Covariances are shrunk to their diagonal by as many rows as there are columns, and to the
    average component by one row. A missing number has the variance of its column.
    """
    numbers, codes, filled, weights = rows
    count, columns = numbers.shape
    mass = weights[:, None] * shares
    sizes = mass.sum(0).clamp(min=1e-12)
    means = (mass.mT @ numbers) / sizes[:, None]
    # In rows.
    each = sizes * count
    centred = numbers - means[:, None]
    part = mass.mT[..., None]
    if diagonal:
        moments = torch.diag_embed((part * centred.square()).sum(1) * count)
    else:
        moments = (part * centred).mT @ centred * count
    moment = moments + torch.diag_embed(mass.mT @ filled) * count
    variances = moment.diagonal(dim1=-2, dim2=-1)
    average = variances.sum(0) / count + FLOOR**2
    prior = torch.diag_embed(columns * variances / each[:, None] + average)
    covariance = (moment + prior) / (each + columns + 1)[:, None, None]
    covariance = covariance + FLOOR**2 * torch.eye(columns, dtype=torch.float64)
    if diagonal:
        factors = -0.5 * covariance.diagonal(dim1=-2, dim2=-1).log()
    else:
        upper = torch.linalg.cholesky(covariance.flip(-1, -2)).flip(-1, -2)
        factors = from_upper_root(upper)
    probabilities = []
    for place, frequency in enumerate(frequencies):
        counts = torch.zeros(len(sizes), len(frequency), dtype=torch.float64)
        counts.index_add_(1, codes[:, place], mass.mT * count)
        probabilities.append(((counts + frequency) / (each[:, None] + 1)).log())
    return Familiar(sizes.log(), means, factors, tuple(probabilities))
