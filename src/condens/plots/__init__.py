"""Plots, drawn with matplotlib on given axes or those of a new figure."""

from condens.plots.training import plot_losses

__all__ = ["plot_losses"]
