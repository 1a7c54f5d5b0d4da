"""Plans as the budgets of a store: to the byte, and for no other tables."""

import dataclasses

import pytest
import torch

import mtrains
from mtrains.errors import FormatError, StateError
from mtrains.placement.measured import Eviction, measure_plan
from mtrains.placement.records import PAGE_BYTES

WORKLOAD = mtrains.Workload(writer_bytes=0, compute_seconds=1e-4)
MACHINES = {
    "dram": {"dram": 1.5e6},
    "dram_scm": {"dram": 1.2e6, "scm": 3e5, "scm_rate": 1e10},
    "hbm_dram": {"hbm": 7e5, "dram": 1.1e6},
    "hbm_dram_scm": {"hbm": 5e5, "dram": 9e5, "scm": 2e5, "scm_rate": 1e10},
}


def make_plan(cases, **machine):
    tables = [cases.table(f"t{n}", rows=4096 * (n + 1), unique=300.0, power=0.5) for n in range(3)]
    return mtrains.plan(cases.profile(tables), cases.machine(**machine), workload=WORKLOAD)


@pytest.fixture
def made(cases):
    return make_plan(cases, dram=1.5e6)


def bags_of(plan, store, **changes):
    return [
        mtrains.TieredEmbeddingBag(
            table.num_embeddings,
            table.embedding_dim,
            mode="sum",
            store=store,
            name=table.name,
            **changes.get(table.name, {}),
        )
        for table in plan.tables
    ]


def train_every_row(bags, times=2):
    optimizer = mtrains.optim.RowWiseAdagrad([bag.weight for bag in bags], lr=0.1)
    steps = 0
    for _ in range(times):
        for bag in bags:
            for ids in torch.arange(bag.num_embeddings).split(250):
                bag(ids[:, None]).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                steps += 1
    return steps


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_the_plans_bytes_are_those_that_a_store_allocates(cases, machine):
    """Every row is touched, so every slot is used; those of resident tables and each pool's are the plan's."""
    made = make_plan(cases, **machine)
    with mtrains.Store(seed=0, plan=made) as store:
        train_every_row(bags_of(made, store))
        tiers = store.stats().tiers
        resident = [store.engine.table_info(number)["resident"] for number in range(len(made.tables))]
    assert resident == [table.resident for table in made.tables]
    for tier in made.tiers:
        assert tiers[tier.tier]["used_bytes"] == tier.slot_bytes == sum(t.bytes[tier.tier] for t in made.tables)
        pooled = sum(0 if table.resident else table.rows[tier.tier] for table in made.tables)
        assert tiers[tier.tier]["slots"] == pooled


def test_a_plan_is_applied_from_its_file_and_to_a_store_that_is_there(made, tmp_path):
    made.save(tmp_path / "plan.json")
    digests = []
    for _ in range(2):
        with mtrains.Store(tmp_path / "rows", seed=0, plan=tmp_path / "plan.json") as store:
            digests.append(store.digest())
            train_every_row(bags_of(made, store), times=1)
            store.checkpoint("trained")
            digests.append(store.digest())
    assert digests[1] == digests[2] != digests[3]
    with mtrains.Store(tmp_path / "rows", plan=str(tmp_path / "plan.json"), read_only=True) as store:
        assert store.digest() == digests[3]


def test_the_plan_of_other_tables_is_refused_by_name(made, tmp_path):
    with mtrains.Store(tmp_path / "rows", plan=made) as store:
        with pytest.raises(StateError, match="plan has no table 'u'; profile these tables"):
            mtrains.TieredEmbedding(10, 16, store=store, name="u")
        with pytest.raises(StateError, match="table 't1': planned 8,192 rows x 16 float32, here 9 rows x 16 float32"):
            mtrains.TieredEmbedding(9, 16, store=store, name="t1")
        with pytest.raises(StateError, match="here 8,192 rows x 16 float16"):
            mtrains.TieredEmbedding(8192, 16, store=store, name="t1", dtype=torch.float16)
        bag = mtrains.TieredEmbedding(8192, 16, store=store, name="t1")
        with pytest.raises(StateError, match=r"'adagrad' takes 128 bytes, the plan is of 68 \(rowwise_adagrad\); plan"):
            mtrains.optim.Adagrad(bag.parameters())
        optimizer = mtrains.optim.RowWiseAdagrad(bag.parameters())
        bag(torch.arange(3)).sum().backward()
        for call in (optimizer.step, lambda: store.checkpoint("early")):
            with pytest.raises(StateError, match="the plan places table 't0', which the store does not have"):
                call()
        bags_of(made, store)
        optimizer.step()
        store.checkpoint("complete")
    others = dataclasses.replace(made, tables=made.tables[1:])
    with pytest.raises(StateError, match="plan has no table 't0'"):
        mtrains.Store(tmp_path / "rows", plan=others)
    longer = [dataclasses.replace(table, num_embeddings=10_000) for table in made.tables]
    with pytest.raises(StateError, match="table 't1': planned 10,000 rows"):
        mtrains.Store(tmp_path / "rows", plan=dataclasses.replace(made, tables=tuple(longer)))
    more = dataclasses.replace(made, tables=(*made.tables, dataclasses.replace(made.tables[0], name="v")))
    with pytest.raises(StateError, match="places table 'v', which the store does not have"):
        mtrains.Store(tmp_path / "rows", plan=more, read_only=True)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"dram": "1GiB"}, "dram= contradicts it; leave it out"),
        ({"budgets": {}}, "budgets= contradicts it"),
        ({"scm": "1GiB"}, "scm= contradicts it; leave it out, or give an Scm to say"),
        ({"hbm": mtrains.Hbm("1GiB", device="cpu")}, "the plan uses no hbm tier"),
    ],
)
def test_sizes_beside_a_plan_are_refused(made, given, said):
    with pytest.raises(ValueError, match=said):
        mtrains.Store(plan=made, **given)


