"""Progress of a training run on standard error."""

from __future__ import annotations

import time

from rich.progress import MofNCompleteColumn

from mtrains.cli.live_progress import LiveProgress
from mtrains.train.result import Observer, StepReport

__all__ = ["ProgressBar"]

_REFRESH_SECONDS = 0.2
_LOSS_DECAY = 0.98  # of the running mean that is shown


class ProgressBar(LiveProgress, Observer):
    """Shows loss and samples/s."""

    def __init__(self) -> None:
        super().__init__(MofNCompleteColumn())
        self._first: tuple[float, int] | None = None
        self._mean_loss = 0.0
        self._weight = 0.0
        self._refreshed = 0.0

    def began(self, phase: str) -> None:
        """Show the phase."""
        self.show(phase, None)
        self._first = None

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
