"""Sizes in bytes, as people write them."""

from __future__ import annotations

import re

__all__ = ["format_bytes", "parse_bytes"]

_FACTORS = {"": 1, "b": 1} | {
    unit: base**power
    for power, letter in enumerate("kmgtp", start=1)
    for unit, base in ((letter + "ib", 1024), (letter + "b", 1000), (letter, 1024))
}
MAX_BYTES = 1 << 62  # what native code takes as a size
_PATTERN = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*")


def parse_bytes(size: int | str) -> int:
    """Return a number of bytes: 268435456, "256MiB", "1.5 GB" (powers of 1000), "64k" (powers of 1024).

    Raises: ValueError if it is negative, beyond 2**62 or not a size; TypeError if it is neither int nor str.
    """
    if isinstance(size, bool) or not isinstance(size, (int, str)):
        raise TypeError(f"a size is an int or a str such as '256MiB', got {type(size).__name__}")
    if isinstance(size, str):
        size = _parse(size)
    if not 0 <= size <= MAX_BYTES:
        raise ValueError(f"a size is in [0, 2**62] bytes, got {size}")
    return size


def _parse(size: str) -> int:
    match = _PATTERN.fullmatch(size)
    factor = _FACTORS.get(match.group(2).lower()) if match else None
    if match is None or factor is None:
        raise ValueError(f"not a size: {size!r}; write bytes or a unit, such as '256MiB' or '1.5GB'")
    return int(float(match.group(1)) * factor) if "." in match.group(1) else int(match.group(1)) * factor


def format_bytes(size: float) -> str:
    """Return the size with a binary unit and at most one decimal: "1.5 MiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
