"""What a batch of mapped mixtures is, before any question: a mixture, maps, batch axes."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints
from torch.distributions.constraints import Constraint

from condens.distributions import checks
from condens.distributions.batched import check_members
from condens.distributions.dimensions import in_order, listed
from condens.distributions.gaussian import GaussianMixture
from condens.errors import ArgumentError, DimensionError
from condens.transforms import transform_from_dict
from condens.transforms.base import Transform


class MappedMixture(Distribution):
    """A Gaussian mixture and a map for each dimension, as a torch distribution holds them."""

    arg_constraints = {}  # noqa: RUF012  (torch's own signature)

    def __init__(
        self,
        mixture: GaussianMixture,
        transforms: Sequence[Transform],
        *,
        validate_args: bool | None = None,
    ) -> None:
        if not isinstance(mixture, GaussianMixture):
            raise ArgumentError(
                "mixture",
                got=f"is {type(mixture).__name__}",
                expected="a GaussianMixture was expected",
                fix="Pass the density over the real numbers, such as what a network returns.",
            )
        checks.check_flag("validate_args", validate_args)
        self.base = mixture if validate_args is None else mixture._validated(validate_args)
        self.transforms = check_transforms(transforms, mixture.dimensions)
        super().__init__(mixture.batch_shape, mixture.event_shape, validate_args=False)
        self._validate_args = self.base._validate_args

    # What it is made of.

    @property
    def names(self) -> tuple[str, ...] | None:
        """The names of the dimensions, if they have any."""
        return self.base.names

    @property
    def n_components(self) -> int:
        """The number of components, K."""
        return self.base.n_components

    @property
    def dimensions(self) -> int:
        """The number of dimensions, D."""
        return self.base.dimensions

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of every answer."""
        return self.base.dtype

    @property
    def device(self) -> torch.device:
        """The device of every parameter."""
        return self.base.device

    @property
    def weights(self) -> Tensor:
        """The weights πₖ [..., K], which sum to one."""
        return self.base.weights

    @constraints.dependent_property(event_dim=1)
    def support(self) -> Constraint:
        """Return the support of every dimension, as torch and Pyro ask for it.

        `biject_to(support)` maps the real line to it as `transforms` do; with whole numbers
        there is no such map, and it raises `NoClosedFormError`.
        """
        own = [one.constraint for one in self.transforms]
        # One axis of events, over which `cat` alone does not collect.
        alike = len(set(self.transforms)) == 1
        return constraints.independent(own[0] if alike else constraints.cat(own, -1), 1)

    @property
    def has_rsample(self) -> bool:  # type: ignore[override]  # torch has a class attribute
        """Whether `rsample` is there: no dimension is discrete."""
        return not any(own.discrete for own in self.transforms)

    # The batch.

    @classmethod
    def ensemble(cls, members: Iterable[Self], weights: Any = None) -> Self:
        """Return the average density of M mixtures with equal maps.

        Args:
            members: mixtures of the same dimensions, with batch shapes that broadcast.
            weights: [M], equal by default.
        """
        members = check_members(cls, members)
        first = members[0]
        for member in members:
            if member.transforms != first.transforms:
                raise ArgumentError(
                    "members",
                    got=f"has maps {member.transforms}",
                    expected=f"the first member has {first.transforms}",
                    fix="Average mixtures with equal maps.",
                )
        bases = [member.base for member in members]
        return cls(GaussianMixture.ensemble(bases, weights), first.transforms)

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Self:
        """Return a mixture with a larger batch shape that shares the parameters' memory."""
        base = self.base.expand(batch_shape)
        if _instance is None:
            return type(self)(base, self.transforms)
        new: Self = self._get_checked_instance(  # type: ignore[no-untyped-call]
            type(self), _instance
        )
        MappedMixture.__init__(new, base, self.transforms)
        return new

    def _tree(self) -> tuple[list[Any], Any]:
        return [self.base], {"transforms": [own.to_dict() for own in self.transforms]}

    @classmethod
    def _from_tree(cls, leaves: Iterable[Any], context: Any) -> Self:
        new = cls.__new__(cls)
        (new.base,) = leaves
        new.transforms = tuple(transform_from_dict(own) for own in context["transforms"])
        shapes = new.base.batch_shape, new.base.event_shape
        Distribution.__init__(new, *shapes, validate_args=False)
        new._validate_args = new.base._validate_args
        return new

    def __getitem__(self, index: Any) -> Self:
        """Return the mixture of part of the batch: anything that indexes a tensor of its shape."""
        return type(self)(self.base[index], self.transforms)

    def __len__(self) -> int:
        return len(self.base)

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[Self]:
        return (self[i] for i in range(len(self)))

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Return the mixture with other device or dtype, as `Tensor.to` takes them."""
        return type(self)(self.base.to(*args, **kwargs), self.transforms)

    def __repr__(self) -> str:
        parts = [
            f"batch_shape={list(self.batch_shape)}",
            f"n_components={self.n_components}",
            f"dimensions={self.dimensions}",
            "" if self.names is None else f"names={self.names}",
            f"transforms={self.transforms}",
        ]
        return f"{type(self).__name__}({', '.join(part for part in parts if part)})"

    # What the answers share.

    def _event(self, value: Any, *, allow_nan: bool | None = None) -> Tensor:
        allow_nan = not self._validate_args if allow_nan is None else allow_nan
        value = in_order("value", value, self.names)
        return checks.check_event(
            "value", value, self.batch_shape, self.base.means, allow_nan=allow_nan
        )

    def _finite_event(self, value: Any) -> Tensor:
        value = self._event(value)
        if self._validate_args:
            checks.check_finite("value", value, "Score numbers only.")
        return value

    def _require_one_dimension(self, method: str) -> None:
        if self.dimensions != 1:
            raise DimensionError(
                "the mixture",
                got=f"has {self.dimensions} dimensions",
                expected=f"{method} needs exactly one",
                fix="Take marginal(dim) first.",
            )

    def _from_real(self, draws: Tensor) -> Tensor:
        """Return draws of X as values inside the support, in the mixture's dtype."""
        columns = zip(self.transforms, draws.unbind(-1), strict=True)
        own = [one.nearest(one.from_real(x).to(self.dtype)) for one, x in columns]
        return torch.stack(own, -1)

    def _kinds(self, dims: Iterable[int]) -> tuple[list[int], list[int]]:
        """Return the continuous ones of some dimensions, and the discrete ones."""
        dims = list(dims)
        continuous = [d for d in dims if not self.transforms[d].discrete]
        return continuous, [d for d in dims if self.transforms[d].discrete]


def check_transforms(transforms: Any, dimensions: int) -> tuple[Transform, ...]:
    """Check that there is one map for each dimension."""
    found = tuple(listed(transforms) or ())
    if len(found) != dimensions or not all(isinstance(own, Transform) for own in found):
        raise ArgumentError(
            "transforms",
            got=f"is {transforms!r}",
            expected=f"{dimensions} map(s) were expected",
            fix="Pass one map for each dimension; map_choice.resolve makes them from words.",
        )
    return found
