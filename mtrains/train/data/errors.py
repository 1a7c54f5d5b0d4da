"""The error of unusable input data."""

from __future__ import annotations

from mtrains.errors import MtrainsError

__all__ = ["DataError"]


class DataError(MtrainsError, ValueError):
    """Input data cannot be used; the message names the file, where it has one the line, and the remedy."""
