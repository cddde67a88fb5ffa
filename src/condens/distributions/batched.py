"""What a batch of mixtures is, before any question: tensors, names, batch axes."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from condens.distributions import checks, conversions
from condens.distributions.dimensions import check_names, in_order, listed
from condens.errors import ArgumentError, DimensionError, KindError, ShapeError
from condens.functional import mixture, shapes


class BatchedMixture(Distribution, ABC):
    """The parameters of a batch of Gaussian mixtures, as a torch distribution holds them.

    A subclass tells in `_axes` what its tensors are called and which axes one mixture has.
    """

    support = constraints.real_vector
    _axes: ClassVar[Mapping[str, str]]
    logits: Tensor
    means: Tensor

    def __init__(
        self,
        *parameters: Any,
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
        batch = shapes.check_batch(tensors, self._axes)
        dtype = reduce(torch.promote_types, (tensor.dtype for tensor in tensors.values()))
        expanded = mixture.expand_batch(list(tensors.values()), self._event_axes())
        for name, tensor in zip(self._axes, expanded, strict=True):
            setattr(self, name, tensor.to(dtype))
        self.names = check_names(names, self.dimensions)
        # Our own checks in place of torch's: they tell what to do, and admit an empty batch.
        super().__init__(batch, self.means.shape[-1:], validate_args=False)
        flag = checks.check_flag("validate_args", validate_args)
        self._validate_args = Distribution._validate_args if flag is None else flag
        if self._validate_args:
            self._check_parameters()

    def _check_parameters(self) -> None:
        """Refuse parameters that are not numbers, or cannot be computed with."""
        checks.check_values(**{name: getattr(self, name) for name in self._axes})
        self._check_range()

    def _validated(self, validate_args: bool) -> Self:
        """Return the same mixture, with the checks of it and of what is asked on or off."""
        new = copy.copy(self)
        new._validate_args = validate_args
        if validate_args and not self._validate_args:
            new._check_parameters()
        return new

    # What the structure of the covariances decides.

    @property
    @abstractmethod
    def parameters(self) -> tuple[Tensor, ...]:
        """The defining tensors, in the order of the constructor."""

    @abstractmethod
    def _check_sizes(self, **tensors: Tensor) -> None:
        """Refuse sizes that K and D do not explain."""

    @abstractmethod
    def _check_range(self) -> None:
        """Refuse finite parameters that cannot be computed with."""

    @abstractmethod
    def _covariance_text(self) -> str:
        """Return what the repr says of the covariances."""

    @staticmethod
    @abstractmethod
    def _join(members: Sequence[Any], log_weights: Tensor) -> tuple[Tensor, ...]:
        """Return the parameters of an ensemble."""

    # The parameters, in the forms people ask for.

    @property
    def n_components(self) -> int:
        """The number of components, K."""
        return self.means.shape[-2]

    @property
    def dimensions(self) -> int:
        """The number of dimensions, D."""
        return self.means.shape[-1]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of every parameter, and of every answer."""
        return self.means.dtype

    @property
    def device(self) -> torch.device:
        """The device of every parameter."""
        return self.means.device

    @property
    def weights(self) -> Tensor:
        """The weights πₖ [..., K], which sum to one."""
        return torch.softmax(self.logits, -1)

    @property
    def mean(self) -> Tensor:
        """The mean of the mixture [..., D]."""
        return mixture.mean(self.logits, self.means)

    # The batch.

    @classmethod
    def ensemble(cls, members: Iterable[Self], weights: Any = None) -> Self:
        """Return the average density of M mixtures as one mixture of all their components.

        Args:
            members: mixtures of the same dimensions, with batch shapes that broadcast.
            weights: [M], equal by default.

        >>> from condens import GaussianMixture
        >>> m = GaussianMixture(torch.zeros(2), torch.randn(2, 1), torch.zeros(2, 1))
        >>> GaussianMixture.ensemble([m, m, m]).n_components
        6
        """
        members = check_members(cls, members)
        batch = cls._common_batch(members)
        first = members[0]
        if weights is None:
            weights = torch.ones(len(members), device=first.device)
        weights = checks.as_tensor("weights", weights, first.means)
        if weights.shape != (len(members),):
            raise ShapeError(
                "weights",
                got=f"has shape {list(weights.shape)}",
                expected=f"there are {len(members)} members",
                fix="Pass one weight for each.",
            )
        log_weights = torch.log_softmax(conversions.log_weights(weights), -1).to(first.dtype)
        expanded = [member.expand(batch).parameters for member in members]
        return first._with(cls._join(expanded, log_weights), first.names)

    @classmethod
    def _common_batch(cls, members: Sequence[Self]) -> torch.Size:
        batch, first = members[0].batch_shape, members[0]
        for member in members:
            if member.event_shape != first.event_shape or member.names != first.names:
                raise DimensionError(
                    "members",
                    got=f"has {member}",
                    expected=f"the first member is {first}",
                    fix="Average mixtures over the same dimensions; reorder with marginal(dims).",
                )
            checks.check_leading("members", member.batch_shape, member.batch_shape, batch)
            batch = torch.broadcast_shapes(batch, member.batch_shape)
        return batch

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Self:
        """Return a mixture with a larger batch shape that shares the parameters' memory."""
        new: Self = self._get_checked_instance(  # type: ignore[no-untyped-call]
            type(self), _instance
        )
        batch = self._expandable(batch_shape)
        for name, axes in zip(self._axes, self._event_axes(), strict=True):
            setattr(new, name, getattr(self, name).expand(*batch, *[-1] * axes))
        new.names = self.names
        Distribution.__init__(new, batch, self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    def _expandable(self, batch_shape: Any) -> torch.Size:
        """Return a shape that the batch shape can be expanded to."""
        batch = torch.Size(checks.check_shape("batch_shape", batch_shape))
        if checks.broadcast(batch, self.batch_shape) != batch:
            raise ShapeError(
                "batch_shape",
                got=f"is {list(batch)}",
                expected=f"the mixture has {list(self.batch_shape)}",
                fix="Keep its axes, those of size one at any size, and put more in front.",
            )
        return batch

    def _tree(self) -> tuple[list[Any], Any]:
        context = {"names": self.names and list(self.names), "validate_args": self._validate_args}
        return list(self.parameters), context

    @classmethod
    def _from_tree(cls, leaves: Iterable[Any], context: Any) -> Self:
        new = cls.__new__(cls)
        vars(new).update(zip(cls._axes, leaves, strict=True))
        new.names = context["names"] and tuple(context["names"])
        # Whoever maps over a tree may put anything in place of its tensors.
        shape = getattr(new.means, "shape", torch.Size((0, 0)))
        Distribution.__init__(new, shape[:-2], shape[-1:], validate_args=False)
        new._validate_args = context["validate_args"]
        return new

    def __getitem__(self, index: Any) -> Self:
        """Return the mixture of part of the batch: anything that indexes a tensor of its shape."""
        parts = index if isinstance(index, tuple) else (index,)
        if not any(part is Ellipsis for part in parts):
            parts = (*parts, ...)
        chosen = [
            tensor[(*parts, *[slice(None)] * axes)]
            for tensor, axes in zip(self.parameters, self._event_axes(), strict=True)
        ]
        part = type(self)(*chosen, names=self.names, validate_args=False)
        part._validate_args = self._validate_args
        return part

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
        return self._with(moved, self.names)

    def __repr__(self) -> str:
        parts = [
            f"batch_shape={list(self.batch_shape)}",
            f"n_components={self.n_components}",
            f"dimensions={self.dimensions}",
            self._covariance_text(),
            "" if self.names is None else f"names={self.names}",
        ]
        return f"{type(self).__name__}({', '.join(part for part in parts if part)})"

    # What the methods of every structure share.

    @classmethod
    def _event_axes(cls) -> list[int]:
        return [len(axes.split()) for axes in cls._axes.values()]

    def _with(self, parameters: Iterable[Tensor], names: Sequence[str] | None) -> Self:
        return type(self)(*parameters, names=names, validate_args=self._validate_args)

    def _names_of(self, dims: Sequence[int]) -> list[str] | None:
        return None if self.names is None else [self.names[d] for d in dims]

    def _event(self, value: Any, *, allow_nan: bool | None = None) -> Tensor:
        allow_nan = not self._validate_args if allow_nan is None else allow_nan
        value = in_order("value", value, self.names)
        return checks.check_event("value", value, self.batch_shape, self.means, allow_nan=allow_nan)

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
                fix="Take marginal(dim) or project(direction) first.",
            )


def check_members(kind: Any, members: Any) -> list[Any]:
    """Return the members of an ensemble, all of one kind of mixture."""
    found = listed(members)
    if not found or not all(isinstance(member, kind) for member in found):
        raise ArgumentError(
            "members",
            got=f"is {found if found is not None else members!r}",
            expected=f"at least one {kind.__name__}, and nothing else, was expected",
            fix="Pass a list of mixtures.",
        )
    return found
