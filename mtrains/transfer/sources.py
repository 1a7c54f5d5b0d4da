"""Where the rows of an import come from: a tensor, an array, or a file that is read piece by piece."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from mtrains.errors import FormatError, TierIOError

__all__ = ["RowSource", "Rows", "open_source", "table_dtype"]

# What from_pretrained() takes: a matrix in memory or mapped, or the path of a .npy or .safetensors file.
Rows: TypeAlias = "torch.Tensor | NDArray[Any] | str | os.PathLike[str]"

_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
_SAFETENSORS_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64}
_NUMPY_DTYPES = {4: torch.float32, 2: torch.float16, 8: torch.float64}
_NAMED_KEYS = 8  # the first of a file's tensors that an error lists


@dataclass(frozen=True, kw_only=True)
class RowSource:
    """A matrix of rows. name: for messages. dtype: of the table that takes it without losing a bit, float32 for
    float64, which loses some. read(begin, end): its rows, any floating dtype."""

    name: str
    shape: tuple[int, int]
    dtype: torch.dtype
    read: Callable[[int, int], torch.Tensor]


@contextmanager
def open_source(rows: Rows, key: str | None = None) -> Iterator[RowSource]:
    """Open what holds rows, and check it. Nothing is read but a file's header, and no more than is asked for later.

    key: the tensor's name in a .safetensors file; may be left out if it holds one tensor.
    Raises: ValueError, TypeError (shape, dtype, suffix, key); FormatError: the file is damaged or cut short;
    ImportError: safetensors is not installed; OSError.
    """
    path = Path(rows) if isinstance(rows, (str, os.PathLike)) else None
    if key is not None and (path is None or path.suffix != ".safetensors"):
        raise ValueError(f"key={key!r} names a tensor of a .safetensors file, the rows come from another source")
    if isinstance(rows, torch.Tensor):
        yield _tensor_source(rows)
    elif isinstance(rows, np.ndarray):
        yield _array_source("an array", rows)
    elif path is None:
        raise TypeError(
            f"rows come from a tensor, a numpy array or the path of a .npy or .safetensors file, got "
            f"{type(rows).__name__}"
        )
    elif path.suffix == ".npy":
        with open(path, "rb", buffering=0) as file:
            yield _npy_source(path, file)
    elif path.suffix == ".safetensors":
        with _safetensors_source(path, key) as source:
            yield source
    else:
        raise ValueError(
            f"{path}: rows are read from .npy and .safetensors files; of another kind load the tensor and pass it "
            "(torch.load(path, mmap=True) reads it piece by piece too)"
        )


def table_dtype(weight: torch.Tensor) -> torch.dtype:
    """Return the dtype of a table for these rows. Raises: TypeError if they are not floating or have no values."""
    if weight.layout is not torch.strided or weight.is_meta:
        raise TypeError(f"a weight is a dense tensor with values, got {weight.layout} on {weight.device}")
    return _table_dtype("a weight", weight.dtype)


def _table_dtype(name: str, dtype: torch.dtype | None, what: object = None) -> torch.dtype:
    if dtype not in _DTYPES:
        raise TypeError(f"{name} must be float32, float16, bfloat16 or float64, got {what or dtype}")
    return torch.float32 if dtype is torch.float64 else dtype


def _matrix(name: str, shape: tuple[int, ...]) -> tuple[int, int]:
    if len(shape) != 2:
        raise ValueError(f"{name} must have shape (num_embeddings, embedding_dim), got {tuple(shape)}")
    return shape[0], shape[1]


def _tensor_source(weight: torch.Tensor) -> RowSource:
    dtype = table_dtype(weight)
    rows = weight.detach()
    return RowSource(
        name="a weight",
        shape=_matrix("a weight", tuple(weight.shape)),
        dtype=dtype,
        read=lambda begin, end: rows[begin:end],
    )


def _array_source(name: str, array: NDArray[Any]) -> RowSource:
    dtype = _numpy_dtype(name, array.dtype)

    def read(begin: int, end: int) -> torch.Tensor:
        # A copy: a torch tensor needs memory that may be written, in the machine's byte order.
        return torch.from_numpy(np.array(array[begin:end], array.dtype.newbyteorder("="), order="C", subok=False))

    return RowSource(name=name, shape=_matrix(name, array.shape), dtype=dtype, read=read)


def _numpy_dtype(name: str, dtype: np.dtype[Any]) -> torch.dtype:
    known = _NUMPY_DTYPES.get(dtype.itemsize) if dtype.kind == "f" else None
    return _table_dtype(name, known, dtype)


# --- .npy


def _npy_source(path: Path, file: BinaryIO) -> RowSource:
    try:
        version = np.lib.format.read_magic(file)
        if version not in ((1, 0), (2, 0)):
            raise ValueError(f"version {version} of the format is for arrays that are no plain numbers")
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, column_major, dtype = read_header(file)
    except ValueError as error:
        raise FormatError(f"{path} is not a .npy file that can be read: {error}") from None
    begin, size = file.tell(), os.fstat(file.fileno()).st_size
    wanted = int(np.prod(shape, dtype=object)) * dtype.itemsize
    table_dtype = _numpy_dtype(str(path), dtype)
    rows, dim = _matrix(str(path), shape)
    if size - begin < wanted:
        raise FormatError(f"{path} is cut short: {wanted} bytes of rows are announced, {size - begin} are there")
    if column_major and wanted:  # read() would have to gather a row from all over the file
        return _array_source(str(path), np.memmap(path, dtype, "r", begin, (rows, dim), "F"))

    # Reads, not a map: a file that shrinks or a disk that fails is an error then, and not SIGBUS.
    def read(first: int, last: int) -> torch.Tensor:
        row_bytes = dim * dtype.itemsize
        values = np.frombuffer(_read_at(path, file, begin + first * row_bytes, (last - first) * row_bytes), dtype)
        return torch.from_numpy(values.astype(dtype.newbyteorder("="), copy=False).reshape(last - first, dim))

    return RowSource(name=str(path), shape=(rows, dim), dtype=table_dtype, read=read)


def _read_at(path: Path, file: BinaryIO, offset: int, size: int) -> bytearray:
    buffer = bytearray(size)
    done = 0
    while done < size:
        try:
            count = os.preadv(file.fileno(), [memoryview(buffer)[done:]], offset + done)
        except OSError as error:
            raise TierIOError(error.errno, f"cannot read {path} at byte {offset + done}") from error
        if count == 0:
            raise FormatError(f"{path} ends at byte {offset + done}, while it is read")
        done += count
    return buffer


# --- .safetensors


@contextmanager
def _safetensors_source(path: Path, key: str | None) -> Iterator[RowSource]:
    try:
        library = importlib.import_module("safetensors")
    except ImportError:
        raise ImportError(
            f"reading {path} needs the safetensors package: pip install 'mtrains[safetensors]'"
        ) from None
    try:
        file = library.safe_open(path, framework="pt")
    except library.SafetensorError as error:
        raise FormatError(f"{path} is damaged, cut short or no .safetensors file: {error}") from error
    with file:
        rows = file.get_slice(_chosen_key(path, list(file.keys()), key))
        code = rows.get_dtype()
        yield RowSource(
            name=str(path),
            shape=_matrix(str(path), tuple(rows.get_shape())),
            dtype=_table_dtype(str(path), _SAFETENSORS_DTYPES.get(code), code),
            read=lambda begin, end: rows[begin:end],
        )


def _chosen_key(path: Path, keys: list[str], key: str | None) -> str:
    names = ", ".join(repr(name) for name in sorted(keys)[:_NAMED_KEYS])
    names += f" and {len(keys) - _NAMED_KEYS} more" if len(keys) > _NAMED_KEYS else ""
    if key is None:
        if len(keys) != 1:
            raise ValueError(f"{path} holds {len(keys)} tensors: give key=, one of {names or 'none'}")
        return keys[0]
    if key not in keys:
        raise ValueError(f"{path} has no tensor {key!r}; it holds {names or 'none'}")
    return key
