"""How long does training pause for a checkpoint, how much is written, how long does restoring?"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil

import mtrains
from bench.harness import Options, Result, Target, Timing, environment
from bench.workload import EPS, INITIAL_VALUE, LEARNING_RATE, Workload

WORKLOAD = Workload(
    name="zipf-4-tables",
    num_tables=4,
    num_rows=500_000,
    dim=64,
    batch_size=2048,
    pooling_factor=20,
    zipf_exponent=1.05,
    num_batches=32,
)
STRIDE = 4 * WORKLOAD.dim + 4  # weights and the state of row-wise Adagrad
FIXED_BYTES = 2 << 20
STEPS_BETWEEN = 24  # without a checkpoint, the first few of which are not kept
SETTLING_STEPS = 4
MAX_ROUNDS = 15


class Training:
    """A collection in a store whose memory holds `share` of its rows."""

    def __init__(self, path: Path, workload: Workload, share: float) -> None:
        self.path, self._workload = path, workload
        self._dram = int(share * workload.num_tables * workload.num_rows * (STRIDE + 16)) + (1 << 20)
        self._batch = 0
        self.open()

    def open(self) -> None:
        """Open the store as a new run does: store, modules, optimizer."""
        self.store = mtrains.Store(self.path, dram=self._dram, seed=1)
        init = mtrains.init.constant(INITIAL_VALUE)
        tables = [
            mtrains.TableSpec(f"t{number}", self._workload.num_rows, self._workload.dim, init=init)
            for number in range(self._workload.num_tables)
        ]
        self._bags = mtrains.TieredEmbeddingBagCollection(tables, store=self.store)
        self._optimizer = mtrains.optim.RowWiseAdagrad(self._bags.parameters(), lr=LEARNING_RATE, eps=EPS)

    def step(self) -> float:
        """Train one batch; return its seconds."""
        workload = self._workload
        begin = time.perf_counter()
        self._optimizer.zero_grad()
        self._bags(workload.indices[self._batch % workload.num_batches], workload.offsets).backward(
            workload.grad
        )
        self._optimizer.step()
        self._batch += 1
        return time.perf_counter() - begin


class Samples:
    """Seconds by what was done, and bytes by checkpoint."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}
        self.bytes: list[tuple[int, int]] = []  # written, of dirty rows

    def add(self, name: str, seconds: float) -> None:
        self.seconds.setdefault(name, []).append(seconds)


def _live(training: Training, samples: Samples, tag: str) -> None:
    """Steps alone, then a checkpoint that is written while steps go on."""
    for number in range(STEPS_BETWEEN):
        seconds = training.step()
        if number >= SETTLING_STEPS:
            samples.add("step", seconds)
    begin = time.perf_counter()
    training.store.checkpoint(tag, wait=False)
    samples.add("checkpoint call", time.perf_counter() - begin)
    beside = []
    while True:
        beside.append(training.step())
        records = training.store.checkpoints()
        if records and records[-1].tag == tag:
            break
    samples.add("longest step beside a checkpoint", max(beside))
    samples.add("steps beside a checkpoint, together", sum(beside))


def _quiet(training: Training, samples: Samples, tag: str) -> None:
    """Count the bytes of a checkpoint that nothing runs beside."""
    training.store.checkpoint("before")
    for _ in range(STEPS_BETWEEN):
        training.step()
    process = psutil.Process()  # write_chars: what write calls were given; write_bytes counts reused blocks twice here
    dirty_rows = training.store.stats().tiers["dram"]["dirty_rows"]
    before = process.io_counters().write_chars
    begin = time.perf_counter()
    training.store.checkpoint(tag)
    samples.add("whole checkpoint, nothing beside it", time.perf_counter() - begin)
    written = process.io_counters().write_chars - before
    samples.bytes.append((written, int(dirty_rows) * STRIDE))


def _come_back(training: Training, samples: Samples, tag: str) -> None:
    """Restore a checkpoint after steps that it drops, then close and open; the rows must be its rows."""
    digest = training.store.digest()
    training.step()
    samples.add("restore", _timed(lambda: training.store.restore(tag)))
    assert training.store.digest() == digest, "restore gave other rows"
    training.store.close()
    samples.add("open", _timed(training.open))
    assert training.store.digest() == digest, "the opened store has other rows"


def _timed(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def _measure(options: Options, workload: Workload, share: float, name: str) -> Result:
    where = environment()
    training = Training(options.folder / name, workload, share)
    samples = Samples()
    for batch in range(2 * workload.num_batches):  # every row of every batch is in the log then
        training.step()
        if batch == workload.num_batches:
            training.store.checkpoint("first")
    for number in range(min(options.rounds, MAX_ROUNDS)):
        _live(training, samples, f"live-{number}")
        _quiet(training, samples, f"quiet-{number}")
        _come_back(training, samples, f"quiet-{number}")
    stats = training.store.stats()
    training.store.checkpoint("last")
    training.store.close()
    result = Result(
        question=f"checkpoint, {name}",
        parameters={
            "tables": workload.num_tables,
            "rows": workload.num_rows,
            "dim": workload.dim,
            "batch_size": workload.batch_size,
            "pooling_factor": workload.pooling_factor,
            "zipf_exponent": workload.zipf_exponent,
            "rows_in_memory": share,
            "io_engine": stats.io_engine,
            "emulated": list(stats.emulated),
            "page_cache": "written through, dropped after each commit",
            "bytes_written_and_dirty": samples.bytes,
        },
        timings=[Timing(name=what, seconds=seconds) for what, seconds in samples.seconds.items()],
        baseline="step",
        environment=where,
    )
    _add_figures(result, samples)
    return result


def _add_figures(result: Result, samples: Samples) -> None:
    if result.timing("step").steady:
        step = result.timing("step").percentile(50)
        longest = result.timing("longest step beside a checkpoint")
        call = result.timing("checkpoint call")
        result.figures["pause: longest step beside, less a step, in steps (median)"] = (
            longest.percentile(50) / step - 1
        )
        result.figures["pause: checkpoint call, in steps (median)"] = call.percentile(50) / step
        result.figures["pause: longest of all, in steps"] = (
            max(max(longest.seconds) - step, max(call.seconds)) / step
        )
    dirty = sum(rows for _, rows in samples.bytes)
    result.figures["MiB of dirty rows a checkpoint"] = dirty / len(samples.bytes) / 2**20
    result.figures["bytes over (1.2 x dirty rows + 2 MiB)"] = max(
        written / (1.2 * rows + FIXED_BYTES) for written, rows in samples.bytes
    )
    result.figures["restore: ms"] = 1e3 * result.timing("restore").percentile(50)
    result.figures["open: ms"] = 1e3 * result.timing("open").percentile(50)
    one = Target(value=1.0, at_most=True)
    for figure in result.figures:
        if figure.startswith(("pause", "bytes over")):
            result.targets[figure] = one


def main(options: Options) -> list[Result]:
    """Measure with all rows in memory, and with a quarter of them."""
    workload = WORKLOAD
    if options.quick:
        workload = replace(workload, num_rows=2000, batch_size=32, num_batches=4)
    return [
        _measure(options, workload, 1.5, "all rows in memory"),
        _measure(options, workload, 0.25, "a quarter in memory"),
    ]
