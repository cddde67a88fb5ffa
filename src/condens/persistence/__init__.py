"""Model files: one safetensors file, checked before it is believed, that never runs code."""

from condens.persistence.container import read, write
from condens.persistence.models import load, save
from condens.persistence.networks import network_from_dict, network_to_dict

__all__ = ["load", "network_from_dict", "network_to_dict", "read", "save", "write"]
