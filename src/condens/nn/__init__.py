"""Networks that predict mixtures: backbones, heads, and the two together."""

from condens.nn.backbone import MLP
from condens.nn.density import DensityNetwork
from condens.nn.ensemble import Ensemble
from condens.nn.head import DiagonalHead, FullHead, Head, IsotropicHead, TiedHead
from condens.nn.heads import HEADS
from condens.nn.low_rank_head import LowRankHead
from condens.nn.network import MixtureNetwork
from condens.nn.scaling import Standardiser
from condens.nn.table import TableMLP

__all__ = [
    "HEADS",
    "MLP",
    "DensityNetwork",
    "DiagonalHead",
    "Ensemble",
    "FullHead",
    "Head",
    "IsotropicHead",
    "LowRankHead",
    "MixtureNetwork",
    "Standardiser",
    "TableMLP",
    "TiedHead",
]
