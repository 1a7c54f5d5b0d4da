"""A LocalityProfile from tracked lookups."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtrains import _native
from mtrains.profiler.mini_simulation import CurveSpec, MeasuredCurve, TrackedBatches, measure_curve
from mtrains.profiler.popularity_fit import fit_zipf, top_shares
from mtrains.profiler.profile import LocalityProfile, TableProfile
from mtrains.profiler.reuse import footprint, reuse_histogram, touched_by, working_set
from mtrains.profiler.table_statistics import TableStatistics
from mtrains.profiler.tracking import LookupTracker, TableLayout

__all__ = ["profile_of"]

_MAX_PARTS = 32  # of a trace, for what is shown over time
_MAX_NUMBER = 1 << 46  # rows of larger numbers are keys, not places in a table (kKeyBits, slot_index.h)


def profile_of(
    tracker: LookupTracker,
    spec: CurveSpec | None = None,
    *,
    source: str = "",
    source_sha256: Sequence[str] = (),
    num_threads: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> LocalityProfile:
    """Return the profile of what the tracker has seen, which it does not change.

    Args:
        spec: of the curves.
        source, source_sha256: what the lookups are from, and hashes of the files.
        num_threads: simulations at once; changes no number.
        progress: called with (tables done, tables) after each.
    Raises: ValueError if nothing was looked up.
    """
    spec = spec or CurveSpec()
    if not any(table.num_lookups for table in tracker.tracked):
        raise ValueError(f"no lookups to profile in {source or 'what was tracked'}")
    made: list[TableProfile] = []
    rates: list[float] = []
    with ThreadPoolExecutor(max_workers=max(1, num_threads)) as pool:
        one = functools.partial(_table_profile, tracker=tracker, spec=spec)
        for profile, rate in pool.map(one, tracker.tables, tracker.tracked):
            made.append(profile)
            rates.append(rate)
            if progress is not None:
                progress(len(made), len(tracker.tables))
    return LocalityProfile(
        tables=tuple(made),
        samples=float(tracker.num_samples),
        sampling_rate=min(rates),
        seed=tracker.spec.seed,
        source=source,
        source_sha256=tuple(source_sha256),
    )


def _table_profile(
    shape: TableLayout, table: _native.TrackedTable, tracker: LookupTracker, spec: CurveSpec
) -> tuple[TableProfile, float]:
    """Return the table's profile and the share of its rows that was tracked."""
    tracked = table.tracked()
    row_weights = np.ones(len(tracked["rows"]))
    row_weights[tracked["num_hot"] :] = tracked["weight"]
    touched = min(int(row_weights.sum()), shape.num_embeddings or int(row_weights.sum()))
    counted = table.num_unique
    middle = tracker.batch_sizes.index(tracker.spec.batch_size)
    measured: list[MeasuredCurve] = []
    kept: TrackedBatches | None = None
    for place, size in enumerate(tracker.batch_sizes):
        batches = _cut(tracked, size, tracker, touched, counted[place] if counted else None)
        points = spec.num_points if place == middle else max(1, spec.num_points * 2 // 3)
        at_size = CurveSpec(lookahead=spec.lookahead, depth=spec.depth, num_points=points)
        measured.append(measure_curve(batches, at_size, shape.rows_per_block))
        kept = batches if place == middle else kept
    assert kept is not None
    profile = TableProfile(
        name=shape.name,
        num_embeddings=shape.num_embeddings or _num_embeddings(table, touched),
        embedding_dim=shape.embedding_dim,
        dtype=shape.dtype,
        touched_rows=touched,
        lookups_per_sample=table.num_lookups / tracker.num_samples,
        footprint=footprint(
            tracked["accesses"],
            tracked["times"],
            tracked["gaps"],
            row_weights,
            -(-tracker.num_samples // tracker.samples_a_unit),
            tracker.samples_a_unit,
        ),
        curves=tuple(one.curve for one in measured),
        statistics=_statistics(table, tracked, row_weights, kept, measured[middle].hit_drift, tracker),
    )
    stood_for = float(row_weights.sum())
    return profile, len(tracked["rows"]) / stood_for if stood_for else 1.0


def _num_embeddings(table: _native.TrackedTable, touched: int) -> int:
    """Return the rows of a table of unknown size: as many as its largest number asks for, or, of keys, the touched."""
    numbers = table.least_row >= 0 and table.largest_row < _MAX_NUMBER
    return max(touched, table.largest_row + 1) if numbers else max(1, touched)


def _cut(
    tracked: dict[str, Any], batch_size: int, tracker: LookupTracker, touched: int, num_accesses: int | None
) -> TrackedBatches:
    units = batch_size // tracker.samples_a_unit
    accesses = tracked["accesses"]
    trace = _native.AccessTrace(
        (accesses >= tracked["num_hot"]).astype(np.uint32) if tracked["weight"] > 1 else np.zeros_like(accesses),
        accesses.astype(np.int64),
        tracked["times"] // np.uint32(units),
        max(1, -(-tracker.num_samples // batch_size)),
    )
    return TrackedBatches(
        trace=trace,
        batch_size=batch_size,
        row_weight=tracked["weight"],
        touched_rows=touched,
        num_accesses=num_accesses,
        num_batches=max(1.0, tracker.num_samples / batch_size),
    )


def _statistics(
    table: _native.TrackedTable,
    tracked: dict[str, Any],
    row_weights: NDArray[np.float64],
    batches: TrackedBatches,
    hit_drift: float,
    tracker: LookupTracker,
) -> TableStatistics:
    weights = batches.access_weights[batches.strata]
    new_share, distances = reuse_histogram(batches.trace.reuse_distances([1, batches.row_weight]), weights)
    rows_of = batches.trace.accesses()
    counts = np.bincount(rows_of, minlength=batches.trace.num_rows).astype(np.float64)
    counted_rows = np.array([1.0, float(batches.row_weight)])[batches.trace.row_tables()]
    exponent, error = fit_zipf(counts, counted_rows)
    num_units = -(-tracker.num_samples // tracker.samples_a_unit)
    edges = np.unique(np.linspace(0, num_units, min(_MAX_PARTS, batches.trace.num_batches) + 1).astype(np.int64))
    ends = (edges[1:] * tracker.samples_a_unit).tolist()
    at_access = row_weights[tracked["accesses"]]
    times, gaps = tracked["times"], tracked["gaps"]
    return TableStatistics(
        batch_size=batches.batch_size,
        tracked_rows=len(row_weights),
        row_weight=batches.row_weight,
        new_share=new_share,
        reuse_distance=distances,
        working_set=tuple(zip(ends, working_set(times, gaps, at_access, edges).tolist(), strict=True)),
        touched_by_sample=tuple(zip(ends, touched_by(times, gaps, at_access, edges).tolist(), strict=True)),
        top_shares=top_shares(counts, counted_rows),
        zipf_exponent=exponent,
        zipf_error=error,
        pages_by_number=table.num_pages / table.num_page_accesses if table.num_page_accesses else 1.0,
        hot_drift=_hot_drift(batches, counted_rows),
        hit_drift=hit_drift,
    )


def _hot_drift(batches: TrackedBatches, row_weights: NDArray[np.float64]) -> float:
    """Return by how much the first half's most accessed hundredth of rows loses share in the second half."""
    middle = int(batches.trace.begins()[batches.trace.num_batches // 2])
    halves = [
        row_weights * np.bincount(part, minlength=len(row_weights))
        for part in np.split(batches.trace.accesses(), [middle])
    ]
    if not all(half.any() for half in halves):
        return 0.0
    order = np.argsort(-halves[0] / row_weights, kind="stable")
    ranks = np.cumsum(row_weights[order])
    hot = order[: max(1, int(np.searchsorted(ranks, 0.01 * ranks[-1], side="right")))]
    shares = [float(half[hot].sum() / half.sum()) for half in halves]
    return shares[0] - shares[1]
