"""Networks that predict mixtures: backbones, heads, and the two together."""

from typing import TYPE_CHECKING

from condens.nn.backbones import BACKBONES, MLP, TableMLP, backbone_from_dict
from condens.nn.base import DensityNetwork
from condens.nn.embeddings import PiecewiseLinear
from condens.nn.ensemble import Ensemble
from condens.nn.heads import (
    HEADS,
    DiagonalHead,
    FullHead,
    Head,
    IsotropicHead,
    LowRankHead,
    TiedHead,
    head_from_dict,
)
from condens.nn.network import MixtureNetwork
from condens.nn.scaling import Standardiser

if TYPE_CHECKING:
    from condens.nn.invertible import GaussianMixtureBlock
else:

    def __getattr__(name):
        """Import the invertible block, and FrEIA with it, on first use."""
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
    "PiecewiseLinear",
    "Standardiser",
    "TableMLP",
    "TiedHead",
    "backbone_from_dict",
    "head_from_dict",
]
