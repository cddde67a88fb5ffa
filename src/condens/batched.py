"""What a batch of mixtures is, before any question: tensors, names, batch axes."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from condens import arguments, gaussians
from condens.dimensions import check_names, in_order
from condens.errors import ArgumentError, DimensionError, ShapeError, message
from condens.functional import mixture


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
            name: arguments.as_tensor(name, value)
            for name, value in zip(self._axes, parameters, strict=True)
        }
        arguments.check_sizes(tensors, self._axes)
        self._check_sizes(**tensors)
        batch = arguments.check_batch(tensors, self._axes)
        dtype = reduce(torch.promote_types, (tensor.dtype for tensor in tensors.values()))
        expanded = mixture.expand_batch(list(tensors.values()), self._event_axes())
        for name, tensor in zip(self._axes, expanded, strict=True):
            setattr(self, name, tensor.to(dtype))
        self.names = check_names(names, self.dimensions)
        # Our own checks in place of torch's: they tell what to do, and admit an empty batch.
        super().__init__(batch, self.means.shape[-1:], validate_args=False)
        self._validate_args = (
            Distribution._validate_args if validate_args is None else validate_args
        )
        if self._validate_args:
            arguments.check_values(**{name: getattr(self, name) for name in self._axes})
            self._check_range()

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
    def _structure(self) -> str:
        """Return what the repr says of the covariances."""

    @staticmethod
    @abstractmethod
    def _join(members: Sequence[Any], log_weights: Tensor) -> tuple[Tensor, ...]:
        """Return the parameters of an ensemble."""

    # The parameters, in the forms people ask for.

    @property
    def components(self) -> int:
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
        >>> GaussianMixture.ensemble([m, m, m]).components
        6
        """
        members = list(members)
        batch = cls._common_batch(members)
        first = members[0]
        if weights is None:
            weights = torch.ones(len(members), device=first.device)
        weights = arguments.as_tensor("weights", weights, first.means)
        if weights.shape != (len(members),):
            came = f"has shape {list(weights.shape)}"
            expected = f"there are {len(members)} members"
            raise ShapeError(message("weights", came, expected, "Pass one weight for each."))
        log_weights = torch.log_softmax(gaussians.log_weights(weights), -1).to(first.dtype)
        expanded = [member.expand(batch).parameters for member in members]
        return first._with(cls._join(expanded, log_weights), first.names)

    @classmethod
    def _common_batch(cls, members: Sequence[Self]) -> torch.Size:
        if not members or not all(isinstance(member, cls) for member in members):
            came = f"is {members!r}"
            expected = f"at least one {cls.__name__}, and nothing else, was expected"
            raise ArgumentError(message("members", came, expected, "Pass a list of mixtures."))
        batch, first = members[0].batch_shape, members[0]
        for member in members:
            if member.event_shape != first.event_shape or member.names != first.names:
                came, expected = f"has {member}", f"the first member is {first}"
                remedy = "Average mixtures over the same dimensions; reorder with marginal(dims)."
                raise DimensionError(message("members", came, expected, remedy))
            arguments.check_leading("members", member.batch_shape, member.batch_shape, batch)
            batch = torch.broadcast_shapes(batch, member.batch_shape)
        return batch

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Self:
        """Return a mixture with a larger batch shape that shares the parameters' memory."""
        new: Self = self._get_checked_instance(  # type: ignore[no-untyped-call]
            type(self), _instance
        )
        batch = torch.Size(batch_shape)
        for name, axes in zip(self._axes, self._event_axes(), strict=True):
            setattr(new, name, getattr(self, name).expand(*batch, *[-1] * axes))
        new.names = self.names
        Distribution.__init__(new, batch, self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
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
        return self._with([tensor.to(*args, **kwargs) for tensor in self.parameters], self.names)

    def __repr__(self) -> str:
        parts = [
            f"batch_shape={list(self.batch_shape)}",
            f"components={self.components}",
            f"dimensions={self.dimensions}",
            self._structure(),
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
        return arguments.check_event(
            "value", value, self.batch_shape, self.means, allow_nan=allow_nan
        )

    def _finite_event(self, value: Any) -> Tensor:
        value = self._event(value)
        if self._validate_args:
            arguments.check_finite("value", value, "Score numbers only.")
        return value

    def _require_one_dimension(self, method: str) -> None:
        if self.dimensions != 1:
            came, expected = f"has {self.dimensions} dimensions", f"{method} needs exactly one"
            remedy = "Take marginal(dim) or project(direction) first."
            raise DimensionError(message("the mixture", came, expected, remedy))
