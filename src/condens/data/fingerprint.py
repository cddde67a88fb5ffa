"""A digest of tables by their names and values, whatever file they came from."""

import hashlib
from typing import TYPE_CHECKING

import numpy as np

from condens.data.frames import Codes, Column, columns_of, kind_of

if TYPE_CHECKING:
    import pyarrow as pa


def fingerprint(*tables: "pa.Table") -> str:
    """Return the SHA-256 of the columns of tables, in their order.

    Values count as a model reads them: numbers of any type as doubles, text however it is stored,
    NaN as missing. Every piece is hashed after its length and its kind, so that no two different
    tables are the same bytes.

    >>> import pyarrow as pa
    >>> text, codes = pa.array(["a", None]), pa.array(["a", None]).dictionary_encode()
    >>> fingerprint(pa.table({"x": text})) == fingerprint(pa.table({"x": codes}))
    True
    >>> fingerprint(pa.table({"x": [1, 2]})) == fingerprint(pa.table({"x": ["1", "2"]}))
    False
    """
    digest = hashlib.sha256()

    def add(*pieces: bytes) -> None:
        for piece in pieces:
            digest.update(len(piece).to_bytes(8, "little"))
            digest.update(piece)

    for table in tables:
        names, columns = columns_of(table, "the table")
        add(b"table", str(table.num_columns).encode(), str(table.num_rows).encode())
        for name, stored, column in zip(names, table.columns, columns, strict=True):
            add(name.encode("utf-8", "surrogatepass"))
            add(*_pieces(column, boolean=str(stored.type) == "bool"))
    return digest.hexdigest()


def _pieces(column: Column, *, boolean: bool) -> list[bytes]:
    """Return the kind and the values of a column; of categories, those in use, in order."""
    if isinstance(column, Codes):
        used, codes = np.unique(column.codes, return_inverse=True)
        values = [column.values[code] for code in used if code >= 0]
        order = sorted(range(len(values)), key=values.__getitem__)
        # The first code is that of missing values, if there are any.
        missing = len(used) - len(values)
        rank = np.full(len(used), -1, dtype="<i8")
        rank[missing + np.array(order)] = np.arange(len(values))
        texts = [str(values[n]).encode("utf-8", "surrogatepass") for n in order]
        kind = f"categories: {kind_of(values)}, {len(texts)}"
        return [kind.encode(), *texts, rank[codes].tobytes()]
    absent = np.isnan(column)
    # A column without any value has no kind.
    kind = "booleans" if boolean and not absent.all() else "numbers"
    return [kind.encode(), np.where(absent, np.nan, column).astype("<f8").tobytes()]
