"""Dimensions as users name them: by index, negative index or name."""

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from condens.distributions.checks import as_tensor, check_finite, check_leading
from condens.errors import ArgumentError, DimensionError, ShapeError

Dimension = int | str


def resolve_dimensions(
    argument: str,
    dims: Dimension | Iterable[Dimension],
    dimensions: int,
    names: Sequence[str] | None,
) -> list[int]:
    """Return dimensions given by index or name as indices, each once."""
    found = None if isinstance(dims, str) else listed(dims)
    if found is None:
        found = [dims]
    if not found:
        raise DimensionError(
            argument,
            got="is empty",
            expected="at least one dimension was expected",
            fix=f"Pass indices from 0 to {dimensions - 1}" + (" or names." if names else "."),
        )
    resolved = [_resolve(argument, d, dimensions, names) for d in found]
    if len(set(resolved)) < len(resolved):
        repeated = next(d for d in resolved if resolved.count(d) > 1)
        raise DimensionError(
            argument,
            got=f"names dimension {names[repeated] if names else repeated!r} twice",
            expected="each may occur once",
            fix="Remove one of them.",
        )
    return resolved


def listed(values: Any) -> list[Any] | None:
    """Return the entries of anything that has some, arrays and tensors as plain numbers."""
    try:
        found = values.tolist() if isinstance(values, Tensor | np.ndarray) else list(values)
    except (TypeError, RuntimeError):
        return None
    return found if isinstance(found, list) else None


def _resolve(argument: str, dim: Dimension, dimensions: int, names: Sequence[str] | None) -> int:
    if isinstance(dim, str):
        if names is not None and dim in names:
            return list(names).index(dim)
        raise DimensionError(
            argument,
            got=f"has {dim!r}",
            expected=f"the names are {', '.join(names)}"
            if names
            else "the dimensions have no names",
            fix="Use one of them." if names else "Use indices, or set names on the mixture.",
        )
    try:
        # A mask is not a list of indices, though Python would count True as 1.
        index = operator.index(None if isinstance(dim, bool | np.bool_) else dim)  # type: ignore[arg-type]
    except (TypeError, RuntimeError):
        raise DimensionError(
            argument,
            got=f"has {dim!r}",
            expected="a dimension is an index or a name",
            fix=f"Pass indices from 0 to {dimensions - 1}.",
        ) from None
    if not -dimensions <= index < dimensions:
        raise DimensionError(
            argument,
            got=f"has {index}",
            expected=f"the mixture has {dimensions} dimension(s)",
            fix=f"Use indices from 0 to {dimensions - 1}.",
        )
    return index % dimensions


def check_names(names: Iterable[str] | None, dimensions: int) -> tuple[str, ...] | None:
    """Check that there is one distinct name for each dimension."""
    if names is None:
        return None
    found = () if isinstance(names, str) else tuple(listed(names) or ())
    distinct = {name for name in found if isinstance(name, str)}
    if len(found) != dimensions or len(distinct) != dimensions:
        raise DimensionError(
            "names",
            got=f"is {names!r}",
            expected=f"{dimensions} distinct name(s) were expected",
            fix="Pass one name for each dimension.",
        )
    return found


def in_order(argument: str, value: Any, names: Sequence[str] | None) -> Any:
    """Return the columns of a data frame in the order of the names; all else as it is."""
    if names is None or not hasattr(value, "columns"):
        return value
    arrow = hasattr(value, "column_names")
    columns = [str(column) for column in (value.column_names if arrow else value.columns)]
    if sorted(columns) != sorted(names):
        raise DimensionError(
            argument,
            got=f"has columns {columns}",
            expected=f"the dimensions are {list(names)}",
            fix="Pass just these columns, or an array.",
        )
    return value.select(list(names)) if arrow else value[list(names)]


def resolve_fixed(
    values: Mapping[Dimension, Any], means: Tensor, names: Sequence[str] | None
) -> tuple[list[int], Tensor]:
    """Return the dimensions that are fixed and their values [..., len(dims)]."""
    dimensions = means.shape[-1]
    if not isinstance(values, Mapping):
        raise ArgumentError(
            "values",
            got=f"is {type(values).__name__}",
            expected="a mapping was expected",
            fix="Pass {dimension: value, …}.",
        )
    dims = resolve_dimensions("values", values, dimensions, names)
    if len(dims) == dimensions:
        raise DimensionError(
            "values",
            got=f"fixes all {dimensions} dimension(s)",
            expected="one must stay free",
            fix="Leave one out, or call log_prob for the density at that point.",
        )
    fixed = [as_tensor(f"values[{dim!r}]", value, means) for dim, value in values.items()]
    for dim, value in zip(values, fixed, strict=True):
        check_finite(f"values[{dim!r}]", value, "Condition on numbers only.")
    try:
        fixed = list(torch.broadcast_tensors(*fixed))
    except RuntimeError:
        raise ShapeError(
            "values",
            got=f"has values of shapes {[list(v.shape) for v in fixed]}",
            expected="they must broadcast",
            fix="Pass numbers, or tensors of one shape.",
        ) from None
    check_leading("values", fixed[0].shape, fixed[0].shape, means.shape[:-2])
    return dims, torch.stack(fixed, -1)
