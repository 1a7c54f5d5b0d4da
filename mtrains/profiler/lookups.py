"""Lookups as a stream: what sources of data give and what a profile is measured of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mtrains.profiler.tracking import LookupTracker

__all__ = ["LookupSource", "Stretch", "by_table", "track"]

TableLookups = tuple[int, NDArray[np.int64], NDArray[np.int64]]  # number of the table, rows, samples


@dataclass(frozen=True)
class Stretch:
    """Lookups of some samples, of each table in ascending order. num_samples: so many are complete, from the first."""

    lookups: Sequence[TableLookups]
    num_samples: int


class LookupSource(Protocol):
    """A stream of lookups in tables that are known before it is read."""

    @property
    def tables(self) -> tuple[str, ...]: ...
    def read(self) -> Iterator[Stretch]: ...


def by_table(
    table: NDArray[np.integer], rows: NDArray[np.int64], samples: NDArray[np.int64]
) -> Iterator[TableLookups]:
    """Yield the lookups of each table that has some, their order kept."""
    order = np.argsort(table, kind="stable")
    ordered = table[order]
    starts = np.flatnonzero(np.diff(ordered, prepend=-1))
    for begin, end in zip(starts, [*starts[1:], len(ordered)], strict=True):
        part = order[begin:end]
        yield int(ordered[begin]), rows[part], samples[part]


def track(
    stretches: Iterable[Stretch],
    tracker: LookupTracker,
    *,
    max_samples: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Track what a source gives, until it ends, its samples are `max_samples` or the tracker is full.

    progress: called with the number of samples after each stretch.
    """
    for stretch in stretches:
        end = stretch.num_samples
        if max_samples is not None and end >= max_samples:
            end = max_samples
        for table, rows, samples in stretch.lookups:
            count = len(rows) if max_samples is None else int(np.searchsorted(samples, max_samples))
            tracker.add(table, rows[:count], samples[:count])
        tracker.end_samples(end)
        if progress is not None:
            progress(tracker.num_samples)
        if tracker.full or end == max_samples:
            return
