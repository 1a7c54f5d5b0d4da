"""Curves of the real policy from tracked rows, which stand for all rows of a table.

The sample has two strata, simulated together: the hottest rows, one slot each, and a uniform sample of the others, of
which each takes as many slots as rows it stands for. What a stratum hits of its tracked accesses, it hits of all of its
accesses.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mtrains import _native
from mtrains.profiler.profile import LocalityCurve
from mtrains.profiler.reuse import FIRST, pinned_rows

__all__ = ["POLICY", "CurveSpec", "MeasuredCurve", "TrackedBatches", "measure_curve"]

POLICY = "next_use"
_MAX_PINNED_RATIO = 1 / 3  # of the slots, as in training
_MAX_SLOTS = 0x7FFFFFF0


@dataclass(frozen=True, kw_only=True)
class CurveSpec:
    """lookahead, depth: in batches; a lookahead of 0 knows no next use, which is LRU.

    num_points: capacities of a curve, the last of which holds every touched row.
    """

    lookahead: int = 64
    depth: int = 2
    num_points: int = 12

    def __post_init__(self) -> None:
        if not 0 <= self.lookahead < 1 << 31:
            raise ValueError(f"lookahead is a number of batches from 0 on, got {self.lookahead}")
        if not 0 <= self.depth <= _native.MAX_SIMULATED_DEPTH:
            raise ValueError(f"depth is in [0, {_native.MAX_SIMULATED_DEPTH}], got {self.depth}")
        if self.num_points < 1:
            raise ValueError(f"a curve has one point at least, got {self.num_points}")


@dataclass(frozen=True, kw_only=True)
class TrackedBatches:
    """Tracked accesses of a table, cut into batches.

    trace: table 0 of it is the hottest rows, table 1 the others. row_weight: rows that each of these stands for.
    num_accesses: of all rows, summed over batches; None where it was not counted. num_batches: fractional.
    """

    trace: _native.AccessTrace
    batch_size: int
    row_weight: int
    touched_rows: int
    num_accesses: int | None
    num_batches: float
    strata: NDArray[np.uint32] = field(init=False, repr=False)  # of each access

    def __post_init__(self) -> None:
        object.__setattr__(self, "strata", self.trace.row_tables()[self.trace.accesses()])

    @property
    def tracked(self) -> NDArray[np.float64]:
        """Tracked accesses of each stratum."""
        return np.bincount(self.strata, minlength=2).astype(np.float64)

    @property
    def access_weights(self) -> NDArray[np.float64]:
        """How many accesses a tracked one of each stratum stands for."""
        hot, others = self.tracked
        if others == 0 or self.row_weight == 1 or self.num_accesses is None:
            return np.array([1.0, float(self.row_weight)])
        return np.array([1.0, max(1.0, (self.num_accesses - hot) / others)])


@dataclass(frozen=True)
class MeasuredCurve:
    """A curve; and the mean over its capacities of how much hits of all but new rows differ between halves."""

    curve: LocalityCurve
    hit_drift: float


def measure_curve(batches: TrackedBatches, spec: CurveSpec, rows_per_block: int) -> MeasuredCurve:
    """Simulate next use in a window, LRU beyond, at several capacities.

    Pages: each evicted row is written to the log in the order of eviction. Of a sample that order has neighbours which
    are farther apart than in the whole, so the pages of a sampled table are an upper bound.
    """
    weights, tracked = batches.access_weights, batches.tracked
    total = float((weights * tracked).sum())
    times = batches.trace.reuse_times()
    begins = batches.trace.begins().astype(np.int64)
    batch_of = np.repeat(np.arange(len(begins) - 1), np.diff(begins))
    of_access = weights[batches.strata]
    new = min(total, float(of_access[times == FIRST].sum()))
    capacities = _capacities(batches, spec, total / batches.num_batches)
    points = [_Point.simulate(batches, spec, capacity, rows_per_block) for capacity in capacities]
    hits = [float((weights * point.hits).sum()) for point in points]
    pages = [point.pages_per_fetch for point in points]
    if batches.touched_rows > 0:  # a table that is held whole fetches nothing
        capacities.append(batches.touched_rows)
        hits.append(total - new)
        pages.append(pages[-1] if pages else 1.0)
    steps = batches.num_batches
    curve = LocalityCurve(
        policy=POLICY,
        lookahead=spec.lookahead,
        depth=spec.depth,
        batch_size=batches.batch_size,
        unique_rows=total / steps,
        pinned_rows=pinned_rows(batch_of, times, of_access, spec.depth, len(begins) - 1),
        new_rows=new / steps,
        capacity_rows=tuple(float(capacity) for capacity in capacities) or (1.0,),
        hits=tuple(value / steps for value in hits) or (0.0,),
        fetches=tuple(max(0.0, total - new - value) / steps for value in hits) or (0.0,),
        pages_per_fetch=tuple(pages) or (1.0,),
        fetches_std=(*(point.fetches_std for point in points), 0.0),
    )
    return MeasuredCurve(curve, float(np.mean([point.hit_drift for point in points])) if points else 0.0)


def _capacities(batches: TrackedBatches, spec: CurveSpec, unique_rows: float) -> list[int]:
    """Return capacities below the touched rows, at even ratios, from where a batch does not fit."""
    most = min(batches.touched_rows, _MAX_SLOTS)
    least = max(1.0, min(most / 100, unique_rows / 2))
    spaced = np.geomspace(least, max(least, most), max(2, spec.num_points))[:-1]
    return sorted({math.ceil(capacity) for capacity in spaced.tolist() if math.ceil(capacity) < most})


@dataclass(frozen=True)
class _Point:
    """One capacity. hits: of each stratum's tracked accesses. fetches_std: between batches, in rows."""

    hits: NDArray[np.float64]
    pages_per_fetch: float
    fetches_std: float
    hit_drift: float

    @classmethod
    def simulate(cls, batches: TrackedBatches, spec: CurveSpec, capacity: int, rows_per_block: int) -> _Point:
        counts = _native.simulate(
            batches.trace,
            capacity=capacity,
            policy="lru",
            lookahead=spec.lookahead,
            depth=spec.depth,
            evict_after=False,
            lfu_decay=0,
            lfu_remembered=0,
            max_pinned_ratio=_MAX_PINNED_RATIO,
            weights=[1, batches.row_weight],
            rows_per_block=rows_per_block,
        )
        hits = np.zeros(2)
        hits[: len(counts["hits"])] = counts["hits"]
        fetches = int(counts["fetches"].sum())
        by_batch = counts["batches"].astype(np.float64)
        halves = [part[:, [0, 2]].sum(axis=0) for part in np.array_split(by_batch, 2)]
        ratios = [hit / (hit + fetched) for hit, fetched in halves if hit + fetched > 0]
        return cls(
            hits=hits,
            pages_per_fetch=counts["block_reads"] / fetches if fetches else 1.0,
            fetches_std=float(by_batch[:, 2].std()) if len(by_batch) else 0.0,
            hit_drift=abs(ratios[1] - ratios[0]) if len(ratios) == 2 else 0.0,
        )
