"""Batches saved by torch.save as FBGEMM's benchmarks and Meta's dlrm_datasets have them: indices, offsets, lengths."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtrains.errors import MtrainsError
from mtrains.profiler.lookups import Stretch

__all__ = ["BagFileError", "BagFiles"]

_STRETCH_SAMPLES = 4096
_REMEDY = "it holds (indices[n], offsets[T * B + 1], lengths[T, B]), a tuple or a dict, table after table"


class BagFileError(MtrainsError, ValueError):
    """A .pt file is no batch of lookups; the message names the file and the remedy."""


class BagFiles:
    """Files of one batch each, in time order; a LookupSource. Tables are named table0, table1, ...

    Args:
        paths: at least one.
        num_tables: T, for files without two-dimensional lengths.
    Raises: BagFileError, also while they are read.
    """

    def __init__(self, paths: Sequence[str], *, num_tables: int | None = None) -> None:
        self._paths = tuple(paths)
        self._num_tables = num_tables
        self._num_tables = _load(self._paths[0], num_tables)[1].shape[0]

    @property
    def tables(self) -> tuple[str, ...]:
        """Names by number."""
        return tuple(f"table{number}" for number in range(self._num_tables or 0))

    def read(self) -> Iterator[Stretch]:
        """Yield some thousand samples at a time, of all tables."""
        done = 0
        for path in self._paths:
            indices, offsets = _load(path, self._num_tables)
            batch_size = offsets.shape[1] - 1
            for begin in range(0, batch_size, _STRETCH_SAMPLES):
                end = min(batch_size, begin + _STRETCH_SAMPLES)
                lookups = []
                for table, bags in enumerate(offsets[:, begin : end + 1]):
                    samples = np.repeat(np.arange(done + begin, done + end), np.diff(bags))
                    lookups.append((table, indices[bags[0] : bags[-1]].astype(np.int64, copy=False), samples))
                yield Stretch(lookups, done + end)
            done += batch_size


def _load(path: str, num_tables: int | None) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the indices and the offsets, int64[T, B + 1], of a file."""
    import torch

    try:
        content = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except (RuntimeError, EOFError, ValueError, pickle.UnpicklingError) as error:
        raise BagFileError(f"{path} is no file of torch.save with tensors alone: {_first_line(error)}") from None
    parts = content if isinstance(content, (tuple, list)) else ()
    if isinstance(content, dict):
        parts = [content[name] for name in ("indices", "offsets", "lengths") if name in content]
    if len(parts) not in (2, 3) or not all(isinstance(part, torch.Tensor) for part in parts):
        raise BagFileError(f"{path} holds no batch of lookups: {_REMEDY}")
    for name, part in zip(("indices", "offsets", "lengths"), parts, strict=False):
        if part.dtype not in (torch.int32, torch.int64):
            raise BagFileError(f"{path}: {name} are {part.dtype}, not int32 or int64: {_REMEDY}")
    indices, offsets = parts[0].numpy(), parts[1].numpy().astype(np.int64)
    shape = tuple(parts[2].shape) if len(parts) == 3 else ()
    tables = shape[0] if len(shape) == 2 else num_tables
    if tables is None:
        raise BagFileError(f"{path} does not say how many tables it is of; give --num-tables")
    return indices, _by_table(path, indices, offsets, tables, shape)


def _by_table(
    path: str, indices: NDArray[Any], offsets: NDArray[np.int64], tables: int, shape: tuple[int, ...]
) -> NDArray[np.int64]:
    bags, rest = divmod(len(offsets) - 1, max(1, tables))
    if tables < 1 or offsets.ndim != 1 or indices.ndim != 1 or rest or bags < 1:
        raise BagFileError(
            f"{path}: {len(offsets)} offsets are not those of {tables} tables with as many bags each: {_REMEDY}"
        )
    if len(shape) == 2 and shape != (tables, bags):
        raise BagFileError(f"{path}: lengths are of {shape} bags, offsets of {(tables, bags)}")
    if offsets[0] != 0 or offsets[-1] != len(indices) or (np.diff(offsets) < 0).any():
        raise BagFileError(f"{path}: offsets must ascend from 0 to {len(indices)}, the number of indices")
    starts = np.arange(tables)[:, None] * bags + np.arange(bags + 1)[None, :]
    by_table: NDArray[np.int64] = offsets[starts]
    return by_table


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0][:200]
