"""Tables, targets and rows in memory."""

from condens.data.encoder import TableEncoder
from condens.data.rows import Rows
from condens.data.table import Table
from condens.data.targets import TargetColumns

__all__ = ["Rows", "Table", "TableEncoder", "TargetColumns"]
