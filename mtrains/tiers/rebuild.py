"""Recreating a lost or damaged catalog from what the segments say of themselves.

The newest epoch that a segment closes becomes the one checkpoint; docs/file-format.md says what cannot come
back: the callers' `extra` bytes, older checkpoints, and what was undone by a restore after which nothing was
appended.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mtrains import _native
from mtrains.errors import FormatError
from mtrains.tiers.catalog import Catalog
from mtrains.tiers.catalog_records import CheckpointRecord, SegmentRecord, StoreState
from mtrains.tiers.deltas import delta_pieces
from mtrains.tiers.disk_budget import DiskBudget
from mtrains.tiers.environment import DATA_FILE
from mtrains.tiers.filesystem import sync_folder
from mtrains.tiers.layout import StoreLayout, create_catalog
from mtrains.tiers.offline import locate_segments
from mtrains.tiers.records import SEGMENT_SHIFT, Kind, key_of, piece_key
from mtrains.tiers.segment_meta import ClosingMeta, SegmentMeta

__all__ = ["rebuild_catalog"]

_NUMBER = 1  # of the one checkpoint


@dataclass(frozen=True, kw_only=True)
class _Found:
    segment: SegmentRecord
    meta: SegmentMeta
    image: _native.SegmentImage


def rebuild_catalog(layout: StoreLayout) -> None:
    """Replace the catalog; the old one stays as catalog.lmdb.old. REQUIRES: the store's lock is held.

    Raises: FormatError if the segments do not tell a whole state; nothing has changed then.
    """
    uuid = layout.check()
    found = _read_segments(layout, uuid)
    epoch, closing = _newest_closed(found)
    used = [entry for entry in found if entry.segment.epoch <= epoch]
    runs, live = _newest_rows(used)
    record = CheckpointRecord(
        number=_NUMBER,
        epoch=epoch,
        tag=closing.tag,
        step=closing.step,
        created=closing.created,
        extra_bytes=0,
        tables=closing.cuts,
    )
    incarnation = max(entry.segment.segment_id >> 32 for entry in found)
    state = replace(closing.state, uuid=uuid, incarnation=incarnation, next_checkpoint=_NUMBER + 1)
    fresh = layout.folder / "catalog.lmdb.new"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    create_catalog(fresh, uuid, state)
    catalog = Catalog(fresh, DiskBudget(None, ()))
    try:
        _write(catalog, record, closing, state, used, runs, live)
    finally:
        catalog.close()
    sync_folder(fresh)
    old = layout.folder / "catalog.lmdb.old"
    if layout.catalog.exists():
        shutil.rmtree(old, ignore_errors=True)
        os.rename(layout.catalog, old)
    os.rename(fresh, layout.catalog)
    sync_folder(layout.folder)


def _read_segments(layout: StoreLayout, uuid: str) -> list[_Found]:
    """Return all segments whose header can be read, ascending by id."""
    found = []
    for segment_id, offset in sorted(locate_segments(layout).items()):
        try:
            image = _native.read_segment(str(layout.rows / DATA_FILE), offset)
            meta = SegmentMeta.from_bytes(image.meta)
        except FormatError:
            continue  # verify names it
        if meta.uuid != uuid or image.segment_id != segment_id:
            continue
        segment = SegmentRecord(
            number=image.number,
            segment_id=segment_id,
            epoch=image.epoch,
            rows=len(image.rows),
            used_pages=image.used_pages,
        )
        found.append(_Found(segment=segment, meta=meta, image=image))
    return found


def _newest_closed(found: list[_Found]) -> tuple[int, ClosingMeta]:
    closed = [(entry.segment.epoch, entry.meta.closing) for entry in found if entry.meta.closing is not None]
    committed = max((epoch for entry in found for epoch in entry.meta.retained), default=0)
    epoch, closing = max(closed, key=lambda entry: entry[0], default=(0, None))
    if closing is None:
        raise FormatError("no segment closes a checkpoint, so there is no state to rebuild; restore a backup")
    if epoch < committed:
        raise FormatError(
            f"the segment that closes the newest checkpoint (epoch {committed}) is missing or "
            "damaged, and older states "
            "are not whole; restore a backup"
        )
    return epoch, closing


Runs = list[tuple[int, NDArray[np.uint64], NDArray[np.uint64]]]


def _newest_rows(used: list[_Found]) -> tuple[Runs, dict[int, int]]:
    """Return the newest version of every row by (epoch, segment id, place), and how many of them each number
    has."""
    used = sorted(used, key=lambda entry: (entry.segment.epoch, entry.segment.segment_id))
    if not used:
        return [], {}
    tables = np.concatenate([entry.image.tables for entry in used])
    rows = np.concatenate([entry.image.rows for entry in used])
    locations = np.concatenate([entry.image.locations for entry in used])
    runs: Runs = []
    live: dict[int, int] = {}
    for table in np.unique(tables).tolist():
        mine = np.flatnonzero(tables == table)[::-1]  # newest first, of which np.unique keeps the first
        unique, first = np.unique(rows[mine], return_index=True)
        chosen = locations[mine][first]
        runs.append((table, unique, chosen))
        numbers, counts = np.unique(chosen >> np.uint64(SEGMENT_SHIFT), return_counts=True)
        for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
            live[number] = live.get(number, 0) + count
    return runs, live


def _write(
    catalog: Catalog,
    record: CheckpointRecord,
    closing: ClosingMeta,
    state: StoreState,
    used: list[_Found],
    runs: Runs,
    live: dict[int, int],
) -> None:
    head, pieces = delta_pieces(record.number, record.epoch, runs)
    for key, payload in pieces:
        with catalog.write() as transaction:
            transaction.put(key, payload)
    with catalog.write() as transaction:
        transaction.put(piece_key(Kind.DELTA, record.number, 0), head)
        for number, table in enumerate(closing.tables):
            transaction.put(key_of(Kind.TABLE, number), table.to_bytes())
        for entry in used:
            segment = entry.segment
            dead = segment.rows - live.get(segment.number, 0)
            superseded = ((segment.epoch, dead),) if dead else ()
            segment = replace(segment, superseded=superseded)
            transaction.put(key_of(Kind.SEGMENT, segment.number), segment.to_bytes())
        transaction.put_pieces(Kind.EXTRA, record.number, b"")
        transaction.put_pieces(Kind.CHECKPOINT, record.number, record.to_bytes())
        transaction.put(key_of(Kind.STATE), state.to_bytes())
