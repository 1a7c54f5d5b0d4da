"""The one thread that writes: groups of segments, deletes, garbage collection, and jobs between them."""

from __future__ import annotations

import errno
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from mtrains import _native
from mtrains.errors import MtrainsError, StateError, TierIOError
from mtrains.tiers.catalog_records import TableRecord
from mtrains.tiers.container import SegmentContainer
from mtrains.tiers.environment import is_full
from mtrains.tiers.gc import choose_victims
from mtrains.tiers.jobs import Job, Ticket
from mtrains.tiers.segment_meta import SegmentMeta

__all__ = ["LogWriter", "WriterCounters"]

_GROUP_SEGMENTS = 16
_MIN_GROUP = 4
_GATHER_SECONDS = 0.2
_MAX_DELETES = 64
_IDLE_SECONDS = 0.5
_RETRY_SECONDS = 0.25
# Evacuations allowed per appended segment. With 0.7 live in each, 7 of 10 segments' bytes are written to free
# 3.
_EVACUATIONS_PER_SEGMENT = 3
_MAX_CREDIT = 48
Result = TypeVar("Result")


@dataclass
class WriterCounters:
    """Monotonic counters of one writer thread."""

    segments_written: int = 0
    segments_deleted: int = 0
    segments_evacuated: int = 0
    commits: int = 0
    write_seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class WriterContext:
    """What the writer must know of the store. The callables are called on the writer thread."""

    uuid: str
    retained_epochs: Callable[[], Sequence[int]]  # of the last committed catalog
    tables: Callable[[], Sequence[TableRecord]]
    closing_meta: Callable[[int], bytes | None]  # meta bytes of the segment that closes an epoch
    background: Callable[[], bool]  # one bounded step of work that nobody waits for; False if there is none
    clock: Callable[[], float]


