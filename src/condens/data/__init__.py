"""Data in memory."""

from condens.data.rows import Rows

__all__ = ["Rows"]
