"""Heads, one class for each form of the covariances, and their registry."""

from collections.abc import Mapping
from typing import Any

from condens.nn.heads.base import Head
from condens.nn.heads.low_rank import LowRankHead
from condens.nn.heads.triangular import DiagonalHead, FullHead, IsotropicHead, TiedHead

HEADS: dict[str, type[Head[Any]]] = {
    head.covariance: head for head in (FullHead, DiagonalHead, IsotropicHead, TiedHead, LowRankHead)
}

__all__ = [
    "HEADS",
    "DiagonalHead",
    "FullHead",
    "Head",
    "IsotropicHead",
    "LowRankHead",
    "TiedHead",
    "head_from_dict",
]


def head_from_dict(values: Mapping[str, Any]) -> Head[Any]:
    """Return the head that `Head.to_dict` described, with new weights.

    >>> head_from_dict(FullHead(16, 2, 3).to_dict()).n_components
    3
    """
    options = dict(values)
    return HEADS[options.pop("covariance")](**options)
