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


def memory_bytes():
    """Bytes that this process has of its own: anonymous and shared memory, not pages of files."""
    with open("/proc/self/status") as status:
        lines = [line.split() for line in status]
    return sum(int(line[1]) * 1024 for line in lines if line[0] in ("RssAnon:", "RssShmem:"))


def test_fifty_gigabytes_train_within_the_budgets_of_dram_and_scm(full):
    """Of 100 million rows of 512 bytes those that a skewed stream touches, many times what memory holds."""
    dram, scm, steps = (256, 512, 320) if full else (16, 32, 40)
    random = torch.Generator().manual_seed(0)
    before = memory_bytes()
    with mtrains.Store(dram=dram * MIB, scm=scm * MIB, seed=1) as store:
        bag = mtrains.TieredEmbeddingBag(100_000_000, 128, mode="sum", store=store, name="ids")
        optimizer = mtrains.optim.RowWiseAdagrad(bag.parameters(), lr=0.1)
        grown = []
        for step in range(steps):
            optimizer.zero_grad()
            rows = (torch.rand(512, 40, generator=random).double() ** 3 * 100_000_000).long()
            bag(rows).sum().backward()
            optimizer.step()
            if step % 20 == 19:
                directory = store.engine.table_info(bag.table.number)["directory_bytes"]
                grown.append(memory_bytes() - before - directory)
        tiers = store.stats().tiers
        touched = store.engine.table_info(bag.table.number)["touched_rows"]
    assert touched * 516 > 3 * (dram + scm) * MIB
    assert tiers["dram"]["evictions"] > 0 < tiers["scm"]["evictions"]
    print(f"touched {touched:,} rows, grown by {max(grown) / MIB:.0f} MiB beside the directory; {tiers}")
    assert max(grown) <= (dram + scm + 200) * MIB
