"""Rows on their way between tiers: what is written, what is not, and what must not be mistaken."""

import pytest
import torch

import mtrains

# What a store's memory is made of: the one suite below is run by every tier, as the one that computes and as one that
# takes what the tiers above it give up. Sizes of a tier are shares of what a test asks for.
CHAINS = {
    "dram": {"dram": 1.0},
    "hbm": {"hbm": 1.0},
    "scm": {"scm": 1.0},
    "hbm_dram": {"hbm": 0.5, "dram": 0.5},
    "dram_scm": {"dram": 0.5, "scm": 0.5},
    "hbm_dram_scm": {"hbm": 0.3, "dram": 0.3, "scm": 0.4},
}
_LEAST = {"dram": 0, "hbm": 0, "scm": 12288}  # a page each for the records and the two halves of their index


@pytest.fixture(params=CHAINS)
def chain(request):
    """A function from kibibytes of memory to the sizes of the tiers."""
    shares = CHAINS[request.param]
    return lambda kib: (
        {"dram": 0} | {tier: max(_LEAST[tier], int(kib * 1024 * share)) for tier, share in shares.items()}
    )


def accesses_of(store):
    """Return where accesses found their rows: hits in every tier, new ones, fetches."""
    tiers = [values for tier, values in store.stats().tiers.items() if tier != "ssd"]
    return sum(tier["hits"] for tier in tiers), tiers[0]["new"], tiers[0]["fetches"]


def evictions(store):
    return [values["evictions"] for tier, values in store.stats().tiers.items() if tier != "ssd"]


def test_clean_rows_are_evicted_without_a_byte_written(tmp_path, chain):
    with mtrains.Store(tmp_path / "store", seed=1, **chain(8)) as store:
        bag = mtrains.TieredEmbedding(2000, 8, store=store, name="t")
        bag.write_rows(torch.arange(1000), torch.randn(1000, 8))  # half of the table, the other is as it began
        store.checkpoint("x")
        before, left = store.stats(), evictions(store)[-1]
        with torch.no_grad():
            for begin in range(0, 2000, 50):
                bag(torch.arange(begin, begin + 50))
        assert evictions(store)[-1] > left + 800
        after = store.stats()
        for counter in ("bytes_appended", "gc_bytes_appended", "bytes_written", "commits"):
            assert after.tiers["ssd"][counter] == before.tiers["ssd"][counter]
        assert after.disk_bytes == before.disk_bytes


def test_a_row_of_zeros_is_a_row(chain):
    with mtrains.Store(seed=1, **chain(4)) as store:
        table = mtrains.TieredEmbedding(500, 8, store=store, name="t")
        table.write_rows(torch.arange(0, 500, 2), torch.zeros(250, 8))
        rows = table.read_rows(torch.arange(500))
        assert evictions(store)[0] > 0
        assert (rows[::2] == 0).all()
        assert (rows[1::2] != 0).all()


def test_accesses_are_hits_new_or_fetches_once_a_row_and_lookup(chain):
    random = torch.Generator().manual_seed(0)
    with mtrains.Store(seed=1, **chain(8)) as store:
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
        hits, new, fetches = accesses_of(store)
        assert hits + new + fetches == accesses
        assert new == len(seen)  # every row that was touched once is found again
        assert fetches > 0


def test_tables_of_many_strides_share_a_budget(chain):
    dims = (1, 2, 3, 7, 64, 130)
    digests = []
    for kib in (24, 65536):
        random = torch.Generator().manual_seed(0)
        with mtrains.Store(seed=1, **chain(kib)) as store:
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
            tiers = store.stats().tiers
            for tier, size in chain(kib).items():
                assert tier not in tiers or tiers[tier]["used_bytes"] <= size
    assert digests[0] == digests[1]


