"""Progress of an export on standard error."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

__all__ = ["export_progress"]


@contextmanager
def export_progress() -> Iterator[Callable[[int, int], None]]:
    """Show bytes written, speed and the time that is left on a terminal, elsewhere nothing."""
    console = Console(file=sys.stderr, highlight=False)
    columns = (BarColumn(bar_width=24), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("export", total=None)

        def advance(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total)

        yield advance
