"""What a segment's header says beside its rows, so that a lost catalog can be rebuilt (rebuild.py)."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from mtrains.errors import FormatError
from mtrains.tiers.catalog_records import StoreState, TableCut, TableRecord, encode

__all__ = ["ClosingMeta", "SegmentMeta"]

_MAX_RETAINED = 16


@dataclass(frozen=True, kw_only=True)
class ClosingMeta:
    """What the last segment of a checkpoint's epoch says of the whole store at that cut."""

    state: StoreState
    tables: tuple[TableRecord, ...]
    cuts: tuple[TableCut, ...]
    tag: str | int | None
    step: int | None
    created: float


@dataclass(frozen=True, kw_only=True)
class SegmentMeta:
    """Meta bytes of a segment.

    tables: those whose rows it holds, by number; none in a closing segment, where `closing` has them all.
    retained: epochs of the checkpoints that were committed when it was sealed, the newest 16.
    """

    uuid: str
    tables: Mapping[int, TableRecord]
    retained: Sequence[int]
    closing: ClosingMeta | None = None

    def to_bytes(self) -> bytes:
        fields: dict[str, object] = {
            "uuid": self.uuid,
            "tables": {str(number): asdict(record) for number, record in self.tables.items()},
            "retained": list(self.retained[-_MAX_RETAINED:]),
        }
        if self.closing is not None:
            fields["closing"] = {
                "state": asdict(self.closing.state),
                "tables": [asdict(record) for record in self.closing.tables],
                "cuts": [cut.to_json() for cut in self.closing.cuts],
                "tag": self.closing.tag,
                "step": self.closing.step,
                "created": self.closing.created,
            }
        return zlib.compress(encode(fields), level=6)

    @classmethod
    def from_bytes(cls, meta: bytes) -> SegmentMeta:
        """Raises: FormatError if it cannot be read (its bytes are covered by the header's CRC)."""
        try:
            fields = json.loads(zlib.decompress(meta))
            closing = fields.get("closing")
            return cls(
                uuid=fields["uuid"],
                tables={
                    int(number): TableRecord.from_json(record) for number, record in fields["tables"].items()
                },
                retained=fields["retained"],
                closing=None
                if closing is None
                else ClosingMeta(
                    state=StoreState.from_bytes(encode(closing["state"])),
                    tables=tuple(TableRecord.from_json(record) for record in closing["tables"]),
                    cuts=tuple(TableCut.from_json(cut) for cut in closing["cuts"]),
                    tag=closing["tag"],
                    step=closing["step"],
                    created=closing["created"],
                ),
            )
        except (ValueError, KeyError, TypeError, zlib.error) as error:
            raise FormatError(f"the meta bytes of a segment cannot be read: {error}") from error
