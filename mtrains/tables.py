"""Tables of an open store, their optimizer bindings, and checkpoints as callers see them."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from mtrains.errors import StateError
from mtrains.specs import TableSpec
from mtrains.tiers.catalog_records import (
    CheckpointRecord,
    OptimizerRecord,
    TableCut,
    TableRecord,
    dtype_name,
)
from mtrains.tiers.digest import DigestTable
from mtrains.tiers.jobs import Ticket
from mtrains.tiers.reader_session import ReaderSession
from mtrains.tiers.session import Session

if TYPE_CHECKING:
    from mtrains.store import Store

__all__ = ["Checkpoint", "OptimizerBinding", "Table", "TableRegistry"]

_MAX_NAME_BYTES = 255  # every segment names its tables in its header


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A committed checkpoint.

    tag: None for one that a state_dict made. step: the caller's. created: seconds since 1970. pinned: held by
    a state_dict.
    """

    tag: str | int | None
    epoch: int
    step: int | None
    created: float
    pinned: bool
    read_extra: Callable[[], bytes] = field(repr=False, compare=False)

    @property
    def extra(self) -> bytes:
        """The caller's bytes, read from the catalog. Raises: StateError once the store is closed."""
        return self.read_extra()


@dataclass
class OptimizerBinding:
    """The state that an optimizer has in a table's rows.

    fields: name and float32 values a row of each state, in their order in a row record. step: steps with a
    gradient so far.
    """

    kind: str
    fields: tuple[tuple[str, int], ...]
    initial_state: float
    step: int = 0


@dataclass(eq=False)
class Table:
    """One table of an open store. optimizer: None until one is bound."""

    name: str
    spec: TableSpec
    number: int
    _store: weakref.ref[Store] = field(repr=False)
    optimizer: OptimizerBinding | None = None

    @property
    def store(self) -> Store:
        """The store that it belongs to."""
        store = self._store()
        if store is None:
            raise StateError(f"the store of table {self.name!r} is gone; keep a reference to it")
        return store

    def digest_head(self) -> bytes:
        """Return what a digest says of the table before its rows: one line of JSON."""
        fields = self.optimizer.fields if self.optimizer is not None else ()
        head = {
            "name": self.name,
            "num_embeddings": self.spec.num_embeddings,
            "embedding_dim": self.spec.embedding_dim,
            "dtype": dtype_name(self.spec),
            "state": [[name, count] for name, count in fields],
        }
        return json.dumps(head, separators=(",", ":")).encode() + b"\n"


