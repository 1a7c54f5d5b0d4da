"""What a store on disk holds."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from mtrains import _native
from mtrains.tiers.catalog_records import is_needed
from mtrains.tiers.container import SEGMENT_PAGES
from mtrains.tiers.filesystem import allocated_bytes
from mtrains.tiers.format_record import FORMAT_VERSION
from mtrains.tiers.leases import leased_numbers
from mtrains.tiers.offline import directories, store_view
from mtrains.tiers.readers import read_checkpoints, read_segments, read_state, read_tables

__all__ = ["inspect_store"]


def inspect_store(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return what the store at `path` holds, as its last checkpoint says; changes nothing.

    A store that is being trained is seen in a snapshot of its last commit, for which nobody waits.
    Returns: path, in_use (somebody has it open to train), format, uuid, seed; tables: [{name, num_embeddings,
    embedding_dim, dtype, optimizer (or None), touched_rows, row_bytes, touched_bytes}]; checkpoints: [{tag, epoch,
    step, created, pinned, leased (a read-only store serves it), extra_bytes}], oldest first; segments, live_bytes,
    held_bytes (only older checkpoints need them), dead_bytes (nothing does), disk_bytes: {rows, catalog, total}.
    Raises: StateError if it is not a store; FormatError if it is damaged.
    """
    with store_view(path) as view:
        layout, catalog, stored = view.layout, view.catalog, view.offsets
        state, checkpoints = read_state(catalog), read_checkpoints(catalog)
        touched = np.zeros(len(read_tables(catalog)), np.int64)
        for directory in directories(catalog, checkpoints[-1:]):
            for table, (rows, _) in directory.tables.items():
                touched[table] = len(rows)
        tables = []
        for number, record in enumerate(read_tables(catalog)):
            cuts = checkpoints[-1].tables if checkpoints else ()
            cut = cuts[number] if number < len(cuts) else None
            row_bytes = record.stride(cut.layout if cut else 0)
            tables.append(
                {
                    "name": record.name,
                    "num_embeddings": record.num_embeddings,
                    "embedding_dim": record.embedding_dim,
                    "dtype": record.dtype,
                    "optimizer": cut.optimizer.kind if cut and cut.optimizer else None,
                    "touched_rows": int(touched[number]),
                    "row_bytes": row_bytes,
                    "touched_bytes": int(touched[number]) * row_bytes,
                }
            )
        epochs = [record.epoch for record in checkpoints]
        leased = leased_numbers(layout.leases, [record.number for record in checkpoints])
        live = held = 0.0
        for segment in read_segments(catalog):
            if segment.segment_id not in stored or not is_needed(segment, epochs):
                continue
            size = segment.used_pages / SEGMENT_PAGES * _native.SEGMENT_BYTES
            if segment.rows == 0:
                held += _native.SEGMENT_BYTES
                continue
            live_share = segment.rows_at(epochs[-1]) / segment.rows
            needed_share = max(segment.rows_at(epoch) for epoch in epochs) / segment.rows
            live += live_share * size
            held += (needed_share - live_share) * size
        rows_file, catalog_file = layout.data_files
        return {
            "path": str(layout.folder),
            "in_use": view.in_use,
            "format": FORMAT_VERSION,
            "uuid": state.uuid,
            "seed": state.seed,
            "tables": tables,
            "checkpoints": [
                {
                    "tag": record.tag,
                    "epoch": record.epoch,
                    "step": record.step,
                    "created": record.created,
                    "pinned": record.pinned,
                    "leased": record.number in leased,
                    "extra_bytes": record.extra_bytes,
                }
                for record in checkpoints
            ],
            "segments": len(stored),
            "live_bytes": round(live),
            "held_bytes": round(held),
            "dead_bytes": round(len(stored) * _native.SEGMENT_BYTES - live - held),
            "disk_bytes": {
                "rows": allocated_bytes(rows_file),
                "catalog": allocated_bytes(catalog_file),
                "total": allocated_bytes(rows_file, catalog_file),
            },
        }
