"""Keys and sealed values of the catalog (docs/file-format.md, "Catalog").

A key is 8 bytes, big-endian: kind << 56 | 56 bits that the kind defines. A value is sealed: CRC32C (4 bytes,
little-endian, over the key, the length and the payload), length of the payload (4), payload, and zeros up to
VALUE_BYTES if it would not lie inside a leaf page of LMDB. So every value that takes pages of its own has one
size, and the free list never fragments. Base pages alone have another header, which the native core reads
itself.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum

from mtrains import _native
from mtrains.errors import FormatError

__all__ = [
    "PAYLOAD_BYTES",
    "SEGMENT_SHIFT",
    "VALUE_BYTES",
    "Kind",
    "join",
    "key_of",
    "open_value",
    "page_key",
    "piece_key",
    "seal_value",
    "split",
    "split_key",
    "split_page_key",
    "split_piece_key",
]

VALUE_BYTES = 65_520  # 16 pages of 4,096 bytes less LMDB's page header
_HEADER = struct.Struct("<II")
PAYLOAD_BYTES = VALUE_BYTES - _HEADER.size
_INLINE_BYTES = (
    1_920  # LMDB 0.9 keeps nodes of at most (4,096 - 16) / 2 - 8 bytes, key included, inside leaf pages
)
_PIECE_BITS = 24
SEGMENT_SHIFT = 18  # of a location: the bits below the segment number are block and position
_PAGE_BITS = 32
_LENGTH = struct.Struct("<Q")


class Kind(IntEnum):
    """First byte of a key."""

    FORMAT = 1  # 0: what this environment is
    STATE = 2  # 0: uuid, seed, incarnation, number of the next checkpoint
    TABLE = 3  # table number
    SEGMENT = 4  # segment number
    CHECKPOINT = 5  # checkpoint number, piece
    DELTA = 6  # checkpoint number, piece
    EXTRA = 7  # checkpoint number, piece
    BASE = 8  # table number, page


def key_of(kind: Kind, low: int = 0) -> bytes:
    """Return the key of `kind` with these low 56 bits."""
    assert 0 <= low < 1 << 56
    return (kind << 56 | low).to_bytes(8, "big")


def piece_key(kind: Kind, number: int, piece: int) -> bytes:
    """Return the key of a piece (24 bits) of the numbered (32 bits) byte string."""
    assert 0 <= piece < 1 << _PIECE_BITS
    return key_of(kind, number << _PIECE_BITS | piece)


def page_key(table: int, page: int) -> bytes:
    """Return the key of a table's (24 bits) base page (32 bits)."""
    assert 0 <= page < 1 << _PAGE_BITS
    return key_of(Kind.BASE, table << _PAGE_BITS | page)


def split_key(key: bytes) -> tuple[int, int]:
    """Return (kind, low 56 bits)."""
    return key[0], int.from_bytes(key[1:8], "big")


def split_piece_key(key: bytes) -> tuple[int, int]:
    """Return (number, piece)."""
    low = int.from_bytes(key[1:8], "big")
    return low >> _PIECE_BITS, low & ((1 << _PIECE_BITS) - 1)


def split_page_key(key: bytes) -> tuple[int, int]:
    """Return (table, page)."""
    low = int.from_bytes(key[1:8], "big")
    return low >> _PAGE_BITS, low & ((1 << _PAGE_BITS) - 1)


def seal_value(key: bytes, payload: bytes) -> bytes:
    """Return the value to store under `key`."""
    assert len(payload) <= PAYLOAD_BYTES
    length = len(payload).to_bytes(4, "little")
    crc = _native.crc32c(payload, _native.crc32c(key + length))
    value = crc.to_bytes(4, "little") + length + payload
    return value if len(value) <= _INLINE_BYTES else value.ljust(VALUE_BYTES, b"\0")


def open_value(key: bytes, value: bytes | memoryview) -> bytes:
    """Return the payload. Raises: FormatError naming the key if the value is not what was sealed."""
    if len(value) >= _HEADER.size:
        crc, length = _HEADER.unpack_from(value)
        payload = bytes(value[_HEADER.size : _HEADER.size + length])
        if len(payload) == length and _native.crc32c(payload, _native.crc32c(key + bytes(value[4:8]))) == crc:
            return payload
    raise FormatError(
        f"the catalog's value {describe_key(key)} is damaged (CRC32C); "
        "`mtrains verify --rebuild` recreates the catalog from the segments"
    )


def describe_key(key: bytes) -> str:
    """Return the key as people read it: "DELTA 3/0"."""
    kind, low = split_key(key)
    if kind in (Kind.CHECKPOINT, Kind.DELTA, Kind.EXTRA):
        detail = "{}/{}".format(*split_piece_key(key))
    elif kind == Kind.BASE:
        detail = "table {} page {}".format(*split_page_key(key))
    else:
        detail = str(low)
    name = Kind(kind).name if kind in Kind._value2member_map_ else f"kind {kind}"
    return f"{name} {detail}"


def split(data: bytes) -> Iterator[bytes]:
    """Yield the payloads that store `data`, whatever its length; `join` is the inverse."""
    framed = _LENGTH.pack(len(data)) + data
    for begin in range(0, len(framed), PAYLOAD_BYTES):
        yield framed[begin : begin + PAYLOAD_BYTES]


def join(payloads: list[bytes], what: str) -> bytes:
    """Return the bytes that were split. Raises: FormatError naming `what` if a piece is missing."""
    framed = b"".join(payloads)
    if len(framed) < _LENGTH.size or _LENGTH.unpack_from(framed)[0] != len(framed) - _LENGTH.size:
        raise FormatError(f"the catalog lacks pieces of {what}")
    return framed[_LENGTH.size :]
