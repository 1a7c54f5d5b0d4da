"""The catalog: a small LMDB environment whose commits are the commit points of a store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb
import numpy as np
from numpy.typing import NDArray

from mtrains import _native
from mtrains.errors import FormatError, MtrainsError, TierIOError
from mtrains.tiers.commit_points import CommitPoint, PassedPoint, pass_silently
from mtrains.tiers.disk_budget import SLACK_BYTES, DiskBudget, GrowingFile
from mtrains.tiers.environment import (
    DATA_FILE,
    LMDB_PAGE_BYTES,
    close_environment,
    commit_error,
    is_full,
    open_environment,
)
from mtrains.tiers.format_record import check_format
from mtrains.tiers.records import (
    Kind,
    describe_key,
    join,
    key_of,
    open_value,
    page_key,
    piece_key,
    seal_value,
    split,
    split_page_key,
    split_piece_key,
)

__all__ = ["CATALOG_MAP_BYTES", "Catalog", "CatalogTransaction", "numbers_of", "open_base_page"]

CATALOG_MAP_BYTES = 64 << 30
_LAST_LOW = (1 << 56) - 1


class Catalog:
    """Sealed records under the keys of records.py. One thread writes."""

    def __init__(
        self,
        folder: Path,
        budget: DiskBudget | None,
        *,
        make_room: Callable[[], None] = lambda: None,
        passed: PassedPoint = pass_silently,
        readonly: bool = False,
        environment: lmdb.Environment | None = None,
    ) -> None:
        """Open it. `budget` is needed to write; `make_room` is called before an error that the disk is full
        is raised. `environment`: what to read by, if it is open; it stays so."""
        self.data_path = folder / DATA_FILE
        self._owned = environment is None
        self._environment: lmdb.Environment | None = (
            open_environment(folder, map_size=CATALOG_MAP_BYTES, readonly=readonly)
            if environment is None
            else environment
        )
        self._snapshot: lmdb.Transaction[memoryview] | None = None
        self._file: GrowingFile | None = None
        try:
            self._file = None if budget is None else GrowingFile(self.data_path, budget)
        except TierIOError:
            self.close()
            raise
        self._make_room = make_room
        self._passed = passed

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Have every read of the block see the catalog as it was when the block began.

        Pages that commits free meanwhile are not used again before its end, so it should be short.
        """
        assert self._snapshot is None, "snapshots do not nest"
        with self.open_environment.begin(buffers=True) as transaction:
            self._snapshot = transaction
            try:
                yield
            finally:
                self._snapshot = None

    @contextmanager
    def _reading(self) -> Iterator[lmdb.Transaction[memoryview]]:
        if self._snapshot is not None:
            yield self._snapshot
            return
        with self.open_environment.begin(buffers=True) as transaction:
            yield transaction

    def check_format(self, uuid: str) -> None:
        """Raises: FormatError unless this is a catalog of this format and store."""
        check_format(self.open_environment, key_of(Kind.FORMAT), "catalog_format", uuid, self.data_path)

    def get(self, key: bytes) -> bytes | None:
        """Return the payload under `key`, or None. Raises: FormatError if it is damaged."""
        with self._reading() as transaction:
            value = transaction.get(key)
            return None if value is None else open_value(key, value)

    def scan(self, kind: Kind, low: int = 0, high: int = _LAST_LOW) -> Iterator[tuple[bytes, bytes]]:
        """Yield (key, payload) of a kind with low <= low 56 bits <= high, ascending. No transaction lives
        while it waits."""
        key: bytes | None = key_of(kind, low)
        end = key_of(kind, high)
        while key is not None:
            batch: list[tuple[bytes, bytes]] = []
            with self._reading() as transaction, transaction.cursor() as cursor:
                found = cursor.set_range(key)
                key = None
                while found and (present := bytes(cursor.key())) <= end:
                    if len(batch) == 64:
                        key = present
                        break
                    batch.append((present, open_value(present, cursor.value())))
                    found = cursor.next()
            yield from batch

    def keys(self, kind: Kind, low: int = 0, high: int = _LAST_LOW) -> list[bytes]:
        """Return the keys of a kind, values untouched."""
        end = key_of(kind, high)
        with self._reading() as transaction, transaction.cursor() as cursor:
            found = cursor.set_range(key_of(kind, low))
            keys = []
            while found and (key := bytes(cursor.key())) <= end:
                keys.append(key)
                found = cursor.next()
        return keys

    def read_pieces(self, kind: Kind, number: int) -> bytes:
        """Return the byte string that `CatalogTransaction.put_pieces` stored. Raises: FormatError."""
        payloads = [payload for _, payload in self.scan(kind, *piece_range(number))]
        return join(payloads, f"{kind.name} {number}")

    def base_pages(
        self, table: int, first: int = 0, last: int = (1 << 32) - 1
    ) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """Return (pages, file offsets of their values) of a table's pages first..last, ascending."""
        low, high = (int.from_bytes(page_key(table, page), "big") for page in (first, last))
        located = _native.locate_values(str(self.data_path), low, high)
        mask = np.uint64((1 << 32) - 1)
        return np.ascontiguousarray(located[:, 0] & mask), np.ascontiguousarray(located[:, 1])

    def read_base_page(self, table: int, page: int) -> NDArray[np.uint64] | None:
        """Return the locations of a base page (writable copy), or None. Raises: FormatError if it is
        damaged."""
        key = page_key(table, page)
        with self._reading() as transaction:
            value = transaction.get(key)
            return None if value is None else open_base_page(key, value)

    @contextmanager
    def write(self) -> Iterator[CatalogTransaction]:
        """Commit what the block puts and deletes, all or nothing, durably.

        Raises: CapacityError or TierIOError (ENOSPC) with nothing changed; any other error of LMDB is final
        for the store.
        """
        try:
            self.open_environment.reader_check()  # else the snapshot of a reader that was killed would stay
            with self.open_environment.begin(write=True) as raw:
                transaction = CatalogTransaction(raw)
                yield transaction
                self._allocate(transaction.written_bytes)
                self._passed(CommitPoint.CATALOG_STAGED)
        except lmdb.Error as error:
            assert self._file is not None, "the catalog was opened to be read"
            what = f"committing to {self.data_path}"
            raise commit_error(error, self.open_environment, self._file.descriptor, what) from error
        self._passed(CommitPoint.CATALOG_COMMITTED)

    @property
    def open_environment(self) -> lmdb.Environment:
        """The environment; asserts that the catalog is open."""
        assert self._environment is not None, "the catalog is closed"
        return self._environment

    def close(self) -> None:
        if self._environment is not None and self._owned:
            close_environment(self._environment)
            self._environment = None
        if self._file is not None:
            self._file.close()

    def _allocate(self, written_bytes: int) -> None:
        assert self._file is not None, "the catalog was opened to be read"
        end = (self.open_environment.info()["last_pgno"] + 1) * LMDB_PAGE_BYTES + written_bytes + SLACK_BYTES
        try:
            self._file.grow(end, "writing the catalog")
        except MtrainsError as error:
            if not is_full(error):
                raise
            self._make_room()
            self._file.grow(end, "writing the catalog")


