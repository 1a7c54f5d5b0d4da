"""The one tree of errors. Bad arguments are ValueError, TypeError and IndexError."""

from __future__ import annotations

import os

__all__ = ["CapacityError", "FormatError", "MtrainsError", "StateError", "TierIOError"]


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


class FormatError(MtrainsError):
    """Bytes on disk are not what was written, or of another format version."""


class StateError(MtrainsError):
    """The operation is not valid in the present state (closed, forked, locked, read-only, mismatched)."""
