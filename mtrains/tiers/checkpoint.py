"""The live checkpoint: sweep what is owed, wait for its segments, then one commit of the catalog."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

import numpy as np

from mtrains.errors import StateError
from mtrains.tiers.catalog import Catalog, CatalogTransaction
from mtrains.tiers.catalog_records import (
    CheckpointRecord,
    SegmentRecord,
    StoreState,
    TableRecord,
    is_needed,
    retained,
)
from mtrains.tiers.deltas import delete_delta, delta_heads, delta_pieces
from mtrains.tiers.leases import LeaseFile
from mtrains.tiers.readers import read_segments
from mtrains.tiers.records import VALUE_BYTES, Kind, key_of, piece_key

__all__ = [
    "CheckpointDraft",
    "begin_incarnation",
    "change_checkpoints",
    "commit_checkpoint",
    "restore_catalog",
]

# Pieces beyond this are committed ahead of the commit point, under a number that nothing names yet: LMDB
# keeps what a transaction writes in memory.
_COMMIT_BYTES = 32 << 20


@dataclass(frozen=True, kw_only=True)
class CheckpointDraft:
    """A checkpoint that has begun: its record but for the epoch's rows, the caller's bytes, all tables of the
    store."""

    record: CheckpointRecord
    extra: bytes
    tables: tuple[TableRecord, ...]


def commit_checkpoint(
    draft: CheckpointDraft,
    changes: dict[str, Any],
    *,
    catalog: Catalog,
    state: StoreState,
    checkpoints: Sequence[CheckpointRecord],
    stored_tables: Sequence[TableRecord],
    keep: int,
    leases: LeaseFile,
) -> tuple[StoreState, list[CheckpointRecord]]:
    """Commit a checkpoint whose rows are durable; return the new state and checkpoints.

    changes: `Engine.changes(draft.record.epoch)`. Raises: as Catalog.write; the checkpoints are as before
    then.
    """
    record = draft.record
    head, pieces = delta_pieces(record.number, record.epoch, changes["deltas"])
    waiting: list[tuple[bytes, bytes]] = []
    for piece in pieces:
        waiting.append(piece)
        if len(waiting) * VALUE_BYTES >= _COMMIT_BYTES:
            with catalog.write() as transaction:
                for key, payload in waiting:
                    transaction.put(key, payload)
            waiting = []
    new_state = replace(state, next_checkpoint=record.number + 1)
    with dropping([*checkpoints, record], keep, leases) as (kept, dropped), catalog.write() as transaction:
        for key, payload in waiting:
            transaction.put(key, payload)
        transaction.put(piece_key(Kind.DELTA, record.number, 0), head)
        for number, (table, stored) in enumerate(zip_longest(draft.tables, stored_tables)):
            if table is not None and table != stored:
                transaction.put(key_of(Kind.TABLE, number), table.to_bytes())
        _put_segments(transaction, changes)
        transaction.put_pieces(Kind.EXTRA, record.number, draft.extra)
        transaction.put_pieces(Kind.CHECKPOINT, record.number, record.to_bytes())
        _drop_checkpoints(transaction, dropped)
        transaction.put(key_of(Kind.STATE), new_state.to_bytes())
    return new_state, kept


@contextmanager
def dropping(
    checkpoints: Sequence[CheckpointRecord], keep: int, leases: LeaseFile
) -> Iterator[tuple[list[CheckpointRecord], set[int]]]:
    """Yield (the checkpoints to keep, the numbers of those to drop), with which the block makes a commit.

    Kept beside what `retained` says is what a reader has a lease of; nobody gets one of the others meanwhile.
    """
    wanted = {record.number for record in retained(checkpoints, keep)}
    with leases.unread([c.number for c in checkpoints if c.number not in wanted]) as dropped:
        yield [record for record in checkpoints if record.number not in dropped], dropped


def change_checkpoints(
    catalog: Catalog,
    checkpoints: Sequence[CheckpointRecord],
    changed: Sequence[CheckpointRecord],
    keep: int,
    leases: LeaseFile,
) -> list[CheckpointRecord]:
    """Commit changed marks of checkpoints and drop those that nothing keeps now; return what is left."""
    by_number = {record.number: record for record in (*checkpoints, *changed)}
    present = [by_number[number] for number in sorted(by_number)]
    with dropping(present, keep, leases) as (kept, dropped):
        if changed or dropped:
            with catalog.write() as transaction:
                for record in changed:
                    if record.number not in dropped:
                        transaction.put_pieces(Kind.CHECKPOINT, record.number, record.to_bytes())
                _drop_checkpoints(transaction, dropped)
    return kept


def restore_catalog(
    catalog: Catalog,
    state: StoreState,
    checkpoints: Sequence[CheckpointRecord],
    target: CheckpointRecord,
    segments: Sequence[SegmentRecord],
    leases: LeaseFile,
) -> tuple[StoreState, list[CheckpointRecord]]:
    """Commit that `target` is the newest checkpoint, and a new incarnation; return the new state and
    checkpoints.

    Raises: StateError if a reader has a lease of a later checkpoint; nothing has changed then.
    """
    new_state = replace(state, incarnation=state.incarnation + 1)
    later = {record.number for record in checkpoints if record.epoch > target.epoch}
    # Also of checkpoints that were dropped since: a delta lives until it is folded.
    later_deltas = [head.number for head in delta_heads(catalog) if head.epoch > target.epoch]
    with leases.unread(later) as unread, catalog.write() as transaction:
        if read := [record for record in checkpoints if record.number in later - unread]:
            raise StateError(
                f"checkpoint {read[-1].tag!r} (epoch {read[-1].epoch}) is later than {target.tag!r}, so restoring "
                "would drop it, but a read-only store serves it; close that one first, nothing was restored"
            )
        _drop_checkpoints(transaction, later)
        for number in later_deltas:
            delete_delta(transaction, number)
        for segment in segments:
            if segment.epoch > target.epoch:
                transaction.delete(key_of(Kind.SEGMENT, segment.number))
            elif segment.as_of(target.epoch) != segment:
                transaction.put(key_of(Kind.SEGMENT, segment.number), segment.as_of(target.epoch).to_bytes())
        transaction.put(key_of(Kind.STATE), new_state.to_bytes())
    return new_state, [record for record in checkpoints if record.epoch <= target.epoch]


def begin_incarnation(
    catalog: Catalog, state: StoreState, checkpoints: Sequence[CheckpointRecord]
) -> StoreState:
    """Commit a new incarnation at opening; drop pieces of a checkpoint whose commit never came and unneeded
    segments."""
    new_state = replace(state, incarnation=state.incarnation + 1)
    epochs = [record.epoch for record in checkpoints]
    leftovers = [
        key for kind in (Kind.DELTA, Kind.EXTRA) for key in catalog.keys(kind, state.next_checkpoint << 24)
    ]
    unneeded = [segment for segment in read_segments(catalog) if not is_needed(segment, epochs)]
    with catalog.write() as transaction:
        for key in leftovers:
            transaction.delete(key)
        for segment in unneeded:
            transaction.delete(key_of(Kind.SEGMENT, segment.number))
        transaction.put(key_of(Kind.STATE), new_state.to_bytes())
    return new_state


def _put_segments(transaction: CatalogTransaction, changes: dict[str, Any]) -> None:
    superseded: dict[int, list[tuple[int, int]]] = {}
    for number, epoch, rows in np.asarray(changes["superseded"]).reshape(-1, 3).tolist():
        superseded.setdefault(number, []).append((epoch, rows))
    for number in changes["removed"]:
        transaction.delete(key_of(Kind.SEGMENT, int(number)))
    for segment in changes["segments"]:
        number = int(segment["number"])
        record = SegmentRecord(
            number=number,
            segment_id=int(segment["id"]),
            epoch=int(segment["epoch"]),
            rows=int(segment["rows"]),
            used_pages=int(segment["used_pages"]),
            superseded=tuple(superseded.get(number, ())),
        )
        transaction.put(key_of(Kind.SEGMENT, number), record.to_bytes())


def _drop_checkpoints(transaction: CatalogTransaction, numbers: set[int]) -> None:
    for number in numbers:
        transaction.delete_pieces(Kind.CHECKPOINT, number)
        transaction.delete_pieces(Kind.EXTRA, number)
