"""Whole lists out of the catalog."""

from __future__ import annotations

from mtrains.errors import FormatError
from mtrains.tiers.catalog import Catalog, numbers_of
from mtrains.tiers.catalog_records import CheckpointRecord, SegmentRecord, StoreState, TableRecord
from mtrains.tiers.records import Kind, key_of

__all__ = ["read_checkpoints", "read_segments", "read_state", "read_tables"]


def read_state(catalog: Catalog) -> StoreState:
    """Return the state of the store. Raises: FormatError if it is missing or damaged."""
    payload = catalog.get(key_of(Kind.STATE))
    if payload is None:
        raise FormatError(
            f"{catalog.data_path} lacks the state of the store; `mtrains verify --rebuild` recreates it"
        )
    return StoreState.from_bytes(payload)


def read_checkpoints(catalog: Catalog) -> list[CheckpointRecord]:
    """Return the committed checkpoints, oldest first."""
    numbers = numbers_of(catalog.keys(Kind.CHECKPOINT))
    return [CheckpointRecord.from_bytes(catalog.read_pieces(Kind.CHECKPOINT, number)) for number in numbers]


def read_tables(catalog: Catalog) -> list[TableRecord]:
    """Return the tables by number. Raises: FormatError if a number is missing."""
    found = [(int.from_bytes(key[1:], "big"), payload) for key, payload in catalog.scan(Kind.TABLE)]
    for expected, (number, _) in enumerate(found):
        if number != expected:
            raise FormatError(f"the catalog lacks table number {expected}")
    return [TableRecord.from_bytes(payload) for _, payload in found]


def read_segments(catalog: Catalog) -> list[SegmentRecord]:
    """Return the records of the segment table, ascending by number."""
    return [
        SegmentRecord.from_bytes(int.from_bytes(key[1:], "big"), p) for key, p in catalog.scan(Kind.SEGMENT)
    ]
