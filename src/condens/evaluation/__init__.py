"""How good a density is, and how far it may be trusted."""

from typing import TYPE_CHECKING

from condens.evaluation.baselines import Baselines
from condens.evaluation.conformal import Calibration, Region
from condens.evaluation.novelty import Novelty
from condens.evaluation.permutation import Importance, importance

__all__ = [
    "MMD",
    "SBC",
    "Baselines",
    "Calibration",
    "Comparison",
    "CoverageCurve",
    "Importance",
    "Novelty",
    "PredictiveDistance",
    "Region",
    "Report",
    "Score",
    "c2st",
    "compare",
    "cross_evaluate",
    "evaluate",
    "expected_coverage",
    "importance",
    "mmd_squared",
    "predictive_distance",
    "sbc",
    "tarp",
]

# scipy is imported when a name is first used: the estimator does without.
if TYPE_CHECKING:
    from condens.evaluation.assessment import cross_evaluate, evaluate
    from condens.evaluation.comparison import Comparison, compare
    from condens.evaluation.report import Report
    from condens.evaluation.simulators import (
        SBC,
        CoverageCurve,
        PredictiveDistance,
        expected_coverage,
        predictive_distance,
        sbc,
        tarp,
    )
    from condens.evaluation.statistics import Score
    from condens.evaluation.two_samples import MMD, c2st, mmd_squared
else:

    def __getattr__(name):
        """Import a public name when it is first used."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from condens.laziness import importing

        try:
            with importing:
                from condens.evaluation import (
                    assessment,
                    comparison,
                    report,
                    simulators,
                    statistics,
                    two_samples,
                )
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in ("scipy", "sklearn"):
                raise
            raise ImportError(
                f"{name} needs {error.name}. Install it: pip install 'condens[evaluation]'."
            ) from error
        modules = (assessment, comparison, report, simulators, statistics, two_samples)
        return next(getattr(module, name) for module in modules if hasattr(module, name))

    def __dir__():
        """Return the public names, imported or not."""
        return [*__all__]
