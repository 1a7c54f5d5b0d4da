"""Random reads of 4 KiB blocks of any file, as the log tier does them: what a device can do for a store."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mtrains import _native

__all__ = ["BlockReader"]


class BlockReader:
    """Reads blocks of 4,096 bytes of one file, many in flight. Thread-safe.

    engine: the effective one, "uring" or "pread" (both past the page cache), or "mmap". refused: which others "auto"
    passed over, and why.
    """

    BLOCK_BYTES = 4096

    def __init__(
        self, path: str | os.PathLike[str], *, io_engine: str = "auto", queue_depth: int = 128
    ) -> None:
        """Open a file.

        Args:
            io_engine: as of Store. queue_depth: reads in flight, in [1, 4096].
        Raises: TierIOError, ValueError.
        """
        self.path = Path(path)
        self._reader = _native.open_block_reader(str(self.path), io_engine, queue_depth)
        self.engine = self._reader.engine
        self.refused = self._reader.refused

    def read(self, offsets: NDArray[np.uint64], out: NDArray[np.uint8]) -> None:
        """Read the block at each offset, in no particular order, and return when all are there.

        Args:
            offsets: uint64[n], multiples of 4,096. out: uint8[n, 4096], C-contiguous, of an address that is a multiple
            of 4,096 (as mmap.mmap(-1, size) has), overwritten.
        Raises: ValueError, TierIOError (beyond the end of the file: ENODATA).
        """
        self._reader.read(offsets, out)
