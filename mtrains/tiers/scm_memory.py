"""Arenas of the byte-addressable tier over one plain file: in a file system in memory, or without one."""

from __future__ import annotations

import ctypes
import mmap
import os
import platform

from mtrains.errors import CapacityError, StateError, TierIOError
from mtrains.tiers.scm import ScmArena
from mtrains.tiers.scm_places import NumaNode, Place, available_memory, check_memory, open_nameless_file

__all__ = ["AnonymousArena", "FileArena"]

_MBIND = {"x86_64": 237, "aarch64": 235}  # its number, from the kernel's system call tables
_MPOL_BIND = 2  # linux/mempolicy.h
_WORD_BITS = 64


class FileArena(ScmArena):
    """One file without a name on a dax file system or tmpfs, allocated chunk by chunk."""

    def __init__(self, capacity_bytes: int, place: Place) -> None:
        if not place.kind:
            raise StateError(
                f"provider='file' needs a dax file system or tmpfs, and {place.folder} is neither; "
                "use provider='lmdb', which can lie on a disk"
            )
        self._place = place
        self._file = open_nameless_file(place.folder)
        super().__init__(capacity_bytes, self._file.fileno(), f"file on {place.kind} ({place.folder})")

    def _allocate(self, length: int) -> int:
        offset = self.given_bytes
        self._place.allocate(self.fd, offset, offset + length)
        return offset

    def _close(self) -> None:
        self._file.close()


class AnonymousArena(ScmArena):
    """Shared memory without a file system (memfd), all of it from one NUMA node if there is one to take."""

    def __init__(self, capacity_bytes: int, node: NumaNode | None) -> None:
        self._node = node
        total, where = available_memory(), ""
        if node is not None:
            total, where = node.total_bytes(), f" on NUMA node {node.number}"
        if capacity_bytes > total:
            raise CapacityError(
                f"the SCM tier needs {capacity_bytes} bytes of memory{where}, which has {total}; lower its capacity"
            )
        try:
            fd = os.memfd_create("mtrains-scm", os.MFD_CLOEXEC)
        except OSError as error:
            raise TierIOError(error.errno, "cannot create the memory of the SCM arena") from error
        super().__init__(capacity_bytes, fd, f"anonymous memory{where}")

    def _allocate(self, length: int) -> int:
        offset = self.given_bytes
        free = available_memory() if self._node is None else self._node.available_bytes()
        what = "growing the SCM arena" + ("" if self._node is None else f" on NUMA node {self._node.number}")
        check_memory(free, length, what)
        try:
            if self._node is not None:
                os.ftruncate(self.fd, offset + length)
                _bind(self.fd, offset, length, self._node.number)
            os.posix_fallocate(self.fd, offset, length)
        except OSError as error:
            if isinstance(error, TierIOError):
                raise
            raise TierIOError(error.errno, f"{what} needs {length} more bytes, {free} are free") from error
        return offset

    def _close(self) -> None:
        os.close(self.fd)


def _bind(fd: int, offset: int, length: int, node: int) -> None:
    """Have the pages of a part of a memfd come from this node only.

    The policy that mbind sets through a shared map belongs to the file, so it holds for other maps too.
    """
    number = _MBIND.get(platform.machine())
    if number is None:
        raise StateError(f"numa_node= is not known on {platform.machine()}; leave it out")
    words = node // _WORD_BITS + 1
    mask = (ctypes.c_ulong * words)()
    mask[node // _WORD_BITS] = 1 << node % _WORD_BITS
    libc = ctypes.CDLL(None, use_errno=True)
    with mmap.mmap(fd, length, offset=offset) as shared:
        first = ctypes.c_char.from_buffer(shared)
        address = ctypes.addressof(first)
        del first
        # One bit more than there are: the kernel leaves the last one out.
        result = libc.syscall(
            ctypes.c_long(number),
            ctypes.c_void_p(address),
            ctypes.c_ulong(length),
            ctypes.c_int(_MPOL_BIND),
            mask,
            ctypes.c_ulong(words * _WORD_BITS + 1),
            ctypes.c_uint(0),
        )
    if result != 0:
        raise TierIOError(ctypes.get_errno(), f"binding {length} bytes of the SCM arena to NUMA node {node} failed")
