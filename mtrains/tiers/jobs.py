"""Work for the writer thread, and the ticket that a caller waits on."""

from __future__ import annotations

import threading
from typing import Generic, Protocol, TypeVar

__all__ = ["Job", "PlainJob", "Ticket"]

_WAIT_SLICE_SECONDS = 0.2  # Ctrl-C is seen between slices on every platform
Result = TypeVar("Result")
Result_co = TypeVar("Result_co", covariant=True)


class Job(Protocol[Result_co]):
    """Work in bounded steps, on the writer thread. Groups of segments are committed between steps."""

    @property
    def waits(self) -> bool:
        """Whether the next step comes to nothing before other threads have done more."""

    def step(self) -> bool:
        """Do a little; return True once all is done."""

    def stop(self) -> None:
        """End threads of its own, for no step will come any more."""

    def result(self) -> Result_co:
        """Return what the caller gets, after the last step."""


class PlainJob:
    """Base of jobs without threads of their own."""

    @property
    def waits(self) -> bool:
        return False

    def stop(self) -> None:
        pass


class Ticket(Generic[Result]):
    """The outcome of one job. Thread-safe."""

    def __init__(self, job: Job[Result]) -> None:
        self.job = job
        self._done = threading.Event()
        self._error: BaseException | None = None
        self._result: list[Result] = []

    @property
    def done(self) -> bool:
        return self._done.is_set()

    def finish(self) -> None:
        self._result.append(self.job.result())
        self._done.set()

    def fail(self, error: BaseException) -> None:
        self.job.stop()
        self._error = error
        self._done.set()

    def wait(self) -> Result:
        """Block until the job ended; return its result or raise its error. Ctrl-C leaves the job running."""
        while not self._done.wait(_WAIT_SLICE_SECONDS):
            pass
        if self._error is not None:
            raise self._error
        return self._result[0]
