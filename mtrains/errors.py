"""The one tree of errors. Bad arguments are ValueError, TypeError and IndexError."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = [
    "CapacityError",
    "FormatError",
    "MtrainsError",
    "PlanInfeasibleError",
    "Shortfall",
    "StateError",
    "TierIOError",
]


class MtrainsError(Exception):
    """Base of every error of mtrains."""


class TierIOError(MtrainsError, OSError):
    """A device or file operation failed; `errno` is kept. The last checkpoint stays loadable."""

    def __init__(self, errno: int | None, message: str) -> None:
        detail = f" ({os.strerror(errno)})" if errno else ""
        if message.endswith(detail):  # told on by the writer thread, which had it from the first error
            detail = ""
        super().__init__(errno, message + detail)

    def __str__(self) -> str:
        return str(self.args[1])


class CapacityError(MtrainsError):
    """A budget cannot hold what is needed; the message gives the need and the limit."""


@dataclass(frozen=True)
class Shortfall:
    """A limit that a plan would break: what it needs and what there is, both in `unit`."""

    limit: str
    needed: float
    available: float
    unit: str


class PlanInfeasibleError(MtrainsError):
    """No placement meets the limits; `shortfalls` has the numbers of each limit that is broken."""

    def __init__(self, message: str, shortfalls: Sequence[Shortfall] = ()) -> None:
        super().__init__(message)
        self.shortfalls = tuple(shortfalls)


class FormatError(MtrainsError):
    """Bytes on disk are not what was written, or of another format version."""


class StateError(MtrainsError):
    """The operation is not valid in the present state (closed, forked, locked, read-only, mismatched)."""
