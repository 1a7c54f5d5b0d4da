import importlib

import numpy as np
import pytest

from mtrains.train.data.block import SampleBlock
from mtrains.train.data.errors import DataError
from mtrains.train.data.schema import Feature, SampleSpec, Schema
from mtrains.train.data.stream import ReadLog, SampleStream, detect_format

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

SCHEMA = Schema("click", ("price",), (Feature("user"), Feature("tags", "^")))
SPEC = SampleSpec(SCHEMA, (1000, 50))
CLICK, PRICE = [1, 0, 1, 0], [1.5, None, -3.0, 0.25]
USER, TAGS = ["u1", "", "u3", "é"], ["a^b", "", "c", "^a^"]


def samples_of(path, format_name, **options):
    stream = SampleStream(paths=(str(path),), format=format_name, spec=SPEC, **options)
    return SampleBlock.concat(list(stream.read()))


@pytest.fixture
def as_csv(tmp_path):
    path = tmp_path / "same.csv"
    rows = zip(CLICK, PRICE, USER, TAGS, strict=True)
    lines = [f"{c},{'' if p is None else p},{u},{t}" for c, p, u, t in rows]
    path.write_text("\n".join(["click,price,user,tags", *lines, ""]))
    return samples_of(path, "csv")


TABLES = {
    "strings": {"click": CLICK, "price": PRICE, "user": USER, "tags": TAGS},
    "nulls": {
        "click": CLICK,
        "price": PRICE,
        "user": ["u1", None, "u3", "é"],
        "tags": ["a^b", None, "c", "a"],
    },
    "lists": {"click": CLICK, "price": PRICE, "user": USER, "tags": [["a", "b"], [], ["c"], ["a"]]},
    "null lists": {
        "click": CLICK,
        "price": PRICE,
        "user": USER,
        "tags": [["a", "b"], None, ["c"], ["a", None]],
    },
    "booleans": {"click": [True, False, True, False], "price": PRICE, "user": USER, "tags": TAGS},
    "dictionaries": {
        "click": CLICK,
        "price": PRICE,
        "user": pa.array(USER).dictionary_encode(),
        "tags": TAGS,
    },
    "binary": {"click": CLICK, "price": PRICE, "user": pa.array([u.encode() for u in USER]), "tags": TAGS},
}


@pytest.mark.parametrize("columns", TABLES.values(), ids=TABLES.keys())
def test_the_samples_are_those_of_the_same_csv(tmp_path, as_csv, columns):
    path = tmp_path / "data.parquet"
    pq.write_table(pa.table(columns), path, row_group_size=3)
    assert detect_format(str(path)) == "parquet"
    block = samples_of(path, "parquet")
    np.testing.assert_array_equal(block.labels, as_csv.labels)
    np.testing.assert_array_equal(block.dense, as_csv.dense)
    for column, expected in zip(block.features, as_csv.features, strict=True):
        assert column.indices.tolist() == expected.indices.tolist()
    assert block.features[1].lengths.tolist() == as_csv.features[1].lengths.tolist()


def test_whole_numbers_are_categories_by_their_digits(tmp_path, as_csv):
    path = tmp_path / "data.parquet"
    pq.write_table(pa.table({"click": CLICK, "price": PRICE, "user": [7, 8, 9, None], "tags": TAGS}), path)
    csv_path = tmp_path / "data.csv"
    csv_path.write_text("click,price,user,tags\n1,,7,\n1,,8,\n1,,9,\n1,,,\n")
    expected = samples_of(csv_path, "csv").features[0].indices
    assert samples_of(path, "parquet").features[0].indices.tolist() == expected.tolist()


def test_malformed_rows_are_named_and_left_out(tmp_path):
    path = tmp_path / "bad.parquet"
    columns = {"click": [1, 2, None, 0], "price": [1.0, 1.0, 1.0, float("inf")], "user": USER, "tags": TAGS}
    pq.write_table(pa.table(columns), path, row_group_size=2)
    with pytest.raises(DataError, match=r"bad\.parquet, line 2: label 'click' is neither 0 nor 1"):
        samples_of(path, "parquet")
    named = []
    stream = SampleStream(paths=(str(path),), format="parquet", spec=SPEC, on_bad_line="skip")
    block = SampleBlock.concat(
        list(stream.read(log=ReadLog(lambda bad: named.append((bad.line, bad.reason)))))
    )
    assert block.records.tolist() == [0]
    assert block.features[1].lengths.tolist() == [2]
    assert [line for line, _ in named] == [2, 3, 4]
    assert named[-1][1] == "field 'price' is not finite"


def test_unusable_files_are_one_clear_error(tmp_path):
    path = tmp_path / "x.parquet"
    path.write_bytes(b"PAR1 not really")
    with pytest.raises(DataError, match=r"cannot read .*x\.parquet as Parquet"):
        samples_of(path, "parquet")
    with pytest.raises(DataError, match=r"cannot read .*absent: No such file"):
        samples_of(tmp_path / "absent", "parquet")
    pq.write_table(
        pa.table({"click": CLICK, "price": ["a", "b", "c", "d"], "user": USER, "tags": TAGS}), path
    )
    with pytest.raises(DataError, match="column 'price' of type string holds no numbers"):
        samples_of(path, "parquet")
    pq.write_table(pa.table({"click": CLICK, "price": PRICE, "user": USER}), path)
    with pytest.raises(DataError, match="no column 'tags' in its header"):
        samples_of(path, "parquet")


def test_without_pyarrow_the_extra_is_named(tmp_path, monkeypatch):
    def refuse(name, package=None):
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", refuse)
    with pytest.raises(DataError, match=r"pip install 'mtrains\[parquet\]'"):
        samples_of(tmp_path / "any", "parquet")
