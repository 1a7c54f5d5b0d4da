import dataclasses
import itertools

import cachetools
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtrains.placement.planner import plan
from mtrains.placement.topology_file import load_topology
from mtrains.profiler import measure, mini_simulation
from mtrains.profiler.measure import profile_of
from mtrains.profiler.merge import merge_profiles
from mtrains.profiler.mini_simulation import CurveSpec
from mtrains.profiler.popularity import zipf
from mtrains.profiler.popularity_fit import fit_zipf, top_shares
from mtrains.profiler.profile import LocalityProfile
from mtrains.profiler.simulate import Capacity, SimulationSpec, simulate
from mtrains.profiler.trace import Trace

rows_of = st.integers(1, 50).flatmap(lambda rows: st.lists(st.integers(0, rows), min_size=8, max_size=300))


def skewed(num, seed=0, rows=3000):
    return np.minimum(np.random.default_rng(seed).zipf(1.3, num), rows) - 1


def batches_at(tracker, size):
    table = tracker.tracked[0]
    tracked = table.tracked()
    hot, weight = tracked["num_hot"], tracked["weight"]
    touched = hot + weight * (len(tracked["rows"]) - hot)
    counted = table.num_unique[tracker.batch_sizes.index(size)]
    return measure._cut(tracked, size, tracker, touched, counted)


def hit_ratio(batches, capacity):
    point = mini_simulation._Point.simulate(batches, CurveSpec(), capacity, 16)
    weights = batches.access_weights
    return float((weights * point.hits).sum() / (weights * batches.tracked).sum())


# --- against brute force


@given(rows=rows_of)
@settings(max_examples=40, deadline=None)
def test_curves_of_a_small_table_are_those_of_the_whole_simulation(track, rows):
    profile = profile_of(track(rows, batch_size=8), CurveSpec(lookahead=3, depth=1))
    (table,) = profile.tables
    trace = Trace(
        tables=("t",),
        table=np.zeros(len(rows), np.uint32),
        row=np.array(rows, np.int64),
        sample=np.arange(len(rows)),
    )
    assert [curve.batch_size for curve in table.curves] == [2, 4, 8, 16, 32]
    for curve in table.curves:
        steps = max(1.0, len(rows) / curve.batch_size)
        for capacity, hits, fetches in zip(curve.capacity_rows, curve.hits, curve.fetches, strict=True):
            (full,) = simulate(
                trace,
                SimulationSpec(
                    policies=["next-use"],
                    capacities=[Capacity(rows=int(capacity))],
                    lookahead=3,
                    depth=1,
                    batch_size=curve.batch_size,
                ),
            )
            assert (hits * steps, fetches * steps) == pytest.approx((full.hits, full.fetches), abs=1e-6)
            assert curve.new_rows * steps == pytest.approx(len(set(rows)))
    assert table.touched_rows == len(set(rows))
    assert table.num_embeddings == max(rows) + 1


def test_a_profile_is_the_same_on_any_number_of_threads_and_survives_its_file(tmp_path, track):
    tracker = track(skewed(20_000), batch_size=256, max_rows=200, hot_rows=40)
    profile = profile_of(tracker, source="made up", source_sha256=("a",))
    assert profile == profile_of(tracker, source="made up", source_sha256=("a",), num_threads=3)
    profile.save(tmp_path / "p.json")
    assert LocalityProfile.load(tmp_path / "p.json") == profile
    statistics = profile.tables[0].statistics
    assert statistics.row_weight > 1
    assert statistics.tracked_rows <= 200
    assert 0 < profile.sampling_rate < 1
    assert sum(share for _, share in statistics.reuse_distance) + statistics.new_share == pytest.approx(1)
    assert statistics.lru_hit_ratio(1e12) == pytest.approx(1 - statistics.new_share)
    shares = [share for _, share in statistics.top_shares]
    assert shares == sorted(shares)


