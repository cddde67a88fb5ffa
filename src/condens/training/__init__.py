"""Training: `train`, its settings, and the history it returns."""

from condens.training.adjustment import adjust
from condens.training.defaults import default_components, default_settings
from condens.training.history import Adjustment, Epoch, History
from condens.training.loop import train
from condens.training.selection import Selection, Trial, choose_components
from condens.training.settings import Settings
from condens.training.sources import Source
from condens.training.streaming import Stream

__all__ = [
    "Adjustment",
    "Epoch",
    "History",
    "Selection",
    "Settings",
    "Source",
    "Stream",
    "Trial",
    "adjust",
    "choose_components",
    "default_components",
    "default_settings",
    "train",
]
