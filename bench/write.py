"""How fast do changed rows get into the log, against the device itself? (design target: write-back)

Two ways of a store: rows that are evicted because others need their place, and rows that a flush writes. The device is
written through a flat file, with O_DIRECT and through the page cache, its blocks fresh (allocated, never written) and
reused apart. A sample ends when everything is durable.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import torch

import mtrains
from bench.flat_file import MIB, FlatFile
from bench.harness import Options, Result, Target, environment, interleave_seconds

DIM = 64
STRIDE = 4 * DIM
CHUNK_ROWS = 8192
WARM_UP = 2  # from the third flush on, the store's file has free segments of earlier ones
MAX_ROUNDS = 15


class Rows:
    """Random rows of one table, written in chunks."""

    def __init__(self, store: mtrains.Store, num_rows: int, num_written: int) -> None:
        self.store = store
        init = mtrains.init.constant(0.0)
        self._table = mtrains.TieredEmbeddingBag(num_rows, DIM, store=store, name="rows", init=init)
        self._num_rows, self._num_written = num_rows, num_written
        self._random = torch.Generator().manual_seed(1)
        self._values = torch.randn(CHUNK_ROWS, DIM, generator=self._random)

    def draw(self) -> torch.Tensor:
        """Return distinct rows in random order."""
        return torch.randperm(self._num_rows, generator=self._random)[: self._num_written]

    def write(self, ids: torch.Tensor) -> None:
        for part in ids.split(CHUNK_ROWS):
            self._table.write_rows(part, self._values[: len(part)])

    def check(self, ids: torch.Tensor) -> None:
        part = ids[: min(1000, CHUNK_ROWS)]
        torch.testing.assert_close(self._table.read_rows(part), self._values[: len(part)], rtol=0, atol=0)


class Evictions:
    """A new store each time, so its blocks are fresh; an eighth of the rows fit its memory."""

    def __init__(self, folder: Path, num_mib: int) -> None:
        self._folder, self._num_mib = folder, num_mib
        self._number = 0
        self.last: dict[str, float] = {}

    def write(self) -> float:
        self._number += 1
        num_rows = self._num_mib * MIB // STRIDE
        budget = self._num_mib * MIB // 8
        with mtrains.Store(self._folder / f"evicted-{self._number}", dram=budget, seed=1) as store:
            rows = Rows(store, num_rows, num_rows)
            ids = rows.draw()
            begin = time.perf_counter()
            rows.write(ids)
            store.flush()
            seconds = time.perf_counter() - begin
            rows.check(ids)
            self.last = _profile(store, seconds)
            store.checkpoint("written")  # or closing says that rows are lost
        shutil.rmtree(self._folder / f"evicted-{self._number}")
        return seconds


class Flushes:
    """All rows in memory, and changed; their blocks are those of earlier flushes once these are dead."""

    def __init__(self, folder: Path, num_mib: int) -> None:
        num_rows = num_mib * MIB // STRIDE
        self.store = mtrains.Store(folder / "flushed", dram=3 * num_mib * MIB, seed=1)
        self._rows = Rows(self.store, num_rows, num_rows)

    def write(self) -> float:
        ids = self._rows.draw()
        self._rows.write(ids)
        begin = time.perf_counter()
        self.store.flush()
        seconds = time.perf_counter() - begin
        self._rows.check(ids)
        return seconds

    def close(self) -> None:
        self.store.checkpoint("written")
        self.store.close()


def _profile(store: mtrains.Store, seconds: float) -> dict[str, float]:
    stats = store.stats()
    return {
        "seconds": seconds,
        "seconds of commits": stats.seconds["writing"],
        "seconds that training waited": stats.seconds["write_back"],
        "commits": stats.tiers["ssd"]["commits"],
        "segments": stats.tiers["ssd"]["segments_written"],
        "dirty evictions": stats.tiers["dram"]["dirty_evictions"],
    }


def _direct_fresh(flat: FlatFile) -> float:
    flat.renew()
    return flat.write_direct()


def _buffered_fresh(flat: FlatFile) -> float:
    flat.renew()
    return flat.write_buffered()


def main(options: Options) -> list[Result]:
    """Measure rows of 256 bytes."""
    where = environment()
    num_mib = 4 if options.quick else 256
    evictions = Evictions(options.folder, num_mib)
    flushes = Flushes(options.folder, num_mib)
    with FlatFile(options.folder / "fresh", num_mib) as fresh, FlatFile(
        options.folder / "reused", num_mib
    ) as reused:
        reused.renew()
        timings = interleave_seconds(
            {
                "O_DIRECT, fresh blocks": lambda: _direct_fresh(fresh),
                "store, evictions, fresh blocks": evictions.write,
                "buffered + DONTNEED, fresh blocks": lambda: _buffered_fresh(fresh),
                "O_DIRECT, reused blocks": reused.write_direct,
                "store, flush, reused blocks": flushes.write,
                "buffered + DONTNEED, reused blocks": reused.write_buffered,
            },
            rounds=min(options.rounds, MAX_ROUNDS),
            warm_up=WARM_UP,
        )
    result = Result(
        question="write-back",
        parameters={
            "mib_a_sample": num_mib,
            "row_bytes": STRIDE,
            "io_engine": flushes.store.io_engine,
            "page_cache": "written through by stores and buffered files, dropped after each sync",
            "emulated": list(flushes.store.stats().emulated),
            "last_evictions": evictions.last,
            "flush_segments_deleted": flushes.store.stats().tiers["ssd"]["segments_deleted"],
        },
        timings=timings,
        baseline="O_DIRECT, fresh blocks",
        environment=where,
    )
    flushes.close()
    for timing in timings:
        result.figures[f"{timing.name}: MB/s"] = num_mib * MIB / 1e6 / timing.percentile(10)
    for ours, blocks in (("store, evictions", "fresh"), ("store, flush", "reused")):
        for peer, target in (("O_DIRECT", 0.4), ("buffered + DONTNEED", 0.8)):
            figure = f"{ours} over {peer}, {blocks} blocks"
            ratio = result.ratio(f"{ours}, {blocks} blocks", f"{peer}, {blocks} blocks")
            if ratio is not None:
                result.figures[figure] = ratio
                result.targets[figure] = Target(value=target)
    return [result]
