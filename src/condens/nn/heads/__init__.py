"""The registry of heads."""

from typing import Any

from condens.nn.heads.low_rank import LowRankHead
from condens.nn.heads.triangular import DiagonalHead, FullHead, IsotropicHead, TiedHead

# By structure; what a head takes beyond the common options differs, hence Any.
HEADS: dict[str, Any] = {
    head.covariance: head for head in (FullHead, DiagonalHead, IsotropicHead, TiedHead, LowRankHead)
}
