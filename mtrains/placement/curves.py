"""Concave piecewise linear curves of a table: what the planner optimizes over."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["PlacementCurve", "concave_hull", "placement_curve"]


@dataclass(frozen=True)
class PlacementCurve:
    """Hits and saved page reads a batch over rows held, from (0, 0, 0) to all touched rows.

    Both are concave from the pinned rows on, which are the first segment. hull_gap: by how much, as a share of unique
    rows, the hull lies above the curve it is made of at most. cut_gap: by how much it lies under the hull, for having
    fewer segments.
    """

    rows: NDArray[np.float64]
    hits: NDArray[np.float64]
    pages_saved: NDArray[np.float64]
    hull_gap: float
    cut_gap: float


def concave_hull(x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the least concave function above the points, at their x. REQUIRES: x ascending."""
    kept: list[int] = []
    for i in range(len(x)):
        while len(kept) > 1:
            a, b = kept[-2], kept[-1]
            if (y[b] - y[a]) * (x[i] - x[a]) <= (y[i] - y[a]) * (x[b] - x[a]):
                kept.pop()
            else:
                break
        kept.append(i)
    return np.interp(x, x[kept], y[kept])


def placement_curve(
    rows: NDArray[np.float64],
    hits: NDArray[np.float64],
    pages_saved: NDArray[np.float64],
    *,
    touched_rows: float,
    unique_rows: float,
    max_segments: int,
    pinned_rows: float = 0.0,
) -> PlacementCurve:
    """Return the curve of at most `max_segments` segments under the hulls of both.

    rows: ascending, > 0. A curve that ends before all touched rows is flat from there on.
    pinned_rows: that every placement holds. Below them a curve is seldom concave, and what the first of them would hit
    does not matter: they are one segment, and the hulls begin with what they hit together.
    """
    pinned = min(pinned_rows, touched_rows)
    inside = (rows < touched_rows) & (rows > pinned)
    x = np.unique(np.concatenate([[0.0, pinned], rows[inside], [touched_rows]]))
    if len(x) == 1:  # a table without rows
        x = np.zeros(2)
    raw_hits, raw_pages = (
        np.maximum.accumulate(np.interp(x, [0.0, *rows], [0.0, *values])) for values in (hits, pages_saved)
    )
    first = int(np.searchsorted(x, pinned))
    hull_hits, hull_pages = (
        np.concatenate([raw[:first], concave_hull(x[first:], raw[first:])]) for raw in (raw_hits, raw_pages)
    )
    scale = max(unique_rows, 1e-300)
    hull_gap = float((hull_hits - raw_hits).max() / scale)
    kept, cut_gap = _cut(x, hull_hits / scale, hull_pages / max(hull_pages[-1], 1e-300), max_segments, first)
    return PlacementCurve(x[kept], hull_hits[kept], hull_pages[kept], hull_gap, cut_gap)


def _cut(
    x: NDArray[np.float64], hits: NDArray[np.float64], pages: NDArray[np.float64], max_segments: int, first: int
) -> tuple[list[int], float]:
    """Return the points that leave the least gap, chosen one after another, and the gap of hits.

    first: the point where the curve begins to be concave; it is one of them.
    """
    kept = sorted({0, first, len(x) - 1})
    while True:
        under_hits = hits - np.interp(x, x[kept], hits[kept])
        under = np.maximum(under_hits, pages - np.interp(x, x[kept], pages[kept]))
        if len(kept) > max_segments or under.max() <= 1e-9:
            return kept, float(max(0.0, under_hits.max()))
        kept = sorted({*kept, int(under.argmax())})
