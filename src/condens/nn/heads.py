"""The registry of heads."""

from typing import Any

from condens.nn.head import DiagonalHead, FullHead, IsotropicHead, TiedHead
from condens.nn.low_rank_head import LowRankHead

# By structure; what a head takes beyond the common options differs, hence Any.
HEADS: dict[str, Any] = {
    head.structure: head for head in (FullHead, DiagonalHead, IsotropicHead, TiedHead, LowRankHead)
}
