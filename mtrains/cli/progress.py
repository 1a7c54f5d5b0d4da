"""Progress of a training run on standard error."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn

from mtrains.train.data.block import BadLine
from mtrains.train.result import Observer, StepReport

__all__ = ["ProgressBar"]

_NAMED_BAD_LINES = 10  # the rest is counted only
_REFRESH_SECONDS = 0.2
_LOSS_DECAY = 0.98  # of the running mean that is shown


class ProgressBar(Observer):
    """Shows loss and samples/s on a terminal; elsewhere only names malformed lines. A context manager."""

    def __init__(self) -> None:
        console = Console(file=sys.stderr, highlight=False)
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[detail]}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task: TaskID | None = None
        self._num_bad = 0
        self._first: tuple[float, int] | None = None
        self._mean_loss = 0.0
        self._weight = 0.0
        self._refreshed = 0.0

    def __enter__(self) -> ProgressBar:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()
        if self._num_bad > _NAMED_BAD_LINES:
            more = self._num_bad - _NAMED_BAD_LINES
            print(f"mtrains: warning: {more} more malformed lines left out", file=sys.stderr)

    def began(self, phase: str) -> None:
        """Show the phase."""
        if self._task is not None:
            self._progress.remove_task(self._task)
        self._task = self._progress.add_task(phase, total=None, detail="")
        self._first = None

    def bad_line(self, bad: BadLine) -> None:
        """Name the first malformed lines."""
        self._num_bad += 1
        if self._num_bad <= _NAMED_BAD_LINES:
            self._progress.console.print(f"mtrains: warning: left out: {bad}", markup=False, soft_wrap=True)

    def stepped(self, report: StepReport) -> None:
        """Move the bar."""
        self._mean_loss = _LOSS_DECAY * self._mean_loss + (1 - _LOSS_DECAY) * report.loss
        self._weight = _LOSS_DECAY * self._weight + (1 - _LOSS_DECAY)
        now = time.monotonic()
        if self._first is None:
            self._first = (now, report.samples)
        if self._task is None or now - self._refreshed < _REFRESH_SECONDS:
            return
        self._refreshed = now
        began, samples = self._first
        rate = (report.samples - samples) / max(now - began, 1e-9)
        self._progress.update(
            self._task,
            description=f"epoch {report.epoch + 1}, step {report.step:,}",
            completed=report.record,
            total=report.total_records,
            detail=f"loss {self._mean_loss / self._weight:.4f}  {rate:,.0f} samples/s",
        )
