"""The threads behind an iterator: one reads the loader ahead, one brings the rows of the next batches."""

from __future__ import annotations

import copy
import os
import threading
import time
import warnings
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Generic, TypeVar, cast

from mtrains.errors import MtrainsError, StateError
from mtrains.prefetch.foresight import Inputs, tickets_of
from mtrains.prefetch.ticket import Ticket
from mtrains.prefetch.window import Windows

__all__ = ["Pipeline", "PipelineTimes"]

_PINNED_SHARE = 1 / 3  # of the slots: pins cost hits long before they stop fitting
_PATIENCE = 10.0  # seconds that close() waits for a loader in the middle of next(), or a device

_Value = TypeVar("_Value")


@dataclass
class _Batch(Generic[_Value]):
    """A batch that was read, or the end of the loader, or its error."""

    number: int
    value: _Value | None = None
    error: BaseException | None = None
    is_end: bool = False
    tickets: list[Ticket] = field(default_factory=list)
    loader_state: object = None
    settled: bool = False  # staged, or given up
    settled_at: float = 0.0


@dataclass
class PipelineTimes:
    """Seconds that next() waited for the loader and for rows; batches given out, and what of them was ready.

    ahead: batches that were ready when the next one was asked for, summed. lead_seconds: from when the rows of a batch
    were there until it was given out, summed over batches.
    """

    batches: int = 0
    loader_seconds: float = 0.0
    rows_seconds: float = 0.0
    lead_seconds: float = 0.0
    ahead: int = 0
    failed: int = 0  # tickets whose rows could not be planned or read ahead; their forward tries again


