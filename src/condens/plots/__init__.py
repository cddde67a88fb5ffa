"""Plots of plain numbers, on given matplotlib axes or those of a new figure."""

from condens.plots.training import losses

__all__ = ["losses"]