def test_checkpoints_of_no_row_one_row_and_all_rows_in_the_log(tmp_path, chain):
    for rows in (0, 1, 700):
        path = tmp_path / f"store{rows}"
        with mtrains.Store(path, seed=1, **chain(6)) as store:
            table = mtrains.TieredEmbedding(1000, 8, store=store, name="t")
            if rows:
                table.write_rows(torch.arange(rows), torch.randn(rows, 8))
            store.checkpoint("x")
            digest = store.digest()
        with mtrains.Store(path, dram="64KiB") as store:
            assert store.digest() == digest
            mtrains.TieredEmbedding(1000, 8, store=store, name="t")
            assert store.engine.table_info(0)["touched_rows"] == rows


def test_an_optimizer_attached_while_a_checkpoint_is_written_changes_nothing_in_it(tmp_path, chain):
    for kib in (65536, 800):
        path = tmp_path / str(kib)
        with mtrains.Store(path, seed=1, **chain(kib)) as store:
            bag = mtrains.TieredEmbeddingBag(50_000, 16, mode="sum", store=store, name="t")
            bag.write_rows(torch.arange(50_000), torch.randn(50_000, 16))
            rows = bag.read_rows(torch.arange(50_000))
            store.checkpoint("plain", wait=False)
            optimizer = mtrains.optim.SparseAdam(bag.parameters(), lr=0.1)
            bag(torch.arange(100)[None]).sum().backward()
            optimizer.step()
            store.flush()
        with mtrains.Store(path, dram="1MiB") as store:
            bag = mtrains.TieredEmbeddingBag(50_000, 16, mode="sum", store=store, name="t")
            assert torch.equal(bag.read_rows(torch.arange(50_000)), rows)


def test_two_features_of_one_tight_table_count_each_access_once(chain):
    with mtrains.Store(seed=1, **chain(30)) as store:
        spec = mtrains.TableSpec("t", 5000, 16, features=("a", "b"))
        bags = mtrains.TieredEmbeddingBagCollection([spec], store=store)
        random, accesses = torch.Generator().manual_seed(0), 0
        for _ in range(20):
            indices = torch.randint(400, (2, 200), generator=random)
            accesses += sum(len(feature.unique()) for feature in indices)
            with torch.no_grad():
                bags(indices.flatten(), torch.arange(401))
        assert evictions(store)[0] > 0
        assert sum(accesses_of(store)) == accesses


def test_rows_go_down_tier_by_tier_and_straight_up():
    with mtrains.Store(seed=1, hbm="8KiB", dram="16KiB", scm="64KiB") as store:
        table = mtrains.TieredEmbedding(2000, 32, store=store, name="t")
        table.write_rows(torch.arange(300), torch.randn(300, 32))
        tiers = store.stats().tiers
        moved = [tiers[tier].get("rows_in", 0) for tier in ("hbm", "dram", "scm")]
        held = [tiers[tier]["used_slots"] for tier in ("hbm", "dram", "scm")]
        assert held[0] < moved[1] > moved[2] > 0
        assert sum(held) == 300
        assert tiers["ssd"]["rows_appended"] == 0
        with torch.no_grad():
            table(torch.arange(20))  # the coldest
        tiers = store.stats().tiers
        assert tiers["scm"]["hits"] == 20
        assert (tiers["scm"]["rows_out"], tiers["dram"]["rows_out"]) == (20, 0)


