"""Tables to .safetensors and .npy files, in one pass over their rows and bounded memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from mtrains.errors import StateError
from mtrains.specs import DTYPES
from mtrains.transfer.file_layout import Array, FileLayout, npy_layout, safetensors_layout
from mtrains.transfer.new_file import NewFile, check_room, new_file, new_folder

if TYPE_CHECKING:
    from mtrains.tables import Table

__all__ = ["ExportOptions", "Progress", "export_store", "export_table", "is_file_path"]

Progress = Callable[[int, int], None]  # bytes of rows written so far, and of all

_SUFFIXES = (".safetensors", ".npy")
_CHUNK_BYTES = 4 << 20  # of row records read at a time
_MAX_FILE_NAME_BYTES = 255  # NAME_MAX of Linux


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """optimizer_state: of each row too, under torch's names. dtype: of the weights; None is the table's own.
    progress: called after each chunk."""

    optimizer_state: bool = False
    dtype: torch.dtype | None = None
    progress: Progress | None = None

    def __post_init__(self) -> None:
        if self.dtype is not None and self.dtype not in DTYPES.values():
            raise ValueError(f"dtype must be float32, float16 or bfloat16, got {self.dtype}")


@dataclass(frozen=True, kw_only=True)
class _Part:
    """An array with one row a table row: where it lies in a row record, and as what."""

    array: Array
    begin: int
    end: int
    stored: torch.dtype

    def bytes_of(self, records: NDArray[np.uint8]) -> memoryview:
        """Return the array's rows for these records, [n, stride]."""
        values = torch.from_numpy(np.ascontiguousarray(records[:, self.begin : self.end])).view(self.stored)
        wanted = values.to(DTYPES[self.array.dtype]).contiguous().view(torch.uint8)
        return wanted.numpy().data.cast("B")


@dataclass(frozen=True, kw_only=True)
class _Rows:
    """A table's part of a file. step: how often its optimizer stepped, if its state is wanted."""

    table: Table
    parts: tuple[_Part, ...]
    step: tuple[Array, float] | None

    @property
    def arrays(self) -> list[Array]:
        return [part.array for part in self.parts] + ([self.step[0]] if self.step else [])


@dataclass(frozen=True, kw_only=True)
class _File:
    target: Path
    rows: tuple[_Rows, ...]
    layout: FileLayout

    @property
    def offsets(self) -> dict[str, int]:
        names = [array.name for rows in self.rows for array in rows.arrays]
        return dict(zip(names, self.layout.offsets, strict=True))


def is_file_path(path: str | os.PathLike[str]) -> bool:
    """Return True for what names a .safetensors or .npy file, False for a folder."""
    return Path(path).suffix in _SUFFIXES


def export_table(table: Table, path: str | os.PathLike[str], options: ExportOptions) -> None:
    """Write one table as `weight` and its state to the file `path`; TieredTable.export says more."""
    if not is_file_path(path):
        raise ValueError(f"{path}: a table is exported to a .safetensors or a .npy file")
    rows = _rows_of(table, "", options)
    _check_state([rows], options)
    _write([_file(Path(path), [rows])], options.progress)


def export_store(
    tables: Sequence[Table],
    path: str | os.PathLike[str],
    format: Literal["safetensors", "npy"],
    options: ExportOptions,
) -> None:
    """Write tables to one .safetensors file, as NAME.weight and so on, or to a folder with a file each;
    Store.export says more."""
    if not tables:
        raise StateError(f"nothing to export to {path}: the store has no table")
    if f".{format}" not in _SUFFIXES:
        raise ValueError(f"format must be 'safetensors' or 'npy', got {format!r}")
    if is_file_path(path):
        rows = [_rows_of(table, f"{table.name}.", options) for table in tables]
        _check_state(rows, options)
        _write([_file(Path(path), rows)], options.progress)
        return
    target = Path(path)
    alone = [_rows_of(table, "", options) for table in tables]
    _check_state(alone, options)
    names = [_file_name(table, f".{format}") for table in tables]
    with new_folder(target) as folder:
        files = [_file(folder / name, [rows]) for name, rows in zip(names, alone, strict=True)]
        check_room(target, sum(file.layout.num_bytes for file in files))
        _write(files, options.progress)


