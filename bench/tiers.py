"""How fast are rows read from the log when nothing is cached, against the device itself? (design target: cold reads)

The device is read with the same engine, from a flat file of the same size, 1 to 128 reads in flight. A store has as
many in flight as a call has rows, up to 128. Everything is read past the page cache.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

import mtrains
from bench.flat_file import MIB, FlatFile, aligned
from bench.harness import Options, Result, Target, environment, interleave_seconds

DEPTHS = (1, 8, 32, 64, 128)
DIMS = (16, 64, 256)
WARM_UP = 1
READS_AT_DEPTH_1 = 512
READS = 8192
CHUNK_ROWS = 8192


def _num_reads(depth: int, quick: bool) -> int:
    if quick:
        return depth
    return min(READS, READS_AT_DEPTH_1 * depth)


class Device:
    """Random blocks of a flat file."""

    def __init__(self, flat: FlatFile, depth: int, num_reads: int) -> None:
        self._flat = flat
        self._reader = mtrains.BlockReader(flat.path, queue_depth=depth)
        self.engine = self._reader.engine
        self._random = np.random.default_rng(depth)
        self._blocks = aligned(num_reads * 4096).reshape(num_reads, 4096)

    def read(self) -> float:
        offsets = self._random.integers(0, self._flat.num_mib * 256, len(self._blocks), np.uint64) * 4096
        begin = time.perf_counter()
        self._reader.read(offsets, self._blocks)
        seconds = time.perf_counter() - begin
        self._flat.check(self._blocks[-1], int(offsets[-1]))
        return seconds


class LogRows:
    """A table all of whose rows are in the log: written, checkpointed, opened again with next to no memory."""

    def __init__(self, folder: Path, dim: int, num_mib: int) -> None:
        self.dim, self.num_rows = dim, num_mib * MIB // (4 * dim)
        self._random = np.random.default_rng(dim)
        path = folder / f"store-{dim}"
        with mtrains.Store(path, dram="64MiB", seed=1) as store:
            rows = self._table(store)
            for begin in range(0, self.num_rows, CHUNK_ROWS):
                ids = torch.arange(begin, min(self.num_rows, begin + CHUNK_ROWS))
                rows.write_rows(ids, self._values(ids))
            store.checkpoint("filled")
        self.store = mtrains.Store(path, dram="1MiB")
        self._rows = self._table(self.store)
        self._rows.read_rows(torch.arange(0, self.num_rows, 512))  # the directory comes from disk by pages

    def _table(self, store: mtrains.Store) -> mtrains.TieredEmbeddingBag:
        init = mtrains.init.constant(0.0)
        return mtrains.TieredEmbeddingBag(self.num_rows, self.dim, store=store, name="rows", init=init)

    def _values(self, ids: torch.Tensor) -> torch.Tensor:
        return ids.to(torch.float32)[:, None] + torch.arange(self.dim) / 1024

    def reader(self, num_reads: int, rows_a_call: int) -> Callable[[], float]:
        """Return a call that reads random rows, so many at a time."""

        def read() -> float:
            ids = torch.from_numpy(self._random.integers(0, self.num_rows, num_reads))
            before = self.store.stats().tiers["ssd"]["rows_read"]
            begin = time.perf_counter()
            for part in ids.split(rows_a_call):
                rows = self._rows.read_rows(part)
            seconds = time.perf_counter() - begin
            torch.testing.assert_close(rows, self._values(part), rtol=0, atol=0)
            read_rows = self.store.stats().tiers["ssd"]["rows_read"] - before
            assert read_rows >= num_reads, f"only {read_rows} of {num_reads} rows came from the log"
            return seconds

        return read

    def blocks_a_row(self) -> float:
        """Block reads so far for each row read: random rows share few blocks."""
        ssd = self.store.stats().tiers["ssd"]
        return ssd["block_reads"] / ssd["rows_read"]


def main(options: Options) -> list[Result]:
    """Measure the device by depth, rows of 256 bytes by rows a call, and rows of three sizes in large calls."""
    where = environment()
    num_mib = 4 if options.quick else 256
    stores = {dim: LogRows(options.folder, dim, num_mib) for dim in DIMS}
    with FlatFile(options.folder / "flat", num_mib) as flat:
        flat.renew()
        flat.write_direct()
        devices = {depth: Device(flat, depth, _num_reads(depth, options.quick)) for depth in DEPTHS}
        reads: dict[str, int] = {}
        calls: dict[str, Callable[[], float]] = {}
        for depth in DEPTHS:
            name = f"device, depth {depth}"
            reads[name], calls[name] = _num_reads(depth, options.quick), devices[depth].read
            name = f"256-byte rows, {depth} a call"
            reads[name] = _num_reads(depth, options.quick)
            calls[name] = stores[64].reader(reads[name], depth)
        many = 128 if options.quick else READS
        for dim, rows in stores.items():
            name = f"{4 * dim}-byte rows, {many} a call"
            reads[name], calls[name] = many, rows.reader(many, many)
        timings = interleave_seconds(calls, rounds=options.rounds, warm_up=WARM_UP)
    result = Result(
        question="cold rows",
        parameters={
            "mib_a_table": num_mib,
            "reads_a_sample": reads,
            "blocks_a_row": {4 * dim: rows.blocks_a_row() for dim, rows in stores.items()},
            "io_engine": stores[64].store.io_engine,
            "device_io_engine": devices[128].engine,
            "page_cache": "bypassed" if devices[128].engine != "mmap" else "used: no O_DIRECT here",
            "emulated": list(stores[64].store.stats().emulated),
        },
        timings=timings,
        baseline="device, depth 128",
        environment=where,
    )
    rates = {timing.name: reads[timing.name] / timing.percentile(10) for timing in timings}
    for name, rate in rates.items():
        result.figures[f"{name}: thousand a second"] = rate / 1e3
    for dim in DIMS if result.timing("device, depth 128").steady else ():
        name = f"{4 * dim}-byte rows, {many} a call"
        figure = f"{name} over the device at depth 128"
        result.figures[figure] = rates[name] / rates["device, depth 128"]
        result.targets[figure] = Target(value=0.9)
    for rows in stores.values():
        rows.store.close()
    return [result]
