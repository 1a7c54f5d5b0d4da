"""What the catalog says: the state of the store, its tables, segments and checkpoints, each to and from
bytes."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from mtrains.errors import FormatError
from mtrains.init import Init
from mtrains.specs import DTYPES, TableSpec

__all__ = [
    "CheckpointRecord",
    "OptimizerRecord",
    "SegmentRecord",
    "StoreState",
    "TableCut",
    "TableRecord",
    "dtype_name",
    "is_needed",
    "retained",
]

DTYPE_CODES = {"float32": 0, "float16": 1, "bfloat16": 2}
INIT_CODES = {"constant": 0, "uniform": 1, "normal": 2}
_SEGMENT = struct.Struct("<QQIII")
_SUPERSEDED = struct.Struct("<QI")


def encode(value: object) -> bytes:
    """Return compact JSON."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


def decode(payload: bytes) -> Any:  # noqa: ANN401 (JSON)
    """Return what compact JSON says."""
    return json.loads(payload)


def dtype_name(spec: TableSpec) -> str:
    """Return "float32", "float16" or "bfloat16"."""
    return next(name for name, dtype in DTYPES.items() if dtype == spec.dtype)


@dataclass(frozen=True, kw_only=True)
class StoreState:
    """The one STATE record.

    incarnation: +1 at every opening and every restore; part of every segment id and epoch, so none is ever
    used twice.
    next_checkpoint: number of the next checkpoint; pieces with this number or above belong to a commit that
    never came.
    """

    uuid: str
    seed: int
    incarnation: int
    next_checkpoint: int

    def to_bytes(self) -> bytes:
        return encode(asdict(self))

    @classmethod
    def from_bytes(cls, payload: bytes) -> StoreState:
        return cls(**decode(payload))

    @property
    def first_epoch(self) -> int:
        """The epoch in which this incarnation begins."""
        return self.incarnation << 32 | 1


@dataclass(frozen=True, kw_only=True)
class TableRecord:
    """A table as it is stored. layouts: (float32 values of optimizer state a row, their initial value), in
    order of adding."""

    name: str
    num_embeddings: int
    embedding_dim: int
    dtype: str
    init: tuple[str, float, float]
    padding_idx: int | None
    layouts: tuple[tuple[int, float], ...] = ((0, 0.0),)

    @classmethod
    def of(cls, spec: TableSpec) -> TableRecord:
        """Return the record of a new table."""
        assert spec.init is not None
        return cls(
            name=spec.name,
            num_embeddings=spec.num_embeddings,
            embedding_dim=spec.embedding_dim,
            dtype=dtype_name(spec),
            init=(spec.init.kind, spec.init.a, spec.init.b),
            padding_idx=spec.padding_idx,
        )

    def spec(self) -> TableSpec:
        """Return the specification that a caller would give."""
        return TableSpec(
            self.name,
            self.num_embeddings,
            self.embedding_dim,
            init=Init(*self.init),
            dtype=DTYPES[self.dtype],
            padding_idx=self.padding_idx,
        )

    def differences(self, other: TableRecord) -> list[str]:
        """Return what differs from `other` in what is stored: "embedding_dim 16, not 32"."""
        mine, theirs = asdict(self), asdict(other)
        return [
            f"{key} {mine[key]}, not {theirs[key]}"
            for key in mine
            if key != "layouts" and mine[key] != theirs[key]
        ]

    def with_layout(self, state_floats: int, initial_state: float) -> TableRecord:
        return replace(self, layouts=(*self.layouts, (state_floats, initial_state)))

    def stride(self, layout: int) -> int:
        """Return the bytes of a row record: weights padded to 4 bytes, then float32 state."""
        weights = self.embedding_dim * (4 if self.dtype == "float32" else 2)
        return (weights + 3) // 4 * 4 + 4 * self.layouts[layout][0]

    def to_bytes(self) -> bytes:
        return encode(asdict(self))

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> TableRecord:
        fields = dict(fields)
        kind, a, b = fields["init"]
        fields["init"] = (kind, a, b)
        fields["layouts"] = tuple((floats, initial) for floats, initial in fields["layouts"])
        return cls(**fields)

    @classmethod
    def from_bytes(cls, payload: bytes) -> TableRecord:
        return cls.from_json(decode(payload))


