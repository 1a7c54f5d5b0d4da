"""Why a table is where it is, in one sentence."""

from __future__ import annotations

import numpy as np

from mtrains.placement.allocation import allocate
from mtrains.placement.cost import Placement, Price
from mtrains.placement.problem import Array, Problem

__all__ = ["next_gains", "table_reasons"]

_MIB = 2.0**20
_WHOLE = "{} holds the whole table, which then needs no index"


def table_reasons(problem: Problem, placement: Placement, price: Price) -> list[str]:
    """Return a sentence a table."""
    gains, resident = next_gains(problem, placement), allocate(problem, placement).resident
    return [
        _WHOLE.format(problem.topology.slots[0].tier)
        if resident[table] and problem.unique[table] > 0
        else _reason(problem, placement, price, table, gains)
        for table in range(problem.num_tables)
    ]


def next_gains(problem: Problem, placement: Placement) -> Array:
    """Return, [J, K], the misses a step that one MiB more of a tier's slots would save each table."""
    gains = np.zeros(placement.rows.shape)
    held = placement.cumulative
    for table, curve in enumerate(problem.curves):
        widths, hits = np.diff(curve.rows), np.diff(curve.hits)
        slope = np.divide(hits, widths, out=np.zeros_like(hits), where=widths > 0)
        at = np.searchsorted(curve.rows, held[table] + 1e-9, side="right") - 1
        inside = at < len(slope)
        gains[table, inside] = slope[at[inside]] / problem.slot[table] * _MIB
    return gains


def _reason(problem: Problem, placement: Placement, price: Price, table: int, gains: Array) -> str:
    names = problem.topology.tier_names
    rows, total, unique = placement.rows[table], problem.rows[table], problem.unique[table]
    if total <= 0 or unique <= 0:
        return "no row of it was accessed"
    used = [tier for tier in range(len(names)) if rows[tier] >= 1]
    if not used:
        best = float(gains[table].max())
        return f"nothing held: a MiB would save {best:.3g} misses a step, other tables use it better"
    parts = []
    before = unique
    for tier in used:
        hits = before - price.misses[table, tier]
        before = price.misses[table, tier]
        of_rows, of_uses = _share(rows[tier] / total), _share(hits / unique)
        parts.append(f"{names[tier]} holds {of_rows} of its rows for {of_uses} of its uses")
    last = used[-1]
    if rows.sum() >= total - 1:
        end = "all its rows have a place"
    elif gains[table, last] <= 0:
        end = "no use is left for more of them"
    else:
        end = f"a further MiB would save {gains[table, last]:.3g} misses a step"
    skipped = [names[tier] for tier in range(1, last) if not placement.passed[table, tier]]
    if skipped:
        end += f"; passes {', '.join(skipped)} over, which would serve too few of the rows that go through"
    return f"{'; '.join(parts)}; {end}"


def _share(ratio: float) -> str:
    return "all" if ratio > 1 - 1e-9 else f"{100 * ratio:.1f} %"
