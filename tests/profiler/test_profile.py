import dataclasses
import json

import numpy as np
import pytest

from mtrains.errors import FormatError
from mtrains.profiler.analytic import TableShape, zipf_table
from mtrains.profiler.merge import merge_profiles
from mtrains.profiler.profile import LocalityCurve, LocalityProfile

SHAPE = TableShape(name="t", num_embeddings=5000, embedding_dim=8, lookups_per_sample=2, batch_size=256)
TABLE = zipf_table(SHAPE)
PROFILE = LocalityProfile(tables=(TABLE,), samples=1000.0, source="made up", source_sha256=("a",))


@pytest.mark.parametrize("name", ["profile.json", "profile.json.gz"])
def test_a_profile_is_a_file(tmp_path, name):
    PROFILE.save(tmp_path / name)
    assert LocalityProfile.load(tmp_path / name) == PROFILE
    assert not (tmp_path / (name + ".tmp")).exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "is not a JSON file"),
        (b"[]", "holds no JSON object"),
        (b"{}", "profile format None; this version of mtrains reads format 1"),
        (b'{"mtrains_profile": 2}', "profile format 2"),
        (b'{"mtrains_profile": 1}', "is not a profile: 'tables'"),
        (json.dumps({**PROFILE.to_dict(), "odd": 1}).encode(), "is not a profile: .*odd"),
    ],
)
def test_what_is_no_profile_is_refused(tmp_path, content, message):
    (tmp_path / "profile.json").write_bytes(content)
    with pytest.raises(FormatError, match=message):
        LocalityProfile.load(tmp_path / "profile.json")


def curve(**changes):
    fields = {
        "policy": "next_use", "lookahead": 64, "depth": 2, "batch_size": 8, "unique_rows": 10.0, "pinned_rows": 20.0,
        "new_rows": 1.0, "capacity_rows": (5.0, 10.0), "hits": (4.0, 9.0), "fetches": (5.0, 0.0),
        "pages_per_fetch": (1.0, 1.0),
    }  # fmt: skip
    return LocalityCurve(**{**fields, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hits": (4.0, 8.0)}, "are not its 10 unique rows a batch"),
        ({"hits": (4.0,)}, "has 2 capacities and 1 hits"),
        ({"capacity_rows": (10.0, 5.0)}, "must ascend"),
        ({"capacity_rows": (0.0, 5.0)}, "must ascend"),
        ({"fetches": (5.0, float("nan"))}, "fetches of a curve must be finite"),
    ],
)
def test_accesses_are_a_hit_new_or_a_fetch_at_every_capacity(changes, message):
    curve()
    with pytest.raises(ValueError, match=message):
        curve(**changes)


def test_tables_and_curves_are_there_once():
    with pytest.raises(ValueError, match="table 't' twice"):
        LocalityProfile(tables=(TABLE, TABLE), samples=1.0)
    with pytest.raises(ValueError, match="two curves"):
        dataclasses.replace(TABLE, curves=TABLE.curves * 2)
    with pytest.raises(ValueError, match="5001 touched rows of 5000"):
        dataclasses.replace(TABLE, touched_rows=5001)


def test_parts_of_a_trace_merge_by_their_samples():
    other = dataclasses.replace(TABLE, curves=(
        dataclasses.replace(TABLE.curves[0], hits=(0.0,) * len(TABLE.curves[0].hits),
                            fetches=(TABLE.curves[0].unique_rows,) * len(TABLE.curves[0].hits)),
    ))  # fmt: skip
    second = LocalityProfile(tables=(other,), samples=3000.0, source="more", source_sha256=("b",))
    merged = merge_profiles(PROFILE, second)
    assert merged.samples == 4000
    assert merged.source_sha256 == ("a", "b")
    assert merged.tables[0].curves[0].hits == pytest.approx(np.array(TABLE.curves[0].hits) / 4)
    assert merged.tables[0].touched_rows == 5000
    assert np.array(merged.tables[0].footprint) == pytest.approx(np.array(TABLE.footprint))
    same = merge_profiles(PROFILE, PROFILE).tables[0]
    assert same.curves[0].fetches == pytest.approx(TABLE.curves[0].fetches)
    assert same.curves[0].pages_per_fetch == pytest.approx(TABLE.curves[0].pages_per_fetch)


def test_tables_of_one_profile_stay_and_other_shapes_are_refused():
    other = dataclasses.replace(TABLE, name="u")
    both = merge_profiles(PROFILE, LocalityProfile(tables=(other,), samples=1.0))
    assert [table.name for table in both.tables] == ["t", "u"]
    with pytest.raises(ValueError, match="table 't' has embedding_dim 8 in one profile, 9"):
        merge_profiles(PROFILE, LocalityProfile(tables=(dataclasses.replace(TABLE, embedding_dim=9),), samples=1.0))
