"""Traces read as a stream: .npz and .parquet files of any size, in pieces."""

from __future__ import annotations

import contextlib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray

from mtrains.profiler.lookups import Stretch, by_table
from mtrains.profiler.trace import REMEDY, TRACE_COLUMNS, TraceError, check_integers, import_parquet

__all__ = ["TraceFile"]

_PIECE = 1 << 18  # accesses
_DAMAGED = (ValueError, EOFError, KeyError, zipfile.BadZipFile)


class TraceFile:
    """A trace with the integer column `row`, `table` (integers or names; default: one table) and `sample` (ascending
    from 0; default: each access is one). A LookupSource; opening it reads the column `table` once.

    Raises: TraceError, also while it is read.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._pieces = _parquet_pieces if Path(path).suffix == ".parquet" else _npz_pieces
        names: set[Any] | None = None
        for columns in self._pieces(path, ("table",)):
            names = names or set()
            if "table" in columns:
                names.update(np.unique(self._names(columns["table"])).tolist())
        self._names_in_order = np.array(sorted(names)) if names else None

    @property
    def tables(self) -> tuple[str, ...]:
        """Names in order: of integers by number."""
        names = self._names_in_order
        return ("rows",) if names is None else tuple(str(name) for name in names)

    def read(self) -> Iterator[Stretch]:
        """Yield the accesses in pieces."""
        position, last = 0, 0
        for columns in self._pieces(self._path, TRACE_COLUMNS):
            row = check_integers(self._path, "row", columns["row"])
            if "sample" in columns:
                sample = check_integers(self._path, "sample", columns["sample"])
            else:
                sample = np.arange(position, position + len(row))
            descents = np.flatnonzero(np.diff(sample, prepend=last) < 0)
            if descents.size:
                raise TraceError(
                    f"{self._path}: sample numbers of a trace ascend from 0; not at access {position + descents[0]}"
                )
            if not len(row):
                continue
            position, last = position + len(row), int(sample[-1])
            yield Stretch(list(by_table(self._numbers(columns, len(row)), row, sample)), last)
        yield Stretch((), last + 1 if position else 0)

    def _numbers(self, columns: dict[str, NDArray[Any]], size: int) -> NDArray[np.int64]:
        if self._names_in_order is None:
            return np.zeros(size, np.int64)
        return np.searchsorted(self._names_in_order, self._names(columns["table"])).astype(np.int64)

    def _names(self, values: NDArray[Any]) -> NDArray[Any]:
        if values.dtype.kind == "O":
            values = values.astype(str)
        if values.dtype.kind not in "iuU":
            raise TraceError(
                f"{self._path}: column table holds {values.dtype}, neither integers nor names: {REMEDY}"
            )
        return values


def _npz_pieces(path: str, wanted: tuple[str, ...]) -> Iterator[dict[str, NDArray[Any]]]:
    try:
        with zipfile.ZipFile(path) as archive, contextlib.ExitStack() as opened:
            names = {name.removesuffix(".npy") for name in archive.namelist()}
            _check_columns(path, names)
            members = {}
            for name in wanted:
                if name in names:
                    stream = opened.enter_context(archive.open(name + ".npy"))
                    members[name] = (stream, *_header(path, name, stream))
            sizes = {name: size for name, (_, _, size) in members.items()}
            if len(set(sizes.values())) > 1:
                raise TraceError(f"{path}: the columns differ in length: {sizes}")
            left = max(sizes.values(), default=0)
            while left > 0:
                count = min(left, _PIECE)
                left -= count
                yield {name: _read(stream, dtype, count) for name, (stream, dtype, _) in members.items()}
    except TraceError:
        raise
    except _DAMAGED as error:
        raise TraceError(f"{path} is no .npz file, nor named .parquet: {error}") from None


def _header(path: str, name: str, stream: IO[bytes]) -> tuple[np.dtype[Any], int]:
    version = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(stream)
    if len(shape) != 1 or dtype.hasobject:
        raise TraceError(f"{path}: column {name} has shape {shape} of {dtype}, no one-dimensional numbers: {REMEDY}")
    return dtype, shape[0]


def _read(stream: IO[bytes], dtype: np.dtype[Any], count: int) -> NDArray[Any]:
    content = stream.read(count * dtype.itemsize)
    if len(content) < count * dtype.itemsize:
        raise EOFError("a column is cut short")
    return np.frombuffer(content, dtype)


def _parquet_pieces(path: str, wanted: tuple[str, ...]) -> Iterator[dict[str, NDArray[Any]]]:
    arrow, parquet = import_parquet()
    try:
        with parquet.ParquetFile(path) as file:
            names = list(file.schema_arrow.names)
            _check_columns(path, set(names))
            present = [name for name in wanted if name in names]
            if not present:
                return
            for batch in file.iter_batches(batch_size=_PIECE, columns=present):
                for name in present:
                    if batch.column(name).null_count:
                        raise TraceError(f"{path}: column {name} has nulls: {REMEDY}")
                yield {
                    name: np.asarray(cast(Any, batch.column(name)).to_numpy(zero_copy_only=False)) for name in present
                }
    except arrow.ArrowException as error:
        raise TraceError(f"cannot read {path} as Parquet: {error}") from None


def _check_columns(path: str, names: set[str]) -> None:
    if "row" not in names:
        raise TraceError(f"{path} has no column row: {REMEDY}")
