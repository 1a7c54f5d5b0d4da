"""Tables far larger than memory cost only what is touched, and training does not grow."""

import os
import time

import psutil
import torch

import mtrains

MIB = 1 << 20


def rss():
    return psutil.Process().memory_info().rss


def disk_bytes(path):
    return sum(
        os.stat(os.path.join(folder, name)).st_blocks * 512 for folder, _, names in os.walk(path) for name in names
    )


def test_a_billion_rows_open_at_once_and_cost_what_is_touched(tmp_path):
    before = rss()
    begin = time.monotonic()
    with mtrains.Store(tmp_path / "store", dram="16MiB", seed=1) as store:
        bag = mtrains.TieredEmbeddingBag(1_000_000_000, 64, mode="sum", store=store, name="ids")
        seconds = time.monotonic() - begin
        assert bag.weight.numel() == 64_000_000_000
        optimizer = mtrains.optim.RowWiseAdagrad(bag.parameters(), lr=0.1)
        rows = torch.randint(1_000_000_000, (2000, 2), generator=torch.Generator().manual_seed(0))
        bag(rows).sum().backward()
        optimizer.step()
        assert store.engine.table_info(bag.table.number)["touched_rows"] == rows.unique().numel()
        # 4,000 rows far apart: one page of the directory each, and a slot each.
        assert rss() - before < 16 * MIB + 4000 * 4096 + 100 * MIB
        digest = store.digest()
        store.checkpoint("x")
    assert disk_bytes(tmp_path / "store") < 32 * MIB
    begin = time.monotonic()
    with mtrains.Store(tmp_path / "store", dram="16MiB") as store:
        reopen_seconds = time.monotonic() - begin
        assert store.digest() == digest
    # Bounds that no slow machine passes by doing work for each row.
    assert seconds < 30
    assert reopen_seconds < 30


def test_memory_does_not_grow_over_a_thousand_steps():
    random = torch.Generator().manual_seed(0)
    with mtrains.Store(dram="2MiB", seed=1) as store:
        bag = mtrains.TieredEmbeddingBag(50_000, 16, mode="sum", store=store, name="ids")
        optimizer = mtrains.optim.SparseAdam(bag.parameters(), lr=0.01)
        sizes = []
        for step in range(1000):
            optimizer.zero_grad()
            bag(torch.randint(50_000, (64, 10), generator=random)).sum().backward()
            optimizer.step()
            if step >= 300 and step % 100 == 0:
                sizes.append(rss())
        assert store.stats().to_dict()["tiers"]["dram"]["evictions"] > 100_000
    # The log's buffers come and go, at most 32 of 1 MiB.
    assert max(sizes) - sizes[0] < 48 * MIB
