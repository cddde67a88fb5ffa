"""What a batch of mapped mixtures is, before any question: a mixture, maps, batch axes."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints
from torch.distributions.constraints import Constraint

from condens import arguments
from condens.batched import check_members
from condens.dimensions import in_order, listed
from condens.distribution import GaussianMixture
from condens.errors import ArgumentError, DimensionError
from condens.maps import map_from_dict
from condens.support import Map


class MappedMixture(Distribution):
    """A Gaussian mixture and a map for each dimension, as a torch distribution holds them."""

    arg_constraints = {}  # noqa: RUF012  (torch's own signature)

    def __init__(
        self,
        mixture: GaussianMixture,
        maps: Sequence[Map],
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
        arguments.check_flag("validate_args", validate_args)
        self.base = mixture if validate_args is None else mixture._validated(validate_args)
        self.maps = check_maps(maps, mixture.dimensions)
        super().__init__(mixture.batch_shape, mixture.event_shape, validate_args=False)
        self._validate_args = self.base._validate_args

    # What it is made of.

    @property
    def names(self) -> tuple[str, ...] | None:
        """The names of the dimensions, if they have any."""
        return self.base.names

    @property
    def components(self) -> int:
        """The number of components, K."""
        return self.base.components

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

        `biject_to(support)` maps the real line to it as `maps` do; with whole numbers there is
        no such map, and it raises `NoClosedFormError`.
        """
        own = [one.constraint for one in self.maps]
        # One axis of events, over which `cat` alone does not collect.
        alike = len(set(self.maps)) == 1
        return constraints.independent(own[0] if alike else constraints.cat(own, -1), 1)

    @property
    def has_rsample(self) -> bool:  # type: ignore[override]  # torch has a class attribute
        """Whether `rsample` is there: no dimension is discrete."""
        return not any(own.discrete for own in self.maps)

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
            if member.maps != first.maps:
                raise ArgumentError(
                    "members",
                    got=f"has maps {member.maps}",
                    expected=f"the first member has {first.maps}",
                    fix="Average mixtures with equal maps.",
                )
        bases = [member.base for member in members]
        return cls(GaussianMixture.ensemble(bases, weights), first.maps)

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Self:
        """Return a mixture with a larger batch shape that shares the parameters' memory."""
        base = self.base.expand(batch_shape)
        if _instance is None:
            return type(self)(base, self.maps)
        new: Self = self._get_checked_instance(  # type: ignore[no-untyped-call]
            type(self), _instance
        )
        MappedMixture.__init__(new, base, self.maps)
        return new

    def _tree(self) -> tuple[list[Any], Any]:
        return [self.base], {"maps": [own.as_dict() for own in self.maps]}

    @classmethod
    def _from_tree(cls, leaves: Iterable[Any], context: Any) -> Self:
        new = cls.__new__(cls)
        (new.base,) = leaves
        new.maps = tuple(map_from_dict(own) for own in context["maps"])
        shapes = new.base.batch_shape, new.base.event_shape
        Distribution.__init__(new, *shapes, validate_args=False)
        new._validate_args = new.base._validate_args
        return new

    def __getitem__(self, index: Any) -> Self:
        """Return the mixture of part of the batch: anything that indexes a tensor of its shape."""
        return type(self)(self.base[index], self.maps)

    def __len__(self) -> int:
        return len(self.base)

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[Self]:
        return (self[i] for i in range(len(self)))

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Return the mixture with other device or dtype, as `Tensor.to` takes them."""
        return type(self)(self.base.to(*args, **kwargs), self.maps)

    def __repr__(self) -> str:
        parts = [
            f"batch_shape={list(self.batch_shape)}",
            f"components={self.components}",
            f"dimensions={self.dimensions}",
            "" if self.names is None else f"names={self.names}",
            f"maps={self.maps}",
        ]
        return f"{type(self).__name__}({', '.join(part for part in parts if part)})"

    # What the answers share.

    def _event(self, value: Any, *, allow_nan: bool | None = None) -> Tensor:
        allow_nan = not self._validate_args if allow_nan is None else allow_nan
        value = in_order("value", value, self.names)
        return arguments.check_event(
            "value", value, self.batch_shape, self.base.means, allow_nan=allow_nan
        )

    def _finite_event(self, value: Any) -> Tensor:
        value = self._event(value)
        if self._validate_args:
            arguments.check_finite("value", value, "Score numbers only.")
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
        columns = zip(self.maps, draws.unbind(-1), strict=True)
        own = [one.nearest(one.from_real(x).to(self.dtype)) for one, x in columns]
        return torch.stack(own, -1)

    def _kinds(self, dims: Iterable[int]) -> tuple[list[int], list[int]]:
        """Return the continuous ones of some dimensions, and the discrete ones."""
        dims = list(dims)
        continuous = [d for d in dims if not self.maps[d].discrete]
        return continuous, [d for d in dims if self.maps[d].discrete]


def check_maps(maps: Any, dimensions: int) -> tuple[Map, ...]:
    """Check that there is one map for each dimension."""
    found = tuple(listed(maps) or ())
    if len(found) != dimensions or not all(isinstance(own, Map) for own in found):
        raise ArgumentError(
            "maps",
            got=f"is {maps!r}",
            expected=f"{dimensions} map(s) were expected",
            fix="Pass one map for each dimension; map_choice.resolve makes them from words.",
        )
    return found
