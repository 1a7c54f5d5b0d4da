"""Placements without a solver: the yardsticks of a plan."""

from __future__ import annotations

import numpy as np

from mtrains.placement.cost import Placement
from mtrains.placement.problem import Array, Problem

__all__ = ["all_ssd", "greedy", "size_proportional"]


def greedy(problem: Problem) -> Placement:
    """Fill the tiers, fast to slow, with pins and then the segments that save most misses a byte."""
    segments = sorted(_segments(problem))  # by falling gain a byte, then table, then order within the table
    rows = all_ssd(problem).rows
    log_room = _log_room(problem) - problem.workload.keep * float((problem.log * problem.pinned_rows).sum())
    begin, done = 0, 0.0
    for tier, capacity in enumerate(problem.capacity):
        room = float(capacity - (problem.slot * rows[:, tier]).sum())
        while begin < len(segments):
            density, table, _, width = segments[begin]
            if density == 0 and problem.topology.log is not None:
                break
            size, logged = float(problem.slot[table]), float(problem.log[table]) * problem.workload.keep
            taken = min(width - done, room / size, log_room / logged)
            rows[table, tier] += taken
            room, log_room = room - taken * size, log_room - taken * logged
            done += taken
            if done < width * (1 - 1e-12):
                break
            begin, done = begin + 1, 0.0
    return _used(rows)


def size_proportional(problem: Problem) -> Placement:
    """Give every table the same share of its rows in each tier, what does without a profile."""
    total = float((problem.slot * problem.rows).sum())
    shares, left = [], 1.0
    for capacity in problem.capacity:
        share = min(left, max(0.0, float(capacity)) / total) if total else 0.0
        shares.append(share)
        left -= share
    held = problem.workload.keep * float((problem.log * problem.rows).sum()) * (1 - left)
    scale = min(1.0, _log_room(problem) / held) if held else 1.0
    return _used(problem.rows[:, None] * np.array(shares)[None, :] * scale)


def all_ssd(problem: Problem) -> Placement:
    """Hold only what a step and its staged successors need, in the fastest tier."""
    rows = np.zeros((problem.num_tables, problem.num_tiers))
    rows[:, 0] = problem.pinned_rows
    return _used(rows)


def _segments(problem: Problem) -> list[tuple[float, int, int, float]]:
    """Return (-gain a byte, table, number, rows beyond the pins) of each segment."""
    found = []
    for table, curve in enumerate(problem.curves):
        widths, gains = np.diff(curve.rows), np.diff(curve.hits)
        beyond = np.minimum(widths, np.maximum(0.0, curve.rows[1:] - problem.pinned_rows[table]))
        columns = zip(widths.tolist(), gains.tolist(), beyond.tolist(), strict=True)
        for number, (width, gain, rows) in enumerate(columns):
            if rows > 0:
                found.append((-max(gain, 0.0) / width / float(problem.slot[table]), table, number, rows))
    return found


def _log_room(problem: Problem) -> float:
    """Return the bytes of the log that checkpoints of dirty slots may take."""
    log = problem.topology.log
    return float("inf") if log is None else max(0.0, log.capacity_bytes - problem.log_fixed_bytes)


def _used(rows: Array) -> Placement:
    passed = rows > 0
    passed[:, 0] = True
    return Placement(rows, passed)
