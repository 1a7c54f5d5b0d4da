"""Checking every byte of a store that has a meaning."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from mtrains import _native
from mtrains.errors import FormatError, TierIOError
from mtrains.tiers.catalog import Catalog, open_base_page
from mtrains.tiers.catalog_records import CheckpointRecord, SegmentRecord, is_needed
from mtrains.tiers.environment import DATA_FILE
from mtrains.tiers.layout import StoreLayout
from mtrains.tiers.offline import directories, locate_segments, locked_store, open_catalog
from mtrains.tiers.readers import read_checkpoints, read_segments, read_state, read_tables
from mtrains.tiers.rebuild import rebuild_catalog
from mtrains.tiers.records import SEGMENT_SHIFT, Kind, open_value
from mtrains.tiers.segment_meta import SegmentMeta

__all__ = ["verify_store"]


def verify_store(path: str | os.PathLike[str], *, rebuild: bool = False) -> list[str]:
    """Check every block, header and catalog value, and the directory of every checkpoint against the
    segments.

    `rebuild`: first recreate the catalog from the segments' headers; the old one is kept beside it. Without
    it nothing is changed. Returns: what is wrong, a line each; empty if all is right.
    Raises: StateError if it is not a store or open elsewhere; FormatError (rebuild) if too little is left to
    rebuild from.
    """
    with locked_store(path) as layout:
        if rebuild:
            rebuild_catalog(layout)
        return list(_problems(layout))


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
        with open_catalog(layout) as catalog:
            damaged = list(_damaged_values(catalog))
            yield from damaged
            if not damaged:
                yield from _check_catalog(catalog, located, images)
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
        with catalog.open_environment.begin(buffers=True) as transaction:
            value = transaction.get(key)
            assert value is not None
            try:
                if key[0] == Kind.BASE:
                    open_base_page(key, value)
                else:
                    open_value(key, value)
            except FormatError as error:
                yield f"{catalog.data_path}: {error}"


def _check_catalog(
    catalog: Catalog, located: dict[int, int], images: dict[int, SegmentEntries]
) -> Iterator[str]:
    read_state(catalog)
    checkpoints, num_tables = read_checkpoints(catalog), len(read_tables(catalog))
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
