import lzma
from collections import Counter
from pathlib import Path

import cachetools
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtrains.profiler.simulate import Capacity, SimulationSpec, simulate
from mtrains.profiler.trace import Trace

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason=f"needs the data sets of {DATA}")

streams = st.integers(1, 40).flatmap(lambda rows: st.lists(st.integers(0, rows), min_size=1, max_size=200))


def trace_of(rows, table=None, sample=None):
    rows = np.asarray(rows, np.int64)
    table = np.zeros(len(rows), np.uint32) if table is None else np.asarray(table, np.uint32)
    return Trace(
        tables=tuple(f"t{i}" for i in range(int(table.max(initial=0)) + 1)),
        table=table,
        row=rows,
        sample=np.arange(len(rows)) if sample is None else np.asarray(sample, np.int64),
    )


def run(trace, policy, capacity, **options):
    capacity = capacity if isinstance(capacity, Capacity) else Capacity(rows=capacity)
    options = {"depth": 0, "batch_size": 1, **options}
    (result,) = simulate(trace, SimulationSpec(policies=[policy], capacities=[capacity], **options))
    return result


def hits_of(cache, rows):
    hits = 0
    for row in rows:
        hits += row in cache
        cache[row] = cache.get(row, row) if row in cache else row
    return hits


def batches_of(rows, size):
    return [list(dict.fromkeys(rows[i : i + size])) for i in range(0, len(rows), size)]


def fewest_misses(batches, capacity):
    """Belady: after each batch what is used farthest leaves."""
    held, misses = set(), 0
    for i, batch in enumerate(batches):
        misses += len(set(batch) - held)
        held |= set(batch)
        later = {}
        for j in range(len(batches) - 1, i, -1):
            later |= dict.fromkeys(batches[j], j)
        held = set(sorted(held, key=lambda row: later.get(row, len(batches)))[:capacity])
    return misses


@given(rows=streams, capacity=st.integers(1, 20))
@settings(max_examples=100, deadline=None)
def test_lru_is_that_of_cachetools(rows, capacity):
    assert run(trace_of(rows), "lru", capacity).hits == hits_of(cachetools.LRUCache(capacity), rows)


class CountingLFU(cachetools.LFUCache):
    """Counts an access as one, where `hits_of` reads and writes."""

    def get(self, key, default=None):
        return default


@given(rows=streams, capacity=st.integers(1, 20))
@settings(max_examples=100, deadline=None)
def test_lfu_is_that_of_cachetools(rows, capacity):
    result = run(trace_of(rows), "lfu", capacity, lfu_decay=0, lfu_remembered=0)
    assert result.hits == hits_of(CountingLFU(capacity), rows)


@given(rows=streams, capacity=st.integers(1, 20), batch_size=st.integers(1, 12))
@settings(max_examples=100, deadline=None)
def test_opt_misses_as_few_as_brute_force_finds(rows, capacity, batch_size):
    options = {"batch_size": batch_size, "evict_after": True}
    optimal = run(trace_of(rows), "opt", capacity, **options)
    assert optimal.new + optimal.fetches == fewest_misses(batches_of(rows, batch_size), capacity)
    for policy in ("lru", "lfu", "s3-fifo", "next-use"):
        result = run(trace_of(rows), policy, capacity, lookahead=2, **options)
        assert result.accesses == optimal.accesses
        assert result.hits <= optimal.hits
        assert result.new == optimal.new == len(set(rows))


@given(rows=streams, capacity=st.integers(1, 20), batch_size=st.integers(1, 12))
@settings(max_examples=100, deadline=None)
def test_a_window_that_has_all_batches_is_opt(rows, capacity, batch_size):
    options = {"batch_size": batch_size, "depth": 1}
    optimal = run(trace_of(rows), "opt", capacity, **options)
    windowed = run(trace_of(rows), "next-use", capacity, lookahead=len(rows), **options)
    assert windowed.hits == optimal.hits


def test_tables_alone_have_their_own_slots_and_the_batches_of_all():
    rows, table = [1, 1, 2, 1, 1, 2, 1, 3], [0, 1, 0, 1, 0, 1, 0, 1]
    trace = trace_of(rows, table)
    spec = SimulationSpec(
        policies=["lru"], capacities=[Capacity(rows=1), Capacity(share=1)], depth=0, batch_size=2
    )
    results = list(simulate(trace, spec))
    assert [(result.table, result.capacity) for result in results] == [
        ("t0", 1),
        ("t0", 2),
        ("t1", 1),
        ("t1", 3),
    ]
    assert [(result.hits, result.new, result.fetches) for result in results] == [
        (1, 2, 1),
        (2, 2, 0),
        (1, 3, 0),
        (1, 3, 0),
    ]
    joint = run(trace, "lru", 5, batch_size=2, jointly=True)
    assert joint.tables == {"t0": (2, 2, 0), "t1": (1, 3, 0)}
    assert joint.table is None
    assert joint.batches.tolist() == [[0, 2, 0], [1, 1, 0], [1, 1, 0], [1, 1, 0]]


def test_a_batch_is_of_samples_and_counts_a_row_once():
    trace = trace_of([5, 5, 6, 5, 7, 7], sample=[0, 0, 0, 1, 4, 5])
    result = run(trace, "lru", 10, batch_size=2)
    assert result.batches.tolist() == [[0, 2, 0], [0, 0, 0], [0, 1, 0]]


