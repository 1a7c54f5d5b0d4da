"""Rates of a disk: 4 KiB blocks at random by reads in flight, with the engine of the log, and long reads."""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mtrains.block_reader import BlockReader

__all__ = ["DEPTHS", "DiskRates", "measure_disk"]

DEPTHS = (1, 8, 32, 128)
_MIB = 1 << 20
_READS_A_CALL = 8  # times the depth


@dataclass(frozen=True, kw_only=True)
class DiskRates:
    """reads_per_second: 4 KiB blocks by depth. bytes_per_second: of long reads in order.

    cpu_seconds_per_read: of a block at the largest depth. io_engine: the log's here. past_page_cache: whether reads
    went to the disk; else the figures may be memory's.
    """

    reads_per_second: dict[int, float]
    bytes_per_second: float
    cpu_seconds_per_read: float
    io_engine: str
    past_page_cache: bool


def measure_disk(folder: Path, file_bytes: int, seconds: float) -> DiskRates:
    """Measure reads of a file made in `folder`, gone afterwards, for about `seconds` beside writing it.

    Raises: OSError, with the folder's name; TierIOError.
    """
    each = seconds / (len(DEPTHS) + 1)
    with _filled_file(folder, file_bytes) as path:
        rates = {}
        for depth in DEPTHS:
            reader = BlockReader(path, queue_depth=depth)
            rates[depth], cpu = _random_reads(reader, depth, file_bytes, each)
        direct, long = _long_reads(path, file_bytes, each)
    return DiskRates(
        reads_per_second=rates,
        bytes_per_second=max(long, max(rates.values()) * BlockReader.BLOCK_BYTES),
        cpu_seconds_per_read=cpu,
        io_engine=reader.engine,
        past_page_cache=direct and reader.engine != "mmap",
    )


@contextmanager
def _filled_file(folder: Path, file_bytes: int) -> Iterator[Path]:
    chunk = np.random.default_rng(0).integers(0, 256, _MIB, np.uint8)  # a device may store zeros as nothing
    with tempfile.NamedTemporaryFile(dir=folder, prefix="mtrains-probe-") as file:
        for number in range(file_bytes // _MIB):
            chunk[:8].view(np.int64)[0] = number
            file.write(chunk.data)
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        yield Path(file.name)


def _random_reads(reader: BlockReader, depth: int, file_bytes: int, seconds: float) -> tuple[float, float]:
    """Return reads a second, and seconds of CPU a read."""
    size = BlockReader.BLOCK_BYTES
    out = _aligned(_READS_A_CALL * depth * size).reshape(-1, size)
    random = np.random.default_rng(depth)
    reads, begin, cpu = 0, time.perf_counter(), time.process_time()
    while True:
        reader.read(random.integers(0, file_bytes // size, len(out), np.uint64) * np.uint64(size), out)
        reads += len(out)
        elapsed = time.perf_counter() - begin
        if elapsed >= seconds:
            return reads / elapsed, (time.process_time() - cpu) / reads


def _long_reads(path: Path, file_bytes: int, seconds: float) -> tuple[bool, float]:
    """Return whether the page cache was passed by, and the bytes a second of reads of a MiB in order."""
    descriptor, direct = _open(path)
    try:
        out = _aligned(_MIB)
        done, begin = 0, time.perf_counter()
        while True:
            done += os.preadv(descriptor, [out.data], done % (file_bytes // _MIB * _MIB))
            elapsed = time.perf_counter() - begin
            if elapsed >= seconds:
                return direct, done / elapsed
    finally:
        os.close(descriptor)


def _open(path: Path) -> tuple[int, bool]:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT), True
    except OSError as error:
        if error.errno != errno.EINVAL:  # of a file system without O_DIRECT
            raise
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC), False


def _aligned(num_bytes: int) -> NDArray[np.uint8]:
    return np.frombuffer(mmap.mmap(-1, num_bytes), np.uint8)
