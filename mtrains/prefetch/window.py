"""The stores' windows of batches to come, by which they choose who leaves a tier."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from mtrains._native import Engine
from mtrains.prefetch.ticket import Ticket, unless_replaced
from mtrains.store import Store

__all__ = ["Windows"]


class _Window:
    """The window of one engine, if this iterator has it: an engine has one at a time."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.owned = False
        self.batches: deque[int] = deque()  # that are in it


class Windows:
    """The windows of all stores that an iterator looks up. Of one thread at a time, but for leave() beside enter().

    Another iterator over the same store, such as one that evaluates in the middle of training, finds the window
    taken and does without: what the first one needs next stays.
    """

    def __init__(self) -> None:
        self._windows: dict[Store, _Window] = {}

    def enter(self, number: int, tickets: Sequence[Ticket]) -> None:
        """Let a batch enter: the next one after those before."""
        for store in {ticket.store: None for ticket in tickets}:
            window = self._window_of(store)
            with unless_replaced(store, window.engine):
                if not window.owned:
                    window.owned = window.engine.begin_window()
                if window.owned:
                    here = [ticket.native for ticket in tickets if ticket.engine is window.engine]
                    window.batches.append(number)
                    window.engine.enter_window(here)

    def leave(self, before: int) -> None:
        """Let the batches below number `before` leave."""
        for store, window in list(self._windows.items()):
            while window.batches and window.batches[0] < before:
                with unless_replaced(store, window.engine):
                    window.engine.leave_window()
                window.batches.popleft()

    def end(self) -> None:
        """Give the windows back. Safe to repeat."""
        for store, window in self._windows.items():
            if not window.owned:
                continue
            window.owned = False
            window.batches.clear()
            with unless_replaced(store, window.engine):
                window.engine.end_window()
        self._windows.clear()

    def _window_of(self, store: Store) -> _Window:
        window = self._windows.get(store)
        if window is None or window.engine is not store.engine:
            window = self._windows[store] = _Window(store.engine)
        return window
