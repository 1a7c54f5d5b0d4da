"""The store: tables whose rows live in HBM, DRAM, SCM and in a log on disk, with checkpoints."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal

import torch

from mtrains import _native
from mtrains.errors import StateError
from mtrains.hbm import Hbm
from mtrains.placement.plan import PlacementPlan
from mtrains.scm import Scm
from mtrains.slot_tiers import EVICTIONS
from mtrains.specs import TableSpec
from mtrains.store_memory import ask_memory
from mtrains.store_stats import StoreStats, collect_stats
from mtrains.tables import Checkpoint, OptimizerBinding, Table, TableRegistry
from mtrains.threads import follow_num_threads, get_num_threads
from mtrains.tiers.catalog_records import CheckpointRecord
from mtrains.tiers.digest import digest_rows
from mtrains.tiers.jobs import Ticket
from mtrains.tiers.reader_session import ReaderOptions, ReaderSession
from mtrains.tiers.session import Session, SessionOptions, open_session
from mtrains.transfer.export import ExportOptions, Progress, export_store
from mtrains.units import parse_bytes

__all__ = ["Checkpoint", "OptimizerBinding", "Store", "StoreStats", "Table"]

DEFAULT_KEEP = 2
IO_ENGINES = ("auto", "uring", "pread", "mmap")


class Store:
    """Rows of embedding tables in a chain of tiers, HBM > DRAM > SCM, over a log on disk; a context manager.

    One process trains a store at a time; others read it meanwhile (`read_only=True`, docs/serving.md). Passes of
    modules and optimizers may run in several threads, one after another. After kill -9 or power loss a store opens
    at its last checkpoint. A store is not for forked children (DataLoader workers): every call raises StateError
    there, and the parent is unharmed.

    A full disk or `ssd=` makes a pass that needs room raise TierIOError (ENOSPC), and checkpoint() and flush()
    CapacityError or TierIOError; nothing is lost, and all goes on once there is room. After any other failed
    write the store can be read, not written, until it is opened again.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        dram: int | str | None = None,
        hbm: int | str | Hbm = 0,
        scm: int | str | Scm = 0,
        ssd: int | str | None = None,
        seed: int | None = None,
        budgets: Mapping[str, Mapping[str, int | str]] | None = None,
        plan: PlacementPlan | str | os.PathLike[str] | None = None,
        read_only: bool = False,
        io_engine: str = "auto",
        eviction: Literal["lru", "lfu", "s3-fifo"] = "lru",
        keep: int = DEFAULT_KEEP,
        distributed: str | None = None,
        on_optimizer_change: Literal["error", "reset"] = "error",
    ) -> None:
        """Open the store at `path`, or create it; its parent folder must exist.

        Args:
            path: None is a private temporary store, gone when it is closed.
            dram: bytes for rows in memory, as a number or "256MiB", which None is; 0 with another tier in its place.
            Tables that fit are wholly resident, where DRAM is the fastest tier.
            hbm: bytes for rows on an accelerator, or an Hbm; then rows are looked up and updated there, and outputs
            are there. Emulated on the CPU where there is none.
            scm: bytes for rows in byte-addressable memory below DRAM, or an Scm.
            budgets: bytes of tables in tiers, {"clicks": {"dram": "1GiB", "scm": 0}}: theirs alone, out of the
            tier's; 0 passes a tier over; in a tier that is not named, a table shares the rest.
            plan: a PlacementPlan, or the path of its file, in place of dram= and budgets=: each of its tables has in
            each tier exactly the bytes of the plan. Other tables, and an optimizer whose rows are longer or shorter,
            are refused. `hbm` and `scm` may be an Hbm and a Scm, to say where that memory comes from.
            ssd: hard limit of the disk bytes of all files of the store; None is no limit.
            seed: of initial values; None takes torch.initial_seed() for a new store. A store keeps its seed
            for life.
            io_engine: "uring", "pread", "mmap", or "auto", the first of these that works here.
            eviction: which rows leave a tier first, of those without a use in a prefetch's window: the least recently
            used, the fewest accesses ("lfu"), or "s3-fifo" (docs/eviction.md).
            read_only: serve the last committed checkpoint of an existing store, which another process may be
            training; `refresh()` moves on. Needs no optimizer, takes no lock of the store, changes nothing. `seed`,
            if given, must be the store's; `scm`, `ssd`, `keep` and `on_optimizer_change` are refused.
            keep: checkpoints that are kept, the last ones, beside those that a state_dict holds or a read-only
            store serves.
            distributed: "local" says that each process of torch.distributed is meant to train rows of its own.
            on_optimizer_change: what attaching another kind of optimizer to a table does: "error", or "reset"
            its state.
        Raises:
            StateError: open elsewhere, another seed, or `path` cannot be a store. FormatError: damaged, or of
            another version. CapacityError: `ssd` is too small. TierIOError: the disk failed.
            ValueError: sizes beside a plan. OSError: the plan's file cannot be read.
            NotImplementedError: an option that this version does not have.
        """
        self._session: Session | ReaderSession | None = None
        _refuse_later_options(distributed=None if distributed == "local" else distributed)
        self._distributed = distributed
        self._read_only = read_only
        self._memory = ask_memory(dram=dram, hbm=hbm, scm=scm, budgets=budgets, plan=plan)
        options = SessionOptions(
            seed=_checked_seed(seed),
            chain=self._memory.chain,
            cap_bytes=None if ssd is None else parse_bytes(ssd),
            io_engine=_one_of("io_engine", io_engine, IO_ENGINES),
            num_threads=get_num_threads(),
            keep=_checked_keep(keep),
            eviction=_one_of("eviction", eviction, EVICTIONS),
        )
        self._reset_optimizers = (
            _one_of("on_optimizer_change", on_optimizer_change, ("error", "reset")) == "reset"
        )
        if read_only:
            _check_read_only(
                path, options, ssd=ssd, keep=keep, reset_optimizers=self._reset_optimizers
            )
        self._pid = os.getpid()
        self.path = None if path is None else Path(path)
        folder = Path(tempfile.mkdtemp(prefix="mtrains-")) if self.path is None else self.path
        temporary = folder if self.path is None else None
        try:
            session = _open_to_read(folder, options) if read_only else open_session(folder, options)
        except BaseException:
            if temporary is not None:
                shutil.rmtree(temporary, ignore_errors=True)
            raise
        self._finalizer = weakref.finalize(self, _close_session, session, temporary)
        stored_seed = session.state.seed
        if seed is not None and stored_seed != seed:
            self._finalizer()
            raise StateError(
                f"the store {folder} has seed {stored_seed}, not {seed}; leave seed out, or create another store"
            )
        self._session = session
        self._device, self._on_device = session.chain.device, session.chain.on_device
        self._lock = threading.RLock()  # one checkpoint, flush, restore, release or close at a time
        self._running: Ticket[CheckpointRecord] | None = None
        self._registry = TableRegistry(self, session)
        self._all_named = not self._memory.chain.budgets
        self._stored_versions = self._registry.versions()
        self.generation = 0  # +1 at every restore, and when a read-only store moves on
        follow_num_threads(self)
        try:
            for table in self._registry.tables:
                self._memory.check_table(table.spec)
            if read_only:
                self.check_named_tables()
        except StateError:
            self.close()
            raise

    # --- what it is

    @property
    def uuid(self) -> str:
        """Identity of the store, for life."""
        return self._open().state.uuid

    @property
    def seed(self) -> int:
        """Seed of initial values, for life."""
        return self._open().state.seed

    @property
    def read_only(self) -> bool:
        """Whether it serves a checkpoint and can change nothing."""
        return self._read_only

    @property
    def distributed(self) -> str | None:
        """How processes of torch.distributed share the rows: None, or "local", each has rows of its own."""
        return self._distributed

    @property
    def device(self) -> torch.device:
        """Where rows are looked up and updated, and where outputs and gradients are."""
        return self._device

    @property
    def on_device(self) -> bool:
        """Whether the fastest tier is HBM, emulated or not, and so computes."""
        return self._on_device

    @property
    def io_engine(self) -> str:
        """The effective engine of log reads: "uring", "pread" or "mmap"."""
        return self._open().io_engine

    @property
    def engine(self) -> _native.Engine:
        """The native engine; valid until restore(), refresh() or close()."""
        return self._open().engine

    def check_open(self) -> None:
        """Raises: StateError in a forked child and after close()."""
        self._open()

    def check_writable(self) -> None:
        """Raises: StateError as `check_open`, if it is read-only, and after a failed write (it names the first
        error)."""
        self._writable()

    def check_named_tables(self) -> None:
        """Raises: StateError if budgets or the plan name a table that is not there. The first step of an optimizer and
        a checkpoint call it: by then all tables are made."""
        if not self._all_named:
            self._memory.check_all_there([table.name for table in self._registry.tables])
            self._all_named = True

    # --- tables

    def add_table(self, spec: TableSpec) -> Table:
        """Return the table of this specification: the stored one, or a new one, which the next checkpoint
        stores.

        Raises: StateError if a table of this name has another shape, dtype, init, padding_idx or mode, a read-only
        store has none of this name, or the plan is of another table.
        """
        with self._lock:
            if not self.read_only:
                self.check_writable()
            self._memory.check_table(spec)
            return self._registry.add(spec)

    def tables(self, names: Sequence[str] | None = None) -> list[Table]:
        """Return all tables of the store, also those that no module uses yet, in order of their creation; or those
        of these names. Raises: StateError naming the tables if there is none such."""
        self._open()
        return list(self._registry.tables) if names is None else self._registry.named(names)

    def next_name(self) -> str:
        """Return a free name "table_0", "table_1", ... Raises: ValueError unless the store is temporary."""
        if self.path is not None:
            raise ValueError(
                f"a table in the store {self.path} needs a name: give name=, by which it is found again"
            )
        return self._registry.next_name()

    def bind_optimizer(
        self, table: Table, kind: str, fields: tuple[tuple[str, int], ...], initial_state: float
    ) -> OptimizerBinding:
        """Give a table's rows the state of an optimizer; of the same kind as before, they keep it.

        Args:
            fields: name and float32 values a row of each state. initial_state: of every value of untouched
            rows.
        Raises: StateError naming both kinds, if the table has another's state and on_optimizer_change is
        "error"; if the plan is of longer or shorter rows.
        """
        with self._lock:
            self.check_writable()
            self._memory.check_record(table.spec, kind, sum(count for _, count in fields))
            return self._registry.bind(table, kind, fields, initial_state, reset=self._reset_optimizers)

    # --- checkpoints

    def checkpoint(
        self, tag: str | int, *, step: int | None = None, extra: bytes | None = None, wait: bool = True
    ) -> None:
        """Commit the present rows, optimizer states and counters of all tables, with the caller's `step` and
        `extra`.

        Call it between steps: no step of an optimizer and no write_rows may run until its moment is fixed, else
        rows and counters of different moments are in it. With `wait=False` it returns at that moment, and
        threads may train while it is written; what they change is not in it. An error then comes up at the next
        checkpoint, flush, restore or close. A tag that was used before moves to the new checkpoint.
        Raises: CapacityError or TierIOError (no room): the rows stay, try again after making room.
        StateError, also if budgets or the plan name a table that is not there.
        """
        _check_tag(tag)
        if step is not None and (isinstance(step, bool) or not isinstance(step, int)):
            raise TypeError(f"step must be an int, got {type(step).__name__}")
        if extra is not None and not isinstance(extra, (bytes, bytearray, memoryview)):
            raise TypeError(f"extra must be bytes, got {type(extra).__name__}")
        with self._lock:
            self.check_writable()
            self.check_named_tables()
            self._settle()
            self._begin(tag, step, bytes(extra or b""), pinned=False)
            if wait:
                self._settle()

    def checkpoints(self) -> list[Checkpoint]:
        """Return the committed checkpoints, oldest first. The tag of one that a state_dict made is None.

        Of a read-only store: those up to the served one, the last, as they were when it moved there.
        """
        session = self._open()
        return [self._public(record) for record in session.checkpoints]

    def restore(self, tag: str | int) -> None:
        """Go back to a checkpoint, by tag or epoch: rows, states and counters exactly; later checkpoints are
        dropped.

        A checkpoint that is still being written is waited for. Raises: StateError naming the tags if there is
        none such, or if a read-only store serves a later one; nothing has changed then.
        """
        with self._lock:
            session = self._writable()
            self._settle()
            target = self._find(tag)
            session.restore(target)
            self._registry.restored()
            self._stored_versions = self._registry.versions()
            self.generation += 1
            session.engine.set_num_threads(get_num_threads())

    def release(self, tag: str | int) -> None:
        """Let go of a checkpoint, by tag, or of the one that a state_dict holds, by epoch; the newest stays
        until the next.

        Raises: StateError naming the tags if there is none such.
        """
        with self._lock:
            self.check_writable()
            self._settle()
            self._registry.release(self._find(tag), by_tag=tag).wait()

    def hold_epoch(self) -> int:
        """Return the epoch of a checkpoint with the present rows, which is kept until `release(epoch)`.

        Commits one if anything changed since the last. A read-only store returns the epoch that it serves, which is
        kept while it does.
        """
        with self._lock:
            if self.read_only:
                return self._open().checkpoints[-1].epoch
            session = self._writable()
            self._settle()
            if self._changed() or self._registry.has_unstored():
                self._begin(None, None, b"", pinned=True)
                self._settle()
            elif not session.checkpoints[-1].pinned:
                self._registry.pin(session.checkpoints[-1]).wait()
            return session.checkpoints[-1].epoch

    def flush(self) -> None:
        """Append all changed rows to the log and wait until they are written. It is no checkpoint.

        Raises: CapacityError or TierIOError if there is no room; rows stay in memory then.
        """
        with self._lock:
            session = self._writable()
            self._settle()
            session.flush().wait()

    # --- a read-only store

    def refresh(self) -> Checkpoint:
        """Have a read-only store serve the newest committed checkpoint; return that.

        Call it between lookups. `generation` tells whether rows changed. After an error it serves what it did.
        Raises: StateError if the store is not read-only, or another is at its path by now.
        """
        with self._lock:
            reader = self._reader("refresh()")
            self._moved(reader, reader.refresh())
            return self._public(reader.served)

    def load_epoch(self, epoch: int) -> None:
        """Have the rows of the checkpoint of this epoch: by `restore`, or, read-only, by serving that one.

        Raises: StateError if it is not there.
        """
        with self._lock:
            if self.read_only:
                reader = self._reader("load_epoch()")
                self._moved(reader, reader.go_to(epoch))
            else:
                self.restore(epoch)

    def _moved(self, reader: ReaderSession, moved: bool) -> None:
        if moved:
            self._registry.refreshed()
            self.generation += 1
            reader.engine.set_num_threads(get_num_threads())

    # --- reading

    def digest(self) -> str:
        """Return the SHA-256 of every touched row and its state, by table name and row id
        (docs/exactness.md).

        Two stores with equal digests hold the same bits. It depends on no cache, tier or history.
        """
        with self._lock:
            self.check_open()
            return digest_rows(self.engine, self._registry.digest_tables())

    def export(
        self,
        path: str | os.PathLike[str],
        *,
        tables: Sequence[str] | None = None,
        optimizer_state: bool = False,
        dtype: torch.dtype | None = None,
        format: Literal["safetensors", "npy"] = "safetensors",
        progress: Progress | None = None,
    ) -> None:
        """Write tables to one .safetensors file, as "NAME.weight", or to a new folder with a file a table.

        Rows, states and errors are as in export() of a module, which writes one table.

        Args:
            path: ends in .safetensors (or .npy, for one table), else it is a folder.
            tables: names; all by default.
            optimizer_state: "NAME.sum" and so on too, of the tables that have an optimizer.
            format: of the files in a folder.
        """
        options = ExportOptions(optimizer_state=optimizer_state, dtype=dtype, progress=progress)
        export_store(self.tables(tables), path, format, options)

    def stats(self) -> StoreStats:
        """Return counters since the store was opened, and its present sizes, taken in one call."""
        return collect_stats(self._open())

    # --- the end

    def close(self) -> None:
        """Close the store; a second call does nothing. Rows changed since the last checkpoint are gone.

        A running checkpoint is waited for; its error is raised after everything was closed, and so is that of a
        write in the background that no call before has raised.
        """
        self._close(tell=True)

    def _close(self, *, tell: bool) -> None:
        if os.getpid() != self._pid or self._session is None:
            return
        with self._lock:
            session = self._session
            if session is None:
                return
            try:
                if isinstance(session, Session) and not session.closed and session.writer.error is None:
                    self._settle()
                    if self.path is not None and self._changed():
                        print(
                            f"mtrains: store {self.path}: rows changed since the last checkpoint are gone; "
                            "call store.checkpoint() before close() to keep them",
                            file=sys.stderr,
                        )
            finally:
                self._session = self._running = None
                follow_num_threads(self, follow=False)
                self._finalizer()
            if tell and isinstance(session, Session) and session.untold_error is not None:
                raise session.untold_error

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close(tell=error is None)

    def __repr__(self) -> str:
        state = "closed" if self._session is None else "open"
        if isinstance(self._session, ReaderSession):
            state += " read-only"
        return f"Store({str(self.path) if self.path else 'temporary'!r}, {state})"

    # --- inside

    def _open(self) -> Session | ReaderSession:
        if os.getpid() != self._pid:
            raise StateError(
                "this store was opened in the parent process and cannot be used in a forked child; "
                "look rows up in the "
                "parent only (DataLoader workers should yield ids)"
            )
        if self._session is None:
            raise StateError("the store is closed")
        if self._session.closed:
            raise StateError("the store is closed, because restore() failed; open it again")
        return self._session

    def _writable(self) -> Session:
        session = self._open()
        if isinstance(session, ReaderSession):
            raise StateError(
                f"the store {self.path} is open read-only, so nothing in it can be changed; the process that opened it "
                "without read_only= trains it"
            )
        if session.writer.error is not None:
            raise session.writer.final_error()
        return session

    def _reader(self, call: str) -> ReaderSession:
        session = self._open()
        if not isinstance(session, ReaderSession):
            raise StateError(
                f"{call} is for a store that was opened with read_only=True; this one has the present rows"
            )
        return session

    def _begin(self, tag: str | int | None, step: int | None, extra: bytes, *, pinned: bool) -> None:
        session = self._writable()
        session.prepare_checkpoint()
        versions = self._registry.versions()
        cuts = self._registry.cuts()
        self._running = session.begin_checkpoint(tag=tag, step=step, extra=extra, pinned=pinned, cuts=cuts)
        self._begun_versions = versions

    def _settle(self) -> None:
        """Wait for the running checkpoint, if there is one; raise its error, once."""
        ticket = self._running
        if ticket is None:
            return
        try:
            ticket.wait()
            self._stored_versions = self._begun_versions
        finally:
            if ticket.done:
                self._running = None

    def _changed(self) -> bool:
        return self._registry.versions() != self._stored_versions

    def _find(self, tag: str | int) -> CheckpointRecord:
        _check_tag(tag)
        records = self._open().checkpoints
        for matches in (_has_tag(tag), lambda record: type(tag) is int and record.epoch == tag):
            for record in reversed(records):
                if matches(record):
                    return record
        tags = ", ".join(repr(record.tag) for record in records if record.tag is not None) or "none"
        raise StateError(f"there is no checkpoint {tag!r}; the tags are: {tags}")

    def _public(self, record: CheckpointRecord) -> Checkpoint:
        def read_extra() -> bytes:
            return self._open().read_extra(record)

        return Checkpoint(
            tag=record.tag,
            epoch=record.epoch,
            step=record.step,
            created=record.created,
            pinned=record.pinned,
            read_extra=read_extra,
        )