@dataclass(frozen=True, kw_only=True)
class SegmentRecord:
    """A segment in the segment table. superseded: (epoch in which newer versions were born, rows), in any
    order."""

    number: int
    segment_id: int
    epoch: int
    rows: int
    used_pages: int  # of 256; the rest is padding
    superseded: tuple[tuple[int, int], ...] = ()

    def to_bytes(self) -> bytes:
        head = _SEGMENT.pack(self.segment_id, self.epoch, self.rows, self.used_pages, len(self.superseded))
        return head + b"".join(_SUPERSEDED.pack(epoch, rows) for epoch, rows in self.superseded)

    @classmethod
    def from_bytes(cls, number: int, payload: bytes) -> SegmentRecord:
        segment_id, epoch, rows, used_pages, count = _SEGMENT.unpack_from(payload)
        if len(payload) != _SEGMENT.size + count * _SUPERSEDED.size:
            raise FormatError(f"the catalog's record of segment number {number} has a wrong length")
        pairs = tuple((e, n) for e, n in _SUPERSEDED.iter_unpack(payload[_SEGMENT.size :]))
        return cls(
            number=number,
            segment_id=segment_id,
            epoch=epoch,
            rows=rows,
            used_pages=used_pages,
            superseded=pairs,
        )

    def rows_at(self, epoch: int) -> int:
        """Return how many of its rows the state as of `epoch` consists of."""
        if self.epoch > epoch:
            return 0
        return self.rows - sum(rows for newer, rows in self.superseded if newer <= epoch)

    def as_of(self, epoch: int) -> SegmentRecord:
        """Return the record without what happened after `epoch`."""
        return replace(self, superseded=tuple(entry for entry in self.superseded if entry[0] <= epoch))


def is_needed(segment: SegmentRecord, epochs: Iterable[int]) -> bool:
    """Return True if a checkpoint of one of these epochs consists of rows of the segment, or is closed by
    it."""
    if segment.rows == 0:
        return segment.epoch in set(epochs)
    return any(segment.rows_at(epoch) > 0 for epoch in epochs)


@dataclass(frozen=True, kw_only=True)
class OptimizerRecord:
    """An optimizer's hold on a table: its kind, state fields (name, float32 values a row) and number of
    steps."""

    kind: str
    fields: tuple[tuple[str, int], ...]
    initial_state: float
    step: int


@dataclass(frozen=True, kw_only=True)
class TableCut:
    """A table's counters in a checkpoint. layout: index in the table's layouts."""

    layout: int
    update_count: int
    optimizer: OptimizerRecord | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> TableCut:
        optimizer = fields["optimizer"]
        if optimizer is not None:
            pairs = tuple((name, count) for name, count in optimizer["fields"])
            optimizer = OptimizerRecord(**{**optimizer, "fields": pairs})
        return cls(layout=fields["layout"], update_count=fields["update_count"], optimizer=optimizer)


@dataclass(frozen=True, kw_only=True)
class CheckpointRecord:
    """A committed checkpoint.

    tag: the user's; None for one that a state_dict made. pinned: kept until released. released: dropped as
    soon as it is not the newest. tables: by table number; a table added later has none.
    """

    number: int
    epoch: int
    tag: str | int | None
    step: int | None
    created: float
    extra_bytes: int
    pinned: bool = False
    released: bool = False
    tables: tuple[TableCut, ...] = field(default=(), repr=False)

    def marked(self, *, pinned: bool | None = None, released: bool | None = None) -> CheckpointRecord:
        """Return it with changed marks."""
        return replace(
            self,
            pinned=self.pinned if pinned is None else pinned,
            released=self.released if released is None else released,
        )

    def to_bytes(self) -> bytes:
        return encode({**asdict(self), "tables": [table.to_json() for table in self.tables]})

    @classmethod
    def from_bytes(cls, payload: bytes) -> CheckpointRecord:
        fields = decode(payload)
        fields["tables"] = tuple(TableCut.from_json(table) for table in fields["tables"])
        return cls(**fields)


def retained(checkpoints: Sequence[CheckpointRecord], keep: int) -> list[CheckpointRecord]:
    """Return which checkpoints (ascending) are kept: the newest, the pinned ones, and the last `keep` that
    have a tag.

    Of those with one tag only the newest is kept for its tag.
    """
    newest_of_tag = {type_and_tag(record.tag): record.number for record in checkpoints}
    tagged = [
        record.number
        for record in checkpoints
        if record.tag is not None
        and not record.released
        and newest_of_tag[type_and_tag(record.tag)] == record.number
    ]
    kept = set(tagged[-keep:])
    return [
        record
        for record in checkpoints
        if record.number in kept or record.pinned or record is checkpoints[-1]
    ]


def type_and_tag(tag: str | int | None) -> tuple[str, str | int | None]:
    """Return a key that tells 1 from "1"."""
    return type(tag).__name__, tag
