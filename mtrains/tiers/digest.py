"""One hash over all touched rows."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mtrains import _native

__all__ = ["DigestTable", "digest_rows"]

_CHUNK_BYTES = 4 << 20


@dataclass(frozen=True, kw_only=True)
class DigestTable:
    """A table to digest. head: bytes that come before its rows. stride: bytes of its row records."""

    name: str
    number: int
    num_embeddings: int
    stride: int
    head: bytes


def digest_rows(engine: _native.Engine, tables: Sequence[DigestTable]) -> str:
    """Return the SHA-256, in hex, of the touched rows of tables (docs/exactness.md has the bytes)."""
    digest = hashlib.sha256()
    for table in sorted(tables, key=lambda table: table.name):
        digest.update(table.head)
        entry = np.dtype([("row", "<u8"), ("record", np.uint8, (table.stride,))])
        chunk_rows = max(1, _CHUNK_BYTES // entry.itemsize)
        begin = 0
        while begin < table.num_embeddings:
            rows, begin = engine.touched_rows(table.number, begin, chunk_rows)
            records = np.empty((len(rows), table.stride), np.uint8)
            engine.read_records(table.number, rows, records)
            entries = np.empty(len(rows), entry)
            entries["row"] = rows
            entries["record"] = records
            digest.update(entries.data)
    return digest.hexdigest()
