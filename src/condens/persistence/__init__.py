"""Model files: one safetensors file, checked before it is used, that never runs code."""

from condens.persistence.container import read, write
from condens.persistence.networks import load, network_from_dict, network_to_dict, save

__all__ = ["load", "network_from_dict", "network_to_dict", "read", "save", "write"]
