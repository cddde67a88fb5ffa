"""Baselines: how well simple densities would do that are fitted to the same rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from condens.distributions import GaussianMixture, Mixture, TransformedMixture
from condens.errors import ArgumentError, KindError, ModelFileError, ShapeError
from condens.evaluation.linear import FLOOR, LinearGaussian, fit_linear
from condens.functional.triangular import packed_size, rescale
from condens.nn.randomness import seeded_generator
from condens.nn.scaling import EMPTY, ConditionScaling
from condens.transforms import Real, Transform

# Numbers of the features that are looked at: of more rows a random part is enough.
MAX_NUMBERS, MIN_ROWS_PER_FEATURE = 2_000_000, 20
# Rows that are looked at where there are many features, and where targets have gaps.
MAX_FEATURES, MAX_WIDE_ROWS = 1000, 1000
MAX_ROWS_WITH_GAPS = 20_000
# Scales are held within, so that mixtures can square them, and standardised targets below.
MIN_SCALE, MAX_SCALE = 1e-140, 1e140
MAX_STANDARDISED = 1e6
MAX_DOUBLE = torch.finfo(torch.float64).max


@dataclass(frozen=True, eq=False)
class Baselines:
    """The unconditional Gaussian and the linear model of the targets, both with full covariance.

    x = f(y),  x ~ N(μ, Σ)  or  x ~ N(b + φ(c)B, S)

    f are the transforms of the targets, so that the densities in the units of y carry their
    Jacobian and a whole number has its probability; φ(c) are the numbers of the condition,
    pulled in far outside the training rows as a network reads them, and a column of zeros and
    ones for each category. Ridge and covariances are those that suit rows left out, see
    `condens.evaluation.linear`. No standard deviation is below 10⁻⁵ times that of the targets.

    Made by `fit`. ``n_rows`` says how many rows that was.

    >>> generator = torch.Generator().manual_seed(0)
    >>> c = torch.randn(500, 1, generator=generator)
    >>> y = torch.cat([c, -c], 1) + 0.1 * torch.randn(500, 2, generator=generator)
    >>> baselines = Baselines.fit(c, y)
    >>> baselines.linear(c).log_prob(y).mean() - baselines.marginal(500).log_prob(y).mean() > 2
    tensor(True)
    """

    n_rows: int
    transforms: tuple[Transform, ...]
    categories: tuple[int, ...]
    names: tuple[str, ...] | None
    scaling: ConditionScaling
    frequencies: Tensor
    location: Tensor
    scale: Tensor
    constant: LinearGaussian
    sloped: LinearGaussian

    @classmethod
    @torch.no_grad()
    def fit(
        cls,
        condition: Tensor,
        target: Tensor,
        weights: Tensor | None = None,
        transforms: Sequence[Transform] | None = None,
        categories: Sequence[int] = (),
        names: Sequence[str] | None = None,
    ) -> Self:
        """Fit both to rows.

        Args:
            condition: [n, ...], read as [n, C]; its last columns are codes of categories.
            target: [n, D], NaN where it was not observed.
            weights: [n]; one each by default. Rows of weight zero are left out.
            transforms: one for each target; none by default.
            categories: the number of codes of every column of codes, the code 0 of unknown
                categories included.
            names: of the targets.
        """
        if np.ndim(target) != 2 or len(condition) != len(target):
            raise ShapeError(
                "target",
                got=f"has shape {list(np.shape(target))}",
                expected=f"[{len(condition)}, targets] was expected",
                fix="Pass one row for each row of the condition.",
            )
        if not all(isinstance(given, Tensor) for given in (condition, target)):
            raise KindError(
                "condition or target",
                got="is no tensor",
                expected="tensors were expected",
                fix="Pass torch.as_tensor(…) of them.",
            )
        transforms = tuple(transforms or (Real(),) * target.shape[1])
        weights = torch.ones(len(target)) if weights is None else weights
        useful = (~target.isnan().all(1) & (weights > 0)).nonzero().flatten()
        if not len(useful):
            raise ArgumentError(
                "target",
                got="has no row that counts",
                expected="at least one is needed",
                fix="Pass rows with an observed target and a weight above zero.",
            )
        rows = _some(useful, condition[0].numel() + sum(categories), target)
        some, share = condition[rows].flatten(1).double(), weights[rows].double()
        share = share / share.amax()
        share = share / share.sum()
        scaling = ConditionScaling(some.shape[1], fixed=len(categories)).fit(some)
        real = _real(target[rows], transforms)
        location, scale = _standards(real, share)
        frequencies = share @ _indicators(some, categories)
        standard = real / scale - location / scale
        standard = standard.clamp(-MAX_STANDARDISED, MAX_STANDARDISED)
        features = _features(some, scaling, categories, frequencies)
        return cls(
            len(useful),
            transforms,
            tuple(categories),
            None if names is None else tuple(names),
            scaling,
            frequencies,
            location,
            scale,
            fit_linear(features[:, :0], standard, share),
            fit_linear(features, standard, share),
        )

    def marginal(self, n: int) -> Mixture:
        """Return the unconditional Gaussian, a batch of n."""
        return self._mixture(self.constant.intercept.expand(n, -1), self.constant.factor)

    @torch.no_grad()
    def linear(self, condition: Tensor) -> Mixture:
        """Return the densities of the linear model. Shapes: condition [n, ...] → a batch of n."""
        rows, columns = condition.flatten(1).double(), len(self.scaling.location)
        if rows.shape[1] != columns:
            raise ShapeError(
                "condition",
                got=f"has {rows.shape[1]} columns",
                expected=f"the baselines were fitted on {columns}",
                fix="Pass those columns.",
            )
        means = self.sloped.intercept.repeat(len(rows), 1)
        size = max(1, MAX_NUMBERS // max(1, len(self.sloped.coefficients)))
        for start in range(0, len(rows), size):
            part = rows[start : start + size]
            features = _features(part, self.scaling, self.categories, self.frequencies)
            means[start : start + size] += features @ self.sloped.coefficients
        return self._mixture(means, self.sloped.factor)

    def _mixture(self, standard: Tensor, factor: Tensor) -> Mixture:
        """Return Gaussians with these standardised means [n, D] in the units of the targets."""
        means = (self.location + self.scale * standard).clamp(-MAX_DOUBLE, MAX_DOUBLE)
        factors = rescale(factor, self.scale).expand(len(means), 1, -1)
        logits = torch.zeros(len(means), 1, dtype=torch.float64)
        mixture = GaussianMixture(logits, means[:, None], factors, names=self.names)
        if all(isinstance(transform, Real) for transform in self.transforms):
            return mixture
        return TransformedMixture(mixture, self.transforms)

    # Files.

    def tensors(self) -> dict[str, Tensor]:
        """Return what the baselines know, by name."""
        parts = {"constant": self.constant, "sloped": self.sloped}
        return {
            "location": self.location,
            "scale": self.scale,
            "frequencies": self.frequencies,
            **{f"scaling.{name}": buffer for name, buffer in self.scaling.named_buffers()},
            **{f"{a}.{b}": t for a, part in parts.items() for b, t in part._asdict().items()},
        }

    @classmethod
    def from_tensors(
        cls,
        tensors: Mapping[str, Tensor],
        n_rows: int,
        columns: int,
        transforms: Sequence[Transform],
        categories: Sequence[int],
        names: Sequence[str] | None = None,
    ) -> Self:
        """Return the baselines of `tensors()`; raise `ModelFileError` where these cannot be."""
        coded, dimensions = sum(categories) - len(categories), len(transforms)
        features = columns - len(categories) + coded
        shapes: dict[str, tuple[int, ...]] = {
            "location": (dimensions,),
            "scale": (dimensions,),
            "frequencies": (coded,),
            **{f"scaling.{name}": (columns,) for name in ("location", "scale", "lower", "upper")},
        }
        for name, count in (("constant", 0), ("sloped", features)):
            shapes |= {
                f"{name}.intercept": (dimensions,),
                f"{name}.coefficients": (count, dimensions),
                f"{name}.factor": (packed_size(dimensions),),
            }
        if tensors.keys() != shapes.keys():
            raise _refused("are others", f"{sorted(shapes)} were expected")
        for name, shape in shapes.items():
            found = tensors[name]
            if found.shape != shape or found.dtype != torch.float64:
                got = f"have {found.dtype} {list(found.shape)} as {name}"
                raise _refused(got, f"double precision {list(shape)} was expected")
            if not bool(found.isfinite().all()):
                raise _refused(f"hold NaN or infinity in {name}", "finite numbers were expected")
        _check_values(tensors, columns - len(categories), dimensions)
        scaling = ConditionScaling(columns, fixed=len(categories))
        for name, buffer in scaling.named_buffers():
            buffer.copy_(tensors[f"scaling.{name}"])
        constant, sloped = (
            LinearGaussian(*(tensors[f"{name}.{field}"] for field in LinearGaussian._fields))
            for name in ("constant", "sloped")
        )
        return cls(
            n_rows,
            tuple(transforms),
            tuple(categories),
            None if names is None else tuple(names),
            scaling,
            tensors["frequencies"],
            tensors["location"],
            tensors["scale"],
            constant,
            sloped,
        )


def _check_values(tensors: Mapping[str, Tensor], numbers: int, dimensions: int) -> None:
    """Refuse finite numbers that no fit makes."""
    scales = tensors["scale"]
    if not bool(((scales >= MIN_SCALE) & (scales <= MAX_SCALE)).all()):
        raise _refused("have an impossible scale", f"{MIN_SCALE} to {MAX_SCALE} was expected")
    if not bool((tensors["scaling.scale"] > 0).all()):
        raise _refused("have an impossible scaling.scale", "positive numbers were expected")
    lower, upper = tensors["scaling.lower"], tensors["scaling.upper"]
    codes = torch.arange(len(lower)) >= numbers
    ranged = torch.where(codes, (lower == EMPTY) & (upper == -EMPTY), lower <= upper)
    still = (tensors["scaling.location"] == 0) & (tensors["scaling.scale"] == 1)
    if not bool(ranged.all() and (still | ~codes).all()):
        raise _refused("have bounds that are no range", "lower ends below upper ends were expected")
    shares = tensors["frequencies"]
    if not bool(((shares >= 0) & (shares <= 1 + 1e-9)).all()):
        raise _refused("have frequencies outside 0 to 1", "parts of the rows were expected")
    for name in ("constant", "sloped"):
        diagonal = tensors[f"{name}.factor"][:dimensions]
        # Not below FLOOR, and not wider than any residual of double precision.
        if not bool(((diagonal <= -1.01 * torch.tensor(FLOOR).log()) & (diagonal > -700)).all()):
            raise _refused(
                f"have an impossible scale in {name}.factor", "a covariance was expected"
            )


def _refused(got: str, expected: str) -> ModelFileError:
    return ModelFileError("its baselines", got=got, expected=expected)


def _some(rows: Tensor, features: int, target: Tensor) -> Tensor:
    """Return the rows, or a random part where they are more than enough."""
    # Coefficients of n rows cost features / 2n nats.
    count = max(MAX_NUMBERS // (features + target.shape[1]), MIN_ROWS_PER_FEATURE * features)
    if features > MAX_FEATURES:
        count = min(count, MAX_WIDE_ROWS)
    if bool(target.isnan().any()):
        count = min(count, MAX_ROWS_WITH_GAPS, MAX_NUMBERS // target.shape[1] ** 2)
    count = max(100, count)
    if len(rows) <= count:
        return rows
    drawn = torch.randperm(len(rows), generator=seeded_generator(0))[:count]
    return rows[drawn.sort().values]


def _real(target: Tensor, transforms: Sequence[Transform]) -> Tensor:
    """Return targets on the real line; of whole numbers the middles of their cells."""
    columns = zip(transforms, target.double().unbind(1), strict=True)
    return torch.stack([transform.to_real(column) for transform, column in columns], 1)


def _standards(values: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of the observed values; scale one of constant columns."""
    seen = (~values.isnan()).double() * weights[:, None]
    share = seen / seen.sum(0).clamp(min=torch.finfo(seen.dtype).tiny)
    known = values.nan_to_num(nan=0.0)
    # Divided by the largest before the sums: 1e200 squared would be infinite.
    unit = known.abs().amax(0)
    unit = torch.where(unit > 0, unit, 1.0)
    mean = (share * (known / unit)).sum(0)
    deviation = (share * (known / unit - mean).square()).sum(0).sqrt()
    varies = deviation > 1e-14 * mean.abs()
    return unit * mean, torch.where(varies, unit * deviation, 1.0).clamp(MIN_SCALE, MAX_SCALE)