class CatalogTransaction:
    """What one commit changes."""

    def __init__(self, raw: lmdb.Transaction[bytes]) -> None:
        self._raw = raw
        self.written_bytes = 0  # at most: values, and a B-tree page for each small one

    def put(self, key: bytes, payload: bytes) -> None:
        """Store a sealed record."""
        self._put(key, seal_value(key, payload))

    def put_pieces(self, kind: Kind, number: int, data: bytes) -> None:
        """Store a byte string of any length; replaces an older one."""
        self.delete_pieces(kind, number)
        for piece, payload in enumerate(split(data)):
            self.put(piece_key(kind, number, piece), payload)

    def put_base_page(self, table: int, page: int, locations: NDArray[np.uint64]) -> None:
        """Store a base page: BASE_PAGE_ROWS locations."""
        self._put(page_key(table, page), seal_base_page(table, page, locations))

    def delete(self, key: bytes) -> None:
        """Delete a record if it is there."""
        self._raw.delete(key)
        self.written_bytes += LMDB_PAGE_BYTES

    def delete_pieces(self, kind: Kind, number: int) -> None:
        """Delete every piece of a byte string."""
        low, high = piece_range(number)
        end = key_of(kind, high)
        with self._raw.cursor() as cursor:
            found = cursor.set_range(key_of(kind, low))
            while found and bytes(cursor.key()) <= end:
                found = cursor.delete() and bool(cursor.key())

    def _put(self, key: bytes, value: bytes) -> None:
        self._raw.put(key, value)
        self.written_bytes += (len(value) + 16 + LMDB_PAGE_BYTES - 1) // LMDB_PAGE_BYTES * LMDB_PAGE_BYTES


def piece_range(number: int) -> tuple[int, int]:
    """Return the lowest and the highest low bits of the pieces of a numbered byte string."""
    return number << 24, (number + 1 << 24) - 1


def seal_base_page(table: int, page: int, locations: NDArray[np.uint64]) -> bytes:
    """Return the value of a base page: CRC32C of the rest, table, page, locations; all little-endian."""
    assert len(locations) == _native.BASE_PAGE_ROWS
    rest = table.to_bytes(4, "little") + page.to_bytes(8, "little") + locations.astype("<u8").tobytes()
    return _native.crc32c(rest).to_bytes(4, "little") + rest


def open_base_page(key: bytes, value: bytes | memoryview) -> NDArray[np.uint64]:
    """Return the locations of a base page, a copy. Raises: FormatError if it is not what was sealed under
    `key`."""
    table, page = split_page_key(key)
    named = table.to_bytes(4, "little") + page.to_bytes(8, "little")
    intact = (
        len(value) == _native.BASE_PAGE_BYTES
        and bytes(value[4:16]) == named
        and _native.crc32c(bytes(value[4:])) == int.from_bytes(value[:4], "little")
    )
    if not intact:
        raise FormatError(
            f"the catalog's {describe_key(key)} is damaged (CRC32C); "
            "`mtrains verify --rebuild` recreates the catalog from the segments"
        )
    return np.frombuffer(bytes(value[16:]), dtype="<u8").astype(np.uint64)


def numbers_of(keys: list[bytes]) -> list[int]:
    """Return the distinct numbers of piece keys, ascending."""
    return sorted({split_piece_key(key)[0] for key in keys})