class TableRegistry:
    """The tables of a session by number and name. The store's lock guards it."""

    _NUMBERED: ClassVar[str] = "table_{}"

    def __init__(self, store: Store, session: Session | ReaderSession) -> None:
        self._store = weakref.ref(store)
        self._session = session
        self.tables: list[Table] = []
        self._by_name: dict[str, Table] = {}
        self._bound_spec: set[str] = (
            set()
        )  # names whose spec a caller gave; the catalog knows no mode and no features
        self.refreshed()

    def _register(self, table: Table) -> Table:
        self.tables.append(table)
        self._by_name[table.name] = table
        return table

    def named(self, names: Sequence[str]) -> list[Table]:
        """Return the tables of these names, each once. Raises: StateError naming the tables if one is missing."""
        for name in names:
            if name not in self._by_name:
                known = ", ".join(repr(table.name) for table in self.tables) or "none"
                raise StateError(f"the store has no table {name!r}; its tables are: {known}")
        return [self._by_name[name] for name in dict.fromkeys(names)]

    def next_name(self) -> str:
        """Return the first free numbered name."""
        number = len(self.tables)
        while self._NUMBERED.format(number) in self._by_name:
            number += 1
        return self._NUMBERED.format(number)

    def add(self, spec: TableSpec) -> Table:
        """Return the table of this specification. Raises: StateError if the one of its name differs."""
        record = TableRecord.of(spec)
        table = self._by_name.get(spec.name)
        if table is None:
            session = self._writer_session(spec.name)
            if len(spec.name.encode()) > _MAX_NAME_BYTES:
                raise ValueError(
                    f"a table's name has at most {_MAX_NAME_BYTES} bytes, got {len(spec.name.encode())}"
                )
            number = session.add_table(record)
            self._bound_spec.add(spec.name)
            return self._register(Table(spec.name, spec, number, self._store))
        differences = self._session.tables[table.number].differences(record)
        if spec.name in self._bound_spec and table.spec.mode != spec.mode:
            differences.append(f"mode {table.spec.mode}, not {spec.mode}")
        if differences:
            raise StateError(
                f"the store has a table {spec.name!r} with {'; '.join(differences)}; give the same "
                "specification, or "
                "another name"
            )
        if spec.name not in self._bound_spec:
            table.spec = spec
            self._bound_spec.add(spec.name)
        return table

    def _writer_session(self, name: str) -> Session:
        if isinstance(self._session, ReaderSession):
            names = ", ".join(repr(table.name) for table in self.tables) or "none"
            raise StateError(
                f"the store {self._session.layout.folder} is open read-only and its checkpoint has no table "
                f"{name!r}; its tables are: {names}"
            )
        return self._session

    def bind(
        self,
        table: Table,
        kind: str,
        fields: tuple[tuple[str, int], ...],
        initial_state: float,
        *,
        reset: bool,
    ) -> OptimizerBinding:
        """Bind an optimizer to a table; see Store.bind_optimizer."""
        assert self._by_name.get(table.name) is table, "a table of another store"
        present = table.optimizer
        same = present is not None and (present.kind, present.fields) == (kind, fields)
        if same and present is not None and (present.step > 0 or present.initial_state == initial_state):
            return present
        if present is not None and not same and not reset:
            raise StateError(
                f"table {table.name!r} has the state of optimizer {present.kind!r}, this is {kind!r}; "
                "open the store "
                'with on_optimizer_change="reset" to begin with fresh state'
            )
        session = self._writer_session(table.name)
        session.add_layout(table.number, sum(count for _, count in fields), initial_state)
        table.optimizer = OptimizerBinding(kind, fields, initial_state)
        return table.optimizer

    def cuts(self) -> list[TableCut]:
        """Return the counters of all tables as of now."""
        cuts = []
        for table, record in zip(self.tables, self._session.tables, strict=True):
            binding = table.optimizer
            optimizer = None
            if binding is not None:
                optimizer = OptimizerRecord(
                    kind=binding.kind,
                    fields=binding.fields,
                    initial_state=binding.initial_state,
                    step=binding.step,
                )
            count = self._session.engine.update_count(table.number)
            cuts.append(TableCut(layout=len(record.layouts) - 1, update_count=count, optimizer=optimizer))
        return cuts

    def restored(self) -> None:
        """Take the bindings of the last checkpoint. A table that had none then has none now: its optimizer
        binds again."""
        for table, cut in zip(self.tables, self._session.cuts(), strict=True):
            optimizer = cut.optimizer
            if optimizer is None:
                table.optimizer = None
            else:
                table.optimizer = OptimizerBinding(
                    optimizer.kind, optimizer.fields, optimizer.initial_state, optimizer.step
                )

    def refreshed(self) -> None:
        """Take over the tables of the session, which may be more than before, and their bindings."""
        for number, record in enumerate(self._session.tables[len(self.tables) :], len(self.tables)):
            self._register(Table(record.name, record.spec(), number, self._store))
        self.restored()

    def versions(self) -> dict[int, int]:
        """Return the engine's version of each table that changed since it was opened; it grows when a row
        changes."""
        versions = {table.number: self._session.engine.table_version(table.number) for table in self.tables}
        return {number: version for number, version in versions.items() if version}

    def digest_tables(self) -> list[DigestTable]:
        """Return all tables as a digest takes them."""
        return [
            DigestTable(
                name=table.name,
                number=table.number,
                num_embeddings=table.spec.num_embeddings,
                stride=record.stride(len(record.layouts) - 1),
                head=table.digest_head(),
            )
            for table, record in zip(self.tables, self._session.tables, strict=True)
        ]

    def has_unstored(self) -> bool:
        """Return True if the last checkpoint lacks a table or an optimizer binding."""
        checkpoints = self._session.checkpoints
        return not checkpoints or list(checkpoints[-1].tables) != self.cuts()

    def pin(self, record: CheckpointRecord) -> Ticket[None]:
        """Keep a checkpoint until it is released by epoch."""
        assert isinstance(self._session, Session)
        return self._session.change_checkpoints([record.marked(pinned=True)])

    def release(self, record: CheckpointRecord, *, by_tag: str | int) -> Ticket[None]:
        """Let go of a checkpoint's tag, or of its pin if it was named by epoch."""
        named_by_tag = type(record.tag) is type(by_tag) and record.tag == by_tag
        changed = record.marked(released=True) if named_by_tag else record.marked(pinned=False)
        assert isinstance(self._session, Session)
        return self._session.change_checkpoints([changed])
