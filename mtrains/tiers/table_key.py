"""The key of a table's initial values."""

from __future__ import annotations

import hashlib

__all__ = ["table_key"]


def table_key(seed: int, name: str) -> int:
    """Return the first 8 bytes, little-endian, of SHA-256("{seed}:{name}")."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:8], "little")
