"""The hard cap on a store's disk bytes, and space promised by the file system before LMDB writes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from mtrains.errors import CapacityError, TierIOError
from mtrains.tiers.filesystem import FULL_ERRORS, allocated_bytes, free_bytes
from mtrains.units import format_bytes

__all__ = [
    "CATALOG_RESERVE_BYTES",
    "MIN_CAP_BYTES",
    "RESERVE_BYTES",
    "SLACK_BYTES",
    "DiskBudget",
    "GrowingFile",
]

RESERVE_BYTES = 32 << 20  # kept allocated at the end of rows.lmdb for GC and for the checkpoint's commit
CATALOG_RESERVE_BYTES = 8 << 20  # of that, what segments must not take
SLACK_BYTES = 2 << 20  # B-tree pages of one commit
MIN_CAP_BYTES = 2 * RESERVE_BYTES


class DiskBudget:
    """Bytes that the files of a store may have allocated together. `cap_bytes` None: as the disk allows."""

    def __init__(self, cap_bytes: int | None, files: Sequence[Path]) -> None:
        """Raises: CapacityError if the cap is below what a store needs at all, or below what is allocated
        now."""
        self.cap_bytes = cap_bytes
        self._files = tuple(files)
        if cap_bytes is None:
            return
        needed = max(self.allocated_bytes(), MIN_CAP_BYTES)
        if cap_bytes < needed:
            raise CapacityError(
                f"ssd={format_bytes(cap_bytes)} ({cap_bytes} bytes) is too small for this store: it "
                "needs at least "
                f"{needed} bytes ({format_bytes(needed)})"
            )

    def allocated_bytes(self) -> int:
        """Return the bytes allocated now."""
        return allocated_bytes(*self._files)

    def check(self, growth: int, what: str) -> None:
        """Raises: CapacityError if `growth` more bytes would pass the cap."""
        if self.cap_bytes is None or growth <= 0:
            return
        present = self.allocated_bytes()
        if present + growth > self.cap_bytes:
            raise CapacityError(
                f"{what} needs {growth} more bytes, but ssd={self.cap_bytes} bytes and {present} are "
                "in use; raise ssd=, "
                "release checkpoints or lower keep="
            )


class GrowingFile:
    """A file that is extended by posix_fallocate ahead of LMDB, so that a full disk is ENOSPC here and not
    "EIO" there."""

    def __init__(self, path: Path, budget: DiskBudget) -> None:
        self.path = path
        try:
            self.descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise TierIOError(error.errno, f"cannot open {path}") from error
        self._budget = budget
        status = os.fstat(self.descriptor)
        # A sparse file (a copy made by cp --sparse) promises nothing beyond what it has.
        self.allocated_end = status.st_size if status.st_blocks * 512 >= status.st_size else 0

    def grow(self, end: int, what: str) -> None:
        """Have the file allocated up to `end`. Raises: CapacityError or TierIOError (ENOSPC); nothing has
        changed then."""
        if end <= self.allocated_end:
            return
        begin = self.allocated_end
        self._budget.check(end - max(begin, os.fstat(self.descriptor).st_size), f"{what} in {self.path}")
        try:
            os.posix_fallocate(self.descriptor, begin, end - begin)
        except OSError as error:
            raise self._allocation_error(error, end - begin, what) from error
        self.allocated_end = end

    def possible_growth(self) -> int:
        """Return how many bytes the cap and the file system would allow now."""
        free = free_bytes(self.path)
        if self._budget.cap_bytes is None:
            return free
        return min(free, self._budget.cap_bytes - self._budget.allocated_bytes())

    def shrink(self, end: int) -> None:
        """Give back what is allocated beyond `end`. REQUIRES: nothing lies there."""
        if end < self.allocated_end:
            try:
                os.ftruncate(self.descriptor, end)
            except OSError as error:
                raise TierIOError(error.errno, f"cannot shorten {self.path} to {end} bytes") from error
            self.allocated_end = end

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def _allocation_error(self, error: OSError, need: int, what: str) -> TierIOError:
        remedy = ""
        if error.errno in FULL_ERRORS:
            remedy = f"; {free_bytes(self.path)} bytes are free: make room and try again"
        return TierIOError(error.errno, f"{what} needs {need} more bytes in {self.path}{remedy}")
