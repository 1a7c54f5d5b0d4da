"""Opening LMDB environments the one way that a store uses, and telling their errors apart."""

from __future__ import annotations

import errno
import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import lmdb

from mtrains.errors import CapacityError, FormatError, MtrainsError, TierIOError
from mtrains.tiers.filesystem import FULL_ERRORS

__all__ = [
    "DATA_FILE",
    "LMDB_PAGE_BYTES",
    "check_library",
    "close_environment",
    "commit_error",
    "environment_error",
    "is_full",
    "open_environment",
    "shared_environment",
    "sync_error",
]

DATA_FILE = "data.mdb"
LMDB_PAGE_BYTES = 4096
_LOCK_FILE_BYTES = 8192  # what LMDB gives it for its default of 126 readers
_LIBRARY = (0, 9)  # py-lmdb 3 bundles LMDB 1.0 too, whose pages have another header
_FORMAT_ERRORS = (lmdb.InvalidError, lmdb.VersionMismatchError, lmdb.CorruptedError, lmdb.PageNotFoundError)


class _FailedSyncError(TierIOError):
    """The kernel may have let go of pages that it did not write: whatever the errno, nothing may go on."""


class _Environments:
    """The environments that this process has open. LMDB must not open one twice in a process: its locks would go
    with the first that is closed."""

    mutex: ClassVar[threading.RLock] = threading.RLock()  # of `opened`; held while one is opened, shared, or closed
    opened: ClassVar[weakref.WeakValueDictionary[tuple[int, int], lmdb.Environment]] = (
        weakref.WeakValueDictionary()
    )  # by (device, inode) of the data file

    @classmethod
    def forget_parent(cls) -> None:
        """In a forked child: a thread of the parent that held the mutex is not there to let it go."""
        cls.mutex = threading.RLock()
        cls.opened = weakref.WeakValueDictionary()


os.register_at_fork(after_in_child=_Environments.forget_parent)


def open_environment(
    folder: Path,
    *,
    map_size: int,
    metasync: bool = True,
    readonly: bool = False,
    lock: bool | None = None,
    create: bool = False,
) -> lmdb.Environment:
    """Open an environment of LMDB 0.9 with pages of 4,096 bytes; close it by `close_environment`.

    lock: whether its readers and a writer in other processes know of each other; by default not if `readonly`, which
    then touches no file, not even LMDB's lock.
    Raises: TierIOError, FormatError (not an environment, or one of another library).
    """
    if not create and not (folder / DATA_FILE).is_file():
        raise FormatError(f"{folder / DATA_FILE} is missing; {_remedy(folder)}")
    with _Environments.mutex:
        if not readonly:
            _allocate_lock_file(folder / "lock.mdb")
        try:
            environment = lmdb.open(
                str(folder),
                map_size=map_size,
                metasync=metasync,
                readonly=readonly,
                lock=not readonly if lock is None else lock,
                create=create,
                readahead=False,
                meminit=metasync,
                lib_version=0,
            )
        except lmdb.Error as error:
            raise environment_error(error, f"opening {folder}") from error
        try:
            _check_environment(environment, folder)
        except BaseException:
            environment.close()
            raise
        _Environments.opened[_identity(folder)] = environment
    if not readonly:
        environment.reader_check()
    return environment


def close_environment(environment: lmdb.Environment) -> None:
    """Close it, once nobody in this process shares it."""
    with _Environments.mutex:
        for key, opened in list(_Environments.opened.items()):
            if opened is environment:
                del _Environments.opened[key]
        environment.close()


@contextmanager
def shared_environment(folder: Path, *, map_size: int) -> Iterator[lmdb.Environment]:
    """Have an environment open to read, beside a writer of this process or another, for a short while.

    Other threads of this process open and close none meanwhile. Raises: as open_environment.
    """
    with _Environments.mutex:
        if not (folder / DATA_FILE).is_file():
            raise FormatError(f"{folder / DATA_FILE} is missing; {_remedy(folder)}")
        present = _Environments.opened.get(_identity(folder))
        if present is not None:
            yield present
            return
        environment = open_environment(folder, map_size=map_size, readonly=True, lock=True)
        try:
            yield environment
        finally:
            close_environment(environment)


