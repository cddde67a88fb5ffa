"""Networks that predict mixtures: backbones, heads, and the two together."""

from typing import TYPE_CHECKING

from condens.nn.backbone import MLP
from condens.nn.backbones import BACKBONES
from condens.nn.base import DensityNetwork
from condens.nn.ensemble import Ensemble
from condens.nn.heads import HEADS
from condens.nn.heads.low_rank import LowRankHead
from condens.nn.heads.triangular import DiagonalHead, FullHead, Head, IsotropicHead, TiedHead
from condens.nn.network import MixtureNetwork
from condens.nn.scaling import Standardiser
from condens.nn.table import TableMLP

if TYPE_CHECKING:
    from condens.nn.invertible import GaussianMixtureBlock
else:

    def __getattr__(name):
        """Import the invertible block, and FrEIA with it, when it is first asked for."""
        if name != "GaussianMixtureBlock":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from condens.nn.invertible import GaussianMixtureBlock

        return GaussianMixtureBlock


__all__ = [
    "BACKBONES",
    "HEADS",
    "MLP",
    "DensityNetwork",
    "DiagonalHead",
    "Ensemble",
    "FullHead",
    "GaussianMixtureBlock",
    "Head",
    "IsotropicHead",
    "LowRankHead",
    "MixtureNetwork",
    "Standardiser",
    "TableMLP",
    "TiedHead",
]
