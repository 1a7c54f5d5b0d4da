"""Whole rows out of a solver's placement."""

from __future__ import annotations

import numpy as np

from mtrains.placement.cost import Placement
from mtrains.placement.problem import Array, Problem

__all__ = ["whole_rows"]

_NEARLY = 1e-3  # of a row, plus 1e-7 of the rows: a solver's tolerance


def whole_rows(problem: Problem, placement: Placement) -> Placement:
    """Return the placement in whole rows that keeps every capacity; at most one row a table and tier is lost.

    Without a log every touched row keeps a slot: the remainders go to the last tier that has room.
    """
    exact = np.minimum(placement.rows, problem.rows[:, None])
    rows = np.floor(exact + _NEARLY + 1e-7 * exact)
    rows = np.minimum(rows, np.floor(problem.rows)[:, None])
    for tier in range(problem.num_tiers):
        _trim(problem, rows, tier)
    if problem.topology.log is None:
        _complete(problem, rows)
    else:
        for tier in range(problem.num_tiers):
            _fill(problem, rows, exact[:, tier] - rows[:, tier], tier)
    passed = rows > 0
    passed[:, 0] = True
    return Placement(rows, passed)


def _room(problem: Problem, rows: Array, tier: int) -> float:
    return float(problem.capacity[tier] - (problem.slot * rows[:, tier]).sum())


def _trim(problem: Problem, rows: Array, tier: int) -> None:
    """Take rows away, of the table with most of them, while the tier holds more than it can."""
    while (over := -_room(problem, rows, tier)) > 1e-9 * max(1.0, float(problem.capacity[tier])):
        table = int((rows[:, tier] * problem.slot).argmax())
        if rows[table, tier] <= 0:
            return
        rows[table, tier] -= min(rows[table, tier], np.ceil(over / problem.slot[table]))


def _fill(problem: Problem, rows: Array, remainders: Array, tier: int) -> None:
    """Round up the tables that lost most of a row, while there is room."""
    room = _room(problem, rows, tier)
    for table in np.argsort(-remainders, kind="stable"):
        if remainders[table] < 0.5:
            return
        full = rows[table].sum() + 1 > problem.rows[table]
        if not full and problem.slot[table] <= room:
            rows[table, tier] += 1
            room -= float(problem.slot[table])


def _complete(problem: Problem, rows: Array) -> None:
    """Give every touched row a slot: the slowest tier first."""
    for tier in reversed(range(problem.num_tiers)):
        room = _room(problem, rows, tier)
        missing = np.ceil(problem.rows) - rows.sum(axis=1)
        for table in np.flatnonzero(missing > 0):
            added = min(missing[table], np.floor(max(room, 0.0) / problem.slot[table] + 1e-9))
            rows[table, tier] += added
            room -= added * float(problem.slot[table])
    missing = np.ceil(problem.rows) - rows.sum(axis=1)
    rows[:, -1] += np.maximum(missing, 0)  # at most a row a tier that capacities in whole rows cannot take
