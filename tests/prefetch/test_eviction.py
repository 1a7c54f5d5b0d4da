"""Who leaves when batches are known ahead, across tables of different record lengths."""

import pytest
import torch

import mtrains

BATCH = 64


def fetches_of_the_returning_rows(lookahead):
    """Rows of a narrow table that return every fourth batch, beside new rows of a wide one that never do."""
    returning = [torch.arange(BATCH) + BATCH * turn for turn in range(4)]
    batches = [(returning[number % 4], torch.arange(BATCH) + BATCH * number) for number in range(40)]
    # Room for the narrow table's rows, and for two batches of the wide one's.
    with mtrains.Store(dram=f"{4 * BATCH * (36 + 16) + 2 * BATCH * (100 + 16)}", seed=1) as store:
        narrow = mtrains.TieredEmbedding(1000, 8, store=store, name="narrow")
        wide = mtrains.TieredEmbedding(10_000, 24, store=store, name="wide")
        optimizer = mtrains.optim.RowWiseAdagrad([*narrow.parameters(), *wide.parameters()], lr=0.1)
        loader = mtrains.prefetch(
            batches, lambda batch: {narrow: batch[0], wide: batch[1]}, lookahead=lookahead, depth=0
        )
        for rows, others in loader:
            optimizer.zero_grad()
            (narrow(rows).sum() + wide(others).sum()).backward()
            optimizer.step()
        return store.stats().tables["narrow"]["fetches"]


def test_rows_that_return_stay_before_rows_of_other_pools_that_do_not():
    with_window, without = fetches_of_the_returning_rows(8), fetches_of_the_returning_rows(0)
    assert with_window <= 0.1 * without


@pytest.mark.parametrize("eviction", ["lru", "lfu", "s3-fifo"])
def test_popular_rows_survive_a_scan_unless_by_lru(eviction):
    popular = torch.arange(BATCH)
    with mtrains.Store(dram=f"{3 * BATCH * (36 + 16)}", seed=1, eviction=eviction) as store:
        rows = mtrains.TieredEmbedding(100_000, 8, store=store, name="rows")
        optimizer = mtrains.optim.RowWiseAdagrad(rows.parameters(), lr=0.1)
        scanned = iter(torch.arange(BATCH, 100_000).split(BATCH))
        for number in range(200):
            batch = popular if number % 4 == 0 or number < 8 else next(scanned)
            optimizer.zero_grad()
            rows(batch).sum().backward()
            optimizer.step()
        fetches = store.stats().tables["rows"]["fetches"]
    assert (fetches > 2000) == (eviction == "lru")
