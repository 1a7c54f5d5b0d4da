"""How unevenly rows are accessed: shares of the top rows, and the Zipf law that lies nearest."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mtrains.profiler.popularity import zipf
from mtrains.profiler.table_statistics import Pairs

__all__ = ["fit_zipf", "top_shares"]

TOP_ROWS = (0.0001, 0.001, 0.01, 0.05, 0.1, 0.2, 0.5)
_RANKS = 64
_MAX_EXPONENT = 3.0

Floats = NDArray[np.float64]


def top_shares(counts: Floats, weights: Floats) -> Pairs:
    """Return (share of rows, share of accesses to the most accessed of them).

    counts: accesses of each tracked row. weights: rows it stands for.
    """
    ranks, shares = _ranked(counts, weights)
    if not len(ranks):
        return ()
    wanted = np.array(TOP_ROWS)
    wanted = wanted[wanted * ranks[-1] >= 1]
    return tuple(zip(wanted.tolist(), np.interp(wanted * ranks[-1], ranks, shares).tolist(), strict=True))


def fit_zipf(counts: Floats, weights: Floats) -> tuple[float, float]:
    """Return (exponent, error): the law of as many rows whose shares of top ranks differ least from these at most.

    Compared at ranks 1 to all, evenly in their logarithm; the error is a share of accesses. (0, 0) for less than two
    rows.
    """
    ranks, shares = _ranked(counts, weights)
    if not len(ranks) or ranks[-1] < 2:
        return 0.0, 0.0
    at = np.geomspace(1, ranks[-1], _RANKS)
    observed = np.interp(at, np.concatenate([[0.0], ranks]), np.concatenate([[0.0], shares]))

    def error(exponent: float) -> float:
        law = zipf(float(ranks[-1]), exponent)
        top = np.concatenate([[0.0], np.cumsum(law.counts)])
        share = np.concatenate([[0.0], np.cumsum(law.counts * law.probabilities)])
        return float(np.abs(np.interp(at, top, share) - observed).max())

    low, high = 0.0, _MAX_EXPONENT
    for _ in range(3):  # a grid, then finer ones about the best
        grid = np.linspace(low, high, 16)
        errors = [error(float(exponent)) for exponent in grid]
        best = int(np.argmin(errors))
        low, high = float(grid[max(0, best - 1)]), float(grid[min(len(grid) - 1, best + 1)])
    return float(grid[best]), errors[best]


def _ranked(counts: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """Return ranks, counted in rows, and the share of accesses up to there; most accessed first."""
    used = counts > 0
    counts, weights = counts[used], weights[used]
    order = np.argsort(-counts, kind="stable")
    ranks = np.cumsum(weights[order])
    accesses = np.cumsum((counts * weights)[order])
    return ranks, accesses / accesses[-1] if len(accesses) else accesses
