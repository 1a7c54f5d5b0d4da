"""How many threads the native passes of open stores use."""

from __future__ import annotations

import contextlib
import weakref
from typing import Protocol

import torch

from mtrains.errors import StateError

__all__ = ["MAX_NUM_THREADS", "follow_num_threads", "get_num_threads", "set_num_threads"]

MAX_NUM_THREADS = 1024  # more than any machine has cores for; a typing error would start so many threads


class _Engine(Protocol):
    def set_num_threads(self, n: int) -> None: ...


class _HasEngine(Protocol):
    @property
    def engine(self) -> _Engine: ...


class _NumThreads:
    """The number that was asked for, if any, and the stores that follow it while they are open."""

    def __init__(self) -> None:
        self.requested: int | None = None
        self.followers: weakref.WeakSet[_HasEngine] = weakref.WeakSet()


_NUM_THREADS = _NumThreads()


def set_num_threads(n: int) -> None:
    """Use `n` threads in native passes of all open stores, and of those opened later. Changes no bit of any
    result.

    Raises: ValueError unless 1 <= n <= 1024.
    """
    if isinstance(n, bool) or not isinstance(n, int):
        raise TypeError(f"the number of threads must be an int, got {type(n).__name__}")
    if not 1 <= n <= MAX_NUM_THREADS:
        raise ValueError(f"the number of threads must be in [1, {MAX_NUM_THREADS}], got {n}")
    _NUM_THREADS.requested = n
    for store in list(_NUM_THREADS.followers):
        # A store that was closed or lost meanwhile, or is a parent process's, runs no passes here.
        with contextlib.suppress(StateError):
            store.engine.set_num_threads(n)


def get_num_threads() -> int:
    """Return the threads of a store opened now: of set_num_threads(), else torch.get_num_threads()."""
    requested = _NUM_THREADS.requested
    return torch.get_num_threads() if requested is None else requested


def follow_num_threads(store: _HasEngine, follow: bool = True) -> None:
    """Let an open store's engine follow set_num_threads(), or no longer; it is referred to weakly."""
    if follow:
        _NUM_THREADS.followers.add(store)
    else:
        _NUM_THREADS.followers.discard(store)
