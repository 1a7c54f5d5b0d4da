"""Bytes that rows take: in a slot, in the log, on a medium of coarse granules; and of the directory."""

from __future__ import annotations

import math

from mtrains.placement.workload import OPTIMIZER_STATES

__all__ = [
    "PAGE_BYTES",
    "WINDOW_ID_BYTES",
    "directory_bytes",
    "granule_bytes",
    "log_bytes",
    "record_bytes",
]

PAGE_BYTES = 4096  # a block of the log
WINDOW_ID_BYTES = 8  # of a unique row of a batch in the lookahead window
_BLOCK_TRAILER_BYTES = 16  # native/include/mtrains/segment_format.h
_DIRECTORY_ENTRY_BYTES = 8
_DIRECTORY_CHUNK_ROWS = 512  # native/include/mtrains/directory.h: kChunkRows


def record_bytes(embedding_dim: int, weight_bytes: int, optimizer: str) -> int:
    """Return the bytes of a row: weights, padded to 4 bytes, and float32 state (record_layout.h)."""
    constant, per_column = OPTIMIZER_STATES[optimizer]
    return -(-embedding_dim * weight_bytes // 4) * 4 + 4 * (constant + per_column * embedding_dim)


def log_bytes(record: int) -> float:
    """Return a row's share of the log's blocks, which hold whole rows; long rows take several blocks."""
    room = PAGE_BYTES - _BLOCK_TRAILER_BYTES
    return PAGE_BYTES / (room // record) if record <= room else float(-(-record // room) * PAGE_BYTES)


def granule_bytes(record: int, granule: int) -> int:
    """Return the bytes that a medium moves for one record."""
    return -(-record // granule) * granule


def directory_bytes(num_embeddings: int, touched_rows: float) -> float:
    """Return the directory's bytes when so many rows, anywhere in the table, were touched: whole chunks of 512 rows.

    The expected number of chunks; all of them if all rows are touched.
    """
    chunks = -(-num_embeddings // _DIRECTORY_CHUNK_ROWS)
    if chunks == 0 or touched_rows <= 0:
        return 0.0
    if touched_rows >= num_embeddings or chunks == 1:
        touched = float(chunks)
    else:
        touched = -chunks * math.expm1(touched_rows * math.log1p(-1 / chunks))
    return touched * _DIRECTORY_CHUNK_ROWS * _DIRECTORY_ENTRY_BYTES
