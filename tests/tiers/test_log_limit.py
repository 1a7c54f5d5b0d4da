"""The log at its limit: many times the live bytes are updated, with a row in each segment that never is."""

import time
from dataclasses import dataclass

import numpy as np
import pytest

from mtrains import Store, TableSpec
from mtrains.tiers.verify import verify_store

MIB = 1 << 20
DIM = 64
ROW_BYTES = 4 * DIM
BATCH = 4096


@dataclass(frozen=True, kw_only=True)
class Run:
    live_bytes: int
    updated_bytes: int
    checkpoint_bytes: int
    dram_bytes: int


SHORT = Run(live_bytes=24 * MIB, updated_bytes=288 * MIB, checkpoint_bytes=60 * MIB, dram_bytes=8 * MIB)
FULL = Run(live_bytes=200 * MIB, updated_bytes=10 << 30, checkpoint_bytes=500 * MIB, dram_bytes=64 * MIB)


def anonymous_bytes():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("RssAnon"))


class Watch:
    """What a store had on disk and in memory while it ran, over what it needed."""

    def __init__(self, store):
        self.store = store
        # Bytes on disk beyond 1.5 x (live + held): of their most between two checkpoints, for a file does not shrink
        # when a checkpoint is dropped, and of the moment.
        self.excess = []
        self.momentary = []
        self.anonymous = []
        self.needed = [0, 0]  # the most of this interval and of the one before

    def look(self):
        stats = self.store.stats()
        self.needed[0] = max(self.needed[0], stats.live_bytes + stats.held_bytes)
        self.excess.append(stats.disk_bytes - 1.5 * max(self.needed))
        self.momentary.append(stats.disk_bytes - 1.5 * (stats.live_bytes + stats.held_bytes))
        self.anonymous.append(anonymous_bytes())
        return stats

    def anonymous_of_halves(self):
        half = len(self.anonymous) // 2
        return max(self.anonymous[:half]), max(self.anonymous[half:])

    def next_interval(self):
        self.needed = [0, self.needed[0]]


def update(store, run, watch):
    """Update scattered rows, one more that stays as it is in each segment, with checkpoints; return the stats."""
    num_rows = run.live_bytes // ROW_BYTES
    hot = store.add_table(TableSpec("hot", num_rows, DIM))
    cold = store.add_table(TableSpec("cold", 2 * run.updated_bytes // MIB, DIM))
    values = np.zeros((BATCH, DIM), np.float32)

    def write(table, rows):
        store.engine.write_rows(table.number, np.asarray(rows, np.int64), values[: len(rows)])

    for first in range(0, num_rows, BATCH):
        write(hot, range(first, min(num_rows, first + BATCH)))
    store.checkpoint("loaded")
    random = np.random.default_rng(0)
    updated, next_checkpoint, batch = 0, run.checkpoint_bytes, 0
    while updated < run.updated_bytes:
        batch += 1
        values[:] = batch
        rows = np.unique(random.integers(0, num_rows, BATCH))
        write(hot, rows)
        write(cold, [batch])
        updated += len(rows) * ROW_BYTES
        if batch % 4 == 0:
            watch.look()
        if updated >= next_checkpoint:
            watch.next_interval()
            store.checkpoint(batch)
            next_checkpoint += run.checkpoint_bytes
    return watch.look()


def report(run, stats, watch, seconds):
    written = stats.tiers["ssd"]["bytes_written"]
    first, second = watch.anonymous_of_halves()
    return (
        f"{run.updated_bytes / MIB:.0f} MiB updated in {seconds:.0f} s; written {written / MIB:.0f} MiB, "
        f"{written / seconds / MIB:.0f} MiB/s; write amplification {stats.write_amplification:.2f}, of garbage "
        f"collection {stats.gc_write_ratio:.2f}; disk {stats.disk_bytes / MIB:.0f} MiB, at most "
        f"{max(watch.excess) / MIB:.0f} MiB beyond 1.5 x (live + held), {max(watch.momentary) / MIB:.0f} MiB just "
        f"after a checkpoint was dropped; anonymous memory {first / MIB:.0f} MiB in the first half, "
        f"{second / MIB:.0f} MiB in the second"
    )


@pytest.mark.parametrize("form", ["short", "full"])
def test_disk_writes_and_memory_are_bounded_however_much_is_updated(tmp_path, form, full):
    if form == "full" and not full:
        pytest.skip("ten GiB of updates: --full")
    run = FULL if form == "full" else SHORT
    path = tmp_path / "s"
    begin = time.monotonic()
    with Store(path, dram=run.dram_bytes, seed=1) as store:
        watch = Watch(store)
        stats = update(store, run, watch)
        seconds = time.monotonic() - begin
        digest = store.digest()
        store.checkpoint("end")
        print("\n" + report(run, stats, watch, seconds))
        assert max(watch.excess) <= 256 * MIB
        assert stats.write_amplification <= 2.0
        assert stats.tiers["ssd"]["segments_evacuated"] > 0
        first, second = watch.anonymous_of_halves()
        assert second <= 1.05 * first + 16 * MIB
    assert verify_store(path) == []
    with Store(path, dram=run.dram_bytes) as store:
        assert store.digest() == digest
