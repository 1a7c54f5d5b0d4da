"""A store looked at without being run and without changing a byte: under its lock, or beside its trainer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import lmdb
import numpy as np
from numpy.typing import NDArray

from mtrains import _native
from mtrains.tiers.catalog import Catalog
from mtrains.tiers.catalog_records import CheckpointRecord
from mtrains.tiers.deltas import Run, delta_heads, read_runs
from mtrains.tiers.environment import DATA_FILE, environment_error
from mtrains.tiers.layout import StoreLayout
from mtrains.tiers.live import reading
from mtrains.tiers.lock import StoreLock
from mtrains.tiers.records import Kind, split_page_key

__all__ = [
    "CheckpointDirectory",
    "View",
    "directories",
    "locate_segments",
    "open_catalog",
    "store_view",
]


@contextmanager
def open_catalog(layout: StoreLayout) -> Iterator[Catalog]:
    """Open the catalog to be read. Raises: FormatError."""
    catalog = Catalog(layout.catalog, None, readonly=True)
    try:
        catalog.check_format(layout.check())
        yield catalog
    except lmdb.Error as error:
        raise environment_error(error, f"reading {layout.catalog}") from error
    finally:
        catalog.close()


@dataclass(frozen=True, kw_only=True)
class View:
    """A store as it is at one moment. in_use: another process, or this one, has it open and may be training it."""

    layout: StoreLayout
    catalog: Catalog
    offsets: dict[int, int]  # of segments, by id
    in_use: bool


@contextmanager
def store_view(path: str | os.PathLike[str]) -> Iterator[View]:
    """See a store under its lock, or, where that is held, in a snapshot of what is committed.

    Raises: StateError if it is no store; FormatError, TierIOError.
    """
    layout = StoreLayout(Path(path))
    uuid = layout.require()
    lock = StoreLock.if_free(layout.folder)
    if lock is None:
        with reading(layout, uuid) as live, live.catalog.snapshot():
            yield View(layout=layout, catalog=live.catalog, offsets=live.locate(), in_use=True)
        return
    try:
        with open_catalog(layout) as catalog:
            yield View(layout=layout, catalog=catalog, offsets=locate_segments(layout), in_use=False)
    finally:
        lock.release()


def locate_segments(layout: StoreLayout) -> dict[int, int]:
    """Return {segment id: file offset} of what rows.lmdb holds. Raises: FormatError, TierIOError."""
    located = _native.locate_values(str(layout.rows / DATA_FILE), 1)
    return dict(zip(located[:, 0].tolist(), located[:, 1].tolist(), strict=True))


class CheckpointDirectory:
    """Where the rows of one checkpoint are. rows ascend in each table."""

    def __init__(self, checkpoint: CheckpointRecord, tables: dict[int, tuple[_Rows, _Rows]]) -> None:
        self.checkpoint = checkpoint
        self.tables = tables  # table number -> (rows, locations)


_Rows = NDArray[np.uint64]


def directories(catalog: Catalog, checkpoints: list[CheckpointRecord]) -> Iterator[CheckpointDirectory]:
    """Yield the directory of each checkpoint, oldest first: the base, and the deltas up to its epoch."""
    tables = _read_base(catalog)
    heads = delta_heads(catalog)
    for checkpoint in checkpoints:
        while heads and heads[0].epoch <= checkpoint.epoch:
            _apply(tables, list(read_runs(catalog, heads.pop(0))))
        yield CheckpointDirectory(checkpoint, dict(tables))


def _read_base(catalog: Catalog) -> dict[int, tuple[_Rows, _Rows]]:
    parts: dict[int, list[tuple[_Rows, _Rows]]] = {}
    for key in catalog.keys(Kind.BASE):
        table, page = split_page_key(key)
        locations = catalog.read_base_page(table, page)
        assert locations is not None
        places = np.flatnonzero(locations).astype(np.uint64)
        rows = places + np.uint64(page * _native.BASE_PAGE_ROWS)
        parts.setdefault(table, []).append((rows, locations[places]))
    return {
        table: (np.concatenate([r for r, _ in pages]), np.concatenate([x for _, x in pages]))
        for table, pages in parts.items()
    }


def _apply(tables: dict[int, tuple[_Rows, _Rows]], runs: list[Run]) -> None:
    """Put newer locations over older ones."""
    newer: dict[int, list[tuple[_Rows, _Rows]]] = {}
    for table, rows, locations in runs:
        newer.setdefault(table, []).append((rows, locations))
    empty = np.empty(0, np.uint64)
    for table, parts in newer.items():
        old_rows, old_locations = tables.get(table, (empty, empty))
        # np.unique keeps the first of equal rows, so the newer ones go first.
        rows = np.concatenate([*(r for r, _ in parts), old_rows])
        locations = np.concatenate([*(x for _, x in parts), old_locations])
        rows, first = np.unique(rows, return_index=True)
        tables[table] = (rows, locations[first])
