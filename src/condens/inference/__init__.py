"""Simulation-based inference."""

from condens.inference.posterior import AmortisedPosterior, posterior

__all__ = ["AmortisedPosterior", "posterior"]
