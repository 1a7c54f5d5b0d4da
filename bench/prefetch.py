"""Does prefetch hide what rows of slow tiers cost, and what does it cost where there is nothing to hide?

Computation is a sleep, as on an accelerator, after a forward and a step of the table here. "Rows alone" is a step
without prefetch and computation, less that of a table that is wholly in memory: reads, write-back, waits and their CPU.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from functools import partial
from itertools import cycle, islice

import torch

import mtrains
from bench.generators import Zipf
from bench.harness import Options, Result, Target, Timing, environment, interleave_seconds
from mtrains.devices import EmulatedDevice

DIM = 62  # 252 bytes a row with its state: 16 rows a block of the log
ROW_BYTES = 4 * (DIM + 1) + 16
DEPTH = 2
WARM_UP = 1
IO_OVER_COMPUTE = (0.5, 1.0, 2.0)
DEVICE = EmulatedDevice(
    name="slow-scm",
    read_bytes_per_second=100e6,
    write_bytes_per_second=100e6,
    source="chosen so that waits outweigh the CPU that moves rows",
)


class Table:
    """A table, the batches that it is trained on, and what a run of steps took."""

    def __init__(
        self, num_rows: int, batches: list[torch.Tensor], store: mtrains.Store, *, cached: bool = False
    ) -> None:
        self.store = store
        init = mtrains.init.constant(0.01)
        self._rows = mtrains.TieredEmbedding(num_rows, DIM, init=init, store=self.store, name="rows")
        parameters = list(self._rows.parameters())
        if cached:
            # A table that nobody looks up makes the store larger than its budget: rows are in slots then.
            larger = mtrains.TieredEmbedding(1 << 40, DIM, init=init, store=self.store, name="larger")
            parameters += list(larger.parameters())
        self._optimizer = mtrains.optim.RowWiseAdagrad(parameters, lr=0.1)
        self._batches = cycle(batches)
        for rows in torch.arange(num_rows).split(1 << 12):
            self._step(rows, 0.0)  # every row is changed once, so every miss is a fetch and every victim is written

    def run(self, steps: int, compute: float, *, lookahead: int = 0, depth: int = 0) -> float:
        """Return seconds a step of so many steps, each with so many seconds of computation."""
        batches = list(islice(self._batches, steps))
        if not depth and not lookahead:
            return self._run(batches, compute)
        rows = self._rows
        loader = mtrains.prefetch(batches, lambda batch: {rows: batch}, lookahead=lookahead, depth=depth)
        return self._run(loader, compute)

    def _run(self, loader: Iterable[torch.Tensor], compute: float) -> float:
        steps = 0
        begin = time.perf_counter()
        for batch in loader:
            self._step(batch, compute)
            steps += 1
        return (time.perf_counter() - begin) / steps

    def _step(self, batch: torch.Tensor, compute: float) -> None:
        self._optimizer.zero_grad()
        out = self._rows(batch)
        if compute:
            time.sleep(compute)
        out.backward(out.detach())
        self._optimizer.step()


def main(options: Options) -> list[Result]:
    """Measure overlap over an emulated SCM and over the log, a cache that always hits, and blocks read a row."""
    rows, size, count = (2_000, 256, 8) if options.quick else (400_000, 4096, 64)
    draw = Zipf(rows, 0.6, seed=1)
    batches = [torch.from_numpy(draw.draw(size)) for _ in range(count)]
    everything, fifth = rows * ROW_BYTES + (1 << 20), rows * ROW_BYTES // 5
    stores = {
        "resident": mtrains.Store(dram=everything, seed=1),
        "cached": mtrains.Store(dram=everything, seed=1),
        "scm": mtrains.Store(dram=fifth, scm=mtrains.Scm(2 * everything, emulate=DEVICE), seed=1),
        "log": mtrains.Store(options.folder / "log", dram=fifth, seed=1),
    }
    tables = {name: Table(rows, batches, store, cached=name == "cached") for name, store in stores.items()}
    results = [_overlap(options, tier, tables[tier], tables["resident"]) for tier in ("scm", "log")]
    results.append(_all_hit(options, tables["resident"], tables["cached"]))
    for store in stores.values():
        store.close()
    results.append(_blocks(options, min(rows, 100_000), size))
    return results


def _overlap(options: Options, tier: str, table: Table, resident: Table) -> Result:
    """A computation that takes half, as long and twice as long as the rows alone."""
    where = environment()
    steps = 4 if options.quick else 64
    alone = resident.run(steps, 0.0)
    cpu = time.process_time()
    rows_alone = min(table.run(steps, 0.0) for _ in range(3)) - alone
    cpu_a_step = (time.process_time() - cpu) / (3 * steps)
    calls: dict[str, Callable[[], float]] = {}
    bounds = {}
    for ratio in IO_OVER_COMPUTE:
        sleep = max(0.0, rows_alone / ratio - alone)
        bounds[ratio] = max(sleep + alone, rows_alone, cpu_a_step / (os.cpu_count() or 1))
        calls[f"rows/computation {ratio:g}, depth 0"] = partial(table.run, steps, sleep)
        calls[f"rows/computation {ratio:g}, depth {DEPTH}"] = partial(
            table.run, steps, sleep, lookahead=64, depth=DEPTH
        )
    timings = interleave_seconds(calls, rounds=min(options.rounds, 7), warm_up=WARM_UP)
    result = Result(
        question=f"prefetch over {tier}",
        parameters={
            **_of_store(table.store),
            "resident_step_seconds": alone,
            "rows_alone_seconds": rows_alone,
            "cpu_seconds_a_step": cpu_a_step,
            "device": DEVICE.name if tier == "scm" else "the disk",
        },
        timings=timings,
        baseline=f"rows/computation 1, depth {DEPTH}",
        environment=where,
    )
    for ratio, bound in bounds.items():
        took = result.timing(f"rows/computation {ratio:g}, depth {DEPTH}").percentile(50)
        figure = f"rows/computation {ratio:g}: the longest of them alone over the step"
        result.figures[figure] = bound / took
        result.targets[figure] = Target(value=0.9)
        before = result.timing(f"rows/computation {ratio:g}, depth 0").percentile(50)
        result.figures[f"rows/computation {ratio:g}: times as fast as depth 0"] = before / took
    return result


def _all_hit(options: Options, resident: Table, cached: Table) -> Result:
    where = environment()
    steps = 4 if options.quick else 64
    calls = {
        "resident": partial(resident.run, steps, 0.0),
        "cached": partial(cached.run, steps, 0.0),
        "resident, prefetch": partial(resident.run, steps, 0.0, lookahead=64, depth=DEPTH),
        "cached, prefetch": partial(cached.run, steps, 0.0, lookahead=64, depth=DEPTH),
    }
    timings = interleave_seconds(calls, rounds=options.rounds, warm_up=WARM_UP)
    result = Result(
        question="all-hit cache",
        parameters=_of_store(cached.store),
        timings=timings,
        baseline="resident",
        environment=where,
    )
    for prefetch in ("", ", prefetch"):
        taken, whole = (result.timing(f"{name}{prefetch}") for name in ("cached", "resident"))
        figure = f"cached over resident{prefetch}"
        result.figures[figure] = taken.percentile(10) / whole.percentile(10)
        result.targets[figure] = Target(value=1.15, at_most=True)
    return result


def _blocks(options: Options, rows: int, size: int) -> Result:
    """Blocks read a row that the log was asked for, by batches whose ids are known, at 10 % of the rows."""
    where = environment()
    draw = Zipf(rows, 1.05, seed=2)
    batches = [torch.from_numpy(draw.draw(size)) for _ in range(16 if options.quick else 512)]
    timings, figures, parameters = [], {}, {}
    for lookahead in (0, 64, 256):
        with mtrains.Store(options.folder / f"blocks-{lookahead}", dram=rows * ROW_BYTES // 10, seed=1) as store:
            table = Table(rows, batches, store)
            before = store.stats()
            name = f"{lookahead} batches known"
            timings.append(Timing(name=name, seconds=[table.run(len(batches), 0.0, lookahead=lookahead, depth=DEPTH)]))
            after = store.stats()
            read, fetched, asked = (
                after.tiers["ssd"][counter] - before.tiers["ssd"][counter]
                if counter != "fetches"
                else after.tables["rows"][counter] - before.tables["rows"][counter]
                for counter in ("block_reads", "fetches", "rows_read")
            )
            figures[f"{name}: blocks a fetched row"] = read / max(1, fetched)
            figures[f"{name}: blocks a row read"] = read / max(1, asked)
            parameters = _of_store(store)
    figures["by row id: blocks a row"] = _blocks_by_id(batches, rows)
    return Result(
        question="blocks a row",
        parameters=parameters,
        timings=timings,
        baseline="64 batches known",
        figures=figures,
        targets={
            f"{number} batches known: blocks a row read": Target(value=0.25, at_most=True) for number in (64, 256)
        },
        environment=where,
    )


def _blocks_by_id(batches: list[torch.Tensor], rows: int) -> float:
    """Blocks for each fetched row if row i lay in block i // 16, of what Belady's rule would fetch."""
    unique = [batch.unique() for batch in batches]
    next_use = torch.full((len(unique) + 1, rows), len(unique), dtype=torch.int32)
    for number in range(len(unique) - 1, -1, -1):
        next_use[number] = next_use[number + 1]
        next_use[number, unique[number]] = number
    held = torch.zeros(rows, dtype=torch.bool)
    fetched = blocks = 0
    for number, wanted in enumerate(unique):
        missing = wanted[~held[wanted]]
        fetched += len(missing)
        blocks += len((missing // 16).unique())
        held[wanted] = True
        present = held.nonzero().flatten()
        order = next_use[number + 1, present].argsort(stable=True)
        held[present[order[rows // 10 :]]] = False
    return blocks / fetched


def _of_store(store: mtrains.Store) -> dict[str, object]:
    return {
        "io_engine": store.io_engine,
        "page_cache": "used: no O_DIRECT here" if store.io_engine == "mmap" else "bypassed",
        "emulated": list(store.stats().emulated),
        "row_bytes": ROW_BYTES,
        "depth": DEPTH,
    }
