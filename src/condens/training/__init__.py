"""Training: one function, its settings, and what it reports."""

from condens.training.history import Epoch, History
from condens.training.loop import train
from condens.training.selection import Selection, Trial, choose_components
from condens.training.settings import Settings
from condens.training.suited import suited_components, suited_settings

__all__ = [
    "Epoch",
    "History",
    "Selection",
    "Settings",
    "Trial",
    "choose_components",
    "suited_components",
    "suited_settings",
    "train",
]
