"""Files and folders that appear under their names complete, or not at all."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mtrains.errors import StateError, TierIOError
from mtrains.tiers.filesystem import sync_folder
from mtrains.units import format_bytes

__all__ = ["NewFile", "check_room", "new_file", "new_folder"]


class NewFile:
    """A file of a size that is known before, written in any order."""

    def __init__(self, target: Path, descriptor: int) -> None:
        self._target = target
        self._descriptor = descriptor

    def write_at(self, offset: int, data: memoryview) -> None:
        """Write all of `data`. Raises: TierIOError."""
        done = 0
        while done < len(data):
            try:
                done += os.pwrite(self._descriptor, data[done:], offset + done)
            except OSError as error:
                raise _write_error(self._target, error) from error


@contextmanager
def new_file(target: Path, num_bytes: int) -> Iterator[NewFile]:
    """Make a file under a temporary name beside `target`, with its space allocated; at the end it is made durable
    and takes the name, in place of a file that has it. After an error nothing of it is left.

    Raises: TierIOError.
    """
    temporary = _temporary_beside(target)
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise _write_error(target, error) from error
    try:
        try:
            _allocate(target, descriptor, num_bytes)
            yield NewFile(target, descriptor)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(temporary, target)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError) and not isinstance(error, TierIOError):
            raise _write_error(target, error) from error
        raise
    sync_folder(target.parent)


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Make a folder under a temporary name beside `target`, which takes the name at the end. After an error nothing
    of it is left.

    Raises: StateError if `target` is there and not an empty folder; TierIOError.
    """
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise StateError(f"{target} is there already and is no empty folder; name a new one")
    temporary = _temporary_beside(target)
    try:
        temporary.mkdir()
    except OSError as error:
        raise _write_error(target, error) from error
    try:
        yield temporary
        temporary.rename(target)
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if isinstance(error, OSError) and not isinstance(error, TierIOError):
            raise _write_error(target, error) from error
        raise
    sync_folder(target.parent)


def check_room(target: Path, num_bytes: int) -> None:
    """Raises: TierIOError (ENOSPC) with both numbers if the disk of `target` has not so many bytes free."""
    try:
        status = os.statvfs(target.parent)
    except OSError as error:
        raise _write_error(target, error) from error
    free = status.f_bavail * status.f_frsize
    if num_bytes > free:
        raise TierIOError(
            errno.ENOSPC,
            f"{target} would take {num_bytes} bytes ({format_bytes(num_bytes)}), and {free} "
            f"({format_bytes(free)}) are free there; make room, or name a place on another disk",
        )


def _allocate(target: Path, descriptor: int, num_bytes: int) -> None:
    if num_bytes == 0:
        return
    try:
        os.posix_fallocate(descriptor, 0, num_bytes)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            check_room(target, num_bytes)
        raise


def _temporary_beside(target: Path) -> Path:
    return target.parent / f".mtrains-{secrets.token_hex(8)}.tmp"


def _write_error(target: Path, error: OSError) -> TierIOError:
    return TierIOError(error.errno, f"cannot write {target}, nothing of it is left")
