"""A lookup that is known before its forward: Python's half of the engine's ticket."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypedDict

from mtrains._native import Engine
from mtrains._native import Ticket as NativeTicket
from mtrains.errors import StateError
from mtrains.lookup import Bags, PooledLookup
from mtrains.store import Store

__all__ = ["Ticket", "unless_replaced"]


@contextmanager
def unless_replaced(store: Store, engine: Engine) -> Iterator[None]:
    """Ignore what an engine says that is the store's no more: a restore makes another one, a closed store has none."""
    try:
        yield
    except StateError:
        if _is_current(store, engine):
            raise


def _is_current(store: Store, engine: Engine) -> bool:
    try:
        return store.engine is engine
    except StateError:
        return False


class _Arguments(TypedDict):
    indices_ptr: int
    num_indices: int
    indices_int64: bool
    offsets_ptr: int
    num_offsets: int
    offsets_int64: bool
    include_last_offset: bool
    num_bags: int
    bag_size: int


class Ticket:
    """Owns the ids, the plan and the pins of one lookup until its forward has run or end() is called.

    It belongs to the engine that the store had when it was made: after a restore it does nothing more.
    """

    def __init__(self, lookup: PooledLookup, bags: Bags) -> None:
        """Find the rows of a lookup.

        Raises: IndexError, ValueError: as its forward would; nothing has changed then.
        """
        self.store: Store = lookup.store
        self.engine: Engine = lookup.store.engine
        self._spec = lookup.spec
        self._bags = bags  # keeps the memory
        self.native: NativeTicket = self.engine.foresee(self._spec, **self._arguments())

    def stage(self, share: float) -> bool:
        """Bring its rows to the tier that computes and pin them; whether they are there now.

        share: of the tier's slots that may be pinned; beyond it nothing is done.
        Raises: TierIOError, FormatError: rows cannot be read; IndexError, ValueError: indices or offsets are wrong.
        Their forward will say so too.
        """
        with unless_replaced(self.store, self.engine):
            return self.engine.stage(self.native, share, self._spec, **self._arguments())
        return False

    def end(self) -> None:
        """Give up the pins. Safe to repeat, and after the forward."""
        with unless_replaced(self.store, self.engine):
            self.engine.end_ticket(self.native)

    @property
    def ended(self) -> bool:
        """Whether a forward has used it, or end() was called."""
        return self.native.ended

    def _arguments(self) -> _Arguments:
        indices, offsets, include_last_offset, num_bags, bag_size, _ = self._bags
        return {
            "indices_ptr": indices.data_ptr(),
            "num_indices": indices.numel(),
            "indices_int64": indices.dtype.itemsize == 8,
            "offsets_ptr": 0 if offsets is None else offsets.data_ptr(),
            "num_offsets": 0 if offsets is None else offsets.numel(),
            "offsets_int64": offsets is None or offsets.dtype.itemsize == 8,
            "include_last_offset": include_last_offset,
            "num_bags": num_bags,
            "bag_size": bag_size,
        }