class Pipeline(Generic[_Value]):
    """One pass over a loader. next() in one thread, close() in any, more than once.

    Batch c is the one that was given out last. The reader has read up to c + max(lookahead, depth), and the
    window holds what it has read from c on; the stager has staged up to c + depth, as far as pins leave
    two thirds of the slots free.
    """

    def __init__(
        self, iterator: Iterator[_Value], loader: object, inputs: Inputs[_Value], lookahead: int, depth: int
    ) -> None:
        self._iterator = iterator
        self._loader = loader
        self._inputs = inputs
        self._lookahead = lookahead
        self._depth = depth
        self._windows = Windows()
        self._changed = threading.Condition()
        # GUARDED_BY(_changed), as all below
        self._queue: deque[_Batch[_Value]] = deque()  # read, not given out
        self._given: deque[_Batch[_Value]] = deque()  # given out, with tickets that may be open
        self._num_read = 0
        self._num_given = 0
        self._wanted = -1  # number of the batch that next() waits for
        # No more could be staged while this many batches were given out. It is not tried again before the next one: the
        # rows of the present batch are unpinned by its forward, but needed until its step.
        self._full_at = -1
        self._stopping = False
        self.loader_state: object = None  # of the batch given out last
        self.times = PipelineTimes()
        self._owner = os.getpid()
        self._threads: list[threading.Thread] = []

    # --- the user's thread

    def next(self) -> _Value:
        """Return the next batch. Raises: StopIteration at the end; what the loader or `inputs` raised."""
        if os.getpid() != self._owner:
            raise StateError(
                "this iteration began in the parent of this process, whose threads it needs; begin one here"
            )
        began = time.monotonic()
        if not self._threads:
            # The first batch is read by the caller, so that what a sampler draws from torch's generator when it
            # begins is drawn where it would be without prefetch.
            self._read_one()
            self._start()
        batch = self._wait(began)
        if batch.is_end or batch.error is not None:
            self.close()
            if batch.error is not None:
                raise batch.error
            raise StopIteration
        value, batch.value = batch.value, None
        return cast(_Value, value)

    def _wait(self, began: float) -> _Batch[_Value]:
        with self._changed:
            if self._depth > 0:
                self.times.ahead += sum(batch.settled and not batch.is_end for batch in self._queue)
            self._wanted = self._num_given
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._queue or self._stopping)
            read = time.monotonic()
            if self._stopping:
                raise StopIteration
            batch = self._queue[0]
            self._changed.wait_for(lambda: batch.settled or self._stopping)
            now = time.monotonic()
            self._queue.popleft()
            self._num_given += 1
            self._wanted = -1
            self._given.append(batch)
            self.loader_state = batch.loader_state
            # Without a stager. Before the forward, which else would keep what only the batch before needed.
            while self._depth == 0 and self._has_old():
                self._retire(self._given.popleft())
            times = self.times
            times.batches += not (batch.is_end or batch.error)
            times.loader_seconds += read - began
            times.rows_seconds += now - read
            times.lead_seconds += now - batch.settled_at
            self._changed.notify_all()
        return batch

    def close(self) -> None:
        """Stop the threads, unpin what they pinned, give the windows back. Returns at once when repeated."""
        if os.getpid() != self._owner:
            return  # a forked child has none of the threads, and its parent goes on
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        for thread in self._threads:
            if thread is threading.current_thread():
                continue
            thread.join(_PATIENCE)
            if thread.is_alive():
                busy = "the loader's next()" if thread is self._threads[0] else "bringing rows ahead"
                warnings.warn(
                    f"{busy} has not returned for {_PATIENCE:.0f} s; its thread ends when it does",
                    RuntimeWarning,
                    stacklevel=2,
                )
        with self._changed:
            batches = [*self._given, *self._queue]
            self._given.clear()
            self._queue.clear()
        with ExitStack() as ending:  # all of them, whatever one says
            ending.callback(self._windows.end)
            for batch in batches:
                for ticket in batch.tickets:
                    ending.callback(ticket.end)

    # --- threads

    def _start(self) -> None:
        threads = [("mtrains-read", self._read), ("mtrains-stage", self._stage)]
        for name, run in threads[: 1 if self._depth == 0 else 2]:
            thread = threading.Thread(target=run, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def _read(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(self._may_read)
                if self._stopping:
                    return
            if not self._read_one():
                return

    def _may_read(self) -> bool:
        ahead = max(self._num_given - 1, 0) + max(self._lookahead, self._depth)
        return self._stopping or self._num_read <= max(ahead, self._wanted)

    def _read_one(self) -> bool:
        """Read a batch and let it enter the window; false if it is the last."""
        batch: _Batch[_Value] = _Batch(self._num_read)
        try:
            batch.value = next(self._iterator)
            if hasattr(self._loader, "state_dict"):
                batch.loader_state = copy.deepcopy(self._loader.state_dict())  # it may go on changing
            batch.tickets = tickets_of(self._inputs, batch.value)
            if self._lookahead > 0 and not self._stopping:
                self._windows.enter(batch.number, batch.tickets)
        except StopIteration:
            batch.is_end = True
        except BaseException as error:  # whatever it is, it belongs to the user's thread, at this batch
            if not self._threads and not isinstance(error, Exception):
                raise  # Ctrl-C while this is that thread: nothing has begun, and may yet
            batch.error = error
        last = batch.is_end or batch.error is not None
        with self._changed:
            if last or self._depth == 0 or not batch.tickets:
                batch.settled, batch.settled_at = True, time.monotonic()
            self._queue.append(batch)
            self._num_read += 1
            self._changed.notify_all()
        return not last

    def _stage(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopping or self._has_old() or self._next_to_stage() is not None)
                if self._stopping:
                    return
                old = self._given.popleft() if self._has_old() else None
                batch = None if old is not None else self._next_to_stage()
                wanted = batch is not None and batch.number == self._wanted
                num_given = self._num_given
            try:
                if old is not None:
                    self._retire(old)
                    continue
                assert batch is not None
                done = self._stage_batch(batch, 1.0 if wanted else _PINNED_SHARE) or wanted
            except BaseException as error:  # raised to the user with the next batch
                self._fail(error)
                return
            with self._changed:
                if done:
                    batch.settled, batch.settled_at = True, time.monotonic()
                else:
                    self._full_at = num_given
                self._changed.notify_all()

    def _has_old(self) -> bool:
        """Whether the oldest batch that was given out is done with: its forwards have run, or will not.

        Frameworks take the next batch before they use the one before, so it has until depth + 2 later ones.
        """
        if not self._given or self._given[0].number >= self._num_given - 1:
            return False
        old = self._given[0]
        late = self._num_given - 1 - old.number >= self._depth + 2
        return late or self._depth == 0 or all(ticket.ended for ticket in old.tickets)

    def _retire(self, batch: _Batch[_Value]) -> None:
        for ticket in batch.tickets:
            ticket.end()
        self._windows.leave(batch.number + 1)

    def _next_to_stage(self) -> _Batch[_Value] | None:
        batch = next((batch for batch in self._queue if not batch.settled), None)
        if batch is None:
            return None
        present = max(self._num_given - 1, 0)
        may = batch.number <= present + self._depth and self._full_at != self._num_given
        return batch if may or batch.number == self._wanted else None

    def _stage_batch(self, batch: _Batch[_Value], share: float) -> bool:
        """Stage the lookups of a batch; false if pins leave no room for all of them now."""
        for ticket in batch.tickets:
            try:
                if not ticket.stage(share):
                    return False
            except (MtrainsError, IndexError, ValueError):
                self.times.failed += 1  # the forward meets the same error, or none
        return True

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            failed = next((batch for batch in self._queue if not batch.settled), None)
            if failed is None:
                failed = _Batch(self._num_read)
                self._queue.append(failed)
            failed.error = error
            for batch in self._queue:
                batch.settled = True
            self._changed.notify_all()
