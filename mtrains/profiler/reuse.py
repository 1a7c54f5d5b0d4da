"""Footprints, reuse distances and working sets of tracked accesses.

Shapes: n accesses. Weights say for how many rows an access's row stands.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mtrains.profiler.table_statistics import Pairs

__all__ = ["FIRST", "footprint", "pinned_rows", "reuse_histogram", "touched_by", "working_set"]

FIRST = np.uint32(0xFFFFFFFF)  # a gap or a time: there was no access before
_NO_DISTANCE = np.uint64(0xFFFFFFFFFFFFFFFF)
_POINTS_PER_OCTAVE = 8
_BINS_PER_OCTAVE = 4

Floats = NDArray[np.float64]
Numbers = NDArray[np.uint32]


def footprint(
    accesses: Numbers, times: Numbers, gaps: Numbers, row_weights: Floats, num_units: int, samples_a_unit: int
) -> Pairs:
    """Return (samples, mean distinct rows in that many consecutive ones), 8 points an octave.

    Of num_units - w + 1 windows of w units, a row is absent from gap - w of those inside each of its gaps, and
    likewise before its first and after its last access (Xiang et al., HOTL, ASPLOS 2013, equation 5).
    """
    if not len(accesses):
        return ()
    octaves = np.arange(0, np.log2(max(1, num_units)), 1 / _POINTS_PER_OCTAVE)
    windows = np.unique(np.concatenate([np.rint(2.0**octaves), [num_units]]))
    first = gaps == FIRST
    last = np.zeros(len(row_weights))
    last[accesses] = times.astype(np.float64) + 1  # of equal indices numpy keeps the last
    touched = last > 0
    lengths = np.concatenate([gaps[~first], times[first].astype(np.float64) + 1, num_units + 1 - last[touched]])
    weights = np.concatenate([row_weights[accesses[~first]], row_weights[accesses[first]], row_weights[touched]])
    # absent(w) = sum over lengths > w of weight x (length - w): sums of the lengths above each window, from the top.
    place = np.searchsorted(windows, lengths, side="left")  # windows[:place] < length
    count = np.bincount(place, weights, len(windows) + 1)[::-1].cumsum()[::-1]
    total = np.bincount(place, weights * lengths, len(windows) + 1)[::-1].cumsum()[::-1]
    absent = total[1:] - count[1:] * windows
    rows = row_weights[touched].sum() - absent / (num_units - windows + 1)
    rows = np.maximum.accumulate(np.maximum(rows, 0.0))
    return tuple(zip((windows * samples_a_unit).tolist(), rows.tolist(), strict=True))


def reuse_histogram(distances: NDArray[np.uint64], weights: Floats) -> tuple[float, Pairs]:
    """Return (share of first touches, (distance in rows, share of accesses below it)), 4 bins an octave."""
    total = float(weights.sum())
    if total <= 0:
        return 0.0, ()
    new = distances == _NO_DISTANCE
    known = distances[~new].astype(np.float64)
    octaves = np.arange(0, np.log2(known.max(initial=1.0) + 1) + 1, 1 / _BINS_PER_OCTAVE)
    uppers = np.unique(np.ceil(2.0**octaves))
    place = np.searchsorted(uppers, known, side="right")
    shares = np.bincount(place, weights[~new], len(uppers)) / total
    used = int(np.flatnonzero(shares).max(initial=-1)) + 1
    return float(weights[new].sum()) / total, tuple(zip(uppers[:used].tolist(), shares[:used].tolist(), strict=True))


def pinned_rows(batches: NDArray[np.int64], times: Numbers, weights: Floats, depth: int, num_batches: int) -> float:
    """Return the distinct rows of depth + 1 successive batches, the 99.9th percentile.

    batches: of each access. times: batches since its row's access before, or FIRST.
    """
    if not len(batches):
        return 0.0
    span = min(depth + 1, num_batches)
    union = np.zeros(num_batches - span + 1)
    for offset in range(span):
        fresh = times > offset  # not in the `offset` batches before: counts in a window that began there
        union += np.bincount(batches[fresh], weights[fresh], num_batches)[offset : offset + len(union)]
    return float(np.quantile(union, 0.999, method="higher"))


def working_set(times: Numbers, gaps: Numbers, weights: Floats, edges: NDArray[np.int64]) -> Floats:
    """Return the distinct rows in each part; edges: of the parts, in units, ascending from 0."""
    part = np.searchsorted(edges, times, side="right") - 1
    fresh = gaps.astype(np.int64) > times - edges[part]
    return np.bincount(part[fresh], weights[fresh], len(edges) - 1).astype(np.float64)


def touched_by(times: Numbers, gaps: Numbers, weights: Floats, edges: NDArray[np.int64]) -> Floats:
    """Return the distinct rows from the begin to the end of each part."""
    first = gaps == FIRST
    part = np.searchsorted(edges, times[first], side="right") - 1
    rows: Floats = np.bincount(part, weights[first], len(edges) - 1).astype(np.float64).cumsum()
    return rows
