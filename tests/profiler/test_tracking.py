import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtrains.profiler.tracking import LookupTracker, TableLayout, TrackingSpec, batch_sizes

rows_of = st.integers(1, 60).flatmap(lambda rows: st.lists(st.integers(0, rows), min_size=1, max_size=300))


@given(rows=rows_of, samples_a_step=st.integers(1, 3), batch_size=st.sampled_from([1, 2, 3, 4, 8]))
@settings(max_examples=100, deadline=None)
def test_unique_rows_are_counted_at_every_batch_size(track, rows, samples_a_step, batch_size):
    samples = np.arange(len(rows)) // samples_a_step
    tracker = track(rows, samples, batch_size=batch_size)
    table = tracker.tracked[0]
    assert tracker.batch_sizes == batch_sizes(batch_size)
    for size, counted in zip(tracker.batch_sizes, table.num_unique, strict=True):
        assert counted == len(set(zip(samples // size, rows, strict=True)))
    assert (table.num_lookups, table.num_rows) == (len(rows), len(set(rows)))
    assert (table.least_row, table.largest_row) == (min(rows), max(rows))


@given(rows=rows_of, seed=st.integers(0, 5))
@settings(max_examples=100, deadline=None)
def test_a_sample_has_whole_rows_the_hottest_and_the_rest_by_hash(track, rows, seed):
    tracked = track(rows, max_rows=20, hot_rows=5, seed=seed).tracked[0].tracked()
    kept = tracked["rows"].tolist()
    counts = {row: rows.count(row) for row in rows}
    if len(counts) <= 20:
        assert (sorted(kept), tracked["weight"], tracked["num_hot"]) == (sorted(counts), 1, 0)
    else:
        assert len(kept) == len(set(kept)) <= 20
        assert tracked["num_hot"] == 5
        assert min(counts[row] for row in kept[:5]) >= max(counts[row] for row in counts if row not in kept[:5])
    expected = [(row, sample) for sample, row in enumerate(rows) if row in kept]
    found = zip(tracked["rows"][tracked["accesses"]].tolist(), tracked["times"].tolist(), strict=True)
    assert list(found) == expected


def test_sampling_on_the_way_keeps_what_sampling_at_the_end_does():
    """Where the hottest rows are the same ones throughout, it does not matter when the table is sampled."""
    random = np.random.default_rng(0)
    rows = np.where(np.arange(40_000) % 2, np.arange(40_000) // 2 % 50, random.integers(50, 5000, 40_000))
    made = []
    for limit in (1 << 20, 3000):
        tracker = LookupTracker(
            [TableLayout(name="t")],
            TrackingSpec(batch_size=4096, max_rows=300, hot_rows=50, max_accesses=limit),
        )
        for begin in range(0, len(rows), 1000):
            tracker.add(0, rows[begin : begin + 1000], np.arange(begin, begin + 1000))
            tracker.end_samples(begin + 1000)
        assert not tracker.full
        tracked = tracker.tracked[0].tracked()
        made.append((tracker, {*tracked["rows"].tolist()}, tracked["weight"]))
    (exact, at_end, weight), (bounded, on_the_way, weight_then) = made
    assert (exact.samples_a_unit, exact.tracked[0].sampled) == (1, False)
    assert bounded.tracked[0].sampled
    assert bounded.samples_a_unit > 1
    assert bounded.tracked[0].num_accesses <= 3000
    assert bounded.tracked[0].num_unique == exact.tracked[0].num_unique
    assert set(range(50)) <= on_the_way & at_end
    assert weight_then >= weight
    assert on_the_way <= at_end


def test_memory_is_bounded_by_ending():
    spec = TrackingSpec(batch_size=4, max_accesses=1000)
    tracker = LookupTracker([TableLayout(name="t")], spec)
    for begin in range(0, 10_000, 100):
        tracker.add(0, np.arange(begin, begin + 100) % 700, np.arange(begin, begin + 100))
        tracker.end_samples(begin + 100)
    assert tracker.full
    assert tracker.num_samples < 10_000
    assert tracker.tracked[0].num_lookups == tracker.num_samples
    assert tracker.tracked[0].num_accesses <= 1100


def test_coarser_time_takes_uses_of_neighbouring_samples_together(track):
    table = track([1, 1, 2, 1, 1, 2], max_rows=10, hot_rows=0, batch_size=8).tracked[0]
    table.coarsen()
    tracked = table.tracked()
    assert tracked["rows"][tracked["accesses"]].tolist() == [1, 2, 1, 1, 2]
    assert tracked["times"].tolist() == [0, 1, 1, 2, 2]
    assert table.samples_a_unit == 2


def test_lookups_that_cannot_be_are_refused(track):
    with pytest.raises(IndexError, match=r"table 't', sample 2: row 9 is not in \[0, 9\)"):
        track([1, 2, 9], num_embeddings=9)
    with pytest.raises(IndexError, match="row -1"):
        track([-1], num_embeddings=9)
    with pytest.raises(ValueError, match="descend at position 1: 3 after 4"):
        track([1, 2], [4, 3])
    with pytest.raises(ValueError, match="beyond what is tracked"):
        track([1], [1 << 40])
    table = track([5]).tracked[0]
    with pytest.raises(ValueError, match="differ in length"):
        table.add(np.zeros(2, np.int64), np.zeros(1, np.int64))
    assert table.num_lookups == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "at least one sample"),
        ({"max_rows": 1, "hot_rows": 0}, "at least 2 rows"),
        ({"max_rows": 10, "hot_rows": 10}, "fewer of them as the hottest"),
        ({"max_accesses": 0}, "at least 1"),
        ({"batch_size": 12, "samples_a_unit": 2}, "must divide a quarter of the batch"),
    ],
)
def test_specs_that_mean_nothing_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        TrackingSpec(**{"batch_size": 4, **options})


def test_tables_have_names_and_shapes():
    spec = TrackingSpec(batch_size=4)
    with pytest.raises(ValueError, match="names that differ"):
        LookupTracker([TableLayout(name="a"), TableLayout(name="a")], spec)
    with pytest.raises(ValueError, match="dtype must be one of"):
        TableLayout(name="a", dtype="int8")
    with pytest.raises(ValueError, match="are no table"):
        TableLayout(name="a", num_embeddings=0)
    assert TableLayout(name="a", embedding_dim=64).rows_per_block == 15
    assert TableLayout(name="a", embedding_dim=5000).rows_per_page == 1
