"""What a placement allocates: whole tables need no index."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mtrains.placement.cost import Placement
from mtrains.placement.problem import Array, Problem

__all__ = ["Allocation", "allocate"]

_MAX_RESIDENT_ROWS = 2**32 - 1


@dataclass(frozen=True)
class Allocation:
    """rows[J, K] and slot_bytes[J, K] as a store has them; index_bytes[J, K] of those. resident[J]: held whole."""

    rows: Array
    slot_bytes: Array
    index_bytes: Array
    resident: NDArray[np.bool_]


def allocate(problem: Problem, placement: Placement) -> Allocation:
    """Return what a store allocates for the placement, never more bytes than the placement has.

    Where DRAM computes, a table whose budget takes all its rows without an index is held so
    (native/src/row_store_tables.cpp): for the bytes of almost all rows with an index it has all of them. The price
    of the placement does not count on that: it would make more memory look slower where it ends.
    """
    sizes = np.array([table.num_embeddings for table in problem.profile.tables], dtype=float)
    whole = sizes * problem.record
    fits = (placement.rows[:, 0] * problem.slot >= whole) & (sizes > 0) & (sizes < _MAX_RESIDENT_ROWS)
    resident = fits & (problem.topology.slots[0].tier == "dram")
    rows = placement.rows.copy()
    rows[resident, 0], rows[resident, 1:] = np.ceil(problem.rows[resident]), 0.0
    index = rows * (problem.slot - problem.record)[:, None]
    index[resident] = 0.0
    slots = rows * problem.record[:, None] + index
    slots[resident, 0] = whole[resident]
    return Allocation(rows, slots, index, resident)
