"""How far a density may be trusted."""

from condens.evaluation.conformal import Calibration, Region

__all__ = ["Calibration", "Region"]