class LogWriter:
    """Owns the container's writes while it runs. Thread-safe: `submit`, `poke`, `stop`.

    A full disk or cap stops the log, not the store: segments stay queued, passes that need room raise, and
    the writer tries again until there is room. Any other error of a commit is final: `error` names it,
    nothing is written any more.
    """

    def __init__(
        self,
        engine: _native.Engine,
        container: SegmentContainer,
        context: WriterContext,
        orphans: Sequence[int],
    ) -> None:
        self._engine = engine
        self._container = container
        self._context = context
        self._orphans = deque(orphans)
        self._jobs: deque[Ticket[Any]] = deque()
        self._mutex = threading.Lock()  # of _jobs and _stopping
        self._stopping = False
        self._poked = threading.Event()
        self._sealed_ids: set[int] = set()
        self._credit = 0.0
        self._more = False  # background work is left
        self._emptied: set[int] = set()  # ids of evacuated segments
        self._epochs_mutex = threading.Lock()  # no segment is chosen for deletion while a checkpoint begins
        self._running_epoch: int | None = None
        self._protected: tuple[int, ...] = ()
        self.full_error: MtrainsError | None = None
        self.error: BaseException | None = None
        self.counters = WriterCounters()
        self._thread = threading.Thread(target=self._run, name="mtrains-log-writer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, job: Job[Result]) -> Ticket[Result]:
        """Queue a job. Jobs run one after another, in this order."""
        ticket: Ticket[Result] = Ticket(job)
        with self._mutex:
            if self._stopping or self.error is not None:
                ticket.fail(self.final_error())
                return ticket
            self._jobs.append(ticket)
        self.poke()
        return ticket

    def poke(self) -> None:
        """Have the thread look for work, or for room on the disk, now."""
        self._poked.set()
        self._engine.wake()

    def stop(self) -> None:
        """End the thread after what it is doing; unfinished jobs fail. A second call does nothing."""
        with self._mutex:
            self._stopping = True
        self.poke()
        if self._thread.is_alive():
            self._thread.join()

    def begin_checkpoint(self) -> int:
        """Begin a checkpoint in the engine; its epoch's rows are kept until `end_checkpoint`."""
        with self._epochs_mutex:
            epoch = self._engine.begin_checkpoint()
            self._protected = (*self._protected, epoch)
            self._running_epoch = epoch
        return epoch

    def end_checkpoint(self, *, keep: bool) -> None:
        """The running checkpoint is committed or given up. `keep`: a segment on disk says that its epoch is
        closed, so a
        rebuild may choose it: keep its rows until the next checkpoint is committed."""
        with self._epochs_mutex:
            if not keep:
                self._protected = ()
            self._running_epoch = None

    def final_error(self) -> StateError:
        """Return why nothing can be written."""
        if self.error is None:
            return StateError("the store was closed or restored meanwhile")
        return StateError(
            f"the store is read-only until it is opened again, because a write failed: {self.error}; "
            "reopening continues at the last checkpoint"
        )

    # --- the thread

    def _run(self) -> None:
        failure: BaseException | None = None
        try:
            while not self._is_stopping():
                self._turn()
        except BaseException as error:
            failure = error
        with self._mutex:
            if failure is not None and not self._stopping:
                self.error = failure
            self._stopping = True
            jobs, self._jobs = list(self._jobs), deque()
        if self.error is not None:
            self._engine.fail(getattr(self.error, "errno", None) or errno.EIO, str(self.final_error()))
        for ticket in jobs:
            ticket.fail(self.final_error())

    def _is_stopping(self) -> bool:
        with self._mutex:
            return self._stopping

    def _turn(self) -> None:
        """Commit one group if one waits, then do one step of a job or of the background work."""
        with self._mutex:
            ticket = self._jobs[0] if self._jobs else None
        timeout = 0.0 if ticket is not None or self._more else _IDLE_SECONDS
        segments = self._engine.next_sealed(_GROUP_SEGMENTS, timeout)
        if segments and ticket is None:
            segments += self._gather(len(segments))
        blocked = bool(segments) and not self._append(segments)
        if ticket is not None:
            self._step(ticket)
        elif blocked:
            self._poked.wait(_RETRY_SECONDS)
            self._poked.clear()
        else:
            limit = max(1, _EVACUATIONS_PER_SEGMENT * len(segments))
            self._more = self._collect(limit) or self._context.background()

    def _gather(self, present: int) -> list[_native.SealedSegment]:
        """Wait a little for more segments: a commit costs the same for one and for several."""
        gathered: list[_native.SealedSegment] = []
        end = self._context.clock() + _GATHER_SECONDS
        while present + len(gathered) < _MIN_GROUP and (left := end - self._context.clock()) > 0:
            more = self._engine.next_sealed(_GROUP_SEGMENTS - present - len(gathered), left)
            if not more:  # time is up, or there is a job
                break
            gathered += more
        return gathered

    def _step(self, ticket: Ticket[Any]) -> None:
        try:
            if not ticket.job.step():
                return
            ticket.finish()
        except MtrainsError as error:
            if not (is_full(error) or isinstance(error, StateError)):
                raise
            ticket.fail(error)
        with self._mutex:
            self._jobs.popleft()

    # --- appending

    def _append(self, segments: list[_native.SealedSegment]) -> bool:
        """Commit a group and publish it; return False if there is no room for it, after it was queued
        again."""
        for segment in segments:
            if segment.segment_id not in self._sealed_ids:
                segment.seal(self._meta(segment))
                self._sealed_ids.add(segment.segment_id)
        try:
            self._delete_orphans()
            self._commit(segments)
        except MtrainsError as error:
            if not is_full(error):
                raise
            left = self._append_where_room_is(segments)
            if left:
                self._engine.requeue(left)
            if len(left) == len(segments):
                self._stop_passes(error)
                return False
        self._credit = min(_MAX_CREDIT, self._credit + _EVACUATIONS_PER_SEGMENT * len(segments))
        return True

    def _commit(self, segments: list[_native.SealedSegment], privileged: bool = False) -> None:
        begin = self._context.clock()
        privileged = privileged or self._is_checkpoint(segments)
        with self._epochs_mutex:
            due = self._engine.take_deletable(self._needed_epochs(), _MAX_DELETES)
        if not due and not segments:
            return
        numbers = [number for number, _ in due]
        values = [(segment.segment_id, segment.value) for segment in segments]
        try:
            self._container.append(values, [segment_id for _, segment_id in due], privileged=privileged)
        except MtrainsError:
            self._engine.undelete(numbers)
            raise
        self._engine.deleted(numbers)
        if segments:
            self._publish(segments)
        self.counters.segments_deleted += len(numbers)
        self.counters.commits += 1
        self.counters.write_seconds += self._context.clock() - begin

    def _publish(self, segments: list[_native.SealedSegment]) -> None:
        located = self._container.locate(min(segment.segment_id for segment in segments))
        offsets = dict(zip(located[:, 0].tolist(), located[:, 1].tolist(), strict=True))
        places = [offsets[segment.segment_id] for segment in segments]
        self._container.drop_cache(places)
        self._engine.publish([segment.number for segment in segments], places)
        self._sealed_ids.difference_update(segment.segment_id for segment in segments)
        self.counters.segments_written += len(segments)
        if self.full_error is not None:
            self.full_error = None
            self._engine.recover()

    def _delete_orphans(self) -> None:
        """Delete what no checkpoint names, all of it before the first append: a rebuild takes every segment
        for valid."""
        while self._orphans:
            batch = [self._orphans[i] for i in range(min(_MAX_DELETES, len(self._orphans)))]
            self._container.append([], batch, privileged=True)
            for _ in batch:
                self._orphans.popleft()
            self.counters.segments_deleted += len(batch)

    def _meta(self, segment: _native.SealedSegment) -> bytes:
        closing = self._context.closing_meta(segment.epoch) if segment.closes else None
        if closing is not None:
            return closing
        tables = self._context.tables()
        return SegmentMeta(
            uuid=self._context.uuid,
            tables={number: tables[number] for number in segment.tables},
            retained=self._context.retained_epochs(),
        ).to_bytes()

    def _is_checkpoint(self, segments: list[_native.SealedSegment]) -> bool:
        running = self._running_epoch
        return running is not None and all(segment.epoch <= running for segment in segments)

    def _needed_epochs(self) -> list[int]:
        return [*self._context.retained_epochs(), *self._protected]

    # --- room

    def _append_where_room_is(self, segments: list[_native.SealedSegment]) -> list[_native.SealedSegment]:
        """Delete all that may go, then commit one segment at a time; return those for which there is no room.

        The running checkpoint's segments go first: they alone may use the reserve.
        """
        left = sorted(segments, key=lambda segment: not self._is_checkpoint([segment]))
        try:
            while self._delete_due():
                pass
            self._container.age()
            while left:
                self._commit(left[:1])
                del left[0]
        except MtrainsError as error:
            if not is_full(error):
                raise
        return left

    def _delete_due(self) -> bool:
        before = self.counters.segments_deleted
        self._commit([], privileged=True)
        return self.counters.segments_deleted > before

    def _stop_passes(self, error: MtrainsError) -> None:
        if self.full_error is None:
            self.full_error = error
            code = error.errno if isinstance(error, TierIOError) else None
            self._engine.fail(code or errno.ENOSPC, str(error))

    def _collect(self, limit: int) -> bool:
        """Evacuate at most `limit` segments if too little is live and the share of IO allows it; whether any was."""
        segments = self._engine.segments()
        self._emptied.intersection_update(segments["id"].tolist())
        victims = choose_victims(segments, limit, self._emptied) if self._credit > 0 else []
        if not victims:
            self._credit = 0.0
        moved = 0
        for number in victims:
            if (
                self._credit <= 0 or self._engine.evacuate(number) < 0
            ):  # < 0: commits of pending segments come first
                break
            victim = segments[segments["number"] == number][0]
            self._emptied.add(int(victim["id"]))
            # What it writes gives credit once it is appended; taken away here, so that only training's bytes do.
            self._credit -= 1 + _EVACUATIONS_PER_SEGMENT * float(victim["live"]) / float(victim["rows"])
            moved += 1
        self.counters.segments_evacuated += moved
        return moved > 0
