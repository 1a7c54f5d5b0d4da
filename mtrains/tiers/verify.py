"""Checking every byte of a store that has a meaning; of one that is being trained, every byte of a checkpoint."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mtrains import _native
from mtrains.errors import FormatError, StateError, TierIOError
from mtrains.tiers.catalog import Catalog
from mtrains.tiers.catalog_records import CheckpointRecord, SegmentRecord, is_needed
from mtrains.tiers.environment import DATA_FILE
from mtrains.tiers.layout import StoreLayout
from mtrains.tiers.leases import LeaseFile
from mtrains.tiers.live import newest_of, reading
from mtrains.tiers.lock import StoreLock
from mtrains.tiers.offline import directories, locate_segments, open_catalog
from mtrains.tiers.readers import read_checkpoints, read_segments, read_state, read_tables
from mtrains.tiers.rebuild import rebuild_catalog
from mtrains.tiers.records import SEGMENT_SHIFT, Kind, split_page_key
from mtrains.tiers.segment_meta import SegmentMeta

__all__ = ["Verdict", "check_store", "verify_store"]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What was checked, and what is wrong. served: None if all was; else the one checkpoint that was, because the store
    was open in a process that may be training it."""

    problems: list[str]
    served: CheckpointRecord | None


def verify_store(path: str | os.PathLike[str], *, rebuild: bool = False) -> list[str]:
    """Return what is wrong with a store, a line each, as `check_store` finds it; empty if all is right."""
    return check_store(path, rebuild=rebuild).problems


def check_store(path: str | os.PathLike[str], *, rebuild: bool = False) -> Verdict:
    """Check every block, header and catalog value, and the directory of every checkpoint against the
    segments.

    Of a store that is open elsewhere: the catalog as of its last commit, and the newest checkpoint, kept by a
    lease, with the segments that it needs; the training does not wait.
    `rebuild`: first recreate the catalog from the segments' headers; the old one is kept beside it. Without
    it nothing is changed.
    Raises: StateError if it is not a store, or, to rebuild, open elsewhere or read; FormatError (rebuild) if too
    little is left to rebuild from.
    """
    layout = StoreLayout(Path(path))
    uuid = layout.require()
    lock = StoreLock(layout.folder) if rebuild else StoreLock.if_free(layout.folder)
    if lock is None:
        return _check_served(layout, uuid)
    try:
        if rebuild:
            _rebuild_unread(layout)
        return Verdict(problems=list(_problems(layout)), served=None)
    finally:
        lock.release()


def _rebuild_unread(layout: StoreLayout) -> None:
    """Rebuild the catalog of a locked store. Raises: StateError if a read-only store serves a checkpoint of it."""
    leases = LeaseFile(layout.leases)
    try:
        if not leases.take_all():  # nobody gets one until the rebuild has ended
            raise StateError(
                f"{layout.folder} is open in a read-only store, whose checkpoint a rebuild may not keep; close it first"
            )
        rebuild_catalog(layout)
    finally:
        leases.close()


def _check_served(layout: StoreLayout, uuid: str) -> Verdict:
    with reading(layout, uuid) as live, live.leased(newest_of(layout)) as (lease, _, served):
        offsets = live.locate()
        needed = [s for s in read_segments(live.catalog) if is_needed(s, [served.epoch])]
    try:
        images: dict[int, SegmentEntries] = {}
        problems: list[str] = []
        for segment in needed:
            if segment.segment_id in offsets:
                offset = offsets[segment.segment_id]
                problems += _check_segment(layout, uuid, segment.segment_id, offset, images)
        with reading(layout, uuid) as live, live.catalog.snapshot():
            damaged = list(_damaged_values(live.catalog))
            problems += damaged
            if not damaged:
                problems += _check_catalog(live.catalog, offsets, images, [served])
    finally:
        lease.release()
    return Verdict(problems=problems, served=served)


def _problems(layout: StoreLayout) -> Iterator[str]:
    uuid = layout.check()
    try:
        located = locate_segments(layout)
    except (FormatError, TierIOError) as error:
        yield str(error)
        return
    images: dict[int, SegmentEntries] = {}
    for segment_id, offset in located.items():
        yield from _check_segment(layout, uuid, segment_id, offset, images)
    try:
        with open_catalog(layout) as catalog, catalog.snapshot():
            damaged = list(_damaged_values(catalog))
            yield from damaged
            if not damaged:
                yield from _check_catalog(catalog, located, images, read_checkpoints(catalog))
    except FormatError as error:
        yield str(error)


