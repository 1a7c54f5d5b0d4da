"""What plans promise against what stores do with them, on the batches that were profiled and on others."""

import pytest

import mtrains
from bench.plans import BUSY, DIM, Staging, place, profile, run_plan, slow_machine
from bench.streams import criteo, made_up, orm_busy

# How rows are evicted and staged. Each is profiled, planned and run alike. Batches are read ahead by the clock, so of a
# stream of few batches many are trained while little of the window is known: prefetch runs on the longest stream.
PREFETCH = [Staging(lookahead=64, depth=0), Staging(lookahead=64, depth=2)]
STREAMS = {
    "orm-busy": lambda: orm_busy(300_000, 512),
    "criteo": lambda: criteo(20_000, 32),
    "made up": lambda: made_up(5, 20_000, 256, 120),
}
CASES = [*((name, Staging()) for name in STREAMS), *(("orm-busy", staging) for staging in PREFETCH)]
TOLERANCE = 0.02
RECORD = 4 * DIM + 4


@pytest.fixture(scope="module", params=CASES, ids=lambda case: f"{case[0]}-{case[1].lookahead}-{case[1].depth}")
def case(request):
    """A stream, how it is staged, and its profile."""
    name, staging = request.param
    stream = STREAMS[name]()
    if stream is None:
        pytest.skip(f"needs the recorded stream {name} of shared/data")
    return stream, staging, profile(stream, staging)


@pytest.fixture
def machine(tmp_path):
    return slow_machine(tmp_path, quick=True)


def workload_of(staging, **changes):
    return mtrains.Workload(
        compute_seconds=1e-3, max_segments=24, lookahead=staging.lookahead, depth=staging.depth, **changes
    )


@pytest.mark.parametrize("share", [0.1, 0.2, 0.4])
def test_the_same_batches_hit_fetch_and_evict_what_was_planned(case, machine, share):
    stream, staging, profiled = case
    if staging.depth and share < 0.2:
        pytest.skip("three batches take a third of the slots and more: how many are staged depends on the clock")
    plan = place(profiled, machine, share, workload_of(staging))
    outcome, _ = run_plan(stream, plan, share, staging)
    measured = outcome.measured
    assert measured.warnings == ()
    for table in measured.tables:
        assert table.accesses.measured == pytest.approx(table.accesses.predicted)
        assert table.new.measured == pytest.approx(table.new.predicted)
        if table.accesses.measured * measured.steps >= BUSY:
            hits = table.hit_ratios["dram"]
            assert abs(hits.measured - hits.predicted) <= TOLERANCE
    assert outcome.total_hit_error <= TOLERANCE
    accesses = sum(table.accesses.measured for table in measured.tables)
    for bytes_moved in (measured.fetched_bytes, measured.evicted_bytes):
        most = max(0.05 * bytes_moved.predicted, TOLERANCE * accesses * RECORD)
        assert abs(bytes_moved.measured - bytes_moved.predicted) <= most


@pytest.mark.parametrize("factor", [2, 4])
def test_larger_batches_of_the_same_stream_are_planned_from_its_profile(case, machine, factor):
    stream, staging, profiled = case
    plan = place(profiled, machine, 0.3, workload_of(staging, batch_size=factor * stream.batch_size))
    outcome, _ = run_plan(stream.recut(factor), plan, 0.3, staging)
    assert outcome.total_hit_error <= TOLERANCE


def test_later_batches_are_near_where_the_stream_goes_on_as_before(machine):
    """Of a recorded one it goes on otherwise: docs/placement.md has by how much."""
    stream, staging = made_up(5, 20_000, 256, 240), Staging()
    plan = place(profile(stream.part(0, 120), staging), machine, 0.3, workload_of(staging))
    outcome, _ = run_plan(stream.part(120, 240), plan, 0.3, staging)
    assert outcome.total_hit_error <= TOLERANCE
    assert outcome.largest_hit_error <= TOLERANCE