def _indicators(condition: Tensor, categories: Sequence[int]) -> Tensor:
    """Return zeros and ones for each known category [n, Σ(codes − 1)]."""
    codes = condition[:, condition.shape[1] - len(categories) :].long()
    if codes.numel():
        sizes = torch.tensor(categories)
        if bool(((codes < 0) | (codes >= sizes)).any()):
            raise ArgumentError(
                "condition",
                got="has codes that are no categories",
                expected=f"codes from 0 to below {list(categories)} were expected",
                fix="Pass rows as the encoder makes them.",
            )
    each = [one_hot(c, size)[:, 1:] for c, size in zip(codes.unbind(1), categories, strict=True)]
    return torch.cat([condition[:, :0], *each], 1).double()


def _features(
    condition: Tensor, scaling: ConditionScaling, categories: Sequence[int], frequencies: Tensor
) -> Tensor:
    """Return standardised numbers and an indicator for each category [n, F].

    An unknown category counts as the average of the others.
    """
    numbers = scaling(condition)[:, : condition.shape[1] - len(categories)]
    shown, start = _indicators(condition, categories), 0
    for place, size in enumerate(categories, numbers.shape[1]):
        part = slice(start, start + size - 1)
        unknown = (condition[:, place] == 0)[:, None]
        shown[:, part] = torch.where(unknown, frequencies[part], shown[:, part])
        start += size - 1
    return torch.cat([numbers, shown], 1)
