"""Where segments are kept: the interface of the log's containers, and the one over LMDB."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import lmdb
import numpy as np
from numpy.typing import NDArray

from mtrains import _native
from mtrains.errors import FormatError, MtrainsError, TierIOError
from mtrains.tiers.disk_budget import (
    CATALOG_RESERVE_BYTES,
    RESERVE_BYTES,
    SLACK_BYTES,
    DiskBudget,
    GrowingFile,
)
from mtrains.tiers.environment import (
    DATA_FILE,
    LMDB_PAGE_BYTES,
    close_environment,
    commit_error,
    is_full,
    open_environment,
    sync_error,
)
from mtrains.tiers.format_record import FORMAT_KEY, check_format

__all__ = [
    "SEGMENT_PAGES",
    "UNCAPPED_MAP_BYTES",
    "LmdbSegmentContainer",
    "SegmentContainer",
    "locate_segments",
    "segment_key",
]

SEGMENT_PAGES = 256
UNCAPPED_MAP_BYTES = 16 << 40
_DELAY_COMMITS = 2  # LMDB reuses the pages that a transaction freed from the second one after it
# Free pages that single B-tree pages have cut out of runs of 256.
_FRAGMENT_PAGES = 2 * SEGMENT_PAGES


def segment_key(segment_id: int) -> bytes:
    """Return the key of a segment; ids ascend, so nearly every append goes to the end of the tree."""
    return segment_id.to_bytes(8, "big")


def locate_segments(data_path: Path, min_id: int = 0) -> NDArray[np.uint64]:
    """Return [n, 2] of (id, file offset) of the segments with ids >= min_id in a data file, ascending.

    REQUIRES: no other process commits, or the caller has a read transaction.
    """
    located = _native.locate_values(str(data_path), max(min_id, 1))  # 0 is the format record
    wrong = located[:, 2] != _native.SEGMENT_BYTES
    if wrong.any():
        segment_id, _, size = (int(x) for x in located[wrong][0])
        raise FormatError(
            f"segment {segment_id} in {data_path} has {size} bytes, not {_native.SEGMENT_BYTES}"
        )
    return np.ascontiguousarray(located[:, :2])


class SegmentContainer(Protocol):
    """Keeps segments of one size under ascending ids. One thread calls it.

    A call that raises an error for which `is_full` holds has changed nothing and may be repeated. After any
    other error the container must not be used further (storage.md, "a failed sync is final").
    """

    @property
    def data_path(self) -> Path:
        """The file that readers open; offsets of `locate` are offsets in it."""

    def append(
        self, segments: Sequence[tuple[int, NDArray[np.uint8]]], deletes: Sequence[int], *, privileged: bool
    ) -> None:
        """Commit these (id, value) and deletes of ids, all or nothing.

        `privileged` segments may use most of the reserve, deletes alone all of it.
        """

    def locate(self, min_id: int = 0) -> NDArray[np.uint64]:
        """Return [n, 2] of (id, file offset) of the committed segments with ids >= min_id, ascending."""

    def drop_cache(self, offsets: Sequence[int]) -> None:
        """Let the page cache forget the segments at these offsets; they are on the device."""

    def sync(self) -> None:
        """Make every commit so far durable."""

    def free_segments(self) -> int:
        """Return how many segments may be appended without the file growing, now or after `age`."""

    def room_segments(self) -> int:
        """Return for about how many more segments there is room outside the reserve; below 0: that is used."""

    def age(self) -> None:
        """Make the space of segments deleted so far usable; does nothing if it is."""

    def close(self) -> None: ...


class LmdbSegmentContainer:
    """Segments as values of SEGMENT_BYTES in an LMDB environment, and nothing else but a format record."""

    def __init__(self, folder: Path, budget: DiskBudget) -> None:
        map_bytes = UNCAPPED_MAP_BYTES if budget.cap_bytes is None else budget.cap_bytes
        self._environment: lmdb.Environment | None = open_environment(
            folder, map_size=map_bytes, metasync=False
        )
        self.data_path = folder / DATA_FILE
        try:
            self._file = GrowingFile(self.data_path, budget)
        except TierIOError:
            close_environment(self._environment)
            raise
        # Pages freed by the last transactions, which LMDB cannot reuse yet.
        self._resting_pages: deque[int] = deque([0] * _DELAY_COMMITS, maxlen=_DELAY_COMMITS)
        self.commits = 0

    def check_format(self, uuid: str) -> None:
        """Raises: FormatError unless these are the rows of this format and store."""
        check_format(self._open(), FORMAT_KEY, "rows_format", uuid, self.data_path)

    def append(
        self, segments: Sequence[tuple[int, NDArray[np.uint8]]], deletes: Sequence[int], *, privileged: bool
    ) -> None:
        self._allocate(len(segments), privileged)
        self._commit(segments, deletes)

    def locate(self, min_id: int = 0) -> NDArray[np.uint64]:
        return locate_segments(self.data_path, min_id)

    def drop_cache(self, offsets: Sequence[int]) -> None:
        header = LMDB_PAGE_BYTES * SEGMENT_PAGES - _native.SEGMENT_BYTES
        for offset in offsets:
            os.posix_fadvise(
                self._file.descriptor,
                offset - header,
                LMDB_PAGE_BYTES * SEGMENT_PAGES,
                os.POSIX_FADV_DONTNEED,
            )

    def sync(self) -> None:
        try:
            self._open().sync(True)
        except lmdb.Error as error:
            raise sync_error(error, f"syncing {self.data_path}") from error

    def free_segments(self) -> int:
        return self._usable_pages(0) // SEGMENT_PAGES

    def room_segments(self) -> int:
        tail = self._file.allocated_end - (self._open().info()["last_pgno"] + 1) * LMDB_PAGE_BYTES
        usable = self._usable_pages(0) * LMDB_PAGE_BYTES
        room = self._file.possible_growth() + tail + usable - RESERVE_BYTES - SLACK_BYTES
        return room // (SEGMENT_PAGES * LMDB_PAGE_BYTES)

    def age(self) -> None:
        environment = self._open()
        while any(self._resting_pages):
            with environment.begin() as transaction:
                record = transaction.get(FORMAT_KEY)
            assert record is not None
            self._commit((), (), rewrite=record)

    def shrink(self) -> None:
        """Give the reserve at the end of the file back to the disk, for a catalog that needs it more."""
        self._file.shrink((self._open().info()["last_pgno"] + 1) * LMDB_PAGE_BYTES)

    def close(self) -> None:
        if self._environment is not None:
            close_environment(self._environment)
            self._environment = None
            self._file.close()

    def _open(self) -> lmdb.Environment:
        assert self._environment is not None, "the container is closed"
        return self._environment

    def _usable_pages(self, resting: int) -> int:
        """Return the free pages that runs of 256 can surely be found in, but for so many that rest."""
        environment = self._open()
        stat = environment.stat()
        used = stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"] + 2
        free = environment.info()["last_pgno"] + 1 - used - resting
        return max(0, free - free // 16 - _FRAGMENT_PAGES)

    def _allocate(self, num_segments: int, privileged: bool) -> None:
        """Have room for this commit: beyond the file's last page, else in free pages and what is left there.

        The second way counts on LMDB finding runs of 256 pages among those that deleted segments left.
        """
        tail_begin = (self._open().info()["last_pgno"] + 1) * LMDB_PAGE_BYTES
        growth = num_segments * SEGMENT_PAGES * LMDB_PAGE_BYTES
        reserve = SLACK_BYTES
        if num_segments > 0:
            reserve += CATALOG_RESERVE_BYTES if privileged else RESERVE_BYTES
        try:
            self._file.grow(tail_begin + growth + reserve, f"writing {num_segments} segments")
        except MtrainsError as error:
            tail = self._file.allocated_end - tail_begin
            usable = self._usable_pages(sum(self._resting_pages)) * LMDB_PAGE_BYTES
            if not is_full(error) or tail + usable < growth + reserve:
                raise

    def _commit(
        self,
        segments: Sequence[tuple[int, NDArray[np.uint8]]],
        deletes: Sequence[int],
        rewrite: bytes | None = None,
    ) -> None:
        try:
            self._open().reader_check()  # else the snapshot of a reader that was killed would stay
            with self._open().begin(write=True) as transaction:
                # Two streams fill during a checkpoint, so the older one's last segment may come late.
                cursor = transaction.cursor()
                last_key = bytes(cursor.key()) if cursor.last() else b""
                for segment_id, value in sorted(segments, key=lambda segment: segment[0]):
                    key = segment_key(segment_id)
                    if not transaction.put(key, value.data, append=key > last_key, overwrite=False):
                        raise FormatError(f"segment {segment_id} is in {self.data_path} already")
                    last_key = max(last_key, key)
                for segment_id in deletes:
                    transaction.delete(segment_key(segment_id))
                if rewrite is not None:
                    transaction.put(FORMAT_KEY, rewrite)
        except lmdb.Error as error:
            what = f"committing to {self.data_path}"
            raise commit_error(error, self._open(), self._file.descriptor, what) from error
        self.commits += 1
        self._resting_pages.append(len(deletes) * SEGMENT_PAGES)
