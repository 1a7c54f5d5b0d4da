"""Appending the rows that an epoch owes, beside the writer thread that commits what comes of it."""

from __future__ import annotations

import threading

from mtrains import _native

__all__ = ["Sweep"]

_WAIT_SECONDS = 0.05  # for room, before it looks whether it is to stop


class Sweep:
    """Appends owed rows on a thread of its own: copying rows and writing segments take about as long.

    The writer thread calls `step` until it returns True, and `stop` if it gives up before.
    """

    def __init__(self, engine: _native.Engine, rows: int) -> None:
        """rows: at most so many are appended under one hold of the engine's lock."""
        self._engine = engine
        self._rows = rows
        self._error: BaseException | None = None
        self._stopping = False
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def running(self) -> bool:
        """Whether segments are still to come."""
        return self._thread is not None and not self._ended.is_set()

    def step(self) -> bool:
        """Start it, or look whether all is appended. Raises: what went wrong, once it has ended."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="mtrains-sweep", daemon=True)
            self._thread.start()
            return False
        if not self._ended.is_set():
            return False
        if self._error is not None:
            raise self._error
        return True

    def stop(self) -> None:
        """End it and wait; a second call does nothing."""
        self._stopping = True
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stopping and self._engine.sweep(self._rows, _WAIT_SECONDS) > 0:
                pass
        except BaseException as error:  # the writer thread raises it
            self._error = error
        self._ended.set()
        self._engine.wake()  # the writer thread may be waiting for a segment
