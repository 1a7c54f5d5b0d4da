"""From a catalog and a container to an engine that continues at the last checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mtrains import _native
from mtrains.errors import FormatError
from mtrains.tiers.catalog import Catalog
from mtrains.tiers.catalog_records import (
    DTYPE_CODES,
    INIT_CODES,
    CheckpointRecord,
    TableRecord,
    is_needed,
)
from mtrains.tiers.container import SegmentContainer
from mtrains.tiers.deltas import delta_heads, read_runs
from mtrains.tiers.readers import read_segments
from mtrains.tiers.table_key import table_key

__all__ = ["Loaded", "add_table", "load_engine"]


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """What loading found out. orphans: ids of segments that no checkpoint needs, to delete before the first
    append."""

    orphans: tuple[int, ...]
    effective_engine: str


def add_table(
    engine: _native.Engine, record: TableRecord, seed: int, layout: int, budgets: Sequence[int | None] = ()
) -> int:
    """Register a table and its layouts with the engine; return its number. budgets: its own bytes by kind of tier."""
    kind, a, b = record.init
    number = engine.add_table(
        name=record.name,
        num_rows=record.num_embeddings,
        dim=record.embedding_dim,
        dtype=DTYPE_CODES[record.dtype],
        init_kind=INIT_CODES[kind],
        init_a=a,
        init_b=b,
        key=table_key(seed, record.name),
        padding_row=-1 if record.padding_idx is None else record.padding_idx,
        budgets=budgets,
    )
    for state_floats, initial_state in record.layouts[1:]:
        engine.add_layout(number, state_floats, initial_state)
    if layout:
        engine.use_layout(number, layout)
    return number


def load_engine(
    engine: _native.Engine,
    catalog: Catalog,
    container: SegmentContainer,
    checkpoints: Sequence[CheckpointRecord],
    num_tables: int,
    io_engine: str,
) -> Loaded:
    """Load segments, base and deltas into an engine whose tables are registered.

    Raises: FormatError naming a segment that a checkpoint needs and the container lacks.
    """
    effective = engine.open_log(str(container.data_path), io_engine)
    engine.open_base(str(catalog.data_path))
    orphans = _load_segments(engine, catalog, container, [record.epoch for record in checkpoints])
    for table in range(num_tables):
        engine.set_base(table, *catalog.base_pages(table))
    for head in delta_heads(catalog):
        for table, rows, locations in read_runs(catalog, head):
            engine.load_locations(table, rows, locations)
    return Loaded(orphans=orphans, effective_engine=effective)


def _load_segments(
    engine: _native.Engine, catalog: Catalog, container: SegmentContainer, epochs: Sequence[int]
) -> tuple[int, ...]:
    located = container.locate()
    offsets = dict(zip(located[:, 0].tolist(), located[:, 1].tolist(), strict=True))
    needed = [record for record in read_segments(catalog) if is_needed(record, epochs)]
    for record in needed:
        if record.segment_id not in offsets:
            raise FormatError(
                f"segment {record.segment_id} (number {record.number}) of {container.data_path} is "
                "missing, though "
                "a checkpoint needs it; restore the store from a backup"
            )
    superseded = [(r.number, epoch, rows) for r in needed for epoch, rows in r.superseded]
    engine.load_segments(
        np.array([r.number for r in needed], np.uint32),
        np.array([r.segment_id for r in needed], np.uint64),
        np.array([r.epoch for r in needed], np.uint64),
        np.array([r.rows for r in needed], np.uint32),
        np.array([r.used_pages for r in needed], np.uint16),
        np.array([offsets.pop(r.segment_id) for r in needed], np.uint64),
        np.array(superseded, np.uint64).reshape(-1, 3),
    )
    return tuple(sorted(offsets))
