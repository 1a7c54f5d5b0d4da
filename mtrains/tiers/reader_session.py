"""A store opened to read beside a process that trains it: an engine that serves one committed checkpoint."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mtrains import _native
from mtrains.errors import StateError
from mtrains.slot_tiers import EVICTIONS
from mtrains.tiers.catalog_records import CheckpointRecord, StoreState, TableCut, TableRecord
from mtrains.tiers.chain import Chain, ChainConfig
from mtrains.tiers.disk_budget import DiskBudget
from mtrains.tiers.engine_counters import EngineCounters
from mtrains.tiers.environment import DATA_FILE
from mtrains.tiers.filesystem import check_file_system
from mtrains.tiers.layout import StoreLayout
from mtrains.tiers.leases import Lease
from mtrains.tiers.live import Choice, LiveStore, newest_of, reading
from mtrains.tiers.loading import add_table, load_checkpoint
from mtrains.tiers.log_writer import WriterCounters
from mtrains.tiers.readers import read_checkpoints, read_state, read_tables
from mtrains.tiers.records import Kind

__all__ = ["ReaderOptions", "ReaderSession"]


@dataclass(frozen=True, kw_only=True)
class ReaderOptions:
    """How to open a store to read."""

    chain: ChainConfig
    io_engine: str
    num_threads: int
    eviction: str


@dataclass(frozen=True, kw_only=True)
class _Served:
    """A checkpoint that is kept by a lease, and all of its directory in an engine."""

    lease: Lease
    chain: Chain
    engine: _native.Engine
    io_engine: str
    state: StoreState
    tables: tuple[TableRecord, ...]
    cuts: tuple[TableCut, ...]  # of each table
    checkpoints: tuple[CheckpointRecord, ...]  # up to the served one, as they were then

    def close(self) -> None:
        self.engine.close()  # waits for the pass in progress, whose segments the lease keeps
        self.chain.close()
        self.lease.release()


class ReaderSession:
    """Engine and lease of a store that another process may be training. Writes nothing, takes no lock of the store.

    The environments are open only while a checkpoint is loaded, in read transactions that end with it: a transaction
    that lived as long as the lease would keep LMDB from using any freed page of the catalog again. After
    that, rows are read from segments, which stay in their places as long as the lease keeps them.
    """

    def __init__(self, folder: Path, options: ReaderOptions) -> None:
        """Serve the newest checkpoint. Raises: StateError, FormatError, TierIOError; nothing stays open then."""
        self.layout = StoreLayout(folder)
        self.options = options
        self.pid = os.getpid()
        self._uuid = self.layout.require()
        check_file_system(folder)
        self.budget = DiskBudget(None, self.layout.data_files)
        self.engine_counters = EngineCounters()
        self.checkpoint_count = self.folded_pages = 0
        self._num_loads = 0
        self._served: _Served | None = None
        self._served = self._load(newest_of(self.layout))

    # --- what is served

    @property
    def served(self) -> CheckpointRecord:
        """The checkpoint whose rows are served."""
        return self._present().checkpoints[-1]

    @property
    def checkpoints(self) -> tuple[CheckpointRecord, ...]:
        """The checkpoints that there were when the served one, the last of them, was loaded."""
        return self._present().checkpoints

    @property
    def engine(self) -> _native.Engine:
        """The engine, until `refresh` or `close`."""
        return self._present().engine

    @property
    def chain(self) -> Chain:
        """The slot tiers, until `refresh` or `close`."""
        return self._present().chain

    @property
    def io_engine(self) -> str:
        return self._present().io_engine

    @property
    def state(self) -> StoreState:
        return self._present().state

    @property
    def tables(self) -> tuple[TableRecord, ...]:
        """All tables; those that came after the served checkpoint have their initial rows."""
        return self._present().tables

    @property
    def closed(self) -> bool:
        return self._served is None

    def cuts(self) -> list[TableCut]:
        """Return the served checkpoint's counters for every table."""
        return list(self._present().cuts)

    def _present(self) -> _Served:
        if self._served is None:
            raise StateError("the store is closed")
        return self._served

    # --- moving on

    def refresh(self) -> bool:
        """Serve the newest checkpoint; whether it is another one. Raises: as opening, and what was served stays."""
        return self._move(newest_of(self.layout))

    def go_to(self, epoch: int) -> bool:
        """Serve the checkpoint of an epoch; whether it is another one. Raises: StateError if it is not there."""
        if self.served.epoch == epoch:
            return False

        def find(records: Sequence[CheckpointRecord]) -> CheckpointRecord:
            for record in records:
                if record.epoch == epoch:
                    return record
            epochs = ", ".join(str(record.epoch) for record in records)
            raise StateError(f"the store {self.layout.folder} has no checkpoint of epoch {epoch}, only: {epochs}")

        return self._move(find)

    def _move(self, choose: Choice) -> bool:
        before = self._present()
        if self.layout.require() != self._uuid:
            raise StateError(f"{self.layout.folder} is another store by now; open it again")
        with reading(self.layout, self._uuid) as live, live.catalog.snapshot():
            if choose(read_checkpoints(live.catalog)).epoch == self.served.epoch:
                return False
        after = self._load(choose)
        self.engine_counters.keep(self.engine, self.tables)
        self._served = after
        before.close()
        return after.checkpoints[-1].epoch != before.checkpoints[-1].epoch

    def _load(self, choose: Choice) -> _Served:
        with (
            reading(self.layout, self._uuid) as live,
            live.leased(choose) as (lease, records, chosen),
        ):
            return self._load_leased(live, lease, records, chosen)

    def _load_leased(
        self, live: LiveStore, lease: Lease, records: Sequence[CheckpointRecord], chosen: CheckpointRecord
    ) -> _Served:
        catalog = live.catalog
        state, options = read_state(catalog), self.options
        records_of_tables = read_tables(catalog)
        fresh = TableCut(layout=0, update_count=0, optimizer=None)
        cuts = (*chosen.tables, *[fresh] * (len(records_of_tables) - len(chosen.tables)))
        tables = tuple(
            replace(record, layouts=record.layouts[: cut.layout + 1])
            for record, cut in zip(records_of_tables, cuts, strict=True)
        )
        # Nothing is ever appended, so the epoch names nothing but this engine's plans.
        self._num_loads += 1
        chain = Chain(options.chain, self.layout.folder)
        engine: _native.Engine | None = None
        try:
            engine = _native.Engine(
                tiers=chain.native_tiers(),
                num_threads=options.num_threads,
                incarnation=0,
                epoch=self._num_loads,
                eviction=EVICTIONS.index(options.eviction),
            )
            for number, (record, cut) in enumerate(zip(tables, cuts, strict=True)):
                add_table(engine, record, state.seed, cut.layout, options.chain.budgets_of(record.name))
                engine.set_update_count(number, cut.update_count)
            data_path = self.layout.rows / DATA_FILE
            effective = load_checkpoint(
                engine, catalog, live.locate(), data_path, chosen, options.io_engine
            )
        except BaseException:
            if engine is not None:
                engine.close()
            chain.close()
            raise
        return _Served(
            lease=lease,
            chain=chain,
            engine=engine,
            io_engine=effective,
            state=state,
            tables=tables,
            cuts=cuts,
            checkpoints=tuple(record for record in records if record.epoch <= chosen.epoch),
        )

    # --- counters and the rest

    def read_extra(self, record: CheckpointRecord) -> bytes:
        """Return the caller's bytes of a checkpoint. Raises: StateError if it was dropped meanwhile."""
        with reading(self.layout, self._uuid) as live, live.catalog.snapshot():
            if all(present.number != record.number for present in read_checkpoints(live.catalog)):
                raise StateError(
                    f"checkpoint {record.tag!r} (epoch {record.epoch}) was dropped by the process that trains; "
                    "only the served one is kept for a read-only store"
                )
            return live.catalog.read_pieces(Kind.EXTRA, record.number)

    def writer_counters(self) -> WriterCounters:
        """Return zeros: nothing is written."""
        return WriterCounters()

    def needed_epochs(self) -> list[int]:
        """Return the epochs whose rows are on disk for checkpoints alone: none that this session knows."""
        return []

    def close(self) -> None:
        """Let the checkpoint go and close everything. Does nothing the second time, or in a forked child."""
        if os.getpid() != self.pid or self._served is None:
            return
        served, self._served = self._served, None
        served.close()

    def abandon(self) -> None:
        """In a forked child: let nothing of it be destroyed, for its threads exist in the parent alone."""
        if self._served is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._served.engine))
