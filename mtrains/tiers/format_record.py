"""The record that says what an environment is."""

from __future__ import annotations

import json
from pathlib import Path

import lmdb

from mtrains.errors import FormatError
from mtrains.tiers.records import open_value

__all__ = ["FORMAT_KEY", "FORMAT_VERSION", "check_format"]

FORMAT_VERSION = 1
FORMAT_KEY = bytes(8)  # in rows.lmdb, below every segment id


def check_format(environment: lmdb.Environment, key: bytes, field: str, uuid: str, path: Path) -> None:
    """Raises: FormatError unless the environment's format record is this version's and belongs to this
    store."""
    with environment.begin() as transaction:
        value = transaction.get(key)
    record = json.loads(open_value(key, value)) if value is not None else {}
    if record.get(field) != FORMAT_VERSION:
        raise FormatError(
            f"{path} has {field} {record.get(field)}; this version of mtrains reads {FORMAT_VERSION}"
        )
    if record.get("uuid") != uuid:
        raise FormatError(
            f"{path} belongs to another store ({record.get('uuid')}, not {uuid}); restore it from a backup"
        )
