"""The packed form of a triangular factor, as far as its length tells.

A full factor has D(D+1)/2 numbers: D log-diagonals, then the strict upper triangle row by row. A
diagonal one has the D log-diagonals alone.
"""

from torch import Tensor

from condens.errors import ShapeError


def packed_size(dimensions: int) -> int:
    """Return D(D+1)/2, the length of a full packed factor.

    >>> [packed_size(d) for d in (1, 2, 3)]
    [1, 3, 6]
    """
    return dimensions * (dimensions + 1) // 2


def is_diagonal(factors: Tensor, dimensions: int) -> bool:
    """Tell whether packed factors hold log-diagonals only."""
    if factors.shape[-1] == dimensions:
        return True
    if factors.shape[-1] == packed_size(dimensions):
        return False
    raise ShapeError(
        "factors",
        got=f"has {factors.shape[-1]} numbers for each component",
        expected=f"{dimensions} dimensions need {packed_size(dimensions)} (full: "
        f"log-diagonals, then the strict upper triangle row by row) or {dimensions} (diagonal)",
        fix="Make the last axis of factors one of these, or check the last axis of means.",
    )
