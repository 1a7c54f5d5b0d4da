"""Suites of many tables that differ: Meta's published reuse."""

import pytest

import mtrains
from bench.planner import SHARES, four_tiers, meta_tables, on_dram

WORKLOAD = mtrains.Workload(writer_bytes=32 << 20)


@pytest.fixture(scope="module")
def suite():
    return meta_tables(40)


@pytest.mark.parametrize("share", SHARES)
def test_plans_fetch_less_than_equal_shares_on_every_budget(suite, share):
    made = mtrains.plan(suite, on_dram(share, suite, WORKLOAD), workload=WORKLOAD)
    fetches = sum(table.fetches for table in made.tables)
    assert fetches < 0.5 * made.baselines["size-proportional"]["fetches"]
    assert made.step_seconds <= min(figures["step_seconds"] for figures in made.baselines.values()) * (1 + 1e-9)


def test_a_thousand_tables_on_four_tiers_have_a_place_each():
    many = meta_tables(1000, seed=1)
    made = mtrains.plan(many, four_tiers(many, WORKLOAD, 6), workload=WORKLOAD)
    assert [table.name for table in made.tables] == [table.name for table in many.tables]
    for tier in made.tiers:
        assert tier.slot_bytes == sum(table.bytes[tier.tier] for table in made.tables)
        assert tier.used_bytes <= tier.capacity_bytes
    for table in made.tables:
        assert sum(table.rows.values()) <= table.touched_rows
        assert sum(table.hits.values()) + table.new + table.fetches == pytest.approx(table.unique_rows)
    assert made.gap_ratio < 0.01
