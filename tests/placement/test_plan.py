import dataclasses
import json

import pytest

import mtrains
from mtrains.errors import FormatError
from mtrains.placement.plan import PlacementPlan

WORKLOAD = mtrains.Workload(writer_bytes=0, compute_seconds=1e-4)


@pytest.fixture
def tables(cases):
    return [cases.table(f"t{n}", rows=4000 * (n + 1), power=0.3 + 0.2 * n) for n in range(3)]


@pytest.fixture
def made(cases, tables):
    return mtrains.plan(cases.profile(tables), cases.machine(dram=2.2e6, scm=6e5), workload=WORKLOAD)


def test_each_table_is_placed_once_and_every_byte_is_counted(made, tables):
    assert [table.name for table in made.tables] == [table.name for table in tables]
    for tier in made.tiers:
        indexed = [table.rows[tier.tier] for table in made.tables if not table.resident or tier.tier != "dram"]
        assert tier.index_bytes == 16 * sum(indexed)
        assert tier.slot_bytes == tier.index_bytes + sum(
            table.rows[tier.tier] * table.record_bytes for table in made.tables
        )
        assert tier.slot_bytes == sum(table.bytes[tier.tier] for table in made.tables)
        assert tier.used_bytes <= tier.capacity_bytes
    dram = made.tiers[0].fixed_bytes
    assert dram["directory"] == sum(-(-table.num_embeddings // 512) * 4096 for table in tables)
    assert dram["window"] == 64 * 8 * sum(table.curves[0].unique_rows for table in tables)
    for table in made.tables:
        assert sum(table.hits.values()) + table.new + table.fetches == pytest.approx(table.unique_rows)
        assert table.reason


def test_a_plan_explains_its_limit_and_what_a_gib_more_would_bring(made):
    limits = {limit.name: limit for limit in made.limits}
    assert limits[made.binding].seconds == max(limit.seconds for limit in made.limits)
    assert made.step_seconds == pytest.approx(limits[made.binding].seconds)
    assert 0 <= made.gap_ratio < 0.01
    assert all(0 < tier.next_gib_seconds < made.step_seconds for tier in made.tiers)
    assert {"greedy", "size-proportional", "all-SSD"} == set(made.baselines)
    assert made.baselines["greedy"]["step_seconds"] >= made.step_seconds * (1 - 1e-3)


@pytest.mark.parametrize("machine", [{}, {"scm": 1e5}, {"hbm": 1e6, "scm": 1e5}, {"scm": 1e5, "log": None}])
@pytest.mark.parametrize("rows", [0, 1, 1000])
def test_tables_that_nobody_uses_have_a_place_too(cases, machine, rows):
    curve = cases.table("t").curves[0]
    none = (0.0,) * len(curve.hits)
    unused = dataclasses.replace(curve, unique_rows=0.0, pinned_rows=0.0, hits=none, fetches=none)
    idle = dataclasses.replace(
        cases.table("idle"), num_embeddings=rows, touched_rows=rows, lookups_per_sample=0.0, curves=(unused,)
    )
    workload = dataclasses.replace(WORKLOAD, compute_seconds=0.0)
    for tables in ([idle], [idle, cases.table("t", rows=2000)]):
        made = mtrains.plan(cases.profile(tables), cases.machine(**{"dram": 2e6, **machine}), workload=workload)
        assert made.tables[0].reason == "no row of it was accessed"
        assert made.gap_ratio < 0.01
        json.dumps(made.to_dict(), allow_nan=False)
    assert made.samples_per_second is not None


def test_a_plan_is_a_file(made, tmp_path):
    made.save(tmp_path / "plan.json")
    assert PlacementPlan.load(tmp_path / "plan.json") == made
    assert json.loads((tmp_path / "plan.json").read_text())["mtrains_plan"] == 1


@pytest.mark.parametrize(
    ("text", "message"), [("{}", "plan format None"), ("[1]", "no JSON object"), ("{", "is not a plan"),
                          ('{"mtrains_plan": 1}', "is not a plan: 'limits'")],
)  # fmt: skip
def test_what_is_no_plan_is_refused(tmp_path, text, message):
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(FormatError, match=message):
        PlacementPlan.load(tmp_path / "plan.json")


def test_a_profile_without_the_curves_is_refused_with_the_command(cases, tables):
    workload = dataclasses.replace(WORKLOAD, batch_size=999)
    with pytest.raises(ValueError, match="make the profile with batch size 999, lookahead 64, depth 2"):
        mtrains.plan(cases.profile(tables), cases.machine(), workload=workload)


def test_a_cliff_in_a_curve_is_warned_of(cases, tables):
    curve = tables[0].curves[0]
    hits = tuple(0.0 for _ in curve.hits[:-1]) + curve.hits[-1:]
    fetches = tuple(curve.unique_rows - one for one in hits)
    cliff = dataclasses.replace(tables[0], curves=(dataclasses.replace(curve, hits=hits, fetches=fetches),))
    made = mtrains.plan(cases.profile([cliff]), cases.machine(dram=1.2e6), workload=WORKLOAD)
    assert "curve of table 't0' is not concave, gap 0." in made.warnings[0]
