"""Training: `train`, its settings, and the history it returns."""

from condens.training.defaults import default_components, default_settings
from condens.training.history import Epoch, History
from condens.training.loop import train
from condens.training.selection import Selection, Trial, choose_components
from condens.training.settings import Settings

__all__ = [
    "Epoch",
    "History",
    "Selection",
    "Settings",
    "Trial",
    "choose_components",
    "default_components",
    "default_settings",
    "train",
]
