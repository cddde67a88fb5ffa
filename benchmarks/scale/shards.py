"""Tables of known form in many files: written a row group at a time, so in bounded memory."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet
from numpy.typing import NDArray

TARGETS = ("u", "v")
ENDINGS = {"parquet": "parquet", "arrow": "arrow"}


def conditions(columns: int) -> list[str]:
    """Return the names of the conditions."""
    return [f"x{place}" for place in range(columns)]


def draw(rows: int, columns: int, seed: int) -> NDArray[np.float32]:
    """Return conditions, then two targets with two modes and correlated noise [n, C + 2]."""
    rng = np.random.default_rng(seed)
    table = rng.standard_normal((rows, columns + 2), dtype=np.float32)
    centre = np.tanh(table[:, :columns] @ _mixing(columns))
    noise = 0.3 * table[:, columns:]
    side = rng.integers(2, size=(rows, 1), dtype=np.int8) * 2 - 1
    table[:, columns:] = side * centre + noise + 0.5 * noise[:, ::-1]
    return table


def write(
    directory: Path, *, rows: int, files: int, group_rows: int, columns: int, form: str
) -> int:
    """Write files of about as many rows each; return their bytes."""
    directory.mkdir(parents=True, exist_ok=True)
    names = [*conditions(columns), *TARGETS]
    schema = pa.schema([(name, pa.float32()) for name in names])
    written = 0
    for number in range(files):
        first, end = rows * number // files, rows * (number + 1) // files
        path = directory / f"part-{number:04}.{ENDINGS[form]}"
        with _writer(path, schema, form) as writer:
            for start in range(first, end, group_rows):
                part = draw(min(group_rows, end - start), columns, seed=start)
                arrays = [pa.array(np.ascontiguousarray(column)) for column in part.T]
                batch = pa.record_batch(arrays, schema=schema)
                if form == "parquet":
                    writer.write_batch(batch, row_group_size=group_rows)
                else:
                    writer.write_batch(batch)
        written += path.stat().st_size
    return written


def blocks(rows: int, group_rows: int, columns: int, files: int) -> Iterator[NDArray[np.float32]]:
    """Yield the rows of the files that `write` makes."""
    for number in range(files):
        first, end = rows * number // files, rows * (number + 1) // files
        for start in range(first, end, group_rows):
            yield draw(min(group_rows, end - start), columns, seed=start)


def _mixing(columns: int) -> NDArray[np.float32]:
    drawn = np.random.default_rng(0).standard_normal((columns, 2))
    return (drawn / columns**0.5).astype(np.float32)


def _writer(path: Path, schema: pa.Schema, form: str) -> pa.parquet.ParquetWriter:
    if form == "parquet":
        return pa.parquet.ParquetWriter(path, schema)
    return pa.ipc.new_file(path, schema)
