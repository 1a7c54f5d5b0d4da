"""From a catalog and segments to an engine: to go on at the last checkpoint, or to serve one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mtrains import _native
from mtrains.errors import FormatError
from mtrains.tiers.catalog import Catalog
from mtrains.tiers.catalog_records import (
    DTYPE_CODES,
    INIT_CODES,
    CheckpointRecord,
    SegmentRecord,
    TableRecord,
    is_needed,
)
from mtrains.tiers.container import SegmentContainer
from mtrains.tiers.deltas import delta_heads, read_runs
from mtrains.tiers.readers import read_segments
from mtrains.tiers.records import Kind, split_page_key
from mtrains.tiers.table_key import table_key

__all__ = ["Loaded", "add_table", "load_checkpoint", "load_engine"]


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
    located = container.locate()
    offsets = dict(zip(located[:, 0].tolist(), located[:, 1].tolist(), strict=True))
    epochs = [record.epoch for record in checkpoints]
    needed = [record for record in read_segments(catalog) if is_needed(record, epochs)]
    _load_segments(engine, needed, offsets, container.data_path)
    for table in range(num_tables):
        engine.set_base(table, *catalog.base_pages(table))
    for head in delta_heads(catalog):
        for table, rows, locations in read_runs(catalog, head):
            engine.load_locations(table, rows, locations)
    return Loaded(orphans=tuple(sorted(offsets)), effective_engine=effective)


def load_checkpoint(
    engine: _native.Engine,
    catalog: Catalog,
    offsets: dict[int, int],
    data_path: Path,
    checkpoint: CheckpointRecord,
    io_engine: str,
) -> str:
    """Load the directory of one checkpoint, all of it, into an engine whose tables are registered.

    Nothing is read from the catalog afterwards, which may change. offsets: of segments in `data_path`, by id.
    Returns: the effective io engine. REQUIRES: a snapshot of the catalog that has the checkpoint.
    Raises: as load_engine.
    """
    effective = engine.open_log(str(data_path), io_engine)
    epoch = checkpoint.epoch
    needed = [record.as_of(epoch) for record in read_segments(catalog) if is_needed(record, [epoch])]
    _load_segments(engine, needed, offsets, data_path)
    for key in catalog.keys(Kind.BASE):
        table, page = split_page_key(key)
        locations = catalog.read_base_page(table, page)
        assert locations is not None
        places = np.flatnonzero(locations)
        rows = places.astype(np.uint64) + np.uint64(page * _native.BASE_PAGE_ROWS)
        engine.load_locations(table, rows, locations[places])
    for head in delta_heads(catalog):
        if head.epoch <= epoch:
            for table, rows, locations in read_runs(catalog, head):
                engine.load_locations(table, rows, locations)
    return effective


def _load_segments(
    engine: _native.Engine, needed: Sequence[SegmentRecord], offsets: dict[int, int], data_path: Path
) -> None:
    """Load these segments, and take them out of `offsets`."""
    for record in needed:
        if record.segment_id not in offsets:
            raise FormatError(
                f"segment {record.segment_id} (number {record.number}) of {data_path} is missing, though "
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
