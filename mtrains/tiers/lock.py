"""The lock of a store: one process, one opener."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from pathlib import Path
from typing import ClassVar

from mtrains.errors import StateError, TierIOError
from mtrains.tiers.filesystem import open_error

__all__ = ["StoreLock"]


class StoreLock:
    """Exclusive fcntl lock on STORE/lock, held until `release`.

    fcntl and not flock: a lock of flock lives on in a forked DataLoader worker after its parent was killed. A
    fcntl lock belongs to the process, and closing any descriptor of the file drops it; so openers in one
    process find each other in a table, before they touch the file.
    """

    # (device, inode) of lock files that this process holds -> its pid (a forked child inherits the table, not
    # the locks)
    _held: ClassVar[dict[tuple[int, int], int]] = {}
    _mutex: ClassVar[threading.Lock] = threading.Lock()  # of _held and of the files' locks in step with it

    def __init__(self, folder: Path) -> None:
        """Take the lock. Raises: StateError at once if anyone holds it; TierIOError if the file cannot be
        opened."""
        self._descriptor = -1
        self._pid = os.getpid()
        if not self._take(folder):
            raise StateError(
                f"the store {folder} is open already, in this process or another; close it there first, or read it "
                "meanwhile with read_only=True"
            )

    @classmethod
    def if_free(cls, folder: Path) -> StoreLock | None:
        """Return the lock, taken, or None if anyone holds it. Raises: TierIOError if the file cannot be opened."""
        lock = cls.__new__(cls)
        lock._descriptor, lock._pid = -1, os.getpid()
        return lock if lock._take(folder) else None

    def _take(self, folder: Path) -> bool:
        path = folder / "lock"
        with self._mutex:
            try:
                present = os.stat(path)
            except FileNotFoundError:
                present = None
            if present is not None and self._held.get((present.st_dev, present.st_ino)) == os.getpid():
                return False
            descriptor = _open_lock_file(path)
            try:
                kind = fcntl.LOCK_EX if _writable(descriptor) else fcntl.LOCK_SH
                fcntl.lockf(descriptor, kind | fcntl.LOCK_NB)
            except OSError as error:
                os.close(descriptor)
                if error.errno in (errno.EAGAIN, errno.EACCES):
                    return False
                raise TierIOError(error.errno, f"cannot lock {path}") from None
            status = os.fstat(descriptor)
            self._key = (status.st_dev, status.st_ino)
            self._held[self._key] = self._pid
            self._descriptor = descriptor
        return True

    def release(self) -> None:
        """Let the lock go; a second call, or one in a forked child, does nothing."""
        if self._descriptor < 0 or os.getpid() != self._pid:
            return
        with self._mutex:
            self._held.pop(self._key, None)
            os.close(self._descriptor)
            self._descriptor = -1

    @classmethod
    def forget_holder(cls) -> None:
        """In a forked child: a thread of the parent that held the mutex is not there to let it go."""
        cls._mutex = threading.Lock()


os.register_at_fork(after_in_child=StoreLock.forget_holder)


def _open_lock_file(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        failure = error
    if failure.errno in (errno.EROFS, errno.EACCES):
        try:
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            pass
    raise open_error(failure, path)


def _writable(descriptor: int) -> bool:
    return fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY
