"""The arena of the byte-addressable tier: a file whose extents native code maps, and who provides it (storage.md,
"The SCM arena")."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from pathlib import Path

from mtrains import _native
from mtrains.devices import EmulatedDevice
from mtrains.errors import StateError

__all__ = ["CHUNK_BYTES", "PAGE_BYTES", "ScmArena", "bandwidth_limit", "file_memory"]

CHUNK_BYTES = 64 << 20  # an arena grows by so much; a multiple of every unit of native/include/mtrains/slot_memory.h
PAGE_BYTES = 4096


class ScmArena(ABC):
    """Provides the bytes of a tier as extents of one open file, chunk by chunk. Contents are volatile.

    Nobody else can find the file, and nothing of it is left when the process ends, however it ends. One thread
    at a time calls `grow`. Not for forked children.
    """

    def __init__(self, capacity_bytes: int, fd: int, description: str) -> None:
        self.capacity_bytes = capacity_bytes // PAGE_BYTES * PAGE_BYTES
        self.fd = fd  # owned by the subclass, valid until close()
        self.description = description  # who provides it and where, for people
        self.given_bytes = 0
        self._pid = os.getpid()
        self._closed = False

    @property
    def disk_files(self) -> tuple[Path, ...]:
        """Files whose allocated bytes are on a disk and count there; none if the arena is memory."""
        return ()

    def grow(self) -> tuple[int, int] | None:
        """Return (offset, length) of the next extent, whole pages that the file system has allocated, so that no
        store to them fails; None once the whole capacity was given.

        Raises: TierIOError (ENOSPC: the need and what is free), CapacityError (no memory); nothing has changed then
        and the call may be repeated. StateError after close() and in a forked child.
        """
        if os.getpid() != self._pid:
            raise StateError("the SCM arena was opened in the parent process and cannot grow in a forked child")
        if self._closed:
            raise StateError("the SCM arena is closed")
        length = min(CHUNK_BYTES, self.capacity_bytes - self.given_bytes)
        if length == 0:
            return None
        offset = self._allocate(length)
        self.given_bytes += length
        return offset, length

    def close(self) -> None:
        """Close the file; a second call, or one in a forked child, does nothing. Maps of it stay valid."""
        if os.getpid() == self._pid and not self._closed:
            self._closed = True
            self._close()

    @abstractmethod
    def _allocate(self, length: int) -> int:
        """Allocate `length` bytes on the device; return their offset."""

    @abstractmethod
    def _close(self) -> None: ...


def file_memory(arena: ScmArena) -> _native.FileMemory:
    """Return the native memory over an arena. It keeps the arena alive; close the arena after it."""
    return _native.FileMemory(arena.fd, arena.capacity_bytes, arena.grow)


def bandwidth_limit(device: EmulatedDevice) -> _native.BandwidthLimit:
    """Return the native limit that waits as `device` would."""
    return _native.BandwidthLimit(
        read_bytes_per_second=device.read_bytes_per_second,
        write_bytes_per_second=device.write_bytes_per_second,
        read_latency_seconds=device.read_latency_seconds,
        write_latency_seconds=device.write_latency_seconds,
        granule_bytes=device.granule_bytes,
    )
