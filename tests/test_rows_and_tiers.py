"""Rows on their way between tiers: what is written, what is not, and what must not be mistaken."""

import torch

import mtrains


def appended(store):
    return store.stats().to_dict()["tiers"]["ssd"]["bytes_appended"]


def dram(store):
    return store.stats().to_dict()["tiers"]["dram"]


def test_clean_rows_are_evicted_without_a_byte_written(tmp_path):
    with mtrains.Store(tmp_path / "store", dram="8KiB", seed=1) as store:
        bag = mtrains.TieredEmbedding(2000, 8, store=store, name="t")
        bag.write_rows(torch.arange(1000), torch.randn(1000, 8))  # half of the table, the other is as it began
        store.checkpoint("x")
        before, evictions = appended(store), dram(store)["evictions"]
        with torch.no_grad():
            for begin in range(0, 2000, 50):
                bag(torch.arange(begin, begin + 50))
        assert dram(store)["evictions"] > evictions + 1500
        assert appended(store) == before


def test_a_row_of_zeros_is_a_row():
    with mtrains.Store(dram="2KiB", seed=1) as store:
        table = mtrains.TieredEmbedding(500, 8, store=store, name="t")
        table.write_rows(torch.arange(0, 500, 2), torch.zeros(250, 8))
        rows = table.read_rows(torch.arange(500))
        assert dram(store)["evictions"] > 0
        assert (rows[::2] == 0).all()
        assert (rows[1::2] != 0).all()


def test_accesses_are_hits_new_or_fetches_once_a_row_and_lookup():
    random = torch.Generator().manual_seed(0)
    with mtrains.Store(dram="6KiB", seed=1) as store:
        bag = mtrains.TieredEmbeddingBag(1000, 8, mode="sum", store=store, name="t")
        optimizer = mtrains.optim.SGD(bag.parameters(), lr=0.1)
        accesses, seen = 0, set()
        for _ in range(60):
            rows = torch.randint(1000, (20, 5), generator=random)
            optimizer.zero_grad()
            bag(rows).sum().backward()
            optimizer.step()
            accesses += rows.unique().numel()
            seen.update(rows.flatten().tolist())
        counters = dram(store)
        assert counters["hits"] + counters["new"] + counters["fetches"] == accesses
        assert counters["new"] == len(seen)  # every row that was touched once is found again
        assert counters["fetches"] > 0


def test_tables_of_many_strides_share_a_budget():
    dims = (1, 2, 3, 7, 64, 130)
    digests = []
    for budget in ("12KiB", "64MiB"):
        random = torch.Generator().manual_seed(0)
        with mtrains.Store(dram=budget, seed=1) as store:
            bags = [
                mtrains.TieredEmbeddingBag(300, dim, mode="sum", store=store, name=f"dim{dim}") for dim in dims
            ]
            optimizer = mtrains.optim.SparseAdam([bag.weight for bag in bags], lr=0.1)
            for step in range(30):
                # Each stride in turn needs most of the memory.
                bag = bags[step % len(bags)]
                optimizer.zero_grad()
                bag(torch.randint(300, (40, 3), generator=random)).sum().backward()
                optimizer.step()
            digests.append(store.digest())
    assert digests[0] == digests[1]


def test_checkpoints_of_no_row_one_row_and_all_rows_in_the_log(tmp_path):
    for rows in (0, 1, 700):
        path = tmp_path / f"store{rows}"
        with mtrains.Store(path, dram="4KiB", seed=1) as store:
            table = mtrains.TieredEmbedding(1000, 8, store=store, name="t")
            if rows:
                table.write_rows(torch.arange(rows), torch.randn(rows, 8))
            store.checkpoint("x")
            digest = store.digest()
        with mtrains.Store(path, dram="64KiB") as store:
            assert store.digest() == digest
            mtrains.TieredEmbedding(1000, 8, store=store, name="t")
            assert store.engine.table_info(0)["touched_rows"] == rows


def test_an_optimizer_attached_while_a_checkpoint_is_written_changes_nothing_in_it(tmp_path):
    for dram in ("64MiB", "400KiB"):
        path = tmp_path / dram
        with mtrains.Store(path, dram=dram, seed=1) as store:
            bag = mtrains.TieredEmbeddingBag(50_000, 16, mode="sum", store=store, name="t")
            bag.write_rows(torch.arange(50_000), torch.randn(50_000, 16))
            rows = bag.read_rows(torch.arange(50_000))
            store.checkpoint("plain", wait=False)
            optimizer = mtrains.optim.SparseAdam(bag.parameters(), lr=0.1)
            bag(torch.arange(100)[None]).sum().backward()
            optimizer.step()
            store.flush()
        with mtrains.Store(path, dram=dram) as store:
            bag = mtrains.TieredEmbeddingBag(50_000, 16, mode="sum", store=store, name="t")
            assert torch.equal(bag.read_rows(torch.arange(50_000)), rows)


def test_two_features_of_one_tight_table_count_each_access_once():
    with mtrains.Store(dram="20KiB", seed=1) as store:
        spec = mtrains.TableSpec("t", 5000, 16, features=("a", "b"))
        bags = mtrains.TieredEmbeddingBagCollection([spec], store=store)
        random, accesses = torch.Generator().manual_seed(0), 0
        for _ in range(20):
            indices = torch.randint(400, (2, 200), generator=random)
            accesses += sum(len(feature.unique()) for feature in indices)
            with torch.no_grad():
                bags(indices.flatten(), torch.arange(401))
        counters = dram(store)
        assert counters["evictions"] > 0
        assert counters["hits"] + counters["new"] + counters["fetches"] == accesses
