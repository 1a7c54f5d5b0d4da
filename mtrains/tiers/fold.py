"""Folding old deltas into base pages, a few pages a commit.

Only deltas that every retained checkpoint includes are folded. A crash between two commits loses nothing: the
deltas are dropped by the last commit alone, and applying them over base pages that hold their entries already
changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from mtrains import _native
from mtrains.tiers.catalog import Catalog
from mtrains.tiers.deltas import DeltaHead, Run, delete_delta, read_runs
from mtrains.tiers.records import VALUE_BYTES, Kind

__all__ = ["Fold", "foldable"]

_FLOOR_BYTES = 4 << 20
_MAX_DELTAS = 256
_STEP_PAGES = 32


def foldable(heads: Sequence[DeltaHead], oldest_retained: int, base_bytes: int) -> list[DeltaHead]:
    """Return the deltas to fold now: none, or all that the oldest retained checkpoint includes."""
    old = [head for head in heads if head.epoch <= oldest_retained]
    due = sum(head.pieces for head in old) * VALUE_BYTES > max(_FLOOR_BYTES, base_bytes // 2)
    return old if due or len(old) > _MAX_DELTAS else []


class Fold:
    """One fold in progress. `step` until it returns False."""

    def __init__(self, catalog: Catalog, heads: Sequence[DeltaHead]) -> None:
        self._catalog = catalog
        self._heads = tuple(heads)
        self._pages = merge_pages([read_runs(catalog, head) for head in heads])

    @property
    def numbers(self) -> tuple[int, ...]:
        """The deltas that are being folded."""
        return tuple(head.number for head in self._heads)

    def step(self) -> tuple[bool, list[tuple[int, int, int]]]:
        """Commit some pages, or drop the deltas.

        Returns: (whether there is more to do, (table, first page, last page) of the base pages that moved).
        """
        merged = [entry for _, entry in zip(range(_STEP_PAGES), self._pages, strict=False)]
        with self._catalog.write() as transaction:
            for table, page, slots, locations in merged:
                whole = self._catalog.read_base_page(table, page)
                if whole is None:
                    whole = np.zeros(_native.BASE_PAGE_ROWS, np.uint64)
                whole[slots] = locations
                transaction.put_base_page(table, page, whole)
            if not merged:
                for head in self._heads:
                    delete_delta(transaction, head.number)
        moved: dict[int, tuple[int, int]] = {}
        for table, page, _, _ in merged:
            moved[table] = (moved.get(table, (page, page))[0], page)
        return bool(merged), [(table, first, last) for table, (first, last) in moved.items()]


Page = tuple[int, int, NDArray[np.int64], NDArray[np.uint64]]  # table, page, places in it, locations


def merge_pages(deltas: Sequence[Iterator[Run]]) -> Iterator[Page]:
    """Yield for every page that a delta names its entries, ascending by (table, page); later deltas win."""
    streams = [_page_entries(delta) for delta in deltas]
    heads = [next(stream, None) for stream in streams]
    while any(head is not None for head in heads):
        table, page = min(head[:2] for head in heads if head is not None)
        slots: list[NDArray[np.int64]] = []
        locations: list[NDArray[np.uint64]] = []
        for i, stream in enumerate(streams):
            while (head := heads[i]) is not None and head[:2] == (table, page):
                slots.append(head[2])
                locations.append(head[3])
                heads[i] = next(stream, None)
        # numpy assigns in order, so of equal places the last one, the newest delta's, stays.
        yield table, page, np.concatenate(slots), np.concatenate(locations)


def _page_entries(runs: Iterator[Run]) -> Iterator[Page]:
    for table, rows, locations in runs:
        pages = (rows // _native.BASE_PAGE_ROWS).astype(np.int64)
        bounds = np.flatnonzero(np.diff(pages)) + 1
        slots = (rows % _native.BASE_PAGE_ROWS).astype(np.int64)
        parts = zip(
            np.split(pages, bounds), np.split(slots, bounds), np.split(locations, bounds), strict=True
        )
        for page, places, values in parts:
            yield table, int(page[0]), places, values


def base_bytes(catalog: Catalog) -> int:
    """Return the bytes of all base pages."""
    return len(catalog.keys(Kind.BASE)) * VALUE_BYTES
