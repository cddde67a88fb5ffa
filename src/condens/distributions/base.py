"""`Mixture`: the abstract base of all mixtures, with everything they have in common."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, reduce
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self

import torch
from torch import Generator, Tensor
from torch.distributions import (
    Distribution,
    Independent,
    MixtureSameFamily,
    MultivariateNormal,
    constraints,
)
from torch.distributions.constraints import Constraint
from torch.distributions.kl import register_kl

from condens.distributions import checks, conversions
from condens.distributions.arviz import as_group, to_tree
from condens.distributions.checks import Numbers
from condens.distributions.dimensions import (
    Dimension,
    check_names,
    in_order,
    listed,
    resolve_dimensions,
    resolve_fixed,
)
from condens.errors import ArgumentError, DimensionError, KindError, NoClosedFormError, ShapeError
from condens.functional import (
    algebra,
    boxes,
    estimates,
    mixture,
    sampling,
    scores,
    shapes,
    tails,
    triangular,
    univariate,
)
from condens.functional.estimates import Estimate
from condens.functional.low_rank.algebra import Parameters as LowRankParameters
from condens.functional.modes import Modes
from condens.functional.precision import widen, working_dtype
from condens.functional.tracing import anywhere
from condens.scalars import as_whole
from condens.transforms import Real, Transform

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure
    from xarray import DataTree

Parameters = algebra.Parameters | LowRankParameters

# Draws are clamped to this size, so that sums over any number of them stay finite.
MAX_DRAW = 1e290
# Numbers that the work on a block of rows takes.
NUMBERS_PER_BLOCK = 4_000_000
# Beyond this logarithm of a probability z² has no finite number.
MIN_LOG_TAIL = -1e307


class Mixture(Distribution, ABC):
    """A batch of mixture densities p(x) = Σₖ πₖ pₖ(x) over D dimensions, as a torch distribution.

    `GaussianMixture`, `LowRankMixture` and `TransformedMixture` have the methods and properties
    of this class. Where one of them has no answer, it raises `NoClosedFormError`, which names
    the way to get one.

    An event has its axis: a one-dimensional mixture has event shape [1], though values may come
    without it (`checks.with_event_axis`). Values may be tensors, arrays, lists or data frames.
    Answers have the dtype of the mixture and are computed in double precision. Every answer that
    is estimated comes as an `Estimate(value, standard_error)`, `entropy` included.
    """

    support: Constraint = constraints.real_vector
    parameters: Parameters
    names: tuple[str, ...] | None
    # The type of the parameters, and the axes that each has for one mixture.
    _form: ClassVar[type[Any]]
    _axes: ClassVar[Mapping[str, str]]
    # The functions of this form of covariance; those of another have the same names.
    _density: ModuleType
    _algebra: ModuleType

    def __init__(
        self,
        *parameters: Tensor,
        names: Iterable[str] | None = None,
        validate_args: bool | None = None,
    ) -> None:
        tensors = {
            name: checks.as_tensor(name, value)
            for name, value in zip(self._axes, parameters, strict=True)
        }
        shapes.check_sizes(tensors, self._axes)
        checks.check_devices(tensors)
        self._check_sizes(**tensors)
        shapes.check_batch(tensors, self._axes)
        dtype = reduce(torch.promote_types, (tensor.dtype for tensor in tensors.values()))
        expanded = mixture.expand_batch(list(tensors.values()), self._event_axes())
        self._set(
            self._form(*(tensor.to(dtype) for tensor in expanded)),
            check_names(names, tensors["means"].shape[-1]),
            checks.check_flag("validate_args", validate_args, Distribution._validate_args),
        )
        if self._validate_args:
            self._check_parameters()

    def _set(
        self, parameters: Parameters, names: tuple[str, ...] | None, validate_args: bool
    ) -> None:
        """Set the fields, unchecked."""
        self.parameters, self.names = parameters, names
        # Whoever maps over a tree may put anything in place of its tensors.
        shape = getattr(parameters.means, "shape", torch.Size((0, 0)))
        # Our checks in place of torch's: they say what to do, and admit an empty batch.
        super().__init__(shape[:-2], shape[-1:], validate_args=False)
        self._validate_args = validate_args

    def _check_parameters(self) -> None:
        """Refuse parameters that are not numbers, or cannot be computed with."""
        checks.check_values(**self.parameters._asdict())
        self._check_range()

    @abstractmethod
    def _check_sizes(self, **tensors: Tensor) -> None:
        """Refuse sizes that K and D do not explain."""

    @abstractmethod
    def _check_range(self) -> None:
        """Refuse finite parameters that cannot be computed with."""

    @abstractmethod
    def _covariance_text(self) -> str:
        """Return what the repr says of the covariances, or of the transforms."""

    # Parameters and moments.

    @property
    def n_components(self) -> int:
        """The number of components, K."""
        return self.parameters.means.shape[-2]

    @property
    def dimensions(self) -> int:
        """The number of dimensions, D."""
        return self.parameters.means.shape[-1]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of every parameter, and of every answer."""
        return self.parameters.means.dtype

    @property
    def device(self) -> torch.device:
        """The device of every parameter."""
        return self.parameters.means.device

    @property
    def transforms(self) -> tuple[Transform, ...]:
        """The transform of each dimension; `Real()` where there is none."""
        return (Real(),) * self.dimensions

    @property
    def logits(self) -> Tensor:
        """The unnormalised log weights [..., K]."""
        return self.parameters.logits

    @property
    def weights(self) -> Tensor:
        """The weights πₖ [..., K], which sum to one."""
        return torch.softmax(self.logits, -1)

    @property
    def means(self) -> Tensor:
        """The means of the components [..., K, D]."""
        return self.parameters.means

    @property
    @abstractmethod
    def covariance_matrices(self) -> Tensor:
        """The covariances Σₖ of the components [..., K, D, D]."""

    @property
    def precision_factors(self) -> Tensor:
        """The upper triangular Ūₖ [..., K, D, D] with Σₖ⁻¹ = ŪₖᵀŪₖ."""
        return self._full("precision_factors").precision_factors

    @property
    def mean(self) -> Tensor:
        """The mean of the mixture [..., D]; inf where it is beyond double precision."""
        return mixture.mean(self.logits, self.means)

    @property
    def variance(self) -> Tensor:
        """The variance of each dimension [..., D]; inf where it is beyond double precision."""
        return self._density.variance(*self.parameters)

    @property
    def covariance_matrix(self) -> Tensor:
        """The covariance of the mixture [..., D, D], by the law of total covariance."""
        return self._density.covariance(*self.parameters)

    def peak_log_prob(self) -> Tensor:
        """Return the log density of every component at its mean [..., K], in double precision."""
        return self._full("peak_log_prob()").peak_log_prob()

    def largest_condition_number(self, max_multiplications: int) -> float:
        """Return the largest condition number of the covariances of a batch; 1 of an empty one.

        Args:
            max_multiplications: how many to spend; the first members of the batch are looked at
                for as long as they last, one at least. With low rank all are, at an upper bound.
        """
        count = as_whole(
            "max_multiplications", max_multiplications, 1, fix="Pass 10**7, for instance."
        )
        return self._condition_number(count) if self.batch_shape.numel() else 1.0

    def _condition_number(self, max_multiplications: int) -> float:
        """Return the largest condition number of a batch that is not empty."""
        return self._full("largest_condition_number(…)")._condition_number(max_multiplications)

    # The batch.

    @classmethod
    def ensemble(cls, members: Iterable[Self], weights: Numbers | None = None) -> Self:
        """Return the average density of M mixtures as one mixture of all their components.

        Args:
            members: mixtures with equal dimensions, names and transforms, and batch shapes that
                broadcast.
            weights: [M], equal by default.

        >>> from condens import GaussianMixture
        >>> m = GaussianMixture(torch.zeros(2), torch.randn(2, 1), torch.zeros(2, 1))
        >>> GaussianMixture.ensemble([m, m, m]).n_components
        6
        """
        found = listed(members)
        if not found or not all(isinstance(member, cls) for member in found):
            raise ArgumentError(
                "members",
                got=f"is {found if found is not None else members!r}",
                expected=f"at least one {cls.__name__}, and nothing else, was expected",
                fix="Pass a list of mixtures.",
            )
        first, batch = found[0], torch.Size()
        for member in found:
            if (member.dimensions, member.names, member.transforms) != (
                first.dimensions,
                first.names,
                first.transforms,
            ):
                raise DimensionError(
                    "members",
                    got=f"has {member}",
                    expected=f"the first member is {first}",
                    fix="Average mixtures over the same dimensions; reorder with marginal(dims).",
                )
            checks.check_leading("members", member.batch_shape, member.batch_shape, batch)
            batch = torch.broadcast_shapes(batch, member.batch_shape)
        given = torch.ones(len(found), device=first.device) if weights is None else weights
        weights = checks.as_tensor("weights", given, first.parameters.means)
        if weights.shape != (len(found),):
            raise ShapeError(
                "weights",
                got=f"has shape {list(weights.shape)}",
                expected=f"there are {len(found)} members",
                fix="Pass one weight for each.",
            )
        log_weights = torch.log_softmax(conversions.log_weights(weights), -1).to(first.dtype)
        expanded = [member.expand(batch).parameters for member in found]
        return first._with(cls._algebra.ensemble(expanded, log_weights), range(first.dimensions))

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Self:
        """Return a mixture with a larger batch shape that shares the parameters' memory."""
        batch = torch.Size(checks.check_shape("batch_shape", batch_shape))
        if checks.broadcast(batch, self.batch_shape) != batch:
            raise ShapeError(
                "batch_shape",
                got=f"is {list(batch)}",
                expected=f"the mixture has {list(self.batch_shape)}",
                fix="Keep its axes, those of size one at any size, and put more in front.",
            )
        pairs = zip(self.parameters, self._event_axes(), strict=True)
        return self._rearranged(
            (tensor.expand(*batch, *[-1] * axes) for tensor, axes in pairs), _instance
        )

    def __getitem__(self, index: Any) -> Self:
        """Return the mixture of part of the batch: anything that indexes a tensor of its shape."""
        parts = index if isinstance(index, tuple) else (index,)
        if not any(part is Ellipsis for part in parts):
            parts = (*parts, ...)
        pairs = zip(self.parameters, self._event_axes(), strict=True)
        return self._rearranged(tensor[(*parts, *[slice(None)] * axes)] for tensor, axes in pairs)

    def _rearranged(self, parameters: Iterable[Tensor], instance: Self | None = None) -> Self:
        """Return the mixture with another batch shape, unchecked."""
        new = self.__new__(type(self)) if instance is None else instance
        vars(new).update(vars(self))
        new.parameters = self._form(*parameters)
        new._batch_shape = new.parameters.means.shape[:-2]
        return new

    def __len__(self) -> int:
        if not self.batch_shape:
            raise TypeError("a mixture without batch axes has no length")
        return self.batch_shape[0]

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[Self]:
        return (self[i] for i in range(len(self)))

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Return the mixture with other device or dtype, as `Tensor.to` takes them."""
        moved = [tensor.to(*args, **kwargs) for tensor in self.parameters]
        if not moved[0].is_floating_point():
            raise KindError(
                "dtype",
                got=f"is {moved[0].dtype}",
                expected="a mixture has real numbers",
                fix="Pass torch.float32 or float64.",
            )
        return self._with(moved, range(self.dimensions))

    def to_full(self) -> "Mixture":
        """Return the same density as a `GaussianMixture`, with D(D+1)/2 numbers a component."""
        return self._full("to_full()")

    def to_mixture_same_family(self) -> MixtureSameFamily:
        """Return the same density as torch's own mixture.

        >>> from condens import GaussianMixture
        >>> m = GaussianMixture(torch.zeros(2), torch.zeros(2, 2), torch.zeros(2, 3))
        >>> m.to_mixture_same_family().log_prob(torch.zeros(2))
        tensor(-1.8379)
        """
        return self._full("to_mixture_same_family()").to_mixture_same_family()

    def __repr__(self) -> str:
        parts = [
            f"batch_shape={list(self.batch_shape)}",
            f"n_components={self.n_components}",
            f"dimensions={self.dimensions}",
            self._covariance_text(),
            "" if self.names is None else f"names={self.names}",
        ]
        return f"{type(self).__name__}({', '.join(part for part in parts if part)})"

    def _tree(self) -> tuple[list[Any], Any]:
        context = {"names": self.names and list(self.names), "validate_args": self._validate_args}
        return list(self.parameters), context

    @classmethod
    def _from_tree(cls, leaves: Iterable[Any], context: Any) -> Self:
        new = cls.__new__(cls)
        names = context["names"] and tuple(context["names"])
        new._set(cls._form(*leaves), names, context["validate_args"])
        return new

    # Density and samples.

    def log_prob(self, value: Numbers) -> Tensor:
        """Return the normalised log density at value [..., D]; −inf outside the support."""
        return self._density.log_prob(self._event(value), *self.parameters)

    @abstractmethod
    def observed_log_prob(self, value: Numbers) -> Tensor:
        """Return the log density of the entries of value [..., D] that are not NaN.

        By the exact marginal over them; 0 where there is none.
        """

    def component_log_prob(self, value: Numbers) -> Tensor:
        """Return the log density of every component at value, without the weights [..., K]."""
        return self._density.component_log_prob(self._event(value), *self.parameters[1:])

    def rosenblatt(self, value: Numbers, *, generator: Generator | None = None) -> Tensor:
        """Return u₁ = F(y₁), u_d = F(y_d | y₁, …, y_{d−1}) [..., D], in double precision.

        For values drawn from the mixture they are uniform on [0, 1] and independent of each
        other (Rosenblatt 1952); in one dimension u is the probability integral transform. Of a
        whole number u is uniform between P(Y < y | ·) and P(Y ≤ y | ·), by the generator. NaN
        was not observed: it stays, and the others follow from their marginal. A value outside
        the support has u = 0 or 1, or of whole numbers what lies below it, and the others are
        as without it.

        >>> from condens import GaussianMixture
        >>> m = GaussianMixture(torch.zeros(1), torch.zeros(1, 2), torch.zeros(1, 3))
        >>> m.rosenblatt([0.0, 1.96])
        tensor([0.5000, 0.9750], dtype=torch.float64)
        """
        sampling.check_generator(generator, self.device)
        value = widen(self._event(value, allow_nan=True))
        batch = torch.broadcast_shapes(value.shape[:-1], self.batch_shape)
        per_row = self.n_components * self.dimensions * (self._latent_dimensions + 1)
        parts = [
            part._rosenblatt(rows, generator) for part, rows in self._in_blocks(value, per_row)
        ]
        return torch.cat(parts).reshape(*batch, self.dimensions)

    @abstractmethod
    def _rosenblatt(self, value: Tensor, generator: Generator | None) -> Tensor:
        """Return `rosenblatt` of rows [R, D] of these mixtures, [R] or one for all."""

    def responsibilities(self, value: Numbers) -> Tensor:
        """Return the probability of each component given value [..., K]."""
        return self._density.responsibilities(self._event(value), *self.parameters)

    @checks.within_memory
    def sample(
        self, sample_shape: Sequence[int] = (), *, generator: Generator | None = None
    ) -> Tensor:
        """Draw `[*sample_shape, *batch_shape, D]`, every draw inside the support."""
        return self._sample(self._sample_shape(sample_shape, generator), generator)

    @checks.within_memory
    def rsample(
        self, sample_shape: Sequence[int] = (), *, generator: Generator | None = None
    ) -> Tensor:
        """Draw as `sample` does, with pathwise gradients for all parameters, logits included.

        By implicit differentiation of the conditional distribution functions; of any order.
        Weight moves between components through the density between them: where they
        hardly overlap, no practical number of draws shows the logits' gradient.
        """
        return self._rsample(self._sample_shape(sample_shape, generator), generator)

    def to_arviz(
        self,
        n_samples: int = 1000,
        *,
        n_chains: int = 4,
        group: str = "posterior",
        generator: Generator | None = None,
    ) -> "DataTree":
        """Draw for ArviZ: a tree with a variable for each dimension, by its name.

        A batch adds the axis row, or row_0, row_1, … Needs the extra `arviz`.

        Args:
            n_samples: of each chain. The draws are independent: chains are for the tools that
                compare them.
            n_chains: how many.
            group: such as "posterior" or "posterior_predictive".

        >>> from condens import GaussianMixture
        >>> m = GaussianMixture(torch.zeros(1), torch.zeros(1, 2), torch.zeros(1, 3),
        ...                     names=["lat", "lon"])
        >>> dict(m.to_arviz(100)["posterior"].sizes)
        {'chain': 4, 'draw': 100}
        """
        shape = tuple(
            as_whole(name, count, 1, fix=f"Pass {default}, for instance.")
            for name, count, default in (("n_chains", n_chains, 4), ("n_samples", n_samples, 1000))
        )
        draws = self.sample(shape, generator=generator).detach().cpu().numpy()
        names = self.names or [f"x{dim}" for dim in range(self.dimensions)]
        return to_tree({as_group("group", group): draws}, names)

    @abstractmethod
    def _sample(self, shape: tuple[int, ...], generator: Generator | None) -> Tensor:
        """Return draws of a checked shape."""

    def _rsample(self, shape: tuple[int, ...], generator: Generator | None) -> Tensor:
        return self._full("rsample(…)").rsample(shape, generator=generator)

    def enumerate_support(self, expand: bool = True) -> NoReturn:  # noqa: ARG002
        """Refuse: the support is infinite."""
        raise NoClosedFormError(
            "the support",
            got="is infinite",
            expected="enumerate_support lists all values",
            fix="Draw with sample(…).",
        )

    # New mixtures from this one.

    def marginal(self, dims: Dimension | Iterable[Dimension]) -> Self:
        """Return the mixture of the given dimensions, in the order given."""
        resolved = resolve_dimensions("dims", dims, self.dimensions, self.names)
        return self._with(self._algebra.marginal(*self.parameters, resolved), resolved)

    def condition(self, values: Mapping[Any, Numbers]) -> Self:
        """Return the mixture of the other dimensions, given values {dimension: value, …}.

        A value is a number, or a tensor that broadcasts against the batch shape. The
        remaining dimensions keep their order.
        """
        dims, fixed = resolve_fixed(values, self.parameters.means, self.names)
        for key, d, value in zip(values, dims, fixed.unbind(-1), strict=True):
            self.transforms[d].check(f"values[{key!r}]", value)
        free = sorted(set(range(self.dimensions)).difference(dims))
        return self._with(self._condition(dims, fixed), free)

    def affine(self, matrix_or_scale: Numbers, loc: Numbers = 0.0) -> Self:
        """Return the mixture of A x + loc.

        Args:
            matrix_or_scale: a number or [D] scales each dimension by itself. Two axes or
                more are a matrix [..., M, D] of full row rank, its leading axes broadcast
                against the batch; a scale for each member of a batch is a batch of
                diagonal matrices, `torch.diag_embed(scale)`.
            loc: a number, [M], or [..., M] with leading axes as the batch's.

        A `LowRankMixture` takes scales only. A `TransformedMixture` takes what keeps its
        transforms of their kind: bounds move along, positive targets need a scale above zero,
        whole numbers can be shifted by whole numbers only.

        >>> from condens import GaussianMixture
        >>> m = GaussianMixture(torch.zeros(1), torch.zeros(1, 2), torch.zeros(1, 3))
        >>> m.affine(torch.tensor([2.0, 3.0]), 1.0).variance
        tensor([4., 9.])
        """
        linear, loc = checks.check_affine(matrix_or_scale, loc, self.parameters.means)
        return self._affine(linear, loc) if linear.dim() == 1 else self._image(linear, loc)

    def project(self, direction: Numbers) -> Self:
        """Return the one-dimensional mixture of wᵀx, for a direction w [D] or [..., D]."""
        return self._project(checks.check_direction(direction, self.parameters.means))

    def narrowed(self, limits: Numbers) -> Self:
        """Return the mixture with no component wider than `limits` [D] on the real line.

        A component beyond is drawn together about its mean, in the dimensions concerned. The
        moments of positive numbers grow with exp(σ²) and are then those of the widest
        component, however rare; this bounds them.
        """
        logits, means, factors = widen(*self._full("narrowed(…)", real=False).parameters)
        wide = widen(checks.as_tensor("limits", limits, means))
        if wide.shape not in ((), (self.dimensions,)) or anywhere(~(wide > 0)):
            raise ArgumentError(
                "limits",
                got=f"is {wide.tolist()}",
                expected=f"{self.dimensions} numbers above 0 were expected",
                fix="Pass one for each dimension, or one for all.",
            )
        deviations = triangular.component_variances(factors, self.dimensions).sqrt()
        scale = (wide / deviations).clamp(max=1.0)
        narrow = algebra.Parameters(logits, means, triangular.rescale(factors, scale))
        return self._with(narrow.to(self.dtype), range(self.dimensions))

    def multiply(self, gaussian: Distribution) -> Self:
        """Return the normalised product of this density with a Gaussian's.

        Args:
            gaussian: a `MultivariateNormal`, an `Independent(Normal, 1)`, or a mixture of
                one component, over the same dimensions.
        """
        return self._like(self._full("multiply(…)").multiply(gaussian))

    def divide(self, gaussian: Distribution) -> Self:
        """Return the normalised quotient of this density by a Gaussian's.

        The quotient is a density only if the Gaussian is wider than every component in
        every direction; otherwise `NotADensityError`. The argument is as in `multiply`.
        """
        return self._like(self._full("divide(…)").divide(gaussian))

    def _condition(self, dims: Sequence[int], fixed: Tensor) -> Parameters:
        return self._algebra.condition(*self.parameters, dims, fixed)

    def _affine(self, scale: Tensor, loc: Tensor) -> Self:
        return self._with(self.parameters.affine(scale, loc), range(self.dimensions))

    def _image(self, matrix: Tensor, loc: Tensor) -> Self:
        return self._like(self._full("affine(…) by a matrix").affine(matrix, loc))

    def _project(self, direction: Tensor) -> Self:
        return self._like(self._full("project(…)").project(direction))

    # Probabilities and expectations.

    @checks.within_memory
    def probability(
        self,
        lower: Numbers | Mapping[Dimension, Numbers] = -torch.inf,
        upper: Numbers | Mapping[Dimension, Numbers] = torch.inf,
        *,
        n_samples: int = 10_000,
        generator: Generator | None = None,
    ) -> Estimate:
        """Return P(lower ≤ Y ≤ upper), the probability of a box [...].

        Exact, to some 10⁻⁹ relative and with an error of zero, where three dimensions or fewer
        have ends and no correlation is extreme, and with diagonal covariances; else by
        `n_samples` quasi-random points (Genz 1992). Tiny probabilities keep their digits.

        Args:
            lower, upper: a number for all dimensions, [..., D], or {dimension: end, …}, where
                those left out have no end. ±inf is no end. Whole numbers include both ends. A
                box whose ends are in the wrong order is empty.
            n_samples: of points, where there is no exact answer.
            generator: of their random shifts.

        >>> from condens import GaussianMixture
        >>> m = GaussianMixture(torch.zeros(1), torch.zeros(1, 2), torch.zeros(1, 3),
        ...                     names=["lat", "lon"])
        >>> m.probability({"lat": -1.0}, {"lat": 1.0}).value
        tensor(0.6827)
        """
        count = self._n_samples(n_samples, generator)
        ends = [
            widen(self._box_end(name, given, end))
            for name, given, end in (("lower", lower, -torch.inf), ("upper", upper, torch.inf))
        ]
        low, high = torch.broadcast_tensors(*ends)
        batch = torch.broadcast_shapes(low.shape[:-1], self.batch_shape)
        # What has no ends is integrated over by leaving it out.
        bounded = ((low > -torch.inf) | (high < torch.inf)).reshape(-1, self.dimensions).any(0)
        dims = bounded.nonzero().flatten().tolist()
        if not dims or not batch.numel():
            whole = torch.ones(batch, dtype=self.dtype, device=self.device)
            return Estimate(whole, torch.zeros_like(whole))
        kept, box = self.marginal(dims)._wide(), torch.cat([low[..., dims], high[..., dims]], -1)
        found = [
            part._box_probability(rows, count, generator)
            for part, rows in kept._in_blocks(box, self.n_components * len(dims) * (len(dims) + 4))
        ]
        value, error = (torch.cat(each).reshape(batch) for each in zip(*found, strict=True))
        return Estimate(value, error).to(self.dtype)

    def _box_end(
        self, name: str, given: Numbers | Mapping[Dimension, Numbers], free: float
    ) -> Tensor:
        """Return an end of a box [..., D], which `free` stands for where there is none."""
        means = self.parameters.means
        if not isinstance(given, Mapping):
            numbers = checks.as_tensor(name, in_order(name, given, self.names), means)
            numbers = numbers if numbers.dim() else numbers.expand(self.dimensions)
            return checks.check_event(name, numbers, means, allow_nan=False)
        if not given:
            return torch.full((self.dimensions,), free, dtype=means.dtype, device=means.device)
        dims = resolve_dimensions(name, given, self.dimensions, self.names)
        parts = [checks.as_tensor(f"{name}[{key!r}]", end, means) for key, end in given.items()]
        try:
            parts = list(torch.broadcast_tensors(*parts))
        except RuntimeError:
            raise ShapeError(
                name,
                got=f"has ends of shapes {[list(part.shape) for part in parts]}",
                expected="they must broadcast",
                fix="Pass numbers, or tensors of one shape.",
            ) from None
        columns = [torch.full_like(parts[0], free)] * self.dimensions
        for d, part in zip(dims, parts, strict=True):
            columns[d] = part
        return checks.check_event(name, torch.stack(columns, -1), means, allow_nan=False)

    def _box_probability(self, box: Tensor, count: int, generator: Generator | None) -> Estimate:
        """Return the probability of boxes [R, 2D] of these mixtures, [R] or one for all."""
        lower, upper = box[..., : self.dimensions], box[..., self.dimensions :]
        columns = zip(self.transforms, lower.unbind(-1), upper.unbind(-1), strict=True)
        ends = [transform.box_ends(low, high) for transform, low, high in columns]
        below, above, width = (torch.stack(part, -1) for part in zip(*ends, strict=True))
        logits, means, factors = (
            tensor.expand(len(box), *tensor.shape[-axes:])
            for tensor, axes in zip(self._gaussians(), (1, 2, 2), strict=True)
        )
        return boxes.box_probability(
            below, above, logits, means, factors, width, count=count, generator=generator
        )

    @checks.within_memory
    def expectation(
        self,
        function: Callable[[Tensor], Tensor],
        *,
        n_samples: int = 10_000,
        generator: Generator | None = None,
    ) -> Estimate:
        """Estimate E[f(Y)] for any function, by draws.

        Args:
            function: takes draws `[S, ..., D]` to `[S, ..., *out]`: its first axes are those of the
                draws, and what follows is averaged entry by entry. Truth values count as 0 and
                1. It is called for some of the draws at a time.
            n_samples: of draws.
            generator: of the draws.

        Shapes: → `[..., *out]`, without a gradient.

        >>> from condens import GaussianMixture
        >>> m = GaussianMixture(torch.zeros(1), torch.ones(1, 2), torch.zeros(1, 3))
        >>> generator = torch.Generator().manual_seed(0)
        >>> value, error = m.expectation(lambda y: y.prod(-1), generator=generator)
        >>> bool(abs(value - 1) < 3 * error < 0.1)
        True
        """
        count = self._n_samples(n_samples, generator)
        if not callable(function):
            raise KindError(
                "function",
                got=f"is {type(function).__name__}",
                expected="something to call was expected",
                fix="Pass a function of draws, such as lambda y: y.square().sum(-1).",
            )
        size = max(1, NUMBERS_PER_BLOCK // max(1, self.batch_shape.numel() * self.dimensions))
        done, mean, squares = 0, torch.zeros(()), torch.zeros(())
        with torch.no_grad():
            while done < count:
                number = min(size, count - done)
                draws = self._sample((number,), generator)
                values = self._checked(function(draws), draws)
                # Of the two parts together (Chan et al. 1982): no difference of large squares.
                part = values.mean(0)
                step = part - mean
                squares = (
                    squares
                    + (values - part).square().sum(0)
                    + step.square() * (done * number / (done + number))
                )
                mean = mean + step * (number / (done + number))
                done += number
        error = (squares / (count * (count - 1))).sqrt()
        return Estimate(mean, error).to(self.dtype)

    def _checked(self, values: Any, draws: Tensor) -> Tensor:
        """Return what a function made of draws, in double precision."""
        expected = tuple(draws.shape[:-1])
        values = checks.as_tensor("function(draws)", values, draws)
        if values.shape[: len(expected)] != expected:
            raise ShapeError(
                "function(draws)",
                got=f"has shape {list(values.shape)} for draws {list(draws.shape)}",
                expected=f"one value for each draw was expected: {[*expected, '…']}",
                fix="Reduce over the last axis only, such as y.sum(-1).",
            )
        values = widen(values.detach())
        checks.check_finite(
            "function(draws)",
            values,
            "Check the function where it divides or takes logarithms; clamp what it may not.",
        )
        return values

    # One dimension.

    def cdf(self, value: Numbers) -> Tensor:
        """Return P(X ≤ value) of a one-dimensional mixture; value [..., 1] → [...]."""
        transform, parameters = self._line("cdf")
        return univariate.cdf(transform.threshold(self._event(value)), *parameters)

    def icdf(self, value: Numbers) -> Tensor:
        """Return the quantiles of a one-dimensional mixture; probabilities [...] → [..., 1].

        Of whole numbers the smallest y with P(Y ≤ y) ≥ probability. The probabilities broadcast
        against the batch shape: for many quantiles of each member of a batch [B], pass [N, 1].
        """
        self._require_one_dimension("icdf")
        return self._quantile(checks.check_probabilities(value, self.parameters.means))

    def quantile(self, level: Numbers, dim: Dimension | None = None) -> Tensor:
        """Return quantiles of one dimension; probabilities [...] → [...], as `icdf` takes them.

        `dim` is its index or name; it may be left out if there is one only.

        >>> from condens import GaussianMixture
        >>> m = GaussianMixture(torch.zeros(1), torch.zeros(1, 2), torch.zeros(1, 3),
        ...                     names=["lat", "lon"])
        >>> m.quantile(0.975, "lon")
        tensor(1.9600)
        """
        return (self if dim is None else self.marginal(dim)).icdf(level).squeeze(-1)

    def interval(self, coverage: Numbers) -> tuple[Tensor, Tensor]:
        """Return the ends of the interval that leaves (1 − coverage)/2 on either side.

        Of whole numbers it leaves at most that much. Shapes: coverage [...] → [..., 1] twice,
        as `icdf` takes probabilities.
        """
        self._require_one_dimension("interval")
        coverages = checks.check_coverages("coverage", coverage, self.parameters.means)
        tail = 0.5 * (1 - widen(coverages))
        lower, upper = (self._quantile(tail, upper=end) for end in (False, True))
        # Both within rounding of one another, they may come in the other order.
        return lower, torch.maximum(lower, upper)

    def crps(self, value: Numbers) -> Tensor:
        """Return the continuous ranked probability score ∫(F(t) − 1(value ≤ t))² dt.

        In closed form for real and positive targets; for intervals by adaptive quadrature and
        for whole numbers by adaptive summation, to some 10⁻¹⁰ relative and without a gradient.
        Shapes: value [..., 1] → [...].
        """
        transform, parameters = self._line("crps")
        return transform.crps(self._finite_event(value), *parameters).to(self.dtype)

    def log_tails(self, value: Numbers) -> tuple[Tensor, Tensor]:
        """Return log P(X ≤ value) and log P(X ≥ value) in one dimension, in double precision.

        Finite far beyond the smallest probability. Shapes: value [..., 1] → [...] twice.
        """
        transform, (logits, means, factors) = self._line("log_tails")
        value = self._event(value)
        below = transform.threshold(value)
        # {Y ≥ y} leaves out the whole numbers up to ⌈y⌉ − 1.
        above = transform.threshold(widen(value).ceil() - 1) if transform.discrete else below
        return (
            tails.log_cdf(below, logits, means, factors),
            tails.log_cdf(-above, logits, -means, factors),
        )

    def tail_interval(self, log_tail: float) -> tuple[Tensor, Tensor]:
        """Return the ends beyond which at most exp(log_tail) lies on either side.

        In double precision and rounded outwards, so that no value with such tails is left out;
        the ends of the support for −inf. Takes −log 2 at most. Shapes: → [..., 1] twice.
        """
        transform, (logits, means, factors) = self._line("tail_interval")
        log_tail = checks.check_log_tail("log_tail", log_tail)
        support = transform.from_real(torch.tensor([-torch.inf, torch.inf], dtype=torch.float64))
        if log_tail < MIN_LOG_TAIL:
            return support.to(self.device).expand(*self.batch_shape, 2).split(1, -1)
        ends = []
        for side, outmost in zip((-1, 1), support.tolist(), strict=True):
            real = -side * tails.log_icdf(log_tail, logits, -side * means, factors)
            end = transform.from_real(real + side * 8 * torch.finfo(real.dtype).eps * real.abs())
            if not transform.discrete:
                # The transform rounds to the nearest number, which may lie inside.
                end = torch.nextafter(end, end.new_tensor(side * torch.inf))
            furthest = min(side * outmost, torch.finfo(end.dtype).max)
            ends.append(side * (side * end).clamp(max=furthest))
        return ends[0], ends[1]

    def _line(self, method: str) -> tuple[Transform, algebra.Parameters]:
        """Return the transform and the Gaussian components of a one-dimensional mixture."""
        self._require_one_dimension(method)
        return self.transforms[0], self._gaussians()

    def _gaussians(self) -> algebra.Parameters:
        """Return logits, means and packed factors of the Gaussian components."""
        return self.parameters  # type: ignore[return-value]

    def _quantile(self, level: Tensor, *, upper: bool = False) -> Tensor:
        """Return the value that leaves `level` below it, or above it where `upper`."""
        logits, means, factors = widen(*self._gaussians())
        transform = self.transforms[0]
        # The upper end through the mirror image: 1 − level has lost the level's digits.
        side = -1 if upper else 1
        found = transform.from_real(side * univariate.icdf(level, logits, side * means, factors))
        if not transform.discrete:
            return found.to(self.dtype)
        level = widen(level).unsqueeze(-1)

        def reaches(y: Tensor) -> Tensor:
            at = side * transform.threshold(y)
            passed = univariate.cdf(at, logits, side * means, factors).unsqueeze(-1)
            return passed <= level if upper else passed >= level

        # Rounding at the end of a cell may have misled by one.
        inner = (level > 0) & (level < 1)
        found = torch.where(inner & ~reaches(found), found + 1, found)
        return torch.where(inner & reaches(found - 1), found - 1, found).to(self.dtype)

    def _require_one_dimension(self, method: str) -> None:
        if self.dimensions != 1:
            raise DimensionError(
                "the mixture",
                got=f"has {self.dimensions} dimensions",
                expected=f"{method} needs exactly one",
                fix="Take marginal(dim) or project(direction) first.",
            )

    # Shape of the density.

    def modes(self) -> Modes:
        """Return the distinct local maxima reached from the components' means, highest first.

        The points [..., M, D] come with their log density [..., M]; see `Modes`.
        """
        return self._full("modes()").modes()

    @property
    def mode(self) -> Tensor:
        """The highest of `modes()` [..., D]."""
        return self.modes().points[..., 0, :]

    @checks.within_memory
    def entropy(  # type: ignore[override]  # an estimate is not passed off as exact
        self, *, n_samples: int = 10_000, generator: Generator | None = None
    ) -> Estimate:
        """Estimate the differential entropy −E[log p(X)].

        Exact for a single Gaussian, also through transforms, and differentiable; of whole
        numbers it is neither.
        """
        return self._entropy(self._n_samples(n_samples, generator), generator)

    def component_entropies(self) -> Tensor | None:
        """Return the exact entropy of every component [..., K], in double precision.

        None with whole numbers, which have no closed form.
        """
        return 0.5 * self.dimensions - self.peak_log_prob()

    def perplexity(self) -> NoReturn:
        """Refuse: exp of an estimated entropy is not its estimate."""
        raise NoClosedFormError(
            "perplexity()",
            got=f"was asked of a {type(self).__name__}",
            expected="its entropy is an estimate",
            fix="Take entropy().value.exp(), biased upwards by half the squared error.",
        )

    @checks.within_memory
    def kl_divergence(
        self, other: Distribution, *, n_samples: int = 10_000, generator: Generator | None = None
    ) -> Estimate:
        """Estimate KL(self ‖ other) = E[log p(X) − log q(X)].

        `other` is a mixture, or any distribution over the same dimensions; infinite where it
        excludes a draw, and between probabilities of whole numbers and densities. Exact between
        single Gaussians, and between these seen through equal transforms. Differentiable for a
        `GaussianMixture`, or one with equal transforms on either side.
        """
        conversions.check_distribution("other", other, self.batch_shape, self.event_shape)
        exact = self._exact_kl(other)
        if exact is not None:
            return Estimate(exact, torch.zeros_like(exact))
        count = self._n_samples(n_samples, generator)
        wide = self.expand(torch.broadcast_shapes(self.batch_shape, other.batch_shape))
        if self._is_apart(other):
            zero = torch.zeros(wide.batch_shape, dtype=self.dtype, device=self.device)
            return Estimate(zero + torch.inf, zero)
        return wide._kl_divergence(other, count, generator).to(self.dtype)

    @checks.within_memory
    def hpd_threshold(
        self, coverage: float, *, n_samples: int = 10_000, generator: Generator | None = None
    ) -> Estimate:
        """Estimate the log density t whose region {x : log p(x) ≥ t} has the given coverage.

        The coverage reached has the standard error √(coverage(1 − coverage)/n_samples):
        0.003 for 90 % and the default number. Carries no gradient.
        """
        coverage = checks.check_coverage("coverage", coverage)
        count = self._n_samples(n_samples, generator, coverage=coverage)
        with torch.no_grad():
            levels = self.log_prob(self.sample((count,), generator=generator))
        return estimates.hpd_threshold(levels, coverage)

    def hpd_contains(
        self,
        value: Numbers,
        coverage: float,
        *,
        n_samples: int = 10_000,
        generator: Generator | None = None,
    ) -> Tensor:
        """Tell whether value [..., D] lies in the highest-density region of the given coverage.

        Points within a few standard errors of the threshold may go either way.
        """
        threshold = self.hpd_threshold(coverage, n_samples=n_samples, generator=generator).value
        return self.log_prob(value) >= threshold

    @checks.within_memory
    def hpd_coverage(
        self, value: Numbers, *, n_samples: int = 199, generator: Generator | None = None
    ) -> Tensor:
        """Return the coverage of the highest-density region with value on its edge [...].

        It is the place of log p(value) among those of as many draws, chosen at random between
        two of them (`estimates.hpd_coverage`). So for values drawn from the mixture it is
        exactly uniform on [0, 1], whatever `n_samples`, and a region of 90 % holds those up to
        0.9. Entries that are NaN are left out by the marginal; NaN where all are. In double
        precision, without a gradient.

        >>> from condens import GaussianMixture
        >>> m = GaussianMixture(torch.zeros(1), torch.zeros(1, 2), torch.zeros(1, 3))
        >>> bool(m.hpd_coverage([6.0, 0.0]) > 0.9)
        True
        """
        count = self._n_samples(n_samples, generator)
        value = widen(self._event(value, allow_nan=True))
        batch = torch.broadcast_shapes(value.shape[:-1], self.batch_shape)
        with torch.no_grad():
            parts = [
                part._hpd_coverage(rows, count, generator)
                for part, rows in self._in_blocks(value, count * (self.dimensions + 2))
            ]
        return torch.cat(parts).reshape(batch)

    def _hpd_coverage(self, value: Tensor, count: int, generator: Generator | None) -> Tensor:
        """Return `hpd_coverage` of rows [R, D] of these mixtures, [R] or one for all."""
        wide, missing = self._wide().expand(value.shape[:-1]), value.isnan()
        draws = wide.sample((count,), generator=generator)
        # All at once: another batch may round a density differently.
        points = torch.cat([value.unsqueeze(0), draws])
        if anywhere(missing):
            levels = wide.observed_log_prob(points.masked_fill(missing, torch.nan))
        else:
            levels = wide.log_prob(points)
        options: dict[str, Any] = {"dtype": levels.dtype, "device": levels.device}
        uniform = torch.rand(levels.shape[1:], generator=generator, **options)
        found = estimates.hpd_coverage(levels[0], levels[1:], uniform)
        return found.masked_fill(missing.all(-1), torch.nan)

    @checks.within_memory
    def energy_score(
        self, value: Numbers, *, n_samples: int = 1_000, generator: Generator | None = None
    ) -> Estimate:
        """Estimate E‖X − value‖ − ½E‖X − X′‖ [...]; exact in one dimension, where it is the CRPS.

        Carries no gradient where it is estimated.
        """
        count = self._n_samples(n_samples, generator)
        target = self._finite_event(value)
        if self.dimensions == 1:
            exact = self.crps(target)
            return Estimate(exact, torch.zeros_like(exact))
        with torch.no_grad():
            # Draws beyond all numbers count as far: the difference of two infinities is NaN.
            draws = widen(self.sample((2, count), generator=generator)).clamp(-MAX_DRAW, MAX_DRAW)
            return scores.energy_score(widen(target.to(self.dtype)), *draws).to(self.dtype)

    def stratified_log_prob(self, n_points: int) -> Tensor:
        """Return log densities [n_points, n] at points spread evenly over each density [n].

        The same points of every density, as far as these are the same: a Latin hypercube. Of
        whole numbers it is the density in their cells, which costs much less than their
        probability.
        """
        n_points = checks.check_count("n_points", n_points)
        if len(self.batch_shape) != 1:
            raise ShapeError(
                "the mixture",
                got=f"has batch shape {list(self.batch_shape)}",
                expected="stratified_log_prob takes [n]",
                fix="Flatten the batch, or expand to (1,).",
            )
        uniform, noise = _hypercube(n_points, self._latent_dimensions)
        cumulative = torch.softmax(widen(self.logits), -1).cumsum(-1)
        chosen = sampling.pick(uniform.to(cumulative).expand(-1, len(cumulative)), cumulative)
        picked = [
            tensor.unsqueeze(0).take_along_dim(chosen[(..., *[None] * axes)], 2).squeeze(2)
            for tensor, axes in zip(self.parameters[1:], self._event_axes()[1:], strict=True)
        ]
        points = self._from_latent(noise.to(self.dtype).to(self.device), *picked)
        levels = self._log_prob_at(points).double()
        for transform, column in zip(self.transforms, points.unbind(-1), strict=True):
            if not isinstance(transform, Real):
                levels = levels + transform.log_slope_at(column)
        return levels

    @property
    def _latent_dimensions(self) -> int:
        """How many standard normal numbers make a draw."""
        return self.dimensions

    @staticmethod
    @abstractmethod
    def _from_latent(noise: Tensor, *component: Tensor) -> Tensor:
        """Return draws [..., D] of chosen components from standard normal numbers."""

    @abstractmethod
    def _log_prob_at(self, points: Tensor) -> Tensor:
        """Return the log density [S, n] of the Gaussian mixtures [n] at points [S, n, D]."""

    def plot(
        self,
        *,
        coverages: Sequence[float] = (0.5, 0.9),
        truth: Mapping[str, float] | Mapping[int, float] | Numbers | None = None,
        samples: Numbers | None = None,
        overlay: bool = False,
        axes: "Axes | None" = None,
    ) -> "Axes | Figure | SubFigure":
        """Draw the density: a curve or bars, a plane, or of 3 to 10 dimensions a corner plot.

        By `condens.plots.marginal`, `joint` and `corner`; needs matplotlib.

        Args:
            coverages: of the intervals or regions to draw.
            truth: a point [D], or {dimension: value}, to mark.
            samples: points [S, D] to draw.
            overlay: draw all of a small batch, rather than refuse it.
            axes: where to draw up to two dimensions; by default on a new figure of pyplot.
        """
        from condens.plots import corner, joint, marginal

        many = overlay and self.batch_shape.numel() != 1
        shown = list(self._flat()) if many else self
        if self.dimensions == 1:
            levels = () if many else coverages
            return marginal(shown, coverages=levels, truth=truth, samples=samples, axes=axes)
        if self.dimensions == 2 and not many:
            return joint(self, coverages=coverages, truth=truth, samples=samples, axes=axes)
        if axes is not None:
            raise DimensionError(
                "axes",
                got=f"was passed for {self.dimensions} dimensions",
                expected="a corner plot takes a figure",
                fix="Call condens.plots.corner(mixture, figure=…).",
            )
        return corner(shown, coverages=coverages, truth=truth, samples=samples)

    def _flat(self) -> Self:
        """Return the mixture with one batch axis."""
        axes = zip(self.parameters, self._event_axes(), strict=True)
        return self._rearranged(
            tensor.reshape(-1, *tensor.shape[tensor.dim() - axis :]) for tensor, axis in axes
        )

    def _entropy(self, count: int, generator: Generator | None) -> Estimate:
        with torch.no_grad():
            wide = self._wide()
            surprise = -wide.log_prob(wide.sample((count,), generator=generator))
        return Estimate(surprise.mean(0), estimates.standard_error(surprise)).to(self.dtype)

    def _exact_kl(self, other: Distribution) -> Tensor | None:  # noqa: ARG002
        """Return KL(self ‖ other), if it has a closed form."""
        return None

    def _is_apart(self, other: Distribution) -> bool:
        """Tell whether one has probabilities where the other one has densities.

        Any whole number has a probability of zero under a density.
        """
        discrete = [transform.discrete for transform in self.transforms]
        if isinstance(other, Mixture):
            return discrete != [transform.discrete for transform in other.transforms]
        support = conversions.support_of(other)
        return support is not None and any(discrete) != support.is_discrete

    def _kl_divergence(
        self, other: Distribution, count: int, generator: Generator | None
    ) -> Estimate:
        with torch.no_grad():
            wide = self._wide()
            draws = wide.sample((count,), generator=generator)
            ratio = wide.log_prob(draws) - conversions.log_prob_at(other, draws)
        return Estimate(ratio.mean(0), estimates.standard_error(ratio))

    # What the methods above share.

    def _in_blocks(self, value: Tensor, per_row: int) -> Iterator[tuple[Self, Tensor]]:
        """Return parts of the batch with their rows of value [..., D], as memory allows.

        The parts are mixtures [R], or one that all rows share, and rows [R, D].

        Args:
            per_row: how many numbers the work on a row takes.
        """
        batch = torch.broadcast_shapes(value.shape[:-1], self.batch_shape)
        rows = value.expand(*batch, -1).reshape(-1, value.shape[-1])
        count, axes = self.batch_shape.numel(), len(self.batch_shape)
        flat = self._rearranged(t.reshape(count, *t.shape[axes:]) for t in self.parameters)
        members = torch.arange(count, device=self.device).reshape(self.batch_shape).expand(batch)
        members = members.reshape(-1)
        size = max(1, NUMBERS_PER_BLOCK // per_row)
        for block in torch.arange(max(len(rows), 1), device=self.device).split(size):
            kept = block[: len(rows)]
            yield flat[0] if count == 1 else flat[members[kept]], rows[kept]

    def _wide(self) -> Self:
        """Return the mixture in its working precision: rounded draws have other densities."""
        return self.to(working_dtype(self.parameters.means))

    @classmethod
    def _event_axes(cls) -> list[int]:
        return [len(axes.split()) for axes in cls._axes.values()]

    def _with(self, parameters: Iterable[Tensor], dims: Iterable[int] | None) -> Self:
        """Return a mixture of this kind over some of the dimensions; None: over new ones."""
        named = None if self.names is None or dims is None else [self.names[d] for d in dims]
        return type(self)(*parameters, names=named, validate_args=self._validate_args)

    @property
    def _is_real(self) -> bool:
        return all(isinstance(transform, Real) for transform in self.transforms)

    def _like(self, full: "Mixture") -> Self:
        """Return a Gaussian mixture over new dimensions as a mixture of this kind."""
        return self._with(full.parameters, None)

    @abstractmethod
    def _full(self, call: str, *, real: bool = True) -> "Mixture":
        """Return the `GaussianMixture` that answers a call, or refuse the call.

        With `real`, it has to be the density itself, not that on the real line.
        """

    def _refuse(self, call: str, fix: str) -> NoReturn:
        raise NoClosedFormError(
            call,
            got=f"was asked of a {type(self).__name__}",
            expected="it has no answer there",
            fix=fix,
        )

    def _event(self, value: Any, *, allow_nan: bool | None = None) -> Tensor:
        allow_nan = not self._validate_args if allow_nan is None else allow_nan
        value = in_order("value", value, self.names)
        return checks.check_event("value", value, self.parameters.means, allow_nan=allow_nan)

    def _finite_event(self, value: Any) -> Tensor:
        value = self._event(value)
        if self._validate_args:
            checks.check_finite("value", value, "Score numbers only.")
        return value

    def _sample_shape(self, sample_shape: Any, generator: Any) -> tuple[int, ...]:
        """Return a checked shape of draws."""
        shape = checks.check_shape("sample_shape", sample_shape)
        self._check_draws("sample_shape", sample_shape, shape, generator)
        return shape

    def _n_samples(self, n_samples: Any, generator: Any, *, coverage: float | None = None) -> int:
        """Return a checked number of draws that an estimate rests on."""
        count = checks.check_count("n_samples", n_samples, coverage=coverage)
        self._check_draws("n_samples", n_samples, (count,), generator)
        return count

    def _check_draws(self, name: str, given: Any, shape: Sequence[int], generator: Any) -> None:
        numbers = (*shape, *self.batch_shape, *self.event_shape)
        checks.check_room(name, given, numbers, torch.empty(0, dtype=self.dtype))
        sampling.check_generator(generator, self.device)


@cache
def _hypercube(n_points: int, dimensions: int) -> tuple[Tensor, Tensor]:
    """Return uniform [S, 1] and normal [S, 1, dimensions] numbers, each one stratified.

    A Latin hypercube: in every coordinate one point for each of S equal parts.
    """
    order = torch.rand(n_points, 1 + dimensions, generator=Generator().manual_seed(0)).argsort(0)
    places = (order.double() + 0.5) / n_points
    return places[:, :1], torch.special.ndtri(places[:, None, 1:])


def _exact_kl(p: Mixture, q: Distribution) -> Tensor:
    exact = p._exact_kl(q)
    if exact is None:
        raise NoClosedFormError(
            "p and q",
            got=f"are {p} and {q}",
            expected="only single Gaussians have a closed form",
            fix="Call p.kl_divergence(q), which estimates it with a standard error.",
        )
    return exact


for _other in (Mixture, MultivariateNormal, Independent):
    register_kl(Mixture, _other)(_exact_kl)
