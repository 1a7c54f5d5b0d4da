"""The one thread that writes: groups of segments, deletes, garbage collection, and jobs between them."""

from __future__ import annotations

import errno
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from mtrains import _native
from mtrains.errors import MtrainsError, StateError, TierIOError
from mtrains.tiers.catalog_records import TableRecord
from mtrains.tiers.commit_points import CommitPoint, PassedPoint
from mtrains.tiers.container import SegmentContainer
from mtrains.tiers.environment import is_full
from mtrains.tiers.gc import DEFAULT_POLICY, GcPolicy, IoShare, policy_for
from mtrains.tiers.jobs import Job, Ticket
from mtrains.tiers.segment_meta import SegmentMeta

__all__ = ["LogWriter", "WriterCounters"]

_GROUP_SEGMENTS = 16
_MIN_GROUP = 8
_GATHER_SECONDS = 0.2
_MAX_DELETES = 64
_IDLE_SECONDS = 0.5
_RETRY_SECONDS = 0.25
_MAX_EMPTIED = 16  # segments, before what waits is committed
_MAX_LENT = 12.0  # segments' worth of rows that evacuation may write within the reserve
Result = TypeVar("Result")


@dataclass
class WriterCounters:
    """Monotonic counters of one writer thread."""

    segments_written: int = 0
    segments_deleted: int = 0
    segments_evacuated: int = 0
    segments_damaged: int = 0  # that garbage collection could not read
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
    let_go: Callable[[], bool]  # drops checkpoints whose readers have gone; whether there was any
    clock: Callable[[], float]
    passed: PassedPoint


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
        self._io_share = IoShare()
        self._more = False  # background work is left
        self._lent = 0.0  # segments' worth of moved rows that may still be appended within the reserve
        self._epochs_mutex = threading.Lock()  # no segment is chosen for deletion while a checkpoint begins
        self._running_epoch: int | None = None
        self._protected: tuple[int, ...] = ()
        self.scarce = True  # there may be little room: what `collect_held` does may matter; read by any thread
        self.full_error: MtrainsError | None = None
        self.error: BaseException | None = None
        self._told = False  # some caller had final_error()
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
        """Begin a checkpoint in the engine; its epoch's rows are kept until `end_checkpoint`.

        Raises: StateError within a step of another thread.
        """
        with self._epochs_mutex:
            epoch = self._engine.begin_checkpoint()
            if not epoch:
                raise StateError(
                    "a step of an optimizer or write_rows is running in another thread; a checkpoint begins "
                    "between them"
                )
            self._protected = (*self._protected, epoch)
            self._running_epoch = epoch
        return epoch

    def end_checkpoint(self, *, committed: bool, closed: bool) -> None:
        """The running checkpoint is committed or given up.

        `closed`: a segment that closes its epoch may be on disk, so a rebuild may choose it: its rows are kept
        until the next checkpoint is committed.
        """
        with self._epochs_mutex:
            if committed:
                self._protected = ()
            elif not closed:
                self._protected = tuple(epoch for epoch in self._protected if epoch != self._running_epoch)
            self._running_epoch = None

    def begin_settling(self) -> None:
        """Have the segments of a given-up checkpoint count as a checkpoint's until `end_settling`."""
        with self._epochs_mutex:
            self._running_epoch = self._engine.epoch() - 1

    def end_settling(self) -> None:
        with self._epochs_mutex:
            self._running_epoch = None

    def needed_epochs(self) -> list[int]:
        """Return the epochs of checkpoints that are retained, or running."""
        return [*self._context.retained_epochs(), *self._protected]

    def final_error(self) -> StateError:
        """Return why nothing can be written, for a caller to raise."""
        self._told = True
        return self._refusal()

    def untold_error(self) -> StateError | None:
        """Return why nothing can be written, if that never came up."""
        return None if self.error is None or self._told else self._refusal()

    def _refusal(self) -> StateError:
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
            if failure is not None:  # also in the last turn before a stop: a failed sync is final
                self.error = failure
            self._stopping = True
            jobs, self._jobs = list(self._jobs), deque()
        if self.error is not None:
            self._engine.fail(getattr(self.error, "errno", None) or errno.EIO, str(self._refusal()))
        for ticket in jobs:
            ticket.fail(self.final_error())

    def _is_stopping(self) -> bool:
        with self._mutex:
            return self._stopping

    def _turn(self) -> None:
        """Commit one group if one waits, then do one step of a job or of the background work."""
        with self._mutex:
            ticket = self._jobs[0] if self._jobs else None
        waits = ticket is None or ticket.job.waits
        timeout = _IDLE_SECONDS if waits and not self._more else 0.0
        segments = self._engine.next_sealed(_GROUP_SEGMENTS, timeout)
        if segments and waits:
            segments += self._gather(len(segments), ticket)
        blocked = bool(segments) and not self._append(segments)
        if ticket is not None:
            self._step(ticket)
        elif blocked:
            self._poked.wait(_RETRY_SECONDS)
            self._poked.clear()
        else:
            self._more = self._collect() or self._context.background()

    def _gather(self, present: int, ticket: Ticket[Any] | None) -> list[_native.SealedSegment]:
        """Wait a little for more segments, while they come: a commit costs the same for one and for several."""
        missing = _MIN_GROUP - present
        if missing <= 0 or (ticket is not None and not ticket.job.waits):  # its last wake may be used up
            return []
        return self._engine.next_sealed(_GROUP_SEGMENTS - present, _GATHER_SECONDS, missing)

    def _step(self, ticket: Ticket[Any]) -> None:
        self.scarce = True  # until room is looked at again: jobs write, too
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
            if left and self._make_room(left):
                left = self._append_where_room_is(left)
            if left:
                self._engine.requeue(left)
            if len(left) == len(segments):
                self._stop_passes(error)
                return False
        self._io_share.appended(len(segments))
        return True

    def _commit(self, segments: list[_native.SealedSegment], privileged: bool = False) -> None:
        begin = self._context.clock()
        privileged = privileged or self._is_checkpoint(segments)
        with self._epochs_mutex:
            due = self._engine.take_deletable(self.needed_epochs(), _MAX_DELETES)
        if not due and not segments:
            return
        numbers = [number for number, _ in due]
        values = [(segment.segment_id, segment.value) for segment in segments]
        passed = self._context.passed
        passed(CommitPoint.DELETE_CHOSEN if due else CommitPoint.APPEND_SEALED)
        try:
            self._container.append(values, [segment_id for _, segment_id in due], privileged=privileged)
        except MtrainsError:
            self._engine.undelete(numbers)
            raise
        passed(CommitPoint.DELETE_COMMITTED if due else CommitPoint.APPEND_COMMITTED)
        self._engine.deleted(numbers)
        if segments:
            self._publish(segments)
            passed(CommitPoint.APPEND_PUBLISHED)
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
            self._context.passed(CommitPoint.ORPHANS_DELETED)

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

    # --- room

    def _append_where_room_is(self, segments: list[_native.SealedSegment]) -> list[_native.SealedSegment]:
        """Delete all that may go, then commit one segment at a time; return those for which there is no room.

        The running checkpoint's segments go first: they alone may use the reserve.
        """
        left = sorted(segments, key=lambda segment: not self._is_checkpoint([segment]))
        try:
            self._context.let_go()
            while self._delete_due():
                pass
            self._container.age()
            while left:
                self._commit_one(left[0])
                del left[0]
        except MtrainsError as error:
            if not is_full(error):
                raise
        return left

    def _commit_one(self, segment: _native.SealedSegment) -> None:
        """Commit a segment; within the reserve, if as much was evacuated, which gives more back than it takes."""
        try:
            self._commit([segment])
        except MtrainsError as error:
            if not is_full(error) or self._lent < 1.0:
                raise
            self._commit([segment], privileged=True)
            self._lent -= 1.0

    def _make_room(self, left: list[_native.SealedSegment]) -> bool:
        """Empty segments that no checkpoint needs, so that they can be deleted at once; whether any was.

        left: the segments that wait. One of them is committed within the reserve if evacuation needs its place.
        """
        policy = GcPolicy(young_target=0.7, slack=0)
        moved = 0
        for _ in range(_GROUP_SEGMENTS):
            emptied = self._empty(1, policy, only_young=True)
            while emptied is None and left:
                try:
                    self._commit(left[:1], privileged=True)
                except MtrainsError as error:
                    if not is_full(error):
                        raise
                    return moved > 0
                del left[0]
                emptied = self._empty(1, policy, only_young=True)
            if not emptied:
                break
            moved += emptied
        return moved > 0

    def _delete_due(self) -> bool:
        before = self.counters.segments_deleted
        self._commit([], privileged=True)
        return self.counters.segments_deleted > before

    def _stop_passes(self, error: MtrainsError) -> None:
        if self.full_error is None:
            self.full_error = error
            code = error.errno if isinstance(error, TierIOError) else None
            hint = "if a step of an optimizer was stopped half way, restore the last checkpoint"
            self._engine.fail(code or errno.ENOSPC, f"{error}; {hint}")

    def _collect(self) -> bool:
        """Empty some segments if too little is live and the share of IO has any left; whether any was.

        Where room is scarce, what a checkpoint needs stays until shortly before the next one (`collect_held`): the
        old place is held until then, and the new one takes room. The share of IO does not count then.
        """
        policy, _ = self._policy()
        scarce = policy != DEFAULT_POLICY
        if not (scarce or self._io_share.is_left):
            return False
        emptied = self._empty(_MAX_EMPTIED, policy, only_young=scarce)
        if emptied == 0:
            self._io_share.not_needed()
        return bool(emptied)

    def collect_held(self, waiting: int) -> bool:
        """Where room is scarce, evacuate a segment that only the next checkpoint lets go; whether there may be more.

        For the writer thread's jobs, before that checkpoint begins. waiting: segments that it writes besides.
        """
        policy, room = self._policy()
        if policy == DEFAULT_POLICY or room - waiting + _MAX_LENT < 1:
            return False
        room -= self._engine.pending_segments(self._engine.epoch())
        if room - waiting + _MAX_LENT < 1:
            return False
        return self._empty(1, policy) != 0  # None: after the next group was committed

    def _policy(self) -> tuple[GcPolicy, int]:
        """Return what to aim at and the room that there is, after what may be deleted was, if it is scarce."""
        room = self._container.room_segments()
        if policy_for(room) != DEFAULT_POLICY and self._delete_due():
            room = self._container.room_segments()
        policy = policy_for(room)
        self.scarce = policy != DEFAULT_POLICY
        return policy, room

    def _empty(self, limit: int, policy: GcPolicy, *, only_young: bool = False) -> int | None:
        """Empty segments; return how many, or None if what waits must be committed first.

        Some of them may turn out to be damaged and stay as they are.
        """
        results = self._engine.empty_garbage(
            self.needed_epochs(), limit, **asdict(policy), only_young=only_young
        )
        done = 0
        for segment_id, moved_bytes, damage in results:
            if moved_bytes < 0:
                continue
            done += 1
            if damage:
                self._report_damage(segment_id, damage)
                continue
            share = moved_bytes / _native.SEGMENT_BYTES
            self._io_share.emptied(share)
            self._lent = min(_MAX_LENT, self._lent + share)
            self.counters.segments_evacuated += 1
        if done:
            self._context.passed(CommitPoint.GC_EVACUATED)
        return None if results and not done else done

    def _report_damage(self, segment_id: int, damage: str) -> None:
        self.counters.segments_damaged += 1
        print(
            f"mtrains: garbage collection leaves segment {segment_id} of {self._container.data_path} as it "
            f"is: {damage}; `mtrains verify` names what is damaged",
            file=sys.stderr,
        )
