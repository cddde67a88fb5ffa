"""How good a density is, and how far it may be trusted."""

from condens.evaluation.baselines import Baselines
from condens.evaluation.conformal import Calibration, Region

__all__ = ["Baselines", "Calibration", "Region"]