def _identity(folder: Path) -> tuple[int, int]:
    status = os.stat(folder / DATA_FILE)
    return status.st_dev, status.st_ino


def _check_environment(environment: lmdb.Environment, folder: Path) -> None:
    page_bytes = check_library(environment, str(folder))
    needed = (environment.info()["last_pgno"] + 1) * page_bytes  # before the size, which grows ahead of it
    size = (folder / DATA_FILE).stat().st_size
    if size < needed:  # a read of the map beyond the end would be SIGBUS
        raise FormatError(f"{folder / DATA_FILE} has {size} bytes of {needed}; {_remedy(folder)}")


def check_library(environment: lmdb.Environment, what: str) -> int:
    """Return the page size. Raises: FormatError, after closing, if it is not that of a store, or the library
    another."""
    version, page_bytes = environment.lib_version(), int(environment.stat()["psize"])
    if version[:2] != _LIBRARY or page_bytes != LMDB_PAGE_BYTES:
        environment.close()
        raise FormatError(
            f"{what} needs LMDB 0.9 with pages of {LMDB_PAGE_BYTES} bytes, here is {version} with {page_bytes}"
        )
    return page_bytes


def _allocate_lock_file(path: Path) -> None:
    """Have room for LMDB's table of readers, which it maps: on a full disk a store into a hole is SIGBUS."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.posix_fallocate(descriptor, 0, _LOCK_FILE_BYTES)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise TierIOError(error.errno, f"cannot allocate {path}") from error


def _remedy(folder: Path) -> str:
    if folder.name == "catalog.lmdb":
        return "restore it from a backup, or run `mtrains verify --rebuild`, which makes it anew from the segments"
    return "restore it from a backup"


def environment_error(error: lmdb.Error, what: str) -> MtrainsError:
    """Return the error of mtrains for one of LMDB."""
    if isinstance(error, lmdb.MapFullError):
        return CapacityError(
            f"{what}: the addresses that ssd= reserves are in use, or free in pieces that are too small; raise ssd=, "
            "release checkpoints or lower keep="
        )
    if isinstance(error, _FORMAT_ERRORS):
        return FormatError(f"{what}: {error}; restore the file from a backup, or run `mtrains verify`")
    code = error.code if error.code > 0 else errno.EIO
    return TierIOError(code, f"{what}: {error}")


def commit_error(
    error: lmdb.Error, environment: lmdb.Environment, descriptor: int, what: str
) -> MtrainsError:
    """Return the error for a commit that failed. descriptor: of the data file, opened before it.

    LMDB does not tell a full disk at write(), after which nothing has changed, from one at its sync, which is final. A
    sync of our own does: the kernel reports what went wrong with a file once to each who has it open. Nor may a
    commit be repeated whose last page, the one that says where all others are, may or may not have been written.
    """
    if error.code in FULL_ERRORS:
        try:
            os.fdatasync(descriptor)
            environment.begin().abort()
        except (OSError, lmdb.Error):
            return sync_error(error, what)
    return environment_error(error, what)


def sync_error(error: lmdb.Error, what: str) -> TierIOError:
    """Return the error for a sync that failed; it is final."""
    return _FailedSyncError(error.code if error.code > 0 else errno.EIO, f"{what}: {error}")


def is_full(error: BaseException) -> bool:
    """Return True for errors that go away once there is room: nothing was changed and the call may be
    repeated."""
    if isinstance(error, TierIOError):
        return error.errno in FULL_ERRORS and not isinstance(error, _FailedSyncError)
    return isinstance(error, CapacityError)
