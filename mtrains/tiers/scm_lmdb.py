"""The default arena of the byte-addressable tier: values in an LMDB environment of its own."""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path

import lmdb
import numpy as np

from mtrains import _native
from mtrains.errors import TierIOError
from mtrains.tiers.environment import LMDB_PAGE_BYTES, check_library, environment_error
from mtrains.tiers.scm import CHUNK_BYTES, ScmArena
from mtrains.tiers.scm_places import Place, open_nameless_file

__all__ = ["LmdbArena", "lmdb_file_bytes"]

_HEADER_PAGES = 1  # of a value: LMDB's header takes the first 16 bytes, so its page is left out
_TREE_PAGES = 16  # B-tree and free-list pages that one put may take
_MADV_DONTNEED = 4  # asm-generic/mman-common.h


def lmdb_file_bytes(capacity_bytes: int) -> int:
    """Return the largest file that an arena of this capacity makes: its map size."""
    num_chunks = -(-capacity_bytes // CHUNK_BYTES)
    overhead = num_chunks * (_HEADER_PAGES + _TREE_PAGES) + 2
    return capacity_bytes + overhead * LMDB_PAGE_BYTES


class LmdbArena(ScmArena):
    """Chunks as values that are put once and then changed in place, through maps of their pages.

    The environment is opened once, with its full map size, `writemap` and no sync, over a file without a name. It is
    never resized, synced, overwritten or deleted from: any of these may move or free pages that hold rows.
    Before each put the file is allocated beyond the last page that the put can take, since a store of LMDB to
    a page that a full disk cannot give would be SIGBUS.
    """

    def __init__(self, capacity_bytes: int, place: Place) -> None:
        self._place = place
        self._file = open_nameless_file(place.folder)
        where = f"on {place.kind} ({place.folder})" if place.kind else "written back to disk"
        separator = " " if place.kind else ", "
        super().__init__(capacity_bytes, self._file.fileno(), f"lmdb{separator}{where}")
        self._path = f"/proc/self/fd/{self.fd}"
        self._num_chunks = 0
        self._allocated_end = 0
        try:
            self._environment: lmdb.Environment = self._open()
        except BaseException:
            self._file.close()
            raise

    @property
    def disk_files(self) -> tuple[Path, ...]:
        return () if self._place.kind else (Path(self._path),)

    def _open(self) -> lmdb.Environment:
        self._map_bytes = lmdb_file_bytes(self.capacity_bytes)
        what = f"opening the SCM arena in {self._place.folder} ({self._map_bytes} bytes)"
        try:
            environment = lmdb.open(
                self._path,
                subdir=False,
                map_size=self._map_bytes,
                writemap=True,
                sync=False,
                metasync=False,
                lock=False,  # nobody else can open a file without a name
                readahead=False,
                meminit=False,
                lib_version=0,
            )
        except lmdb.Error as error:
            raise environment_error(error, what) from error
        check_library(environment, f"the SCM arena in {self._place.folder}")
        return environment

    def _allocate(self, length: int) -> int:
        value_pages = _HEADER_PAGES + length // LMDB_PAGE_BYTES
        end = (self._environment.info()["last_pgno"] + 1 + value_pages + _TREE_PAGES) * LMDB_PAGE_BYTES
        self._place.allocate(self.fd, self._allocated_end, end)
        self._allocated_end = end
        key = self._num_chunks.to_bytes(8, "big")
        value_bytes = value_pages * LMDB_PAGE_BYTES - 16
        what = f"adding {length} bytes to the SCM arena in {self._place.folder}"
        # Zeros that take no memory: of a private map that nobody writes to.
        with mmap.mmap(-1, value_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as zeros:
            try:
                with memoryview(zeros) as value, self._environment.begin(write=True) as transaction:
                    transaction.put(key, value, append=True, overwrite=False)
            except lmdb.Error as error:
                raise environment_error(error, what) from error
        self._num_chunks += 1
        used = (self._environment.info()["last_pgno"] + 1) * LMDB_PAGE_BYTES
        assert used <= self._allocated_end, "LMDB took more pages than were allocated"
        ((_, offset, size),) = _native.locate_values(self._path, self._num_chunks - 1).tolist()
        assert size == value_bytes, "the value is not the one that was put"
        self._forget_pages(key, int(offset))
        return int(offset) + _HEADER_PAGES * LMDB_PAGE_BYTES - 16

    def _forget_pages(self, key: bytes, offset: int) -> None:
        """Take the pages out of LMDB's own map: slots have their own, and pages in two would count twice as used.

        That map is inherited by forked children, then empty: LMDB would unmap its addresses there at exit.
        """
        with self._environment.begin(buffers=True) as transaction:
            value = transaction.get(key)
            assert value is not None
            base = np.frombuffer(value, np.uint8).ctypes.data - offset
            del value
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.madvise(ctypes.c_void_p(base), ctypes.c_size_t(self._map_bytes), _MADV_DONTNEED) != 0:
            raise TierIOError(ctypes.get_errno(), f"madvise of the SCM arena in {self._place.folder} failed")

    def _close(self) -> None:
        self._environment.close()
        self._file.close()
