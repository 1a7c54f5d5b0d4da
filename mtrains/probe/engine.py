"""What the store's engine does here: segments written to the log, and CPU of a hit and of a miss."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from mtrains.embedding_bag import TieredEmbedding
from mtrains.init import zeros
from mtrains.optim import RowWiseAdagrad
from mtrains.store import Store

__all__ = ["EngineRates", "measure_engine"]

_DIM = 64
_SLOT_BYTES = 4 * _DIM + 4 + 16
_BATCH = 4096
_SLOTS = 8 * _BATCH
_ROWS_A_WRITE = 8192


@dataclass(frozen=True, kw_only=True)
class EngineRates:
    """write_bytes_per_second: of segments, with their commits. Seconds are of one core.

    cpu_seconds_per_row: of a unique row of 64 columns in a table that is held whole: forward, backward and row-wise
    Adagrad, which are a step's compute. cpu_seconds_per_hit: what a row in a cache takes beyond that, for its index.
    cpu_seconds_per_miss: what a row that is not there takes beyond a hit and its block's read: making room, writing the
    victim.
    """

    write_bytes_per_second: float
    cpu_seconds_per_row: float
    cpu_seconds_per_hit: float
    cpu_seconds_per_miss: float


def measure_engine(folder: Path, num_rows: int, seconds: float, cpu_seconds_per_read: float) -> EngineRates:
    """Train a table of a temporary store in `folder`, for about `seconds`. Raises: as Store."""
    with (
        tempfile.TemporaryDirectory(dir=folder, prefix="mtrains-probe-") as path,
        Store(
            Path(path) / "rows",
            dram=(_SLOTS + _BATCH) * _SLOT_BYTES,
            seed=0,
            budgets={"held": {"dram": _BATCH * _SLOT_BYTES}},
        ) as store,
    ):
        table = TieredEmbedding(num_rows, _DIM, store=store, name="rows", init=zeros())
        held = TieredEmbedding(_BATCH, _DIM, store=store, name="held", init=zeros())
        training = _Training(table)
        written = _write(store, table, num_rows, seconds / 3)
        compute, _ = _Training(held).run(seconds / 6, among=_BATCH)
        cached, _ = training.run(seconds / 6, among=_BATCH)
        before = store.stats().tiers
        any_row, rows = training.run(seconds / 3, among=num_rows)
        after = store.stats().tiers
        missed = after["dram"]["fetches"] - before["dram"]["fetches"]
        reads = after["ssd"]["block_reads"] - before["ssd"]["block_reads"]
        store.checkpoint("end")  # else closing says that rows are lost
    of_misses = max(0.0, (any_row - cached) * rows - cpu_seconds_per_read * reads)
    return EngineRates(
        write_bytes_per_second=written,
        cpu_seconds_per_row=compute,
        cpu_seconds_per_hit=max(0.0, cached - compute),
        cpu_seconds_per_miss=of_misses / max(1.0, missed),
    )


def _write(store: Store, table: TieredEmbedding, num_rows: int, seconds: float) -> float:
    """Write rows in random order until all were written and the time is over; return the segments' bytes a second."""
    order = torch.randperm(num_rows, generator=torch.Generator().manual_seed(0))
    values = torch.ones(_ROWS_A_WRITE, _DIM)
    begin = time.perf_counter()
    while True:
        for first in range(0, num_rows, _ROWS_A_WRITE):
            ids = order[first : first + _ROWS_A_WRITE]
            table.write_rows(ids, values[: len(ids)])
        store.flush()
        elapsed = time.perf_counter() - begin
        if elapsed >= seconds:
            return store.stats().tiers["ssd"]["bytes_written"] / elapsed


class _Training:
    def __init__(self, table: TieredEmbedding) -> None:
        self._table = table
        self._optimizer = RowWiseAdagrad(table.parameters(), lr=0.01)
        self._random = torch.Generator().manual_seed(1)

    def run(self, seconds: float, *, among: int) -> tuple[float, int]:
        """Train on distinct rows among the first `among`; return CPU seconds a row, and the rows."""
        batches = [self._ids(among) for _ in range(16)]
        self._step(batches[0])  # outside of the time: rows come in, state is made
        rows, turn, begin, cpu = 0, 0, time.perf_counter(), time.process_time()
        while True:
            turn += 1
            rows += self._step(batches[turn % len(batches)])
            if time.perf_counter() - begin >= seconds:
                return (time.process_time() - cpu) / rows, rows

    def _ids(self, among: int) -> torch.Tensor:
        ids: torch.Tensor = torch.unique(torch.randint(among, (_BATCH,), generator=self._random))
        return ids

    def _step(self, ids: torch.Tensor) -> int:
        self._table(ids).sum().backward()
        self._optimizer.step()
        self._optimizer.zero_grad()
        return len(ids)
