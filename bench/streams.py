"""Lookups of several tables, batch by batch: recorded ones, and one made up."""

from __future__ import annotations

import lzma
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.generators import Zipf

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


@dataclass(frozen=True, kw_only=True)
class Stream:
    """batches[b][t]: int64 rows of table t that the samples of batch b look up, in order, duplicates too.

    sizes: rows of each table. batch_size: samples of a batch.
    """

    name: str
    tables: tuple[str, ...]
    sizes: tuple[int, ...]
    batch_size: int
    batches: list[list[NDArray[np.int64]]]

    def part(self, begin: int, end: int) -> Stream:
        """Return some of the batches."""
        return replace(self, batches=self.batches[begin:end])

    def recut(self, factor: int) -> Stream:
        """Return the same lookups in batches of so many times the samples; a rest is left out."""
        begins = range(0, len(self.batches) - factor + 1, factor)
        parts = (self.batches[begin : begin + factor] for begin in begins)
        batches = [[np.concatenate(rows) for rows in zip(*part, strict=True)] for part in parts]
        return replace(self, batch_size=factor * self.batch_size, batches=batches)


def orm_busy(accesses: int, batch_size: int) -> Stream | None:
    """A shop's object accesses, 30 types as 30 tables, rows numbered by first use; None where the file is not."""
    path = DATA / "cache2k" / "orm-busy.trace.xz"
    if not path.exists():
        return None
    with lzma.open(path) as file:
        value = np.frombuffer(file.read(4 * accesses), dtype=">i4").astype(np.int64)
    number, row = value >> 27, value.copy()
    kinds = np.unique(number)
    sizes = []
    for kind in kinds:
        distinct, row[number == kind] = np.unique(value[number == kind], return_inverse=True)
        sizes.append(len(distinct))
    batches = []
    for begin in range(0, accesses - batch_size + 1, batch_size):
        part = slice(begin, begin + batch_size)
        batches.append([row[part][number[part] == kind] for kind in kinds])
    names = tuple(f"type{kind}" for kind in kinds)
    return Stream(name="orm-busy", tables=names, sizes=tuple(sizes), batch_size=batch_size, batches=batches)


def criteo(rows: int, batch_size: int) -> Stream | None:
    """The sample of Criteo's display-ads log, 26 tables as `mtrains train` hashes them; None where the file is not."""
    from mtrains.train.data.schema import CRITEO, SampleSpec
    from mtrains.train.data.stream import ReadLog, SampleStream, read_batches

    path = DATA / "criteo_dev_head1999.tsv"
    if not path.exists():
        return None
    spec = SampleSpec(CRITEO, (rows,) * len(CRITEO.features))
    stream = SampleStream(paths=(str(path),), format="criteo", spec=spec, on_bad_line="error", num_workers=0)
    whole = read_batches(stream.read(0, None, ReadLog(lambda bad: None)), batch_size)
    batches = [[column.indices for column in batch.features] for batch in whole if len(batch) == batch_size]
    names = tuple(feature.name for feature in CRITEO.features)
    return Stream(name="criteo", tables=names, sizes=(rows,) * len(names), batch_size=batch_size, batches=batches)


def made_up(num_tables: int, rows: int, batch_size: int, num_batches: int) -> Stream:
    """Tables of falling size and rising skew, a lookup a sample each, drawn independently."""
    sizes = tuple(max(64, rows >> number) for number in range(num_tables))
    draws = [Zipf(size, 0.3 + 0.9 * number / num_tables, seed=number) for number, size in enumerate(sizes)]
    batches = [[draw.draw(batch_size) for draw in draws] for _ in range(num_batches)]
    names = tuple(f"zipf{number}" for number in range(num_tables))
    return Stream(name="made up", tables=names, sizes=sizes, batch_size=batch_size, batches=batches)
