"""The backbones that condens knows, by kind: what a model file can name."""

from typing import Any

from condens.nn.backbone import MLP
from condens.nn.table import TableMLP

# Each has a `configuration()` that makes another like it, and every tensor in its state.
BACKBONES: dict[str, Any] = {MLP.kind: MLP, TableMLP.kind: TableMLP}