class SegmentEntries:
    """What a segment's header says of its rows, ascending by location."""

    def __init__(self, image: _native.SegmentImage) -> None:
        order = np.argsort(image.locations, kind="stable")
        self.number = image.number
        self.locations = image.locations[order]
        self.tables = image.tables[order]
        self.rows = image.rows[order]

    def names(self, table: int, rows: NDArray[np.uint64], locations: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Return for each (row, location) whether the segment has this row of the table there."""
        if len(self.locations) == 0:
            return np.zeros(len(rows), np.bool_)
        at = np.minimum(np.searchsorted(self.locations, locations), len(self.locations) - 1)
        found = (self.locations[at] == locations) & (self.rows[at] == rows) & (self.tables[at] == table)
        return np.asarray(found, np.bool_)


def _check_segment(
    layout: StoreLayout, uuid: str, segment_id: int, offset: int, images: dict[int, SegmentEntries]
) -> Iterator[str]:
    path = layout.rows / DATA_FILE
    where = f"segment {segment_id} at offset {offset} of {path}"
    try:
        image = _native.read_segment(str(path), offset)
        if image.segment_id != segment_id:
            yield f"{where}: its header names segment {image.segment_id}"
            return
        if SegmentMeta.from_bytes(image.meta).uuid != uuid:
            yield f"{where}: it belongs to another store"
    except (FormatError, TierIOError) as error:
        yield f"{where}: {error}"
        return
    for block in image.bad_blocks:
        yield f"{where}: block {block} is not what was written (CRC32C or trailer)"
    images[segment_id] = SegmentEntries(image)


def _damaged_values(catalog: Catalog) -> Iterator[str]:
    keys: list[bytes] = []
    for kind in Kind:
        keys += catalog.keys(kind)
    for key in keys:
        try:
            if key[0] == Kind.BASE:
                catalog.read_base_page(*split_page_key(key))
            else:
                catalog.get(key)
        except FormatError as error:
            yield f"{catalog.data_path}: {error}"


def _check_catalog(
    catalog: Catalog,
    located: dict[int, int],
    images: dict[int, SegmentEntries],
    checkpoints: Sequence[CheckpointRecord],
) -> Iterator[str]:
    read_state(catalog)
    num_tables = len(read_tables(catalog))
    for record in checkpoints:
        try:
            extra = catalog.read_pieces(Kind.EXTRA, record.number)
        except FormatError as error:
            yield f"checkpoint {record.tag!r}: {error}"
            continue
        if len(extra) != record.extra_bytes:
            yield f"checkpoint {record.tag!r}: extra has {len(extra)} bytes, not {record.extra_bytes}"
    epochs = [record.epoch for record in checkpoints]
    segments = {s.number: s for s in read_segments(catalog) if is_needed(s, epochs)}
    for segment in segments.values():
        if segment.segment_id not in located:
            yield (
                f"segment {segment.segment_id} (number {segment.number}) is missing, though a checkpoint needs it"
            )
        elif segment.segment_id in images and images[segment.segment_id].number != segment.number:
            yield f"segment {segment.segment_id} has another number than the catalog's {segment.number}"
    yield from _check_directories(catalog, checkpoints, num_tables, segments, images)


def _check_directories(
    catalog: Catalog,
    checkpoints: Sequence[CheckpointRecord],
    num_tables: int,
    segments: dict[int, SegmentRecord],
    images: dict[int, SegmentEntries],
) -> Iterator[str]:
    for directory in directories(catalog, list(checkpoints)):
        checkpoint = directory.checkpoint
        counts: dict[int, int] = {}
        for table, (rows, locations) in directory.tables.items():
            if table >= num_tables:
                yield f"checkpoint {checkpoint.tag!r}: the directory names table number {table}, but there is none"
                continue
            order = np.argsort(locations, kind="stable")
            rows, locations = rows[order], locations[order]
            numbers = (locations >> np.uint64(SEGMENT_SHIFT)).astype(np.int64)
            firsts = np.flatnonzero(np.diff(numbers, prepend=-1))
            for first, last in zip(firsts, [*firsts[1:], len(numbers)], strict=True):
                number = int(numbers[first])
                counts[number] = counts.get(number, 0) + int(last - first)
                segment = segments.get(number)
                entries = images.get(segment.segment_id) if segment is not None else None
                if segment is None:
                    yield (
                        f"checkpoint {checkpoint.tag!r}: {last - first} rows of table number {table} "
                        "are in segment "
                        f"number {number}, which the catalog does not have"
                    )
                elif entries is not None:
                    good = entries.names(table, rows[first:last], locations[first:last])
                    if not good.all():
                        row = int(rows[first:last][~good][0])
                        yield (
                            f"checkpoint {checkpoint.tag!r}: segment {segment.segment_id} does not "
                            f"have row {row} of "
                            f"table number {table} where the directory says ({int((~good).sum())} such rows)"
                        )
        for number, segment in segments.items():
            expected = segment.rows_at(checkpoint.epoch)
            if counts.get(number, 0) != expected:
                yield (
                    f"checkpoint {checkpoint.tag!r}: segment {segment.segment_id} has "
                    f"{counts.get(number, 0)} rows of "
                    f"it, the segment table says {expected}"
                )