def test_the_counters_of_tables_sum_up_to_those_of_the_store(tmp_path, chain):
    random = torch.Generator().manual_seed(2)
    with mtrains.Store(tmp_path / "s", seed=1, **chain(24)) as store:
        tables = [mtrains.TieredEmbedding(600, 8, store=store, name=name) for name in ("a", "b")]
        optimizer = mtrains.optim.SGD([table.weight for table in tables], lr=0.1)

        def train(steps):
            for _ in range(steps):
                loss = sum(
                    table(torch.randint(600, (count,), generator=random)).sum()
                    for table, count in zip(tables, (90, 30), strict=True)
                )
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()

        train(8)
        store.checkpoint("early")
        train(8)
        store.restore("early")
        train(4)
        stats = store.stats()
    slots = {tier: values for tier, values in stats.tiers.items() if tier != "ssd"}
    for tier, values in slots.items():
        assert sum(one[f"{tier}_hits"] for one in stats.tables.values()) == values["hits"]
    for name in ("new", "fetches"):
        assert sum(one[name] for one in stats.tables.values()) == next(iter(slots.values()))[name] > 0
    assert sum(one["rows_appended"] for one in stats.tables.values()) == (
        stats.tiers["ssd"]["rows_appended"] - stats.tiers["ssd"]["gc_rows"]
    )
    accesses = [sum(v for name, v in one.items() if name != "rows_appended") for one in stats.tables.values()]
    assert accesses[0] > 2 * accesses[1] > 0


def test_a_budget_of_its_own_is_a_tables_alone():
    budgets = {"wide": {"dram": "8KiB", "scm": 0}, "small": {"dram": "64KiB"}}
    with mtrains.Store(seed=1, dram="100KiB", scm="64KiB", budgets=budgets) as store:
        wide, small, other = (
            mtrains.TieredEmbedding(1000, 16, store=store, name=name) for name in ("wide", "small", "other")
        )
        for table in (wide, small, other):
            table.write_rows(torch.arange(500), torch.ones(500, 16))
        tiers = store.stats().tiers
        assert store.engine.table_info(1)["resident"]
        assert not store.engine.table_info(0)["resident"]
        assert tiers["scm"]["rows_in"] > 0
        with torch.no_grad():
            before = store.stats().tiers["scm"]["hits"]
            wide(torch.arange(500))
            assert store.stats().tiers["scm"]["hits"] == before  # it passes that tier over
            other(torch.arange(500))
            assert store.stats().tiers["scm"]["hits"] > before


@pytest.mark.parametrize(
    ("budgets", "error", "said"),
    [
        ({"t": {"dram": "2MiB"}}, mtrains.CapacityError, "raise dram="),
        ({"t": {"scm": "1MiB"}}, mtrains.CapacityError, "scm, which has 0 B"),
        (
            {"t": {"dram": 0}},
            mtrains.CapacityError,
            "'t': one row takes 48 bytes, its own dram budget is 0; raise its dram in budgets=",
        ),
        ({"t": {"disk": 1}}, ValueError, "no tier 'disk'"),
        ({"t": {"dram": "much"}}, ValueError, "not a size"),
        ({"t": 5}, TypeError, "table 't' must be a mapping"),
        ({7: {}}, TypeError, "by the name of a table"),
        ([], TypeError, "must be a mapping"),
    ],
)
def test_budgets_that_cannot_be_are_refused(budgets, error, said):
    with pytest.raises(error, match=said), mtrains.Store(dram="1MiB", budgets=budgets) as store:
        mtrains.TieredEmbedding(10, 8, store=store, name="t")


def test_a_table_of_one_row_is_held_whole_in_the_bytes_of_its_row():
    with mtrains.Store(dram="1MiB", budgets={"t": {"dram": 36}}) as store:
        table = mtrains.TieredEmbedding(1, 8, store=store, name="t")
        mtrains.optim.RowWiseAdagrad(table.parameters())
        assert store.engine.table_info(0)["resident"]


@pytest.mark.parametrize("dram", [0, "64KiB"])
def test_an_scm_tier_without_pages_for_one_row_is_refused_with_its_table(dram):
    with (
        mtrains.Store(dram=dram, scm=8192) as store,
        pytest.raises(mtrains.CapacityError, match="one row takes 12288 bytes, the scm budget is 8192; raise scm="),
    ):
        mtrains.TieredEmbedding(10, 8, store=store, name="t")


def test_a_store_without_memory_is_refused():
    with pytest.raises(ValueError, match="needs memory for rows"):
        mtrains.Store(dram=0)