def test_where_scm_comes_from_may_be_said_beside_a_plan(cases):
    made = make_plan(cases, **MACHINES["dram_scm"])
    with mtrains.Store(plan=made, scm=mtrains.Scm("1MiB", emulate="optane-pmem-100")) as store:
        assert store.stats().emulated == ("scm",)
    with pytest.raises(ValueError, match=r"the plan needs \d+ bytes of scm .* scm= has 8192"):
        mtrains.Store(plan=made, scm=mtrains.Scm(8192))


def test_plans_that_are_none_or_of_other_machines_are_refused(cases, made, tmp_path):
    with pytest.raises(TypeError, match="plan must be a PlacementPlan or the path"):
        mtrains.Store(plan=5)
    with pytest.raises(FileNotFoundError):
        mtrains.Store(plan=tmp_path / "no.json")
    (tmp_path / "odd.json").write_text("{}")
    with pytest.raises(FormatError, match="plan format None"):
        mtrains.Store(plan=tmp_path / "odd.json")
    static = dataclasses.replace(cases.machine(dram=3e6, log=None), static=True)
    tables = [cases.table("t", rows=4096)]
    with pytest.raises(StateError, match="'made up', whose rows never move; a store is one machine's"):
        mtrains.Store(plan=mtrains.plan(cases.profile(tables), static, workload=WORKLOAD))
    two = mtrains.plan(cases.profile(tables), cases.machine(dram=1e6).times(2), workload=WORKLOAD)
    with pytest.raises(StateError, match="of 2 nodes together"):
        mtrains.Store(plan=two)


def test_budgets_of_a_misspelt_table_are_refused_at_the_first_step(tmp_path):
    with mtrains.Store(tmp_path / "s", budgets={"clikcs": {"dram": "64KiB"}}) as store:
        table = mtrains.TieredEmbedding(10, 8, store=store, name="clicks")
        optimizer = mtrains.optim.SGD(table.parameters(), lr=0.1)
        table(torch.arange(3)).sum().backward()
        said = r"budgets= has a table 'clikcs', which the store does not have; its tables are: 'clicks'\. Correct"
        with pytest.raises(StateError, match=said):
            optimizer.step()
        with pytest.raises(StateError, match=said):
            store.checkpoint("first")
    with mtrains.Store(tmp_path / "s") as store:
        mtrains.TieredEmbedding(10, 8, store=store, name="clicks")
        store.checkpoint("first")
    with pytest.raises(StateError, match="budgets= has a table 'clikcs'"):
        mtrains.Store(tmp_path / "s", budgets={"clikcs": {"dram": "64KiB"}}, read_only=True)


def test_a_run_is_measured_beside_its_plan(made):
    with mtrains.Store(seed=0, plan=made) as store:
        steps = train_every_row(bags_of(made, store))
        stats = store.stats()
    found = measure_plan(
        made,
        stats.tables,
        stats.tiers["ssd"],
        steps=steps,
        seconds=0.5 * steps,
        batch_size=250,
        ran=Eviction(policy="lru", lookahead=0, depth=0),
    )
    assert found.step_seconds.measured == 0.5
    assert found.step_seconds.predicted == made.step_seconds
    assert found.fetches.measured * steps == pytest.approx(stats.tiers["dram"]["fetches"])
    assert found.read_bytes.predicted == PAGE_BYTES * sum(table.page_reads for table in made.tables)
    assert found.read_bytes.measured * steps == stats.tiers["ssd"]["bytes_read"]
    whole = found.tables[0]
    rows = made.tables[0].num_embeddings
    assert whole.accesses.measured * steps == 2 * rows
    assert (whole.new.measured * steps, whole.hit_ratios["dram"].measured) == (pytest.approx(rows), 0.5)
    assert found.hit_ratio.measured == pytest.approx(stats.tiers["dram"]["hits"] / (2 * 4096 * 6))
    assert "the plan is of eviction by next_use (lookahead 64, depth 2), this run evicted by lru" in found.warnings[0]
    assert found.warnings[1] == "the plan is of batches of 1,000 samples, this run had 250"
    assert found.to_dict()["tables"][0]["name"] == "t0"
