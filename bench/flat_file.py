"""What a device does without a store: one flat file, written and read past the page cache or through it."""

from __future__ import annotations

import mmap
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

MIB = 1 << 20
DIRECT_WRITES = 4  # of a MiB in flight at once
GROUP = 16  # MiB written between two syncs, as the store's commits are at most


def aligned(num_bytes: int) -> NDArray[np.uint8]:
    """Return page-aligned memory, which O_DIRECT needs."""
    return np.frombuffer(mmap.mmap(-1, num_bytes), np.uint8)


class FlatFile:
    """A preallocated file of whole MiB; a context manager."""

    def __init__(self, path: Path, num_mib: int) -> None:
        self.path, self.num_mib = path, num_mib
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        self._direct = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_DIRECT)
        random = np.random.default_rng(1).integers(0, 256, MIB, np.uint8)
        self._data = [aligned(MIB) for _ in range(DIRECT_WRITES)]
        for data in self._data:
            data[:] = random

    def renew(self) -> None:
        """Have fresh blocks: allocated, never written."""
        os.ftruncate(self._descriptor, 0)
        os.posix_fallocate(self._descriptor, 0, self.num_mib * MIB)
        os.fsync(self._descriptor)

    def write_direct(self) -> float:
        """Write the whole file with O_DIRECT; return the seconds until it is durable."""
        begin = time.perf_counter()
        with ThreadPoolExecutor(DIRECT_WRITES) as pool:
            for _ in pool.map(self._write_every, range(DIRECT_WRITES)):
                pass
        os.fdatasync(self._direct)
        return time.perf_counter() - begin

    def write_buffered(self) -> float:
        """Write it through the page cache, each group synced and then forgotten (DONTNEED); return the seconds."""
        begin = time.perf_counter()
        for first in range(0, self.num_mib, GROUP):
            last = min(first + GROUP, self.num_mib)
            for number in range(first, last):
                os.pwrite(self._descriptor, self._numbered(number), number * MIB)
            os.fdatasync(self._descriptor)
            os.posix_fadvise(
                self._descriptor, first * MIB, (last - first) * MIB, os.POSIX_FADV_DONTNEED
            )
        return time.perf_counter() - begin

    def check(self, block: NDArray[np.uint8], offset: int) -> None:
        """Raise AssertionError unless these are the 4,096 bytes that were written at `offset`."""
        within = offset % MIB
        expected = self._numbered(offset // MIB)[within : within + len(block)]
        assert bytes(block) == bytes(expected), f"offset {offset} of {self.path} holds other bytes"

    def close(self) -> None:
        os.close(self._descriptor)
        os.close(self._direct)

    def __enter__(self) -> FlatFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        self.path.unlink()

    def _write_every(self, first: int) -> None:
        for number in range(first, self.num_mib, DIRECT_WRITES):
            os.pwrite(self._direct, self._numbered(number), number * MIB)

    def _numbered(self, number: int) -> NDArray[np.uint8]:
        data = self._data[number % DIRECT_WRITES]
        data[:8].view(np.int64)[0] = number
        return data
