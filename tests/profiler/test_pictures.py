import dataclasses

import numpy as np
import pytest
from matplotlib.figure import Figure

from mtrains.profiler.measure import profile_of
from mtrains.profiler.pictures import (
    miss_ratio_figure,
    reuse_distance_figure,
    save_pictures,
    size_bandwidth_figure,
)
from mtrains.profiler.profile import LocalityProfile


@pytest.fixture(scope="module")
def profile(track):
    """Ten tables alike but in name and size."""
    rows = np.minimum(np.random.default_rng(0).zipf(1.3, 20_000), 2000) - 1
    (table,) = profile_of(track(rows, batch_size=256, num_embeddings=2000)).tables
    tables = [dataclasses.replace(table, name=f"table {n}", num_embeddings=2000 << n) for n in range(10)]
    return LocalityProfile(tables=tuple(tables), samples=20_000.0)


def legend(figure):
    return [text.get_text() for text in figure.axes[0].get_legend().get_texts()]


def test_pictures_name_what_they_show(profile):
    for figure in (miss_ratio_figure(profile), size_bandwidth_figure(profile), reuse_distance_figure(profile)):
        assert isinstance(figure, Figure)
        assert legend(figure)[-1] == "2 others"
        assert len(legend(figure)) == 9
        assert "batches of 256" in figure.axes[0].get_title(loc="left")
    assert "batches of 64" in miss_ratio_figure(profile, batch_size=64).axes[0].get_title(loc="left")
    assert "at 5,000 samples/s" in size_bandwidth_figure(profile, samples_per_second=5000).axes[0].get_title(loc="left")
    curve = profile.tables[0].curve(policy="next_use", lookahead=64, depth=2, batch_size=256)
    points = next(line for line in miss_ratio_figure(profile).axes[0].lines if line.get_marker() == ".")
    np.testing.assert_allclose(points.get_ydata(), 100 * (1 - np.array(curve.hits) / curve.unique_rows))


def test_equal_profiles_give_equal_files(tmp_path, profile):
    for folder in ("a", "b"):
        save_pictures(profile, tmp_path / folder, formats=("png",))
    files = sorted((tmp_path / "a").iterdir())
    assert [file.name for file in files] == ["miss_ratio.png", "reuse_distance.png", "size_bandwidth.png"]
    assert all(file.read_bytes() == (tmp_path / "b" / file.name).read_bytes() for file in files)


def test_a_model_of_tables_has_no_reuse_distances(tmp_path, profile):
    tables = tuple(dataclasses.replace(table, statistics=None) for table in profile.tables)
    model = dataclasses.replace(profile, tables=tables)
    with pytest.raises(ValueError, match="made of a model"):
        reuse_distance_figure(model)
    assert len(save_pictures(model, tmp_path, formats=("svg",))) == 2