def test_figures_over_time_are_those_of_the_stream(track):
    rows = np.concatenate([np.arange(1000) % 20, 100 + np.arange(1000) % 40])
    (table,) = profile_of(track(rows, batch_size=100)).tables
    statistics = table.statistics
    assert [samples for samples, _ in statistics.working_set] == [100.0 * n for n in range(1, 21)]
    assert [size for _, size in statistics.working_set] == [20.0] * 10 + [40.0] * 10
    assert [size for _, size in statistics.touched_by_sample] == [20.0] * 10 + [60.0] * 10
    assert statistics.hot_drift == pytest.approx(1 / 20)  # one of 20 rows, of which none comes back
    assert dict(table.footprint)[2000.0] == 60
    middle = table.curves[2]
    assert (middle.batch_size, middle.unique_rows, middle.new_rows) == (100, 30.0, 3.0)
    assert middle.pinned_rows == 60.0


def test_neighbouring_numbers_share_pages(track):
    scattered = np.random.default_rng(1).permutation(1 << 20)[:20_000]
    near = np.sort(scattered) // 50
    for rows, low, high in ((scattered, 0.95, 1.0), (near, 1 / 64, 0.05)):
        (table,) = profile_of(track(rows, batch_size=512)).tables
        assert low <= table.statistics.pages_by_number <= high


def test_keys_of_64_bits_are_counted_not_taken_as_a_size(track):
    (table,) = profile_of(track([3 << 48, -5, 3 << 48, 7 << 50])).tables
    assert (table.num_embeddings, table.touched_rows) == (3, 3)


def test_nothing_to_profile_is_said(track):
    with pytest.raises(ValueError, match="no lookups to profile in here"):
        profile_of(track([]), source="here")
    refused = (({"lookahead": -1}, "from 0 on"), ({"depth": 31}, "depth is in"), ({"num_points": 0}, "one"))
    for options, message in refused:
        with pytest.raises(ValueError, match=message):
            CurveSpec(**options)


# --- Zipf's law


@pytest.mark.parametrize("exponent", [0.5, 0.8, 1.05, 1.4])
def test_the_fit_finds_the_law_that_made_the_rows(exponent):
    law = zipf(500, exponent)
    exact, error = fit_zipf(1e6 * law.probabilities, np.ones(500))
    assert (exact, error) == (pytest.approx(exponent, abs=0.02), pytest.approx(0, abs=0.005))
    counts = np.random.default_rng(0).multinomial(100_000, law.probabilities).astype(float)
    assert fit_zipf(counts, np.ones(500)) == (pytest.approx(exponent, abs=0.03), pytest.approx(0, abs=0.02))
    assert fit_zipf(counts[:1], np.ones(1)) == (0.0, 0.0)


def test_top_shares_count_weights():
    counts, weights = np.array([100.0, 10.0, 1.0]), np.array([1.0, 9.0, 90.0])
    assert top_shares(counts, weights) == (
        (0.01, pytest.approx(100 / 280)), (0.05, pytest.approx(140 / 280)), (0.1, pytest.approx(190 / 280)),
        (0.2, pytest.approx(200 / 280)), (0.5, pytest.approx(230 / 280)),
    )  # fmt: skip
    assert top_shares(counts[:0], weights[:0]) == ()


# --- merged


def test_parts_of_a_trace_merge_with_their_statistics(track):
    rows = skewed(8000)
    parts = [profile_of(track(part, batch_size=200)) for part in np.split(rows, 2)]
    merged = merge_profiles(*parts)
    one, other, both = (profile.tables[0].statistics for profile in (*parts, merged))
    assert both.new_share == pytest.approx((one.new_share + other.new_share) / 2)
    assert sum(share for _, share in both.reuse_distance) == pytest.approx(1 - both.new_share)
    assert [at for at, _ in both.working_set] == [
        *(at for at, _ in one.working_set), *(4000 + at for at, _ in other.working_set),
    ]  # fmt: skip
    assert both.touched_by_sample[-1][1] == merged.tables[0].touched_rows
    assert both.zipf_error == max(one.zipf_error, other.zipf_error)
    model = dataclasses.replace(parts[1], tables=(dataclasses.replace(parts[1].tables[0], statistics=None),))
    assert merge_profiles(parts[0], model).tables[0].statistics is None


