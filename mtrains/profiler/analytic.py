"""Profiles without a trace, from a model of the access pattern."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mtrains.profiler.next_use import next_use_curve
from mtrains.profiler.popularity import meta2021, zipf
from mtrains.profiler.profile import LocalityCurve, TableProfile

__all__ = ["DEFAULT_LIFE", "TableShape", "footprint_table", "meta2021_table", "zipf_table"]

DEFAULT_LIFE = 64  # batches that a rank keeps its row: an assumption, nothing published says
_FOOTPRINT_BATCHES = 2.0 ** np.arange(-2, 11)


@dataclass(frozen=True, kw_only=True)
class TableShape:
    """A table and what a batch asks of it. batch_size: samples of all ranks. lookahead, depth: in batches."""

    name: str
    num_embeddings: int
    embedding_dim: int
    dtype: str = "float32"
    lookups_per_sample: float
    batch_size: int
    lookahead: int = 64
    depth: int = 2
    pages_per_fetch: float = 1.0

    @property
    def lookups_per_batch(self) -> float:
        """Lookups of a batch, duplicates counted."""
        return self.lookups_per_sample * self.batch_size


def footprint_table(shape: TableShape, footprint: Callable[[float], float]) -> TableProfile:
    """Return the profile of a table whose rows were all touched long ago, so that no access is new.

    footprint(w): mean distinct rows of w consecutive batches, w also below 1.
    """
    capacity, misses = next_use_curve(footprint, shape.lookahead, shape.num_embeddings)
    unique = footprint(1.0)
    inside = (capacity > 0) & (capacity < shape.num_embeddings)
    capacity = np.append(capacity[inside], float(shape.num_embeddings))
    fetches = np.append(np.minimum(misses[inside], unique), 0.0)  # a table that is held whole misses nothing
    curve = LocalityCurve(
        policy="next_use",
        lookahead=shape.lookahead,
        depth=shape.depth,
        batch_size=shape.batch_size,
        unique_rows=unique,
        pinned_rows=footprint(shape.depth + 1.0),
        new_rows=0.0,
        capacity_rows=tuple(capacity.tolist()),
        hits=tuple((unique - fetches).tolist()),
        fetches=tuple(fetches.tolist()),
        pages_per_fetch=(shape.pages_per_fetch,) * len(capacity),
    )
    known = [(float(w * shape.batch_size), footprint(float(w))) for w in _FOOTPRINT_BATCHES]
    return TableProfile(
        name=shape.name,
        num_embeddings=shape.num_embeddings,
        embedding_dim=shape.embedding_dim,
        dtype=shape.dtype,
        touched_rows=shape.num_embeddings,
        lookups_per_sample=shape.lookups_per_sample,
        footprint=tuple(known),
        curves=(curve,),
    )


def zipf_table(shape: TableShape, *, exponent: float = 1.05, distinct_share: float | None = None) -> TableProfile:
    """Return the profile of independent draws by Zipf's law.

    distinct_share: unique rows of a batch over its lookups. Where that is known it replaces the law's own: a batch
    counts as so many draws as have that many distinct rows. None takes every lookup as a draw.
    """
    popularity = zipf(shape.num_embeddings, exponent)
    draws = shape.lookups_per_batch
    if distinct_share is not None:
        draws = popularity.draws_for(min(distinct_share * draws, popularity.num_rows * (1 - 1e-6)))
    return footprint_table(shape, lambda batches: popularity.footprint(batches * draws))


def meta2021_table(shape: TableShape, *, life: int = DEFAULT_LIFE) -> TableProfile:
    """Return the profile of Meta's 2021 reuse, each of whose ranks turns to another row every `life` batches.

    In w batches a rank has whole turns and two parts of turns at the ends, of any length alike; a turn of u batches
    shows its row with probability 1 - exp(-rate u). Rows of turns are drawn from the table by a hash.
    """
    popularity = meta2021(shape.lookups_per_batch, shape.batch_size)
    rates = popularity.probabilities * shape.lookups_per_batch
    rows = float(shape.num_embeddings)

    def footprint(batches: float) -> float:
        part = min(batches, float(life))
        seen = -np.expm1(-rates * part)
        ends = 2 / life * (part - seen / rates)  # 2 / life x integral_0^part (1 - exp(-rate u)) du
        turns = abs(batches - life) / life * seen + ends
        return float(rows * -np.expm1((popularity.counts * turns).sum() * np.log1p(-1 / rows)))

    return footprint_table(shape, footprint)
