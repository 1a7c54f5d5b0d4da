"""The miss-ratio curve of next-use eviction, from footprints: no trace needed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

__all__ = ["next_use_curve"]

_WINDOWS_PER_OCTAVE = 16
_MAX_OCTAVES = 40


def next_use_curve(
    footprint: Callable[[float], float], lookahead: int, total_rows: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return (capacity in rows, misses a batch) of eviction by next use in a window, LRU beyond.

    footprint(w): mean distinct rows of w consecutive batches. With S(w) = footprint(w + 1) - footprint(w), the
    accesses of a batch whose row was not used in the w batches before:
    - a row that is kept when its next use is at most t <= lookahead away hits with reuse times up to t. It is held for
      its reuse time, so by Little's law the cache holds S(0) + .. + S(t - 1) - t S(t) rows, and misses S(t);
    - with more room, rows stay A batches whatever comes, and then go unless their next use is in the window: reuse
      times up to t = A + lookahead hit, and the cache holds S(0) + .. + S(t - 1) - (t - A) S(t).
    Derived here; tests/profiler/test_next_use.py holds it against a simulation. Rows are taken as used at random.
    """
    long = np.geomspace(max(1, lookahead), max(1, lookahead) * 2.0**_MAX_OCTAVES, _MAX_OCTAVES * _WINDOWS_PER_OCTAVE)
    times = np.unique(np.concatenate([np.rint(np.linspace(0, lookahead, 65)), long]))
    known = np.array([footprint(time) for time in times])
    misses = np.array([footprint(time + 1) for time in times]) - known
    enough = np.flatnonzero(known >= total_rows * (1 - 1e-9))
    end = int(enough[0]) + 1 if len(enough) else len(times)
    times, misses = times[:end], np.minimum.accumulate(np.maximum(misses[:end], 0.0))
    area = np.concatenate([[0.0], np.cumsum(np.diff(times) * (misses[1:] + misses[:-1]) / 2)])
    held = area + (misses[0] - misses) / 2  # the sum of S over whole batches, from its trapezoids
    stay = np.maximum(times - lookahead, 0.0)
    capacity = np.maximum.accumulate(held - (times - stay) * misses)
    capacity = np.minimum(capacity, total_rows)
    keep = np.concatenate([np.diff(capacity) > 0, [True]])  # of equal capacities, the last
    capacity, misses = capacity[keep], misses[keep]
    if capacity[0] > 0:  # misses[0] is of no room: every access
        capacity, misses = np.concatenate([[0.0], capacity]), np.concatenate([[footprint(1.0)], misses])
    return capacity, misses
