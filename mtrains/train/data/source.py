"""Bytes of an input file, decompressed, and their lines; never more than a chunk in memory."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, cast

from mtrains.train.data.errors import DataError

__all__ = ["CHUNK_BYTES", "MAX_LINE_BYTES", "STDIN", "Source", "open_source", "read_lines"]

STDIN = "-"
CHUNK_BYTES = 1 << 20
MAX_LINE_BYTES = 4 << 20  # a longer line is not text; without a limit a binary file would be read into memory

_DAMAGED = (gzip.BadGzipFile, EOFError, zlib.error, lzma.LZMAError)
_ZSTD = b"\x28\xb5\x2f\xfd"


class Source:
    """A file opened for reading; `name` is what messages call it. Errors of reading are DataErrors."""

    def __init__(self, name: str, stream: BinaryIO, *, compressed: bool) -> None:
        self.name = name
        self._stream = stream
        self._compressed = compressed

    def read(self, size: int) -> bytes:
        """Return up to `size` bytes, at least one before the end."""
        try:
            return self._stream.read(size)
        except _DAMAGED as error:
            raise DataError(f"{self.name}: the compressed data is damaged or cut short: {error}") from None
        except OSError as error:
            detail = os.strerror(error.errno) if error.errno else str(error)
            damaged = self._compressed and not error.errno
            what = "the compressed data is damaged" if damaged else "reading failed"
            raise DataError(f"{self.name}: {what}: {detail}") from None


@contextmanager
def open_source(path: str) -> Iterator[Source]:
    """Open a file, or standard input for "-"; gzip, xz and bzip2 are recognised by their first bytes.

    Raises: DataError naming the file, also for a file without a single byte.
    """
    name = "standard input" if path == STDIN else path
    try:
        opened = sys.stdin.buffer if path == STDIN else open(path, "rb")  # noqa: SIM115 (closed below)
        raw = cast(io.BufferedReader, opened)
    except OSError as error:
        raise DataError(f"cannot read {name}: {os.strerror(error.errno or 0)}") from None
    try:
        head = raw.peek(6)[:6]
        if not head:
            raise DataError(f"{name} is empty")
        stream, compressed = _decompress(name, raw, head)
        yield Source(name, stream, compressed=compressed)
    finally:
        if path != STDIN:
            raw.close()


def _decompress(name: str, raw: BinaryIO, head: bytes) -> tuple[BinaryIO, bool]:
    if head.startswith(b"\x1f\x8b"):
        return cast(BinaryIO, gzip.GzipFile(fileobj=raw)), True
    if head.startswith(b"\xfd7zXZ\x00"):
        return cast(BinaryIO, lzma.LZMAFile(raw)), True
    if head.startswith(b"BZh"):
        return cast(BinaryIO, bz2.BZ2File(raw)), True
    if head.startswith(_ZSTD):
        raise DataError(
            f"{name} is compressed with zstd, which is not read here; pipe it in with zstdcat and --data -"
        )
    return raw, False


def read_lines(source: Source, chunk_bytes: int = CHUNK_BYTES) -> Iterator[list[bytes]]:
    """Yield the lines in non-empty lists of about a chunk, without their line ends (LF or CRLF).

    Raises: DataError if a line is longer than MAX_LINE_BYTES.
    """
    rest = b""
    num_lines = 0
    while chunk := source.read(chunk_bytes):
        lines = (rest + chunk).split(b"\n")
        rest = lines.pop()
        num_lines += len(lines)
        if len(rest) > MAX_LINE_BYTES:
            limit = MAX_LINE_BYTES >> 20
            raise DataError(f"{source.name}, line {num_lines + 1}: longer than {limit} MiB; is it text?")
        if lines:
            yield [line[:-1] if line.endswith(b"\r") else line for line in lines]
    if rest:
        yield [rest[:-1] if rest.endswith(b"\r") else rest]
