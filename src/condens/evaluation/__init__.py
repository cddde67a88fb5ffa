"""How good a density is, and how far it may be trusted."""

from condens.evaluation.baselines import Baselines
from condens.evaluation.conformal import Calibration, Region
from condens.evaluation.novelty import Novelty

__all__ = ["Baselines", "Calibration", "Novelty", "Region"]
