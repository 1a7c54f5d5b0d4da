"""Bytes of tables in slot tiers, as a caller writes them."""

from __future__ import annotations

from collections.abc import Mapping

from mtrains.slot_tiers import SLOT_TIERS
from mtrains.units import parse_bytes

__all__ = ["parse_budgets"]


def parse_budgets(budgets: object) -> dict[str, dict[str, int]]:
    """Return {table: {tier: bytes}} with numbers. Raises: TypeError, ValueError naming table and tier."""
    if budgets is None:
        return {}
    if not isinstance(budgets, Mapping):
        raise TypeError(f'budgets must be a mapping {{table: {{tier: bytes}}}}, got {type(budgets).__name__}')
    return {_name(table): _of_table(table, own) for table, own in budgets.items()}


def _name(table: object) -> str:
    if not isinstance(table, str):
        raise TypeError(f"budgets are by the name of a table, got {table!r}")
    return table


def _of_table(table: str, own: object) -> dict[str, int]:
    if not isinstance(own, Mapping):
        raise TypeError(f"budgets of table {table!r} must be a mapping {{tier: bytes}}, got {type(own).__name__}")
    parsed = {}
    for tier, size in own.items():
        if tier not in SLOT_TIERS:
            raise ValueError(f"budgets of table {table!r}: no tier {tier!r}; a budget is of {', '.join(SLOT_TIERS)}")
        parsed[str(tier)] = parse_bytes(size)
    return parsed
