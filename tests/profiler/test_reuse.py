import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtrains import _native
from mtrains.profiler.reuse import FIRST, footprint, pinned_rows, reuse_histogram, touched_by, working_set

streams = st.integers(1, 30).flatmap(lambda rows: st.lists(st.integers(0, rows), min_size=1, max_size=120))


def trace_of(rows, batch_size=1, table=None):
    rows = np.asarray(rows, np.int64)
    batches = (np.arange(len(rows)) // batch_size).astype(np.uint32)
    table = np.zeros(len(rows), np.uint32) if table is None else np.asarray(table, np.uint32)
    return _native.AccessTrace(table, rows, batches, int(batches[-1]) + 1)


@given(rows=streams)
@settings(max_examples=100, deadline=None)
def test_reuse_distance_is_the_distinct_rows_between(rows):
    distances = trace_of(rows).reuse_distances()
    for i, row in enumerate(rows):
        before = [j for j in range(i) if rows[j] == row]
        expected = len(set(rows[before[-1] + 1 : i])) if before else 2**64 - 1
        assert distances[i] == expected


@given(rows=streams, batch_size=st.integers(1, 9))
@settings(max_examples=50, deadline=None)
def test_reuse_times_are_the_batches_between(rows, batch_size):
    trace = trace_of(rows, batch_size)
    batches = [list(dict.fromkeys(rows[i : i + batch_size])) for i in range(0, len(rows), batch_size)]
    expected, last = [], {}
    for number, batch in enumerate(batches):
        expected += [number - last[row] if row in last else FIRST for row in batch]
        last |= dict.fromkeys(batch, number)
    assert trace.reuse_times().tolist() == expected
    assert np.diff(trace.begins()).tolist() == [len(batch) for batch in batches]
    union = [len({row for batch in batches[i : i + 3] for row in batch}) for i in range(max(1, len(batches) - 2))]
    batch_of = np.repeat(np.arange(len(batches)), [len(batch) for batch in batches])
    assert pinned_rows(batch_of, trace.reuse_times(), np.ones(len(expected)), 2, len(batches)) == max(union)


@given(rows=streams)
@settings(max_examples=50, deadline=None)
def test_a_row_that_stands_for_several_counts_as_so_many(rows):
    one = trace_of(rows).reuse_distances().astype(np.float64)
    seven = trace_of(rows).reuse_distances([7]).astype(np.float64)
    assert np.array_equal(seven[one < 2**63], 7 * one[one < 2**63])


@given(rows=streams)
@settings(max_examples=100, deadline=None)
def test_footprint_is_the_mean_over_all_windows(track, rows):
    tracked = track(rows).tracked[0].tracked()
    weights = np.ones(len(tracked["rows"]))
    points = footprint(tracked["accesses"], tracked["times"], tracked["gaps"], weights, len(rows), 1)
    assert points[-1] == (len(rows), len(set(rows)))
    for window, mean in points:
        width = int(window)
        windows = [len(set(rows[i : i + width])) for i in range(len(rows) - width + 1)]
        assert mean == pytest.approx(np.mean(windows))


@given(rows=streams, parts=st.integers(1, 6))
@settings(max_examples=50, deadline=None)
def test_working_sets_are_the_distinct_rows_of_parts(track, rows, parts):
    tracked = track(rows).tracked[0].tracked()
    edges = np.unique(np.linspace(0, len(rows), parts + 1).astype(np.int64))
    arguments = tracked["times"], tracked["gaps"], np.ones(len(rows)), edges
    assert working_set(*arguments).tolist() == [
        len(set(rows[a:b])) for a, b in itertools.pairwise(edges)
    ]
    assert touched_by(*arguments).tolist() == [len(set(rows[:end])) for end in edges[1:]]


def test_the_histogram_has_all_accesses_once():
    distances = np.array([0, 0, 1, 5, 1000, 2**64 - 1, 2**64 - 1, 3], np.uint64)
    new_share, bins = reuse_histogram(distances, np.ones(8))
    assert new_share == 0.25
    assert sum(share for _, share in bins) == pytest.approx(0.75)
    assert bins[0] == (1.0, 0.25)
    assert bins[-1][0] > 1000
    assert reuse_histogram(distances[:0], np.ones(0)) == (0.0, ())


def test_weights_must_be_as_many_as_tables():
    with pytest.raises(ValueError, match="2 tables and weights of 1"):
        trace_of([1, 2], table=[0, 1]).reuse_distances([1])
