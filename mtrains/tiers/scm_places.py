"""Where byte-addressable memory can be had: dax file systems, tmpfs, NUMA nodes, and what room is there."""

from __future__ import annotations

import ctypes
import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from mtrains.errors import CapacityError, StateError, TierIOError
from mtrains.tiers.filesystem import file_system_magic
from mtrains.units import format_bytes

__all__ = ["NumaNode", "Place", "available_memory", "check_memory", "choose_place", "open_nameless_file"]

_IN_MEMORY = {0x01021994: "tmpfs", 0x858458F6: "ramfs"}  # f_type of statfs(2): linux/magic.h
_SHARED_MEMORY = Path("/dev/shm")
_STATX_BYTES = 256  # struct statx
_STATX_ATTRIBUTES = 8  # its offset of stx_attributes
_STATX_ATTR_DAX = 0x00200000  # linux/stat.h
_AT_EMPTY_PATH = 0x1000


@dataclass(frozen=True)
class Place:
    """A folder for the file of an arena. kind: "tmpfs", "ramfs" or "dax" is memory; "" is a disk."""

    folder: Path
    kind: str

    @property
    def in_dram(self) -> bool:
        """True if the file's bytes are ordinary memory."""
        return self.kind in _IN_MEMORY.values()

    def free_bytes(self) -> int:
        """Return the bytes that a file here could grow by, as far as anybody can say."""
        try:
            status = os.statvfs(self.folder)
        except OSError as error:
            raise TierIOError(error.errno, f"statvfs of {self.folder} failed") from error
        # A ramfs counts nothing.
        free = status.f_bavail * status.f_frsize if self.kind != "ramfs" else available_memory()
        return min(free, available_memory()) if self.in_dram else free

    def allocate(self, fd: int, begin: int, end: int) -> None:
        """Have a file here allocated from `begin` up to `end`, so that no store to it can be SIGBUS.

        Raises: TierIOError (ENOSPC and others), CapacityError (memory); the file may be longer then.
        """
        what = "growing the SCM arena"
        if self.in_dram:  # else the kernel would end processes to make room
            check_memory(available_memory(), end - begin, f"{what} in {self.folder}")
        try:
            os.posix_fallocate(fd, begin, end - begin)
        except OSError as error:
            raise TierIOError(
                error.errno,
                f"{what} needs {end - begin} more bytes in {self.folder}, where {self.free_bytes()} are free; "
                "make room, or lower the capacity of the SCM tier",
            ) from error

    def check_room(self, need: int, what: str) -> None:
        """Raises: CapacityError with the need and what is free."""
        free = self.free_bytes()
        if need > free:
            raise CapacityError(
                f"{what} needs {need} bytes ({format_bytes(need)}) in {self.folder}, where {free} "
                f"({format_bytes(free)}) are free; lower the capacity of the SCM tier or name another path"
            )


def check_memory(free: int, need: int, what: str) -> None:
    """Raises: CapacityError with the need and what is free."""
    if need > free:
        raise CapacityError(
            f"{what} needs {need} bytes of memory, of which {free} are free; lower the capacity of the SCM tier"
        )


def available_memory() -> int:
    """Return the bytes of memory that can be had without swapping."""
    return _meminfo(Path("/proc/meminfo"))["MemAvailable"]


def _meminfo(path: Path) -> dict[str, int]:
    fields = re.findall(r"([\w()]+):\s+(\d+) kB", path.read_text())
    return {name: int(kibibytes) << 10 for name, kibibytes in fields}


def open_nameless_file(folder: Path) -> IO[bytes]:
    """Open a new file in `folder` that no name leads to, so that it is gone with its last user, however that ends."""
    try:
        return tempfile.TemporaryFile(dir=folder, prefix="mtrains-scm-", buffering=0)
    except OSError as error:
        raise TierIOError(error.errno, f"cannot create the SCM arena in {folder}") from error


def choose_place(path: Path | None, fallback: Path | None, need: int) -> Place:
    """Return the folder that the user named, or the first in memory with room for `need` bytes, or `fallback`.

    Raises: CapacityError if there is no room where the user or `fallback` says; StateError if there is nowhere.
    """
    if path is not None:
        if not path.is_dir():
            raise StateError(f"path={str(path)!r} of the SCM tier is not a folder; create it first")
        place = place_of(path)
    else:
        memory = [place_of(folder) for folder in (*_dax_mounts(), _SHARED_MEMORY) if _usable(folder)]
        found = next((p for p in memory if p.kind and p.free_bytes() >= need), None)
        if found is None and fallback is None:
            raise StateError(
                f"there is no dax file system and no tmpfs with {need} bytes free for the SCM tier; name one by "
                "path=, lower its capacity, or use provider='lmdb', which can lie on a disk"
            )
        place = found or place_of(fallback or _SHARED_MEMORY)
    place.check_room(need, "the SCM tier")
    return place


def place_of(folder: Path) -> Place:
    """Return what kind of place a folder is."""
    kind = _IN_MEMORY.get(file_system_magic(folder), "")
    if not kind:
        with open_nameless_file(folder) as file:
            kind = "dax" if _is_dax(file.fileno()) else ""
    return Place(folder, kind)


def _usable(folder: Path) -> bool:
    return folder.is_dir() and os.access(folder, os.W_OK)


def _dax_mounts() -> list[Path]:
    """Mount points that say dax in their options; other files may be dax too, if the user names them."""
    found = []
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, folder, _, options = line.split()[:4]
        if {"dax", "dax=always"} & set(options.split(",")):
            # Spaces and the like are octal escapes.
            found.append(Path(re.sub(r"\\(\d{3})", lambda match: chr(int(match[1], 8)), folder)))
    return found


def _is_dax(descriptor: int) -> bool:
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(_STATX_BYTES)
    if libc.statx(descriptor, b"", _AT_EMPTY_PATH, 0, buffer) != 0:
        code = ctypes.get_errno()
        raise TierIOError(code, "statx of the SCM arena failed")
    return bool(ctypes.c_uint64.from_buffer(buffer, _STATX_ATTRIBUTES).value & _STATX_ATTR_DAX)


@dataclass(frozen=True)
class NumaNode:
    """A node of memory of this machine. Raises: ValueError if there is none such."""

    number: int

    def __post_init__(self) -> None:
        if not self._folder.is_dir():
            nodes = sorted(int(p.name[4:]) for p in self._folder.parent.glob("node[0-9]*"))
            raise ValueError(
                f"this machine has no NUMA node {self.number}; it has {', '.join(map(str, nodes)) or 'none'}"
            )

    @property
    def _folder(self) -> Path:
        return Path(f"/sys/devices/system/node/node{self.number}")

    def total_bytes(self) -> int:
        """Return the size of the node."""
        return _meminfo(self._folder / "meminfo")["MemTotal"]

    def available_bytes(self) -> int:
        """Return what is free, or holds clean or written-back pages of files."""
        info = _meminfo(self._folder / "meminfo")
        return info["MemFree"] + info["Active(file)"] + info["Inactive(file)"]
