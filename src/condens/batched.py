"""What a batch of mixtures is, before any question: tensors, names, batch axes."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from condens import arguments
from condens.dimensions import check_names
from condens.functional import mixture, triangular
from condens.functional.algebra import Parameters


class BatchedMixture(Distribution):
    """The parameters of a batch of Gaussian mixtures, as a torch distribution holds them."""

    arg_constraints = {  # noqa: RUF012  (torch's own signature)
        "logits": constraints.real_vector,
        "means": constraints.independent(constraints.real, 2),
        "factors": constraints.independent(constraints.real, 2),
    }
    support = constraints.real_vector

    def __init__(
        self,
        logits: Tensor,
        means: Tensor,
        factors: Tensor,
        *,
        names: Iterable[str] | None = None,
        validate_args: bool | None = None,
    ) -> None:
        logits, means, factors = (
            arguments.as_tensor(name, value)
            for name, value in (("logits", logits), ("means", means), ("factors", factors))
        )
        batch = arguments.check_parameters(logits, means, factors)
        dtype = torch.promote_types(torch.promote_types(logits.dtype, means.dtype), factors.dtype)
        expanded = mixture.broadcast(logits, means, factors)
        self.logits, self.means, self.factors = (tensor.to(dtype) for tensor in expanded)
        self.names = check_names(names, means.shape[-1])
        # Our own checks in place of torch's: they tell what to do, and admit an empty batch.
        super().__init__(batch, means.shape[-1:], validate_args=False)
        self._validate_args = (
            Distribution._validate_args if validate_args is None else validate_args
        )
        if self._validate_args:
            arguments.check_values(*self.parameters)

    @property
    def parameters(self) -> Parameters:
        """The defining tensors (logits, means, factors)."""
        return Parameters(self.logits, self.means, self.factors)

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

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Self:
        """Return a mixture with a larger batch shape that shares the parameters' memory."""
        new: Self = self._get_checked_instance(  # type: ignore[no-untyped-call]
            type(self), _instance
        )
        batch = torch.Size(batch_shape)
        new.logits = self.logits.expand(*batch, -1)
        new.means = self.means.expand(*batch, -1, -1)
        new.factors = self.factors.expand(*batch, -1, -1)
        new.names = self.names
        Distribution.__init__(new, batch, self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    def __getitem__(self, index: Any) -> Self:
        """Return the mixture of part of the batch: anything that indexes a tensor of its shape."""
        parts = index if isinstance(index, tuple) else (index,)
        if not any(part is Ellipsis for part in parts):
            parts = (*parts, ...)
        logits, means, factors = (
            tensor[(*parts, *[slice(None)] * axes)]
            for tensor, axes in zip(self.parameters, (1, 2, 2), strict=True)
        )
        part = type(self)(logits, means, factors, names=self.names, validate_args=False)
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
        moved = Parameters(*(tensor.to(*args, **kwargs) for tensor in self.parameters))
        return self._with(moved, self.names)

    def __repr__(self) -> str:
        parts = [
            f"batch_shape={list(self.batch_shape)}",
            f"components={self.components}",
            f"dimensions={self.dimensions}",
        ]
        if self.dimensions > 1:
            diagonal = triangular.is_diagonal(self.factors, self.dimensions)
            parts.append(f"covariance={'diagonal' if diagonal else 'full'!r}")
        if self.names is not None:
            parts.append(f"names={self.names}")
        return f"{type(self).__name__}({', '.join(parts)})"

    def _with(self, parameters: Parameters, names: Sequence[str] | None) -> Self:
        return type(self)(*parameters, names=names, validate_args=self._validate_args)
