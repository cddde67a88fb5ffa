"""Tables, targets and rows in memory."""

from condens.data.encoder import TableEncoder
from condens.data.rows import Rows
from condens.data.table import Table, TargetColumns

__all__ = ["Rows", "Table", "TableEncoder", "TargetColumns"]
