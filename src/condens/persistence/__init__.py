"""Model files: one safetensors file, checked before it is believed, that never runs code."""

from condens.persistence.container import read, write
from condens.persistence.models import load, save
from condens.persistence.networks import network_document, network_from

__all__ = ["load", "network_document", "network_from", "read", "save", "write"]
