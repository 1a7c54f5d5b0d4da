"""Progress of a profile on standard error."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn

if TYPE_CHECKING:
    from mtrains.train.data.block import BadLine

__all__ = ["ProfileProgress"]

_NAMED_BAD_LINES = 10  # the rest is counted only


class ProfileProgress:
    """Shows counts and rates on a terminal; elsewhere only names malformed lines. A context manager."""

    def __init__(self) -> None:
        console = Console(file=sys.stderr, highlight=False)
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[detail]}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task: TaskID | None = None
        self._began_at = 0.0
        self._num_bad = 0

    def __enter__(self) -> ProfileProgress:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()
        if self._num_bad > _NAMED_BAD_LINES:
            more = self._num_bad - _NAMED_BAD_LINES
            print(f"mtrains: warning: {more} more malformed lines left out", file=sys.stderr)

    def began(self, phase: str, total: int | None) -> None:
        """Show a phase; total: of what advanced() counts, if it is known."""
        if self._task is not None:
            self._progress.remove_task(self._task)
        self._task = self._progress.add_task(phase, total=total, detail="")
        self._began_at = time.monotonic()

    def advanced(self, done: int) -> None:
        """Move the bar."""
        if self._task is not None:
            rate = done / max(time.monotonic() - self._began_at, 1e-9)
            self._progress.update(self._task, completed=done, detail=f"{done:,}  {rate:,.0f}/s")

    def bad_line(self, bad: BadLine) -> None:
        """Name the first malformed lines."""
        self._num_bad += 1
        if self._num_bad <= _NAMED_BAD_LINES:
            self._progress.console.print(f"mtrains: warning: left out: {bad}", markup=False, soft_wrap=True)
