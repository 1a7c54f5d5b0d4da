"""Progress of a profile on standard error."""

from __future__ import annotations

import time

from mtrains.cli.live_progress import LiveProgress

__all__ = ["ProfileProgress"]


class ProfileProgress(LiveProgress):
    """Shows counts and rates."""

    def __init__(self) -> None:
        super().__init__()
        self._began_at = 0.0

    def began(self, phase: str, total: int | None) -> None:
        """Show a phase; total: of what advanced() counts, if it is known."""
        self.show(phase, total)
        self._began_at = time.monotonic()

    def advanced(self, done: int) -> None:
        """Move the bar."""
        if self._task is not None:
            rate = done / max(time.monotonic() - self._began_at, 1e-9)
            self._progress.update(self._task, completed=done, detail=f"{done:,}  {rate:,.0f}/s")
