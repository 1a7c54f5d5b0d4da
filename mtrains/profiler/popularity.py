"""Popularity of rows in bins: Zipf's law, and the reuse that Meta published of its tables."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["META_2021_DISTINCT_SHARE", "Popularity", "meta2021", "zipf"]

META_2021_DISTINCT_SHARE = 0.145  # 128,435,723 rows of 887,017,990 indices: meta_locality/2021.txt, dlrm_datasets
_EXACT_RANKS = 1000  # that have a bin of their own
_BINS = 4000


@dataclass(frozen=True)
class Popularity:
    """How often rows are drawn: bins of `counts` rows that have `probabilities` each; draws are independent."""

    counts: NDArray[np.float64]
    probabilities: NDArray[np.float64]

    @property
    def num_rows(self) -> float:
        """Rows that can be drawn."""
        return float(self.counts.sum())

    def footprint(self, draws: float) -> float:
        """Return the expected number of distinct rows in so many draws."""
        absent = draws * np.log1p(-np.minimum(self.probabilities, 1 - 1e-15))
        return float(-(self.counts * np.expm1(absent)).sum())

    def draws_for(self, distinct: float) -> float:
        """Return how many draws have so many distinct rows. REQUIRES: 0 < distinct < num_rows."""
        low, high = 0.0, 1.0
        while self.footprint(high) < distinct:
            low, high = high, high * 4
        for _ in range(100):
            middle = (low + high) / 2
            low, high = (middle, high) if self.footprint(middle) < distinct else (low, middle)
        return high


def zipf(num_rows: float, exponent: float) -> Popularity:
    """Return the law P(rank) ~ rank ** -exponent over `num_rows` ranks, the discrete one.

    The first 1,000 ranks are exact, later ones in 4,000 bins of constant ratio that hold their integral each.
    """
    num_rows = max(1.0, float(num_rows))
    exact = np.arange(1.0, min(_EXACT_RANKS, num_rows) + 1)
    counts, weights = np.ones_like(exact), exact**-exponent
    if num_rows > _EXACT_RANKS:
        edges = np.geomspace(_EXACT_RANKS + 0.5, num_rows + 0.5, _BINS)
        power = 1 - exponent
        mass = np.diff(edges**power) / power if power else np.log(edges[1:] / edges[:-1])
        counts = np.concatenate([counts, np.diff(edges)])
        weights = np.concatenate([weights, mass / np.diff(edges)])
    return Popularity(counts, weights / (weights * counts).sum())


# Rate of a rank by its share of the distinct rows, linear in log-log between these points; fitted so that every bin of
# the published reuse histogram is within 0.01 (meta_locality/2021.txt of github.com/facebookresearch/dlrm_datasets).
_META_SHARES = np.array([1e-6, 1e-4, 1e-3, 1e-2, 0.1, 0.5, 1.6, 4.0])
_META_RATES = np.array([8e4, 3700.0, 480.0, 52.0, 10.0, 1.8, 0.088, 0.077])


def meta2021(lookups: float, bags: float) -> Popularity:
    """Return the popularity of Meta's 2021 tables for a batch of `lookups`: 14.5 % of a batch are distinct rows.

    Of ranks, of which 4 x the distinct rows are in use at a time; rates are capped at the number of bags of a batch.
    """
    distinct = META_2021_DISTINCT_SHARE * lookups
    edges = np.unique(np.concatenate([[0.0], np.geomspace(min(1.0, distinct), 4 * distinct, _BINS)]))
    middles = np.concatenate([[edges[1] / 2], np.sqrt(edges[1:-1] * edges[2:])]) / distinct
    rates = np.exp(np.interp(np.log(middles), np.log(_META_SHARES), np.log(_META_RATES)))
    rates = np.minimum(rates, bags)
    counts = np.diff(edges)
    return Popularity(counts, rates / (rates * counts).sum())
