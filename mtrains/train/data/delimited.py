"""Records of text files: Criteo's format, and TSV and CSV with a header line."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from mtrains.train.data.block import ParsedBlock
from mtrains.train.data.convert import convert_records
from mtrains.train.data.errors import DataError
from mtrains.train.data.schema import SampleSpec, Schema
from mtrains.train.data.source import Source, open_source, read_lines

__all__ = ["BLOCK_RECORDS", "DelimitedReader", "TextBlock", "find_columns", "header_fields"]

BLOCK_RECORDS = 2048
_BOM = b"\xef\xbb\xbf"
_SHOWN_COLUMNS = 12


@dataclass(frozen=True)
class TextBlock:
    """Consecutive records of one file, not yet split (TSV, Criteo: bytes) or split by the csv module (str).

    lines[i]: line number of record i. names: the header's columns, or None without a header.
    """

    path: str
    names: tuple[str, ...] | None
    lines: Sequence[int]
    records: Sequence[bytes] | Sequence[list[str]]
    spec: SampleSpec

    def __len__(self) -> int:
        return len(self.records)

    def slice(self, begin: int, end: int) -> TextBlock:
        """Return the records [begin, end)."""
        return replace(self, lines=self.lines[begin:end], records=self.records[begin:end])

    def parse(self) -> ParsedBlock:
        """Convert the records to samples."""
        schema = self.spec.schema
        if self.names is None:
            width, places = len(schema.columns), tuple(range(len(schema.columns)))
        else:
            width, places = len(self.names), find_columns(self.path, self.names, schema)
        records: list[list[bytes]] = []
        for record in self.records:
            if isinstance(record, bytes):
                records.append(record.split(b"\t"))
            else:
                records.append([field.encode("utf-8", "surrogateescape") for field in record])
        return convert_records(self.path, self.lines, records, places, width, self.spec)


class DelimitedReader:
    """Reads one text format.

    delimiter: "\\t" takes every byte between tabs as it is; "," follows the csv module (quotes, RFC 4180).
    header: each file starts with a line of column names, in any order; without it they are the schema's.
    """

    def __init__(self, spec: SampleSpec, *, delimiter: str, header: bool) -> None:
        self._spec = spec
        self._delimiter = delimiter
        self._header = header

    def read_blocks(self, path: str) -> Iterator[TextBlock]:
        """Yield the records of a file in blocks of at most BLOCK_RECORDS, unparsed."""
        with open_source(path) as source:
            yield from self._blocks(source)

    def count_records(self, path: str) -> int:
        """Return the number of records of a file, malformed ones too, in one pass without parsing them."""
        with open_source(path) as source:
            return sum(len(block) for block in self._blocks(source))

    def _blocks(self, source: Source) -> Iterator[TextBlock]:
        if self._delimiter == ",":
            yield from self._csv_blocks(source)
            return
        names: tuple[str, ...] | None = None
        line = 1
        for lines in read_lines(source):
            if line == 1 and self._header:
                names = header_fields(lines[0], self._delimiter)
                find_columns(source.name, names, self._spec.schema)
                lines, line = lines[1:], 2
            for begin in range(0, len(lines), BLOCK_RECORDS):
                part = lines[begin : begin + BLOCK_RECORDS]
                yield TextBlock(source.name, names, range(line, line + len(part)), part, self._spec)
                line += len(part)

    def _csv_blocks(self, source: Source) -> Iterator[TextBlock]:
        reader = csv.reader(_text_lines(source), delimiter=self._delimiter)
        names: tuple[str, ...] | None = None
        lines: list[int] = []
        records: list[list[str]] = []
        line = 1
        try:
            for record in reader:
                if names is None and self._header:
                    names = tuple(record)
                    find_columns(source.name, names, self._spec.schema)
                else:
                    lines.append(line)
                    records.append(record)
                line = reader.line_num + 1
                if len(records) == BLOCK_RECORDS:
                    yield TextBlock(source.name, names, lines, records, self._spec)
                    lines, records = [], []
        except csv.Error as error:
            raise DataError(f"{source.name}, line {line}: not CSV: {error}; is a quote left open?") from None
        if records:
            yield TextBlock(source.name, names, lines, records, self._spec)


def _text_lines(source: Source) -> Iterator[str]:
    first = True
    for lines in read_lines(source):
        for line in lines:
            if first:
                line, first = line.removeprefix(_BOM), False
            yield line.decode("utf-8", "surrogateescape") + "\n"


def header_fields(line: bytes, delimiter: str) -> tuple[str, ...]:
    """Return the column names of a header line without quoting."""
    return tuple(line.removeprefix(_BOM).decode("utf-8", "replace").split(delimiter))


def find_columns(path: str, names: Sequence[str], schema: Schema) -> tuple[int, ...]:
    """Return the place of each of the schema's columns among the names.

    Raises: DataError if one is missing or stands there twice.
    """
    places = []
    for column in schema.columns:
        found = [place for place, name in enumerate(names) if name == column]
        if not found:
            raise DataError(f"{path}: no column {column!r} in its header; it has {_listed(names)}")
        if len(found) > 1:
            raise DataError(f"{path}: column {column!r} stands {len(found)} times in its header")
        places.append(found[0])
    return tuple(places)


def _listed(names: Iterable[str]) -> str:
    shown = [repr(name[:40]) for name in names]
    more = len(shown) - _SHOWN_COLUMNS
    return ", ".join(shown[:_SHOWN_COLUMNS]) + (f" and {more} more" if more > 0 else "")
