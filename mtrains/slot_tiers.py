"""The kinds of tiers that hold rows in slots, and who leaves them."""

from __future__ import annotations

__all__ = ["EVICTIONS", "SLOT_TIERS"]

SLOT_TIERS = ("hbm", "dram", "scm")  # from fast to slow, by the native number of their kind
EVICTIONS = ("lru", "lfu", "s3-fifo")  # of rows without a known next use, by their native numbers
