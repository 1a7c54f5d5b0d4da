"""Jobs of the writer thread that concern checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto

from mtrains import _native
from mtrains.tiers.catalog_records import CheckpointRecord
from mtrains.tiers.checkpoint import CheckpointDraft
from mtrains.tiers.jobs import PlainJob
from mtrains.tiers.log_writer import LogWriter
from mtrains.tiers.sweep import Sweep

__all__ = ["CallJob", "CheckpointJob", "FlushJob", "PrepareJob"]


class _Phase(Enum):
    SWEEP = auto()
    WRITE = auto()
    COMMIT = auto()


class _SweepingJob:
    """What jobs share that append rows by a sweep."""

    _sweep: Sweep

    @property
    def waits(self) -> bool:
        return self._sweep.running

    def stop(self) -> None:
        self._sweep.stop()


class CheckpointJob(_SweepingJob):
    """Settle what an epoch owes, wait for its segments, commit. Its checkpoint has begun in the engine."""

    def __init__(
        self,
        engine: _native.Engine,
        writer: LogWriter,
        sweep_rows: int,
        draft: CheckpointDraft,
        close_epoch: Callable[[CheckpointDraft], None],
        commit: Callable[[CheckpointDraft], CheckpointRecord],
    ) -> None:
        self._engine = engine
        self._writer = writer
        self._sweep = Sweep(engine, sweep_rows)
        self._draft = draft
        self._close_epoch = close_epoch
        self._commit = commit
        self._phase = _Phase.SWEEP
        self._record: CheckpointRecord | None = None

    def step(self) -> bool:
        try:
            return self._step()
        except BaseException:
            self._sweep.stop()
            self._writer.end_checkpoint(committed=False, closed=self._phase is not _Phase.SWEEP)
            raise

    def _step(self) -> bool:
        epoch = self._draft.record.epoch
        if self._phase is not _Phase.COMMIT and self._writer.full_error is not None:
            raise self._writer.full_error
        if self._phase is _Phase.SWEEP:
            if self._sweep.step():
                self._phase = _Phase.WRITE
                self._close_epoch(self._draft)
            return False
        if self._phase is _Phase.WRITE:
            if self._engine.pending_segments(epoch) == 0:
                self._phase = _Phase.COMMIT
            return False
        self._record = self._commit(self._draft)
        self._writer.end_checkpoint(committed=True, closed=True)
        return True

    def result(self) -> CheckpointRecord:
        assert self._record is not None
        return self._record


class PrepareJob(PlainJob):
    """What comes before a checkpoint begins: make room for it, and append the rows that a given-up one still owes.

    These may use the reserve, as that checkpoint could.
    """

    def __init__(self, engine: _native.Engine, writer: LogWriter, sweep_rows: int, slot_bytes: int) -> None:
        self._engine = engine
        self._writer = writer
        self._sweep_rows = sweep_rows
        self._dirty_segments = slot_bytes // _native.SEGMENT_BYTES  # at most
        self._begun = False

    def step(self) -> bool:
        if not self._begun:
            if self._writer.full_error is None and self._writer.collect_held(self._dirty_segments):
                return False
            if self._engine.owed_rows() == 0:
                return True
            self._begun = True
            self._writer.begin_settling()
            return False  # what waits is tried again before the next step
        if self._writer.full_error is None and self._engine.sweep(self._sweep_rows) > 0:
            return False
        self._writer.end_settling()
        if self._writer.full_error is not None:
            raise self._writer.full_error
        return True

    def result(self) -> None:
        return None


class FlushJob(_SweepingJob):
    """Append all dirty rows and wait until they are in the container. It closes an epoch without a
    checkpoint."""

    def __init__(self, engine: _native.Engine, writer: LogWriter, sweep_rows: int) -> None:
        self._engine = engine
        self._writer = writer
        self._sweep_rows = sweep_rows
        self._sweep = Sweep(engine, sweep_rows)  # first of what a given-up checkpoint left, then of what is dirty now
        self._epoch: int | None = None
        self._swept = False

    def step(self) -> bool:
        try:
            return self._step()
        except BaseException:
            self._sweep.stop()
            raise

    def _step(self) -> bool:
        if self._writer.full_error is not None:
            raise self._writer.full_error
        if not self._swept:
            if not self._sweep.step():
                return False
            if self._epoch is None:
                self._epoch = self._engine.begin_checkpoint() or None
                if self._epoch is None:  # within a step that waits for room: after it
                    return False
                self._sweep = Sweep(self._engine, self._sweep_rows)
                return False
            self._swept = True
            self._engine.flush(self._epoch, False)
        assert self._epoch is not None
        return self._engine.pending_segments(self._epoch) == 0

    def result(self) -> None:
        return None


class CallJob(PlainJob):
    """One call on the writer thread."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call

    def step(self) -> bool:
        self._call()
        return True

    def result(self) -> None:
        return None
