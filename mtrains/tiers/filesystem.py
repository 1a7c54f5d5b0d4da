"""Which file systems can hold a store: statfs and what it says."""

from __future__ import annotations

import ctypes
import errno
import os
import warnings
from pathlib import Path

from mtrains.errors import StateError, TierIOError

__all__ = [
    "FULL_ERRORS",
    "allocated_bytes",
    "check_file_system",
    "file_system_magic",
    "free_bytes",
    "open_error",
    "sync_folder",
]

FULL_ERRORS = (errno.ENOSPC, errno.EDQUOT)

# f_type of statfs(2): linux/magic.h, fs/smb, fs/zfs.
_REFUSED = {
    0x6969: "NFS",
    0x517B: "SMB",
    0xFF534D42: "SMB (cifs)",
    0xFE534D42: "SMB2",
    0x01021997: "9p",
    0x65735546: "FUSE",
}
_COPY_ON_WRITE = {0x9123683E: "btrfs", 0x2FC12FC1: "ZFS", 0xCA451A4E: "bcachefs"}
_STATFS_BYTES = 256  # more than struct statfs of any Linux


def check_file_system(folder: Path) -> None:
    """Refuse a folder on a network or FUSE file system; warn about copy-on-write ones.

    Raises: StateError naming the file system: their locks, shared maps or O_DIRECT do not keep a store safe.
    """
    magic = file_system_magic(folder)
    if magic in _REFUSED:
        raise StateError(
            f"{folder} is on {_REFUSED[magic]}, whose locks, memory maps and write order cannot keep "
            "a store safe; "
            "use a local file system (ext4, XFS)"
        )
    if magic in _COPY_ON_WRITE:
        warnings.warn(
            f"{folder} is on {_COPY_ON_WRITE[magic]}, a copy-on-write file system: preallocation "
            "promises no space "
            "there, so a full disk may show late; prefer ext4 or XFS",
            stacklevel=3,
        )


def file_system_magic(folder: Path) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = (ctypes.c_long * (_STATFS_BYTES // ctypes.sizeof(ctypes.c_long)))()
    if libc.statfs(os.fsencode(folder), buffer) != 0:
        code = ctypes.get_errno()
        raise TierIOError(code, f"statfs of {folder} failed")
    return int(buffer[0]) & 0xFFFFFFFF


def free_bytes(path: Path) -> int:
    """Return how many bytes are left where a file or folder is, or would be."""
    while not path.exists():
        path = path.parent
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


def open_error(error: OSError, path: Path) -> TierIOError:
    """Return the error for a file that cannot be opened or made."""
    what = f"cannot open {path}"
    if error.errno in FULL_ERRORS:
        what += f"; {free_bytes(path)} bytes are free: make room and try again"
    return TierIOError(error.errno, what)


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def allocated_bytes(*files: Path) -> int:
    """Return the bytes that the file system has allocated to these files; a missing one counts 0."""
    total = 0
    for file in files:
        try:
            total += os.stat(file).st_blocks * 512
        except FileNotFoundError:
            continue
    return total
