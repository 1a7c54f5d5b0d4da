"""What progress on standard error has in common: a bar on a terminal, and the malformed lines."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, TaskID, TextColumn

if TYPE_CHECKING:
    from mtrains.train.data.block import BadLine

__all__ = ["LiveProgress"]

_NAMED_BAD_LINES = 10  # the rest is counted only


class LiveProgress:
    """One bar on a terminal; elsewhere only malformed lines are named. A context manager.

    columns: between the bar and the task's field `detail`.
    """

    def __init__(self, *columns: ProgressColumn) -> None:
        console = Console(file=sys.stderr, highlight=False)
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            *columns,
            TextColumn("{task.fields[detail]}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task: TaskID | None = None
        self._num_bad = 0

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()
        if self._num_bad > _NAMED_BAD_LINES:
            more = self._num_bad - _NAMED_BAD_LINES
            print(f"mtrains: warning: {more} more malformed lines left out", file=sys.stderr)

    def show(self, phase: str, total: int | None) -> None:
        """Begin a bar in place of the one before."""
        if self._task is not None:
            self._progress.remove_task(self._task)
        self._task = self._progress.add_task(phase, total=total, detail="")

    def bad_line(self, bad: BadLine) -> None:
        """Name the first malformed lines."""
        self._num_bad += 1
        if self._num_bad <= _NAMED_BAD_LINES:
            self._progress.console.print(f"mtrains: warning: left out: {bad}", markup=False, soft_wrap=True)
