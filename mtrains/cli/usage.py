"""Errors of usage: options that contradict each other, exit code 2."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mtrains.errors import MtrainsError

__all__ = ["UsageError", "usage_errors"]


@contextmanager
def usage_errors() -> Iterator[None]:
    """Turn a ValueError into a usage error; an MtrainsError stays what it is (a bad schema file)."""
    try:
        yield
    except MtrainsError:
        raise
    except ValueError as error:
        raise UsageError(str(error)) from None


class UsageError(Exception):
    """Options that cannot be used together."""
