"""What a trace says of one table beyond its curves: for people, pictures and reports."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Pairs", "TableStatistics"]

Pairs = tuple[tuple[float, float], ...]
_PAIRS = ("reuse_distance", "working_set", "touched_by_sample", "top_shares")


@dataclass(frozen=True, kw_only=True)
class TableStatistics:
    """Of accesses at one batch size, one a unique row and batch, unless said otherwise.

    Attributes:
        batch_size: samples.
        tracked_rows: rows that were tracked; each beyond the hottest stands for `row_weight` rows. 1: every row was.
        new_share: share of accesses that are first touches.
        reuse_distance: (distance in rows, share of accesses whose distance is below it and not below the one before):
            the distinct other rows used since. An LRU cache of more rows hits them.
        working_set: (last sample + 1 of a part of the trace, distinct rows in that part).
        touched_by_sample: (sample, distinct rows up to there).
        top_shares: (share of the touched rows, share of accesses to the most accessed of them), ascending.
        zipf_exponent: of the law whose shares of top ranks lie nearest.
        zipf_error: by how much they differ at most.
        pages_by_number: 4 KiB pages a row of a batch would take, were rows stored in the order of their numbers.
        hot_drift: share of the first half's accesses to its most accessed hundredth of rows, minus the share of the
            second half's accesses to the same rows.
        hit_drift: mean over the curve of how much hits of all but new rows differ between the halves.
    """

    batch_size: int
    tracked_rows: int
    row_weight: int
    new_share: float
    reuse_distance: Pairs
    working_set: Pairs
    touched_by_sample: Pairs
    top_shares: Pairs
    zipf_exponent: float
    zipf_error: float
    pages_by_number: float
    hot_drift: float
    hit_drift: float

    def __post_init__(self) -> None:
        for name in _PAIRS:
            pairs = tuple((float(x), float(y)) for x, y in getattr(self, name))
            object.__setattr__(self, name, pairs)
            if any(not math.isfinite(x) or not math.isfinite(y) for x, y in pairs):
                raise ValueError(f"{name} of a table must be finite")
            if any(after[0] <= before[0] for before, after in itertools.pairwise(pairs)):
                raise ValueError(f"{name} of a table must ascend")

    def lru_hit_ratio(self, rows: float) -> float:
        """Return the share of accesses that an LRU cache of so many rows hits, linear inside a bin of distances."""
        below, hits = 0.0, 0.0
        for upper, share in self.reuse_distance:
            if rows >= upper:
                hits += share
            else:
                return hits + share * max(0.0, rows - below) / (upper - below)
            below = upper
        return hits

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> TableStatistics:
        """Return what dataclasses.asdict() gave."""
        return cls(**content)
