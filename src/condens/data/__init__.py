"""Tables, targets and rows in memory."""

from condens.data.encoder import TableEncoder
from condens.data.rows import Data, Rows
from condens.data.table import Table, TableLike, TargetColumns

__all__ = ["Data", "Rows", "Table", "TableEncoder", "TableLike", "TargetColumns"]
