"""The kinds of tiers that hold rows in slots."""

from __future__ import annotations

__all__ = ["SLOT_TIERS"]

SLOT_TIERS = ("hbm", "dram", "scm")  # from fast to slow, by the native number of their kind
