"""Counters of a store's engines since it was opened: of those that restores ended, and of the present one."""

from __future__ import annotations

from collections.abc import Sequence

from mtrains import _native
from mtrains.tiers.catalog_records import TableRecord

__all__ = ["EngineCounters"]

_PRESENT_SIZES = frozenset({"slots", "used_slots", "used_bytes", "dirty_rows", "pinned_rows"})


class EngineCounters:
    """Sums by group (a tier, "time", or a table) and name. Present sizes are of the present engine alone."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[str, float]] = {}
        self._tables: dict[str, dict[str, float]] = {}

    def keep(self, engine: _native.Engine, tables: Sequence[TableRecord]) -> None:
        """Take over the counters of an engine that is about to end."""
        self._groups, self._tables = self.groups(engine), self.tables(engine, tables)

    def groups(self, engine: _native.Engine) -> dict[str, dict[str, float]]:
        """Return {"hbm" | "dram" | "scm" | "ssd" | "time": counters}."""
        return _summed(self._groups, engine.stats())

    def tables(self, engine: _native.Engine, tables: Sequence[TableRecord]) -> dict[str, dict[str, float]]:
        """Return the counters of each table by its name. tables: the engine's, by number."""
        present = zip(tables, engine.table_counters(), strict=False)  # another thread may add one meanwhile
        return _summed(self._tables, {table.name: dict(counters) for table, counters in present})


def _summed(before: dict[str, dict[str, float]], present: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    total = {group: dict(values) for group, values in before.items()}
    for group, values in present.items():
        sums = total.setdefault(group, {})
        for name, value in values.items():
            sums[name] = value if name in _PRESENT_SIZES else sums.get(name, 0) + value
    return total
