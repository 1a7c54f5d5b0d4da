"""Recorded accesses: which row of which table, in order, and by which sample."""

from __future__ import annotations

import importlib
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtrains.errors import MtrainsError

__all__ = ["REMEDY", "TRACE_COLUMNS", "Trace", "TraceError", "check_integers", "import_parquet", "read_trace"]

TRACE_COLUMNS = ("table", "row", "sample")
REMEDY = "a trace has the integer column row, and where they matter table (integers or names) and sample"


class TraceError(MtrainsError, ValueError):
    """A file is no trace; the message names the file, the column and the remedy."""


@dataclass(frozen=True, kw_only=True)
class Trace:
    """Accesses in time order.

    Attributes:
        tables: names of the tables.
        table: uint32[n], each in [0, len(tables)).
        row: int64[n]; unsigned ids of 64 bits keep their bits.
        sample: int64[n], ascending from 0: the sample (a line of the log) that each access belongs to.
    """

    tables: tuple[str, ...]
    table: NDArray[np.uint32]
    row: NDArray[np.int64]
    sample: NDArray[np.int64]

    def __post_init__(self) -> None:
        if not self.table.shape == self.row.shape == self.sample.shape == (len(self),):
            raise ValueError("table, row and sample of a trace differ in shape")
        if len(self) and int(self.table.max()) >= len(self.tables):
            raise ValueError(f"table {self.table.max()} of a trace of {len(self.tables)} tables")
        descents = np.flatnonzero(np.diff(self.sample) < 0)
        if descents.size or (len(self) and self.sample[0] < 0):
            position = int(descents[0]) + 1 if descents.size else 0
            raise ValueError(f"sample numbers of a trace ascend from 0; not at access {position}")

    def __len__(self) -> int:
        return len(self.row)

    def batches(self, batch_size: int) -> tuple[NDArray[np.uint32], int]:
        """Return the batch of each access, and how many there are, at so many samples a batch."""
        if batch_size < 1:
            raise ValueError(f"a batch has at least one sample, got {batch_size}")
        if not len(self):
            return np.empty(0, np.uint32), 0
        num_batches = int(self.sample[-1]) // batch_size + 1
        if num_batches >= 1 << 32:
            raise ValueError(f"{num_batches} batches are more than 2**32 - 1; use a larger batch")
        return (self.sample // batch_size).astype(np.uint32), num_batches


def read_trace(path: str) -> Trace:
    """Read a .npz or .parquet file with columns `row`, `table` (default: one table) and `sample` (default: each
    access is one).

    Raises: TraceError.
    """
    columns = _read_parquet(path) if Path(path).suffix == ".parquet" else _read_npz(path)
    if "row" not in columns:
        raise TraceError(f"{path} has no column row: {REMEDY}")
    sizes = {name: values.shape for name, values in columns.items()}
    if len(set(sizes.values())) > 1 or columns["row"].ndim != 1:
        raise TraceError(f"{path}: the columns differ in shape or are not one-dimensional: {sizes}")
    row = check_integers(path, "row", columns["row"])
    tables, table = _tables(path, columns.get("table"), len(row))
    sample = check_integers(path, "sample", columns["sample"]) if "sample" in columns else np.arange(len(row))
    try:
        return Trace(tables=tables, table=table, row=row, sample=sample)
    except ValueError as error:
        raise TraceError(f"{path}: {error}") from None


def _read_npz(path: str) -> dict[str, NDArray[Any]]:
    try:
        file = np.load(path, allow_pickle=False)
        if isinstance(file, np.ndarray):
            raise TraceError(f"{path} is one array: {REMEDY}")
        with file:
            return {name: file[name] for name in TRACE_COLUMNS if name in file.files}
    except TraceError:
        raise
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise TraceError(f"{path} is no .npz file, nor named .parquet: {error}") from None


def _read_parquet(path: str) -> dict[str, NDArray[Any]]:
    arrow, parquet = import_parquet()
    try:
        names = [name for name in TRACE_COLUMNS if name in parquet.read_schema(path).names]
        table = parquet.read_table(path, columns=names)
    except arrow.ArrowException as error:
        raise TraceError(f"cannot read {path} as Parquet: {error}") from None
    columns = {}
    for name in names:
        if table.column(name).null_count:
            raise TraceError(f"{path}: column {name} has nulls: {REMEDY}")
        columns[name] = np.asarray(table.column(name).to_numpy())
    return columns


def import_parquet() -> tuple[Any, Any]:
    """Return the modules pyarrow and pyarrow.parquet. Raises: TraceError."""
    try:
        return importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise TraceError("reading Parquet needs pyarrow: pip install 'mtrains[parquet]'") from None


def check_integers(path: str, name: str, values: NDArray[Any]) -> NDArray[np.int64]:
    """Return the values of a column as int64; unsigned ones keep their bits. Raises: TraceError."""
    if values.dtype.kind not in "iu":
        raise TraceError(f"{path}: column {name} holds {values.dtype}, no integers: {REMEDY}")
    return np.ascontiguousarray(values.astype(np.int64, copy=False))


def _tables(path: str, values: NDArray[Any] | None, size: int) -> tuple[tuple[str, ...], NDArray[np.uint32]]:
    """The names of the tables, in order, and the table of each access."""
    if values is None:
        return ("rows",), np.zeros(size, np.uint32)
    if values.dtype.kind == "O":
        values = values.astype(str)
    if values.dtype.kind not in "iuU":
        raise TraceError(f"{path}: column table holds {values.dtype}, neither integers nor names: {REMEDY}")
    names, numbers = np.unique(values, return_inverse=True)
    return tuple(str(name) for name in names), numbers.astype(np.uint32)
