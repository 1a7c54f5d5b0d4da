"""A store looked at without being run: under its lock, and without changing a byte."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb
import numpy as np
from numpy.typing import NDArray

from mtrains import _native
from mtrains.errors import StateError
from mtrains.tiers.catalog import Catalog
from mtrains.tiers.catalog_records import CheckpointRecord
from mtrains.tiers.deltas import Run, delta_heads, read_runs
from mtrains.tiers.environment import DATA_FILE, environment_error
from mtrains.tiers.layout import StoreLayout
from mtrains.tiers.lock import StoreLock
from mtrains.tiers.records import Kind, split_page_key

__all__ = ["CheckpointDirectory", "directories", "locate_segments", "locked_store", "open_catalog"]


@contextmanager
def locked_store(path: str | os.PathLike[str]) -> Iterator[StoreLayout]:
    """Hold the lock of an existing store. Raises: StateError if it is none, or open; FormatError."""
    layout = StoreLayout(Path(path))
    if not layout.folder.is_dir() or not layout.exists():
        raise StateError(f"{layout.folder} is not a store (it has no store.json)")
    lock = StoreLock(layout.folder)
    try:
        layout.check()
        yield layout
    finally:
        lock.release()


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
