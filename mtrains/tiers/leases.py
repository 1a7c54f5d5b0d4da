"""Leases: how a read-only opener has the process that trains keep the checkpoint that it serves.

STORE/leases/checkpoints is an empty file; byte n of it stands for checkpoint number n. A reader holds a shared lock on
its checkpoint's byte. The writer drops a checkpoint only in a commit during which it holds the exclusive lock on
its byte. So a reader that got its lock and then still finds the checkpoint in the catalog keeps it; locks end with
the process that holds them, so nothing is ever left behind by a crash, on either side.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

from mtrains.errors import TierIOError
from mtrains.tiers.filesystem import open_error

__all__ = ["Lease", "LeaseFile", "leased_numbers"]

_NAME = "checkpoints"
_ALL = 0  # length of a range without end
_FLOCK = struct.Struct("hhqqi4x")  # struct flock of 64-bit Linux: type, whence, start, length, pid


class LeaseFile:
    """One opened STORE/leases/checkpoints.

    Its locks are those of open file descriptions (F_OFD_SETLK): they tell two openers in one process apart, and no
    other descriptor of the file, opened and closed by whoever copies the folder, drops them. A forked child would
    keep them, so it closes its copies at once.
    """

    _descriptors: ClassVar[set[int]] = set()
    _mutex: ClassVar[threading.Lock] = threading.Lock()  # of _descriptors; held over a fork

    def __init__(self, folder: Path) -> None:
        """Open it in the folder STORE/leases; made if it is missing. Raises: TierIOError."""
        self.path = folder / _NAME
        self._pid = os.getpid()
        with self._mutex:
            self._descriptor = _open(self.path)
            self._descriptors.add(self._descriptor)

    def share(self, number: int) -> None:
        """Take the shared lock of a checkpoint; waits while a commit decides about it."""
        self._call(fcntl.F_OFD_SETLKW, fcntl.F_RDLCK, number)

    def take(self, number: int, length: int = 1) -> bool:
        """Take the exclusive lock of a checkpoint; False if anyone reads it."""
        try:
            self._call(fcntl.F_OFD_SETLK, fcntl.F_WRLCK, number, length)
        except BlockingIOError:
            return False
        return True

    def take_all(self) -> bool:
        """Take the exclusive lock of every checkpoint that there is or will be; False if anyone reads one."""
        return self.take(0, _ALL)

    def drop(self, number: int) -> None:
        """Drop the lock of a checkpoint, if this holds it."""
        self._call(fcntl.F_OFD_SETLK, fcntl.F_UNLCK, number)

    def is_read(self, number: int) -> bool:
        """Return True if anyone else has a lock of the checkpoint now."""
        found = self._call(fcntl.F_OFD_GETLK, fcntl.F_WRLCK, number)
        return int(_FLOCK.unpack(found)[0]) != fcntl.F_UNLCK

    @contextmanager
    def unread(self, numbers: Collection[int]) -> Iterator[set[int]]:
        """Yield those of these checkpoints that nobody reads; no reader gets one of them before the block has
        ended."""
        taken: set[int] = set()
        try:
            for number in numbers:
                if self.take(number):
                    taken.add(number)
            yield taken
        finally:
            for number in taken:
                self.drop(number)

    def close(self) -> None:
        """Close it, which drops its locks. A second call, or one in a forked child, does nothing."""
        if self._descriptor < 0 or os.getpid() != self._pid:
            return
        self._call(fcntl.F_OFD_SETLK, fcntl.F_UNLCK, 0, _ALL)  # also where a child has not closed its copy yet
        with self._mutex:
            self._descriptors.discard(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def _call(self, command: int, kind: int, number: int, length: int = 1) -> bytes:
        try:
            return fcntl.fcntl(
                self._descriptor, command, _FLOCK.pack(kind, os.SEEK_SET, number, length, 0)
            )
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                raise BlockingIOError(error.errno, f"{self.path} is locked") from None
            raise TierIOError(error.errno, f"cannot lock {self.path}") from error

    @classmethod
    def before_fork(cls) -> None:
        cls._mutex.acquire()

    @classmethod
    def after_fork_in_parent(cls) -> None:
        cls._mutex.release()

    @classmethod
    def after_fork_in_child(cls) -> None:
        """Let the child hold none of its parent's locks."""
        cls._mutex = threading.Lock()
        for descriptor in cls._descriptors:
            os.close(descriptor)
        cls._descriptors = set()


os.register_at_fork(
    before=LeaseFile.before_fork,
    after_in_parent=LeaseFile.after_fork_in_parent,
    after_in_child=LeaseFile.after_fork_in_child,
)


class Lease:
    """A shared lock of one checkpoint, until `release` or the end of the process."""

    def __init__(self, folder: Path, number: int) -> None:
        """Take it. Whether the checkpoint is still there has to be looked up afterwards. Raises: TierIOError."""
        self.number = number
        self._file = LeaseFile(folder)
        try:
            self._file.share(number)
        except BaseException:
            self._file.close()
            raise

    def release(self) -> None:
        """Let the checkpoint go; a second call does nothing."""
        self._file.close()


def leased_numbers(folder: Path, numbers: Collection[int]) -> set[int]:
    """Return those of these checkpoints that somebody has a lease of now; makes no file."""
    if not (folder / _NAME).exists():
        return set()
    file = LeaseFile(folder)
    try:
        return {number for number in numbers if file.is_read(number)}
    finally:
        file.close()


def _open(path: Path) -> int:
    try:
        path.parent.mkdir(exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        failure = error
    if failure.errno in (errno.EROFS, errno.EACCES):
        try:  # enough for a shared lock
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            pass
    raise open_error(failure, path)
