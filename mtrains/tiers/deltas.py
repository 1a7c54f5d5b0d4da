"""Deltas of the directory: which rows a checkpoint's epochs appended, and where.

A delta is a numbered run of catalog values: piece 0 describes it, pieces 1.. hold runs of 16-byte units,
little-endian: a head (table u32, zero u32, entries u64), then that many (row u64, location u64), ascending by
row. A run never crosses a piece, so each piece is read alone.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mtrains.errors import FormatError
from mtrains.tiers.catalog import Catalog, CatalogTransaction, numbers_of
from mtrains.tiers.readers import read_state
from mtrains.tiers.records import PAYLOAD_BYTES, Kind, piece_key

__all__ = [
    "DeltaHead",
    "Run",
    "delete_delta",
    "delta_heads",
    "delta_pieces",
    "encode_runs",
    "read_piece",
    "read_runs",
]

UNIT_BYTES = 16
PIECE_UNITS = PAYLOAD_BYTES // UNIT_BYTES
_HEAD = struct.Struct("<QQI")

Run = tuple[int, NDArray[np.uint64], NDArray[np.uint64]]  # table, rows ascending, locations


@dataclass(frozen=True, kw_only=True)
class DeltaHead:
    """Piece 0 of a delta."""

    number: int
    epoch: int
    rows: int
    pieces: int  # after this one

    def to_bytes(self) -> bytes:
        return _HEAD.pack(self.epoch, self.rows, self.pieces)

    @classmethod
    def from_bytes(cls, number: int, payload: bytes) -> DeltaHead:
        if len(payload) != _HEAD.size:
            raise FormatError(f"the catalog's head of delta {number} has a wrong length")
        epoch, rows, pieces = _HEAD.unpack(payload)
        return cls(number=number, epoch=epoch, rows=rows, pieces=pieces)


def encode_runs(runs: Sequence[Run]) -> Iterator[bytes]:
    """Yield the payloads of pieces 1.. for runs ascending by table."""
    parts: list[NDArray[np.uint64]] = []
    room = PIECE_UNITS
    for table, rows, locations in runs:
        begin = 0
        while begin < len(rows):
            if room < 2:
                yield np.concatenate(parts).astype("<u8").tobytes()
                parts, room = [], PIECE_UNITS
            count = min(room - 1, len(rows) - begin)
            part = np.empty((count + 1, 2), np.uint64)
            part[0] = table, count
            part[1:, 0] = rows[begin : begin + count]
            part[1:, 1] = locations[begin : begin + count]
            parts.append(part)
            room -= count + 1
            begin += count
    if parts:
        yield np.concatenate(parts).astype("<u8").tobytes()


def decode_runs(payload: bytes) -> list[Run]:
    """Return the runs of one piece. Raises: FormatError."""
    units = np.frombuffer(payload, "<u8").reshape(-1, 2).astype(np.uint64)
    runs: list[Run] = []
    at = 0
    while at < len(units):
        table, count = int(units[at, 0]), int(units[at, 1])
        entries = units[at + 1 : at + 1 + count]
        if count == 0 or len(entries) != count:
            raise FormatError("a piece of a delta has runs of a wrong length")
        runs.append((table, np.ascontiguousarray(entries[:, 0]), np.ascontiguousarray(entries[:, 1])))
        at += 1 + count
    return runs


def delta_heads(catalog: Catalog) -> list[DeltaHead]:
    """Return the deltas of the catalog, oldest first, without pieces of a checkpoint whose commit never came."""
    heads = []
    end = read_state(catalog).next_checkpoint << 24
    for number in numbers_of(catalog.keys(Kind.DELTA, high=end - 1)):
        payload = catalog.get(piece_key(Kind.DELTA, number, 0))
        if payload is None:
            raise FormatError(f"the catalog lacks the head of delta {number}")
        heads.append(DeltaHead.from_bytes(number, payload))
    return heads


def read_piece(catalog: Catalog, head: DeltaHead, piece: int) -> list[Run]:
    """Return the runs of piece 1.. of a delta. Raises: FormatError if it is missing or damaged."""
    payload = catalog.get(piece_key(Kind.DELTA, head.number, piece))
    if payload is None:
        raise FormatError(f"the catalog lacks piece {piece} of delta {head.number}")
    return decode_runs(payload)


def read_runs(catalog: Catalog, head: DeltaHead) -> Iterator[Run]:
    """Yield the runs of a delta, ascending by table and row; one piece is held at a time."""
    for piece in range(1, head.pieces + 1):
        yield from read_piece(catalog, head, piece)


def delta_pieces(number: int, epoch: int, runs: Sequence[Run]) -> tuple[bytes, Iterator[tuple[bytes, bytes]]]:
    """Return (head payload, (key, payload) of pieces 1..) of a new delta."""
    rows = sum(len(run[1]) for run in runs)
    head = DeltaHead(number=number, epoch=epoch, rows=rows, pieces=_count_pieces(runs))
    pieces = ((piece_key(Kind.DELTA, number, i), p) for i, p in enumerate(encode_runs(runs), start=1))
    return head.to_bytes(), pieces


def _count_pieces(runs: Sequence[Run]) -> int:
    pieces, room = 0, 0
    for _, rows, _ in runs:
        left = len(rows)
        while left > 0:
            if room < 2:
                pieces, room = pieces + 1, PIECE_UNITS
            count = min(room - 1, left)
            room -= count + 1
            left -= count
    return pieces


def delete_delta(transaction: CatalogTransaction, number: int) -> None:
    """Delete a delta within a commit."""
    transaction.delete_pieces(Kind.DELTA, number)