def _has_tag(tag: str | int) -> Callable[[CheckpointRecord], bool]:
    return lambda record: type(record.tag) is type(tag) and record.tag == tag


def _open_to_read(folder: Path, options: SessionOptions) -> ReaderSession:
    return ReaderSession(
        folder,
        ReaderOptions(
            chain=options.chain,
            io_engine=options.io_engine,
            num_threads=options.num_threads,
            eviction=options.eviction,
        ),
    )


def _close_session(session: Session | ReaderSession, temporary: Path | None) -> None:
    if os.getpid() != session.pid:
        session.abandon()
        return
    session.close()
    if temporary is not None:
        shutil.rmtree(temporary, ignore_errors=True)


def _refuse_later_options(**given: object) -> None:
    for name, value in given.items():
        if value not in (0, None, False):
            raise NotImplementedError(f"Store({name}={value!r}): this version has no {name}; leave it out")


def _check_read_only(
    path: str | os.PathLike[str] | None,
    options: SessionOptions,
    *,
    ssd: object,
    keep: int,
    reset_optimizers: bool,
) -> None:
    if path is None:
        raise ValueError("Store(read_only=True) reads a store that is there: name its folder")
    given = {"ssd": ssd is not None, "keep": keep != DEFAULT_KEEP, "on_optimizer_change": reset_optimizers}
    for name in (name for name, is_given in given.items() if is_given):
        raise ValueError(
            f"{name}= has no meaning for Store(read_only=True), which writes nothing; leave it out"
        )
    if options.chain.scm is not None:
        raise ValueError(
            "Store(read_only=True) has no scm tier, which may need the folder of the store; raise dram= instead"
        )


def _checked_seed(seed: int | None) -> int:
    if seed is None:
        return torch.initial_seed()
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise TypeError(f"seed must be an int, got {type(seed).__name__}")
    return seed


def _checked_keep(keep: int) -> int:
    if isinstance(keep, bool) or not isinstance(keep, int):
        raise TypeError(f"keep must be an int, got {type(keep).__name__}")
    if keep < 1:
        raise ValueError(f"keep must be >= 1, got {keep}")
    return keep


def _check_tag(tag: object) -> None:
    if isinstance(tag, bool) or not isinstance(tag, (str, int)):
        raise TypeError(f"a tag is a str or an int, got {type(tag).__name__}")


def _one_of(name: str, value: str, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")
    return value