# --- what a plan reads


def test_a_plan_is_made_of_a_measured_profile(track):
    profile = profile_of(track(skewed(100_000), batch_size=1000, embedding_dim=32), source="made up")
    made = plan(profile, load_topology("reference"))
    assert (made.tables[0].name, made.workload["batch_size"]) == ("t", 1000)


# --- recorded streams


@pytest.mark.parametrize(
    ("name", "accesses", "distinct", "top_1", "at_1", "at_10"),
    [
        ("orm-busy", 1_500_000, None, None, 68.2, 85.6),
        ("web07", 76_118, 20_484, 36.9, 39.2, 55.7),
        ("retail", 908_576, 16_470, 33.1, 25.5, 62.8),
        # The list of known answers says 0.9 at 1 %; an LRU of 40 rows, cachetools' too, hits 0.58.
        ("nycflights13", 336_776, 4_044, 5.2, 0.58, 26.8),
        ("ctr_libsvm", 53_033, 11_261, 22.5, 2.4, 68.5),
    ],
)
def test_exact_lru_hits_of_single_accesses_are_the_known_ones(
    streams, track, name, accesses, distinct, top_1, at_1, at_10
):
    rows = streams(name)[0][:accesses]
    assert len(rows) == accesses
    tracker = track(rows, batch_size=1, max_rows=1 << 20)
    (table,) = tracker.tracked
    batches = batches_at(tracker, 1)
    distances = batches.trace.reuse_distances()
    for share, expected in ((0.01, at_1), (0.1, at_10)):
        capacity = round(share * table.num_rows)
        assert 100 * np.mean(distances < capacity) == pytest.approx(expected, abs=0.1)
        if len(rows) < 500_000:
            lru = cachetools.LRUCache(capacity)
            hits = sum(lru.get(row) is not None or bool(lru.update({row: True})) for row in rows.tolist())
            assert np.count_nonzero(distances < capacity) == hits
    if distinct is not None:
        assert table.num_rows == distinct
        counts = np.bincount(table.tracked()["accesses"]).astype(float)
        assert 100 * dict(top_shares(counts, np.ones(distinct)))[0.01] == pytest.approx(top_1, abs=0.1)


BATCHES = {"orm-busy": 4096, "web07": 1024, "retail": 256, "nycflights13": 1024, "ctr_libsvm": 16}


@pytest.mark.parametrize("name", BATCHES)
def test_16384_tracked_rows_say_what_all_rows_say(streams, track, full, name):
    """In 95 % of 16 seeds x 5 capacities, at a quarter and at four times the batch too (two seeds without --full)."""
    rows, samples = streams(name)
    if not full:
        samples = samples[:1_000_000]
        rows = rows[: len(samples)]
    seeds = range(1, 17) if full else (1, 2)
    batch = BATCHES[name]
    exact = track(rows, samples, batch_size=batch, max_rows=1 << 20)
    sampled = [track(rows, samples, batch_size=batch, seed=seed) for seed in seeds]
    errors = []
    for size in (batch // 4, batch, 4 * batch) if full else (batch,):
        whole = batches_at(exact, size)
        for tracker, share in itertools.product(sampled, (0.02, 0.05, 0.1, 0.2, 0.4)):
            part = batches_at(tracker, size)
            assert tracker.tracked[0].tracked()["rows"].size <= 16_384
            capacity = int(share * whole.touched_rows)
            errors.append(hit_ratio(part, capacity) - hit_ratio(whole, capacity))
    within = np.abs(errors) <= 0.02
    assert within.mean() >= 0.95, f"errors up to {np.abs(errors).max():.4f}"
