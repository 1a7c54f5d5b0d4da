import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtrains.placement.curves import concave_hull, placement_curve

points = st.lists(st.floats(0, 1000, allow_nan=False), min_size=2, max_size=30)


@given(points, st.randoms(use_true_random=False))
def test_the_hull_is_concave_above_the_points_and_touches_them(heights, random):
    x = np.cumsum([random.uniform(0.1, 5) for _ in heights])
    y = np.array(heights)
    hull = concave_hull(x, y)
    assert (hull >= y - 1e-9).all()
    slopes = np.diff(hull) / np.diff(x)
    assert (np.diff(slopes) <= 1e-6 * (1 + np.abs(slopes).max())).all()
    assert hull[0] == y[0]
    assert hull[-1] == pytest.approx(y[-1])


@pytest.mark.parametrize("segments", [1, 2, 8])
def test_a_cut_curve_lies_under_the_hull_and_keeps_its_ends(segments):
    rows = np.arange(1.0, 101)
    hits = 80 * np.sqrt(rows / 100)
    curve = placement_curve(
        rows, hits, hits / 2, touched_rows=100, unique_rows=100, max_segments=segments
    )
    assert len(curve.rows) <= segments + 1
    assert curve.rows[0] == 0
    assert (curve.rows[-1], curve.hits[-1], curve.pages_saved[-1]) == (100, 80, 40)
    under = hits - np.interp(rows, curve.rows, curve.hits)
    assert under.min() >= -1e-9
    assert curve.cut_gap == pytest.approx(under.max() / 100, abs=1e-9)
    assert curve.hull_gap == pytest.approx(0, abs=1e-9)


def test_a_cliff_is_reported_as_a_gap_of_the_hull():
    rows = np.arange(1.0, 11)
    hits = np.where(rows < 10, 0.0, 10.0)
    curve = placement_curve(rows, hits, hits, touched_rows=10, unique_rows=10, max_segments=8)
    assert curve.hull_gap == pytest.approx(0.9)


def test_a_curve_is_flat_beyond_its_last_point_and_cut_at_the_touched_rows():
    rows, hits = np.array([10.0, 20.0]), np.array([5.0, 8.0])
    longer = placement_curve(rows, hits, hits, touched_rows=100, unique_rows=10, max_segments=8)
    assert (longer.rows[-1], longer.hits[-1]) == (100, 8)
    shorter = placement_curve(rows, hits, hits, touched_rows=15, unique_rows=10, max_segments=8)
    assert (shorter.rows[-1], shorter.hits[-1]) == (15, 6.5)
    nothing = placement_curve(rows, hits, hits, touched_rows=0, unique_rows=10, max_segments=8)
    assert nothing.rows.tolist() == [0, 0]


def test_pinned_rows_are_one_segment_and_the_curve_is_concave_from_there_on():
    rows = np.array([10.0, 20.0, 30.0, 40.0, 50.0])
    hits = np.array([0.0, 1.0, 6.0, 8.0, 9.0])
    free = placement_curve(rows, hits, hits, touched_rows=50, unique_rows=10, max_segments=8)
    assert free.hull_gap == pytest.approx(0.3)  # at 20 rows: 4 of the hull, 1 of the curve
    pinned = placement_curve(rows, hits, hits, touched_rows=50, unique_rows=10, max_segments=8, pinned_rows=25)
    assert pinned.rows.tolist() == [0, 25, 30, 40, 50]
    assert pinned.hits.tolist() == [0, 3.5, 6, 8, 9]
    assert pinned.hull_gap == 0
    cut = placement_curve(rows, hits, hits, touched_rows=50, unique_rows=10, max_segments=2, pinned_rows=25)
    assert cut.rows.tolist()[:2] == [0, 25]
    whole = placement_curve(rows, hits, hits, touched_rows=50, unique_rows=10, max_segments=8, pinned_rows=80)
    assert whole.rows.tolist() == [0, 50]
