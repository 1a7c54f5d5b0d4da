"""A stream of samples: several files in order, ranges of records, batches of one size, loader workers.

A *record* is a line of a text file (a row of a CSV or Parquet file), well-formed or not. Ranges are counted
in records, so that a position means the same whatever is malformed, and skipping to it parses nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from mtrains.train.data.block import BadLine, ParsedBlock, SampleBlock
from mtrains.train.data.delimited import DelimitedReader, header_fields
from mtrains.train.data.errors import DataError
from mtrains.train.data.parquet import ParquetReader
from mtrains.train.data.schema import CRITEO, SampleSpec
from mtrains.train.data.source import STDIN, open_source
from mtrains.train.data.workers import parse_in_workers

__all__ = [
    "FORMATS",
    "ON_BAD_LINE",
    "ReadLog",
    "SampleStream",
    "detect_format",
    "make_reader",
    "read_batches",
]

FORMATS = ("auto", "criteo", "tsv", "csv", "parquet")
ON_BAD_LINE = ("error", "skip")
_DETECT_BYTES = 1 << 16


class RawBlock(Protocol):
    """Consecutive records of one file, not yet parsed."""

    def __len__(self) -> int: ...
    def slice(self, begin: int, end: int) -> RawBlock: ...
    def parse(self) -> ParsedBlock: ...


class Reader(Protocol):
    """One file format."""

    def read_blocks(self, path: str) -> Iterator[RawBlock]: ...
    def count_records(self, path: str) -> int: ...


def detect_format(path: str) -> str:
    """Return "criteo", "tsv", "csv" or "parquet" for a file, by its first bytes.

    Raises: DataError if it cannot tell, always for standard input: reading a line would lose it.
    """
    if path == STDIN:
        raise DataError("name the format of standard input with --format criteo, tsv or csv")
    with open_source(path) as source:
        head = source.read(_DETECT_BYTES)
    if head.startswith(b"PAR1"):
        return "parquet"
    line = head.split(b"\n", 1)[0].rstrip(b"\r")
    fields = header_fields(line, "\t")
    if len(fields) == len(CRITEO.columns) and fields[0] in ("0", "1"):
        return "criteo"
    if len(fields) > 1:
        return "tsv"
    if b"," in line:
        return "csv"
    raise DataError(f"{path}: format not recognised; name it with --format criteo, tsv, csv or parquet")


def make_reader(format_name: str, spec: SampleSpec) -> Reader:
    """Return the reader of a format (not "auto"). Raises: ValueError for an unknown one."""
    if format_name == "criteo":
        return DelimitedReader(spec, delimiter="\t", header=False)
    if format_name == "tsv":
        return DelimitedReader(spec, delimiter="\t", header=True)
    if format_name == "csv":
        return DelimitedReader(spec, delimiter=",", header=True)
    if format_name == "parquet":
        return ParquetReader(spec)
    raise ValueError(f"unknown format {format_name!r}; the formats are {', '.join(FORMATS[1:])}")


@dataclass
class ReadLog:
    """What a pass over a stream has met: `report` is called for each malformed record; num_records is all."""

    report: Callable[[BadLine], None]
    num_records: int = 0


@dataclass(frozen=True, kw_only=True)
class SampleStream:
    """The samples of several files of one format, one file after another, never shuffled.

    on_bad_line: "error" raises at the first malformed record, "skip" leaves it out and reports it.
    num_workers: processes that parse; 0 parses in this one. The samples are the same.
    """

    paths: tuple[str, ...]
    format: str
    spec: SampleSpec
    on_bad_line: str = "error"
    num_workers: int = 0

    def __post_init__(self) -> None:
        if not self.paths:
            raise ValueError("a stream needs at least one file")
        if self.on_bad_line not in ON_BAD_LINE:
            raise ValueError(f"on_bad_line must be error or skip, got {self.on_bad_line!r}")
        if self.num_workers < 0:
            raise ValueError(f"num_workers must be >= 0, got {self.num_workers}")

    def count_records(self) -> int:
        """Return the number of records, in one pass that parses nothing."""
        reader = make_reader(self.format, self.spec)
        return sum(reader.count_records(path) for path in self.paths)

    def read(
        self, start: int = 0, stop: int | None = None, log: ReadLog | None = None
    ) -> Iterator[SampleBlock]:
        """Yield the samples of the records [start, stop) in order, in blocks of any size.

        Raises: DataError naming file and line of a malformed record, or the file that cannot be read.
        """
        raw = _raw_blocks(make_reader(self.format, self.spec), self.paths, start, stop)
        here = (block.parse() for block in raw)
        blocks = parse_in_workers(raw, self.num_workers) if self.num_workers else here
        for block in blocks:
            for bad in block.bad:
                if self.on_bad_line == "error":
                    raise DataError(f"{bad} (leave such lines out with --on-bad-line skip)")
                if log is not None:
                    log.report(bad)
            yield replace(block.samples, records=block.samples.records + start)
            start += block.num_records
            if log is not None:
                log.num_records += block.num_records


def _raw_blocks(reader: Reader, paths: Iterable[str], start: int, stop: int | None) -> Iterator[RawBlock]:
    """Yield the records [start, stop) of the files put together."""
    position = 0
    for path in paths:
        for block in reader.read_blocks(path):
            begin, end = max(start - position, 0), len(block)
            if stop is not None:
                end = min(end, stop - position)
            if begin < end:
                yield block.slice(begin, end)
            position += len(block)
            if stop is not None and position >= stop:
                return
    if position < start:
        raise DataError(f"the data ends after {position} records, before record {start} to continue from")


def read_batches(blocks: Iterable[SampleBlock], batch_size: int) -> Iterator[SampleBlock]:
    """Yield the samples of the blocks in batches of batch_size; the last may be shorter."""
    held: list[SampleBlock] = []
    num_held = 0
    for block in blocks:
        held.append(block)
        num_held += len(block)
        if num_held < batch_size:
            continue
        samples = SampleBlock.concat(held)
        begin = 0
        while num_held - begin >= batch_size:
            yield samples.slice(begin, begin + batch_size)
            begin += batch_size
        held, num_held = [samples.slice(begin, num_held)], num_held - begin
    if num_held:
        yield SampleBlock.concat(held)