def _rows_of(table: Table, prefix: str, options: ExportOptions) -> _Rows:
    spec, binding = table.spec, table.optimizer
    assert spec.dtype is not None
    stored = next(name for name, dtype in DTYPES.items() if dtype is spec.dtype)
    dtype = next(name for name, dtype in DTYPES.items() if dtype is (options.dtype or spec.dtype))
    weight = Array(name=prefix + "weight", dtype=dtype, shape=(spec.num_embeddings, spec.embedding_dim))
    end = spec.embedding_dim * DTYPES[stored].itemsize
    parts = [_Part(array=weight, begin=0, end=end, stored=DTYPES[stored])]
    if not options.optimizer_state or binding is None:
        return _Rows(table=table, parts=tuple(parts), step=None)
    end = (end + 3) // 4 * 4  # 16-bit weights are padded before the state
    for name, count in binding.fields:
        array = Array(name=prefix + name, dtype="float32", shape=(spec.num_embeddings, count))
        parts.append(_Part(array=array, begin=end, end=end + 4 * count, stored=torch.float32))
        end += 4 * count
    step = Array(name=prefix + "step", dtype="float32", shape=())  # a tensor without axes, as torch's
    return _Rows(table=table, parts=tuple(parts), step=(step, float(binding.step)))


def _check_state(tables: Sequence[_Rows], options: ExportOptions) -> None:
    if options.optimizer_state and not any(rows.step for rows in tables):
        names = ", ".join(repr(rows.table.name) for rows in tables)
        raise StateError(f"no optimizer state to export: table {names} has no optimizer; leave optimizer_state out")


def _file(path: Path, tables: Sequence[_Rows]) -> _File:
    arrays = [array for rows in tables for array in rows.arrays]
    if path.suffix == ".safetensors":
        layout = safetensors_layout(arrays)
    elif len(arrays) == 1:
        layout = npy_layout(arrays[0])
    else:
        names = ", ".join(repr(array.name) for array in arrays)
        raise ValueError(f"{path}: a .npy file holds one array, not {names}; use .safetensors")
    target = path.resolve()  # of a link what it names is replaced, as any program that opens it would
    if target.is_dir():
        raise StateError(f"{target} is a folder; name a file")
    return _File(target=target, rows=tuple(tables), layout=layout)


def _file_name(table: Table, suffix: str) -> str:
    name = table.name + suffix
    if "/" in name or "\0" in name or len(os.fsencode(name)) > _MAX_FILE_NAME_BYTES:
        raise ValueError(
            f"table {table.name!r} cannot name a file in a folder; export to one .safetensors file instead"
        )
    return name


def _write(files: Sequence[_File], progress: Progress | None) -> None:
    tables = [rows.table for file in files for rows in file.rows]
    versions = [table.store.engine.table_version(table.number) for table in tables]
    total = sum(array.num_bytes for file in files for rows in file.rows for array in rows.arrays)
    done = 0

    def advance(num_bytes: int) -> None:
        nonlocal done
        done += num_bytes
        if progress is not None:
            progress(done, total)

    for file in files:
        check_room(file.target, file.layout.num_bytes)
        with new_file(file.target, file.layout.num_bytes) as out:
            out.write_at(0, memoryview(file.layout.head))
            for rows in file.rows:
                _write_rows(out, rows, file.offsets, advance)
            if [table.store.engine.table_version(table.number) for table in tables] != versions:
                raise StateError(
                    f"rows changed while {file.target} was written, so it would hold rows of different moments; "
                    "export between steps, or a store that nobody trains"
                )


def _write_rows(out: NewFile, rows: _Rows, offsets: dict[str, int], advance: Callable[[int], None]) -> None:
    table = rows.table
    engine = table.store.engine
    stride = engine.table_info(table.number)["stride"]
    count = max(1, _CHUNK_BYTES // stride)
    for begin in range(0, table.spec.num_embeddings, count):
        numbers = np.arange(begin, min(begin + count, table.spec.num_embeddings))
        records = np.empty((len(numbers), stride), np.uint8)
        engine.read_records(table.number, numbers, records)
        for part in rows.parts:
            data = part.bytes_of(records)
            out.write_at(offsets[part.array.name] + begin * (len(data) // len(numbers)), data)
            advance(len(data))
    if rows.step is not None:
        array, value = rows.step
        out.write_at(offsets[array.name], memoryview(np.float32(value).tobytes()))
        advance(array.num_bytes)
