"""One opened store below its public face: lock, environments, engine and writer thread, from opening to
closing."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import lmdb

from mtrains import _native
from mtrains.errors import MtrainsError, StateError
from mtrains.slot_tiers import EVICTIONS
from mtrains.tiers.catalog import Catalog
from mtrains.tiers.catalog_records import CheckpointRecord, TableCut, TableRecord, retained
from mtrains.tiers.chain import Chain, ChainConfig
from mtrains.tiers.checkpoint import (
    CheckpointDraft,
    begin_incarnation,
    change_checkpoints,
    commit_checkpoint,
    restore_catalog,
)
from mtrains.tiers.checkpoint_jobs import CallJob, CheckpointJob, FlushJob, PrepareJob
from mtrains.tiers.commit_points import CommitPoint, PassedPoint, pass_silently
from mtrains.tiers.container import LmdbSegmentContainer
from mtrains.tiers.deltas import delta_heads
from mtrains.tiers.disk_budget import DiskBudget
from mtrains.tiers.engine_counters import EngineCounters
from mtrains.tiers.environment import environment_error, is_full
from mtrains.tiers.filesystem import check_file_system
from mtrains.tiers.fold import Fold, base_bytes, foldable
from mtrains.tiers.jobs import Ticket
from mtrains.tiers.layout import StoreLayout
from mtrains.tiers.leases import LeaseFile
from mtrains.tiers.loading import add_table, load_engine
from mtrains.tiers.lock import StoreLock
from mtrains.tiers.log_writer import LogWriter, WriterContext, WriterCounters
from mtrains.tiers.readers import read_checkpoints, read_segments, read_state, read_tables
from mtrains.tiers.records import Kind
from mtrains.tiers.segment_meta import ClosingMeta, SegmentMeta

__all__ = ["Session", "SessionOptions", "open_session"]


@dataclass(frozen=True, kw_only=True)
class SessionOptions:
    """How to open a store. seed: of a new store; an existing one keeps its own. cap_bytes: None is
    unlimited. passed: told each commit point, for tests."""

    seed: int
    chain: ChainConfig
    cap_bytes: int | None
    io_engine: str
    num_threads: int
    keep: int
    eviction: str = EVICTIONS[0]
    passed: PassedPoint = pass_silently


class Session:
    """Engine, catalog and container of one open store.

    Not thread-safe but for reading `engine`, `checkpoints` and `tables`; the store calls it from one thread
    at a time, and the writer thread alone writes while it runs.
    """

    def __init__(self, folder: Path, options: SessionOptions) -> None:
        """Open or create the store. Raises: StateError, FormatError, CapacityError, TierIOError; nothing
        stays open then."""
        self.layout = StoreLayout(folder)
        self.options = options
        self.pid = os.getpid()
        self._counters_before = WriterCounters()  # of what restores ended
        self.engine_counters = EngineCounters()
        self.checkpoint_count = 0
        self.folded_pages = 0
        self._closing: list[Callable[[], None]] = []  # in reverse
        self._running: list[Callable[[], None]] = []  # of engine and writer thread, before those
        self._closing_metas: dict[int, bytes] = {}
        self._spare_layouts: dict[int, list[tuple[int, float]]] = {}  # of tables in the engine, not in use
        self._fold: Fold | None = None
        self._fold_due = True
        self._engine: _native.Engine | None = None
        self._writer: LogWriter | None = None
        self.untold_error: StateError | None = None  # a failed write that no call raised, once closed
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    @property
    def engine(self) -> _native.Engine:
        """The engine, until `restore` or `close`."""
        if self._engine is None:
            raise StateError("the store is closed")
        return self._engine

    @property
    def writer(self) -> LogWriter:
        """The writer thread, until `restore` or `close`."""
        if self._writer is None:
            raise StateError("the store is closed")
        return self._writer

    @property
    def closed(self) -> bool:
        """Closed, or a restore failed after which nothing could go on."""
        return self._engine is None

    # --- opening and closing

    def _open(self) -> None:
        layout, options = self.layout, self.options
        layout.make_folder()
        check_file_system(layout.folder)
        lock = StoreLock(layout.folder)
        self._closing.append(lock.release)
        if not layout.exists():
            layout.create(options.seed, options.passed)
        uuid = layout.check()
        self.leases = LeaseFile(layout.leases)
        self._closing.append(self.leases.close)
        self.chain = Chain(options.chain, layout.folder)
        self._closing.append(self.chain.close)
        self.budget = DiskBudget(options.cap_bytes, (*layout.data_files, *self.chain.disk_files))
        self.catalog = Catalog(
            layout.catalog, self.budget, make_room=self._shrink_reserve, passed=options.passed
        )
        self._closing.append(self.catalog.close)
        self.catalog.check_format(uuid)
        self.container = LmdbSegmentContainer(layout.rows, self.budget)
        self._closing.append(self.container.close)
        self.container.check_format(uuid)
        self.checkpoints = tuple(read_checkpoints(self.catalog))
        self.stored_tables = tuple(read_tables(self.catalog))
        self.tables = self.stored_tables
        options.passed(CommitPoint.OPEN_READ)
        self.state = begin_incarnation(self.catalog, read_state(self.catalog), self.checkpoints)
        options.passed(CommitPoint.OPEN_INCARNATION)
        self._start()
        options.passed(CommitPoint.OPEN_LOADED)

    def _start(self) -> None:
        """Make the engine and its writer thread, at the last checkpoint."""
        cuts = self.cuts()
        engine = _native.Engine(
            tiers=self.chain.native_tiers(),
            num_threads=self.options.num_threads,
            incarnation=self.state.incarnation,
            epoch=self.state.first_epoch,
            eviction=EVICTIONS.index(self.options.eviction),
        )
        self._running.append(engine.close)
        # Layouts that came after the checkpoint have no rows left.
        self.tables = tuple(
            replace(record, layouts=record.layouts[: cut.layout + 1])
            for record, cut in zip(self.tables, cuts, strict=True)
        )
        for number, (record, cut) in enumerate(zip(self.tables, cuts, strict=True)):
            add_table(engine, record, self.state.seed, cut.layout, self.options.chain.budgets_of(record.name))
            engine.set_update_count(number, cut.update_count)
        loaded = load_engine(
            engine, self.catalog, self.container, self.checkpoints, len(self.tables), self.options.io_engine
        )
        context = WriterContext(
            uuid=self.state.uuid,
            retained_epochs=lambda: [record.epoch for record in self.checkpoints],
            tables=lambda: self.tables,
            closing_meta=lambda epoch: self._closing_metas.pop(epoch, None),
            background=lambda: self._let_go() or self._fold_step(),
            let_go=self._let_go,
            clock=time.monotonic,
            passed=self.options.passed,
        )
        self.io_engine = loaded.effective_engine
        writer = LogWriter(engine, self.container, context, loaded.orphans)
        self._running.append(writer.stop)
        writer.start()
        self._spare_layouts = {}
        self._engine, self._writer = engine, writer

    def cuts(self) -> list[TableCut]:
        """Return the last checkpoint's counters for every table; zeros for one that was added later."""
        cuts = list(self.checkpoints[-1].tables) if self.checkpoints else []
        fresh = TableCut(layout=0, update_count=0, optimizer=None)
        return [*cuts, *[fresh] * (len(self.tables) - len(cuts))]

    def close(self) -> None:
        """Stop the writer, close everything, release the lock. Does nothing the second time, or in a forked
        child."""
        if os.getpid() != self.pid:
            return
        passed = self.options.passed
        passed(CommitPoint.CLOSE_BEGUN)
        self._stop()
        passed(CommitPoint.CLOSE_STOPPED)
        while self._closing:
            if len(self._closing) == 1:
                passed(CommitPoint.CLOSE_DONE)
            self._closing.pop()()

    def _stop(self) -> None:
        while self._running:
            self._running.pop()()
        if self._writer is not None:
            self.untold_error = self._writer.untold_error()
        self._engine = self._writer = None  # their memory goes with them

    def abandon(self) -> None:
        """In a forked child: let nothing of it be destroyed, for its threads exist in the parent alone."""
        for kept in (self._engine, self._writer, self.container, self.catalog):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))

    # --- tables

    def add_table(self, record: TableRecord) -> int:
        """Register a new table; it is stored by the next checkpoint."""
        budgets = self.options.chain.budgets_of(record.name)
        number = add_table(self.engine, record, self.state.seed, 0, budgets)
        self.tables = (*self.tables, record)
        return number

    def add_layout(self, number: int, state_floats: int, initial_state: float) -> None:
        """Give the table's rows a new optimizer state; rows keep their weights and begin with the initial
        state."""
        changed, wanted = self.tables[number], (state_floats, initial_state)
        spare = self._spare_layouts.setdefault(number, [])
        if wanted not in spare:
            self.engine.add_layout(number, *wanted)
            spare.append(wanted)
        used = spare.index(wanted) + 1
        self.engine.use_layout(number, len(changed.layouts) + used - 1)  # may fail for want of room
        for layout in spare[:used]:
            changed = changed.with_layout(*layout)
        del spare[:used]
        self.tables = (*self.tables[:number], changed, *self.tables[number + 1 :])

    # --- checkpoints

    def prepare_checkpoint(self) -> None:
        """Do what must be done before a checkpoint begins, and wait for it. REQUIRES: none is running.

        Mostly nothing: then training does not wait for what the writer thread is doing.
        """
        slot_bytes, engine = self.options.chain.total_bytes, self.engine
        if not self.writer.scarce and engine.owed_rows() == 0:
            return
        self.writer.submit(PrepareJob(engine, self.writer, self._sweep_rows(), slot_bytes)).wait()

    def begin_checkpoint(
        self,
        *,
        tag: str | int | None,
        step: int | None,
        extra: bytes,
        pinned: bool,
        cuts: Sequence[TableCut],
    ) -> Ticket[CheckpointRecord]:
        """Begin a checkpoint of the present moment; the ticket ends with its commit.

        REQUIRES: `prepare_checkpoint` just ended, no other is running. cuts: taken since then.
        """
        epoch = self.writer.begin_checkpoint()
        self.options.passed(CommitPoint.CHECKPOINT_BEGUN)
        record = CheckpointRecord(
            number=self.state.next_checkpoint,
            epoch=epoch,
            tag=tag,
            step=step,
            created=time.time(),
            extra_bytes=len(extra),
            pinned=pinned,
            tables=tuple(cuts),
        )
        draft = CheckpointDraft(record=record, extra=extra, tables=self.tables)
        sweep_rows = self._sweep_rows()
        job = CheckpointJob(self.engine, self.writer, sweep_rows, draft, self._close_epoch, self._commit)
        return self.writer.submit(job)

    def flush(self) -> Ticket[None]:
        """Append all dirty rows to the log and wait for their commits. REQUIRES: no checkpoint is running."""
        return self.writer.submit(FlushJob(self.engine, self.writer, self._sweep_rows()))

    def change_checkpoints(self, changed: Sequence[CheckpointRecord]) -> Ticket[None]:
        """Store changed marks of checkpoints and drop those that nothing keeps then."""
        return self.writer.submit(CallJob(lambda: self._change(changed)))

    def restore(self, target: CheckpointRecord) -> None:
        """Go back to a checkpoint: later ones are dropped, the engine is a new one.

        REQUIRES: no checkpoint is running. Raises: CapacityError, TierIOError (no room), and nothing has changed;
        after any other error the session is closed.
        """
        ticket = self.writer.submit(CallJob(lambda: self._restore_catalog(target)))
        try:
            ticket.wait()
        except MtrainsError:
            raise
        except BaseException:  # Ctrl-C: what the catalog says by now is not what the engine has
            self.close()
            raise
        try:
            self.writer.stop()
            if self.writer.error is not None:
                raise self.writer.final_error()
            self._keep_counters()
            self._stop()
            self.options.passed(CommitPoint.RESTORE_STOPPED)
            self._fold = None
            self._closing_metas.clear()
            self.checkpoints = tuple(read_checkpoints(self.catalog))
            self.state = read_state(self.catalog)
            self._start()
            self.options.passed(CommitPoint.RESTORE_LOADED)
        except BaseException:
            self.close()
            raise

    def _keep_counters(self) -> None:
        self._counters_before = self.writer_counters()
        self.engine_counters.keep(self.engine, self.tables)

    def writer_counters(self) -> WriterCounters:
        """Return the counters of all writer threads since opening."""
        before, last = self._counters_before, self.writer.counters
        return WriterCounters(**{name: getattr(before, name) + getattr(last, name) for name in vars(before)})

    def needed_epochs(self) -> list[int]:
        """Return the epochs of checkpoints that are retained, or running."""
        return self.writer.needed_epochs()

    def read_extra(self, record: CheckpointRecord) -> bytes:
        """Return the caller's bytes of a checkpoint."""
        return self.catalog.read_pieces(Kind.EXTRA, record.number)

    # --- on the writer thread

    def _restore_catalog(self, target: CheckpointRecord) -> None:
        self.options.passed(CommitPoint.RESTORE_BEGUN)
        segments = read_segments(self.catalog)
        restore_catalog(self.catalog, self.state, self.checkpoints, target, segments, self.leases)
        self.options.passed(CommitPoint.RESTORE_COMMITTED)

    def _commit(self, draft: CheckpointDraft) -> CheckpointRecord:
        epoch, passed = draft.record.epoch, self.options.passed
        passed(CommitPoint.CHECKPOINT_WRITTEN)
        self.container.sync()
        passed(CommitPoint.CHECKPOINT_SYNCED)
        self.state, kept = commit_checkpoint(
            draft,
            self.engine.changes(epoch),
            catalog=self.catalog,
            state=self.state,
            checkpoints=self.checkpoints,
            stored_tables=self.stored_tables,
            keep=self.options.keep,
            leases=self.leases,
        )
        passed(CommitPoint.CHECKPOINT_COMMITTED)
        self.checkpoints = tuple(kept)
        self.stored_tables = draft.tables
        self.engine.finish_checkpoint(epoch, kept[0].epoch)
        self.checkpoint_count += 1
        self._fold_due = True
        passed(CommitPoint.CHECKPOINT_FINISHED)
        return draft.record

    def _change(self, changed: Sequence[CheckpointRecord]) -> None:
        kept = change_checkpoints(self.catalog, self.checkpoints, changed, self.options.keep, self.leases)
        self.checkpoints = tuple(kept)
        self.options.passed(CommitPoint.MARKS_CHANGED)
        self._fold_due = True
        self.writer.poke()

    def _let_go(self) -> bool:
        """Drop the checkpoints that only readers kept and none reads any more; whether there was any."""
        before = self.checkpoints
        if len(retained(before, self.options.keep)) == len(before):
            return False
        try:
            kept = change_checkpoints(self.catalog, before, (), self.options.keep, self.leases)
        except MtrainsError as error:
            if not is_full(error):
                raise
            return False  # again at the next turn
        self.checkpoints = tuple(kept)
        self._fold_due = self._fold_due or kept != list(before)
        return kept != list(before)

    def _close_epoch(self, draft: CheckpointDraft) -> None:
        """Seal what is filling in the checkpoint's streams; the last segment says what the catalog will."""
        record = draft.record
        closing = ClosingMeta(
            state=self.state,
            tables=draft.tables,
            cuts=record.tables,
            tag=record.tag,
            step=record.step,
            created=record.created,
        )
        meta = SegmentMeta(
            uuid=self.state.uuid, tables={}, retained=[c.epoch for c in self.checkpoints], closing=closing
        ).to_bytes()
        self._closing_metas[record.epoch] = meta
        self.engine.flush(record.epoch, True, len(meta))
        self.options.passed(CommitPoint.CHECKPOINT_SWEPT)

    def _fold_step(self) -> bool:
        """Move some entries of old deltas into the base; return whether there was anything to do."""
        if self._fold is None:
            if not self._fold_due or not self.checkpoints:
                return False
            self._fold_due = False
            heads = foldable(delta_heads(self.catalog), self.checkpoints[0].epoch, base_bytes(self.catalog))
            if not heads:
                return False
            self._fold = Fold(self.catalog, heads)
        try:
            more, moved = self._fold.step()
        except MtrainsError as error:
            if not is_full(error):
                raise
            self._fold = None  # again after the next checkpoint
            return False
        self.options.passed(CommitPoint.FOLD_COMMITTED if more else CommitPoint.FOLD_DONE)
        for table, first, last in moved:
            pages, offsets = self.catalog.base_pages(table, first, last)
            self.engine.set_base(table, pages, offsets)
            self.folded_pages += last - first + 1
        if not more:
            self._fold = None
        return True

    def _shrink_reserve(self) -> None:
        self.container.shrink()

    def _sweep_rows(self) -> int:
        """Return how many rows one step of a sweep may append: some 4 MiB."""
        longest = max((t.stride(i) for t in self.tables for i in range(len(t.layouts))), default=1)
        return max(1, min(8192, (4 << 20) // longest))


def open_session(folder: Path, options: SessionOptions) -> Session:
    """Open or create the store in `folder`. Raises: as Store; FormatError for a damaged page of an environment."""
    try:
        return Session(folder, options)
    except lmdb.Error as error:
        raise environment_error(error, f"reading {folder}") from error