def test_depth_pins_batches_ahead_up_to_the_share_of_slots():
    trace = trace_of(np.arange(400) % 100)
    assert run(trace, "lru", 90, batch_size=10, depth=2).ahead == pytest.approx((2 * 38 + 1) / 40)
    assert run(trace, "lru", 15, batch_size=10, depth=2).ahead == 0
    split = run(trace, "lru", 7, batch_size=10, depth=2)
    assert (split.split_batches, split.accesses) == (40, 400)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policies": ["fifo"]}, "unknown policy 'fifo'"),
        ({"policies": []}, "needs a policy"),
        ({"beyond": "opt"}, "beyond the window"),
        ({"lookahead": 0}, "from 1 on"),
        ({"depth": 31}, r"depth is in \[0, 30\]"),
        ({"evict_after": True}, "no batch to bring ahead"),
        ({"batch_size": 0}, "at least one sample"),
    ],
)
def test_specs_that_mean_nothing_are_refused(options, message):
    spec = {"policies": ["lru"], "capacities": [Capacity(rows=1)], "batch_size": 1, **options}
    with pytest.raises(ValueError, match=message):
        SimulationSpec(**spec)


@pytest.mark.parametrize("values", [{}, {"rows": -1}, {"share": 1.5}, {"rows": 1, "share": 0.5}])
def test_capacities_are_rows_or_a_share(values):
    with pytest.raises(ValueError, match="a capacity is"):
        Capacity(**values)


# --- known answers of real streams


def unpacked(path):
    return lzma.decompress(path.read_bytes())


def orm_busy(accesses):
    ids = np.frombuffer(unpacked(DATA / "cache2k" / "orm-busy.trace.xz"), ">i4")
    return trace_of(ids[:accesses])


@pytest.fixture(scope="module")
def busy_hours():
    return orm_busy(3_000_000)


@needs_data
@pytest.mark.parametrize(
    ("capacity", "lru", "lfu", "opt", "lookahead_8", "lookahead_64"),
    [
        (2474, 0.636, 0.622, 0.439, 0.477, 0.439),
        (3349, 0.596, 0.564, 0.387, 0.451, 0.387),
        (6699, 0.468, 0.406, 0.274, 0.386, 0.274),
        (13399, 0.326, 0.265, 0.178, 0.289, 0.194),
    ],
)
def test_misses_of_orm_busy_are_the_known_ones(
    busy_hours, capacity, lru, lfu, opt, lookahead_8, lookahead_64
):
    options = {"batch_size": 4096, "evict_after": True, "lfu_decay": 0, "lfu_remembered": 100}

    def misses(policy, **more):
        return run(busy_hours, policy, capacity, **options, **more).miss_ratio

    near = {"abs": 0.005}
    assert misses("lru") == pytest.approx(lru, **near)
    assert misses("lfu") == pytest.approx(lfu, **near)
    assert misses("opt") == pytest.approx(opt, **near)
    assert misses("next-use", lookahead=8) == pytest.approx(lookahead_8, **near)
    assert misses("next-use", lookahead=64) == pytest.approx(lookahead_64, **near)
    if capacity <= 6699:
        assert misses("next-use") <= 1.02 * misses("opt")
        assert misses("next-use") <= 0.72 * misses("lru")


@needs_data
def test_depth_costs_hits_and_next_use_stays_near_opt_under_the_same_pins(busy_hours):
    ratios = []
    for depth in (0, 1, 2):
        options = {"batch_size": 4096, "depth": depth, "max_pinned_ratio": 1.0}
        optimal = run(busy_hours, "opt", 3349, **options).miss_ratio
        assert run(busy_hours, "next-use", 3349, **options).miss_ratio <= 1.02 * optimal
        ratios.append(optimal)
    assert ratios == sorted(ratios)
    assert ratios[0] == pytest.approx(0.427, abs=0.005)


@needs_data
@pytest.mark.parametrize(
    ("accesses", "at_1_percent", "at_10_percent"),
    [
        ("orm-busy", 0.682, 0.856),
        ("web07", 0.392, 0.557),
        ("retail", 0.255, 0.628),
    ],
)
def test_lru_hits_of_single_accesses_are_the_known_ones(accesses, at_1_percent, at_10_percent):
    if accesses == "orm-busy":
        trace = orm_busy(1_500_000)
    elif accesses == "web07":
        ids = np.frombuffer(unpacked(DATA / "cache2k" / "web07.trace.xz"), ">i4")
        trace = trace_of(ids)
    else:
        trace = trace_of(unpacked(DATA / "retail.dat.xz").split())
    for share, expected in ((0.01, at_1_percent), (0.1, at_10_percent)):
        assert run(trace, "lru", Capacity(share=share)).hit_ratio == pytest.approx(expected, abs=0.005)


def test_a_row_that_is_popular_survives_a_scan_under_lfu_and_s3_fifo():
    scan = np.arange(1000, 3000)
    popular = np.tile(np.arange(5), 400)
    rows = np.stack([scan, popular], axis=1).ravel()
    counted = Counter(rows.tolist())
    for policy in ("lfu", "s3-fifo"):
        result = run(trace_of(rows), policy, 10)
        assert result.hits >= 0.99 * sum(counted[row] - 1 for row in range(5))
