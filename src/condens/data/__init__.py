"""Tables, targets and rows in memory; tables in files."""

from condens.data.encoder import TableEncoder
from condens.data.readers import read_batches, read_table
from condens.data.rows import Data, Rows
from condens.data.stream import Shards
from condens.data.table import Table, TableLike, TargetColumns

__all__ = [
    "Data",
    "Rows",
    "Shards",
    "Table",
    "TableEncoder",
    "TableLike",
    "TargetColumns",
    "read_batches",
    "read_table",
]
