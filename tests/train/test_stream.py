import csv
import gzip
import io
import itertools
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtrains.train.data import delimited, source
from mtrains.train.data.block import SampleBlock
from mtrains.train.data.errors import DataError
from mtrains.train.data.hashing import hash_bytes
from mtrains.train.data.schema import CRITEO, Feature, SampleSpec, Schema
from mtrains.train.data.stream import ReadLog, SampleStream, detect_format, make_reader, read_batches

ROWS = 1000
CRITEO_SPEC = SampleSpec(CRITEO, (ROWS,) * 26)
SCHEMA = Schema("click", ("price", "age"), (Feature("user"), Feature("tags", "^")), "none")
SPEC = SampleSpec(SCHEMA, (ROWS, 50))


def row_of(text, rows=ROWS):
    return 1 + hash_bytes(text) % (rows - 1) if text else 0


def everything(stream, **arguments):
    return SampleBlock.concat(list(stream.read(**arguments)))


def criteo_line(label="1", integers=("",) * 13, categories=("",) * 26):
    return "\t".join([label, *integers, *categories]).encode()


def write(folder, name, *lines, end=b"\n"):
    path = Path(folder) / name
    path.write_bytes(b"".join(line + end for line in lines))
    return str(path)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from("01"),
            st.lists(st.one_of(st.none(), st.integers(-3, 10**6)), min_size=13, max_size=13),
            st.lists(
                st.one_of(st.just(""), st.from_regex("[0-9a-f]{8}", fullmatch=True)), min_size=26, max_size=26
            ),
        ),
        min_size=1,
        max_size=12,
    ),
    st.sampled_from([b"\n", b"\r\n"]),
    st.integers(1, 5),
    st.integers(1, 400),
)
def test_criteo_fields(samples, line_end, block_records, chunk_bytes):
    lines = [
        criteo_line(label, ["" if number is None else str(number) for number in integers], categories)
        for label, integers, categories in samples
    ]
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(delimited, "BLOCK_RECORDS", block_records)
        patch.setattr(source.read_lines, "__defaults__", (chunk_bytes,))
        path = write(folder, "day.tsv", *lines, end=line_end)
        stream = SampleStream(paths=(path,), format="criteo", spec=CRITEO_SPEC)
        block = everything(stream)
        assert stream.count_records() == len(samples)
    assert block.labels.tolist() == [float(label) for label, _, _ in samples]
    expected = [[math.log1p(max(number or 0, 0)) for number in integers] for _, integers, _ in samples]
    np.testing.assert_array_equal(block.dense, np.array(expected, np.float32))
    for c in range(26):
        expected_rows = [row_of(categories[c].encode()) for _, _, categories in samples]
        assert block.features[c].indices.tolist() == expected_rows
        assert block.features[c].lengths is None


NUMBERS = st.one_of(st.none(), st.floats(-1e6, 1e6, width=32), st.integers(-99, 99))
TEXTS = st.text("abcé,\" ^'\n", max_size=6)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.booleans(), NUMBERS, NUMBERS, TEXTS, TEXTS), min_size=1, max_size=10),
    st.permutations(["click", "price", "age", "user", "tags", "other"]),
    st.sampled_from(["csv", "tsv"]),
)
def test_csv_and_tsv_columns_are_found_by_name(samples, header, format_name):
    records = []
    for click, price, age, user, tags in samples:
        if format_name == "tsv":
            user, tags = user.replace("\n", ""), tags.replace("\n", "")
        numbers = ["" if number is None else repr(number) for number in (price, age)]
        records.append(
            {
                "click": str(int(click)),
                "price": numbers[0],
                "age": numbers[1],
                "user": user,
                "tags": tags,
                "other": "x",
            }
        )
    text = io.StringIO()
    rows = [header] + [[record[name] for name in header] for record in records]
    if format_name == "csv":
        csv.writer(text, lineterminator="\n").writerows(rows)
    else:
        text.write("".join("\t".join(row) + "\n" for row in rows))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data"
        path.write_bytes(text.getvalue().encode())
        stream = SampleStream(paths=(str(path),), format=format_name, spec=SPEC)
        block = everything(stream)
        assert stream.count_records() == len(samples)
    assert block.labels.tolist() == [float(sample[0]) for sample in samples]
    expected_dense = np.array([[sample[1] or 0, sample[2] or 0] for sample in samples], np.float32)
    np.testing.assert_array_equal(block.dense, expected_dense)
    assert block.features[0].indices.tolist() == [row_of(record["user"].encode()) for record in records]
    bags = [[tag for tag in record["tags"].encode().split(b"^") if tag] for record in records]
    assert block.features[1].lengths.tolist() == [len(bag) for bag in bags]
    assert block.features[1].indices.tolist() == [row_of(tag, 50) for bag in bags for tag in bag]


BAD_LINES = {
    criteo_line()[:-1]: "39 fields, 40 expected",
    b"": "empty line",
    criteo_line(label="2"): "label 'label' is '2', neither 0 nor 1",
    criteo_line(label=""): "label 'label' is '', neither 0 nor 1",
    criteo_line(integers=("", "", "x12") + ("",) * 10): "field 'I3' is 'x12', not a finite number",
    criteo_line(integers=("1_0",) + ("",) * 12): "field 'I1' is '1_0', not a finite number",
    criteo_line(integers=("inf",) + ("",) * 12): "field 'I1' is 'inf', not a finite number",
    criteo_line(categories=("68fd1e6g",) + ("",) * 25): "field 'C1' is '68fd1e6g', not hexadecimal",
}


@pytest.mark.parametrize(("line", "reason"), BAD_LINES.items())
def test_a_malformed_line_is_named(tmp_path, line, reason):
    good = criteo_line(categories=("68fd1e64",) * 26)
    path = write(tmp_path, "day.tsv", good, good, line, good)
    stream = SampleStream(paths=(path,), format="criteo", spec=CRITEO_SPEC)
    with pytest.raises(DataError) as raised:
        everything(stream)
    assert f"{path}, line 3: {reason}" in str(raised.value)

    skipping = SampleStream(paths=(path,), format="criteo", spec=CRITEO_SPEC, on_bad_line="skip")
    named = []
    log = ReadLog(lambda bad: named.append(str(bad)))
    block = everything(skipping, log=log)
    assert named == [f"{path}, line 3: {reason}"]
    assert log.num_records == 4
    assert block.records.tolist() == [0, 1, 3]


def test_line_numbers_count_the_header_and_quoted_line_ends(tmp_path):
    rows = [b"click,price,age,user,tags", b'1,2,3,"two\nlines",a', b"1,2,3,u,a", b"9,2,3,u,a"]
    path = write(tmp_path, "a.csv", *rows)
    with pytest.raises(DataError, match=r"a\.csv, line 5: label 'click' is '9'"):
        everything(SampleStream(paths=(path,), format="csv", spec=SPEC))


def test_a_wrong_header_is_one_clear_error(tmp_path):
    path = write(tmp_path, "a.tsv", b"click\tprice\tuser\ttags")
    with pytest.raises(DataError, match=r"a\.tsv: no column 'age' in its header; it has 'click', 'price'"):
        everything(SampleStream(paths=(path,), format="tsv", spec=SPEC))
    path = write(tmp_path, "b.tsv", b"click\tprice\tage\tuser\ttags\tage")
    with pytest.raises(DataError, match=r"b\.tsv: column 'age' stands 2 times in its header"):
        everything(SampleStream(paths=(path,), format="tsv", spec=SPEC))


def test_an_open_quote_is_one_clear_error(tmp_path):
    path = write(tmp_path, "a.csv", b"click,price,age,user,tags", b'1,2,3,"u,a', *[b"1,2,3,u,a"] * 20_000)
    with pytest.raises(DataError, match=r"a\.csv, line 2: not CSV"):
        everything(SampleStream(paths=(path,), format="csv", spec=SPEC))


def test_a_byte_order_mark_is_no_part_of_the_first_column(tmp_path):
    for format_name, delimiter in (("csv", b","), ("tsv", b"\t")):
        lines = [
            delimiter.join(line) for line in ([b"click", b"price", b"age", b"user", b"tags"], [b"1"] * 5)
        ]
        path = write(tmp_path, format_name, b"\xef\xbb\xbf" + lines[0], lines[1])
        assert len(everything(SampleStream(paths=(path,), format=format_name, spec=SPEC))) == 1


@pytest.fixture
def three_files(tmp_path):
    """300 samples with 10 malformed lines, over a plain file, a gzip file and a plain one."""
    lines = [criteo_line(integers=(str(i),) + ("",) * 12) for i in range(310)]
    for i in range(5, 310, 31):
        lines[i] = b"bad"
    paths = [
        write(tmp_path, f"{part}.tsv", *lines[begin:end]) for part, begin, end in ((0, 0, 100), (2, 101, 310))
    ]
    packed = tmp_path / "1.gz"
    packed.write_bytes(gzip.compress(lines[100]))
    return (paths[0], str(packed), paths[1])


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("num_workers", [0, 1, 3])
@pytest.mark.parametrize(
    ("start", "stop"), [(0, None), (0, 0), (37, None), (37, 200), (100, 101), (309, 310)]
)
def test_ranges_of_records_over_files_and_workers(three_files, monkeypatch, num_workers, start, stop):
    monkeypatch.setattr(delimited, "BLOCK_RECORDS", 7)
    stream = SampleStream(
        paths=three_files, format="criteo", spec=CRITEO_SPEC, on_bad_line="skip", num_workers=num_workers
    )
    assert stream.count_records() == 310
    log = ReadLog(lambda bad: None)
    blocks = list(stream.read(start, stop, log))
    records = [record for block in blocks for record in block.records.tolist()]
    assert records == [i for i in range(start, 310 if stop is None else stop) if (i - 5) % 31]
    assert log.num_records == (310 if stop is None else stop) - start
    dense = np.concatenate([block.dense[:, 0] for block in blocks]) if blocks else np.zeros(0, np.float32)
    np.testing.assert_array_equal(dense, np.log1p(np.array(records, np.float64)).astype(np.float32))


def test_a_worker_reports_errors_in_one_line(three_files):
    stream = SampleStream(paths=three_files, format="criteo", spec=CRITEO_SPEC, num_workers=2)
    with pytest.raises(DataError, match=r"0\.tsv, line 6: 1 fields, 40 expected") as raised:
        everything(stream)
    assert "Traceback" not in str(raised.value)
    absent = SampleStream(paths=("/absent",), format="criteo", spec=CRITEO_SPEC, num_workers=2)
    with pytest.raises(DataError, match="cannot read /absent: No such file"):
        everything(absent)


def test_a_start_past_the_end_is_refused(three_files):
    stream = SampleStream(paths=three_files, format="criteo", spec=CRITEO_SPEC, on_bad_line="skip")
    with pytest.raises(DataError, match="the data ends after 310 records, before record 311"):
        list(stream.read(311))


@given(st.lists(st.integers(0, 9), max_size=8), st.integers(1, 7))
def test_batches_have_one_size_and_keep_the_order(sizes, batch_size):
    total = sum(sizes)
    lengths = np.arange(total, dtype=np.int64) % 3
    whole = SampleBlock(
        np.zeros(total, np.float32),
        np.arange(total, dtype=np.float32)[:, None],
        (_column(np.arange(total)), _column(np.arange(lengths.sum()), lengths)),
        np.arange(total),
    )
    ends = np.cumsum([0, *sizes])
    batches = list(read_batches((whole.slice(a, b) for a, b in itertools.pairwise(ends)), batch_size))
    assert [len(batch) for batch in batches[:-1]] == [batch_size] * (len(batches) - 1)
    assert sum(map(len, batches)) == total
    for i, batch in enumerate(batches):
        expected = whole.slice(i * batch_size, i * batch_size + len(batch))
        assert batch.records.tolist() == expected.records.tolist()
        for column, expected_column in zip(batch.features, expected.features, strict=True):
            assert column.indices.tolist() == expected_column.indices.tolist()


def _column(indices, lengths=None):
    from mtrains.train.data.block import FeatureColumn

    return FeatureColumn(np.asarray(indices, np.int64), lengths)


def test_lookup_arguments_are_feature_major():
    block = SampleBlock(
        np.zeros(3, np.float32),
        np.zeros((3, 0), np.float32),
        (_column([7, 8, 9]), _column([1, 2, 3], np.array([2, 0, 1]))),
        np.arange(3),
    )
    indices, offsets = block.lookup_arguments()
    assert indices.tolist() == [7, 8, 9, 1, 2, 3]
    assert offsets.tolist() == [0, 1, 2, 3, 5, 5, 6]


def test_formats_are_detected(tmp_path, shared_data):
    assert detect_format(str(shared_data / "criteo_dev_head1999.tsv")) == "criteo"
    assert detect_format(str(shared_data / "criteo_sample.txt")) == "csv"
    assert detect_format(str(shared_data / "nycflights13_ctr.tsv.xz")) == "tsv"
    with pytest.raises(DataError, match="format not recognised"):
        detect_format(write(tmp_path, "words", b"one two"))
    with pytest.raises(ValueError, match="unknown format 'libsvm'"):
        make_reader("libsvm", SPEC)


def test_real_criteo_lines(shared_data):
    path = shared_data / "criteo_dev_head1999.tsv"
    block = everything(SampleStream(paths=(str(path),), format="criteo", spec=CRITEO_SPEC))
    lines = [line.split("\t") for line in path.read_text().split("\n")[:-1]]
    assert block.labels.tolist() == [float(line[0]) for line in lines]
    for c in range(26):
        assert block.features[c].indices.tolist() == [row_of(line[14 + c].encode()) for line in lines]


def test_standard_input_is_a_file_like_any_other(three_files):
    script = (
        "from mtrains.train.data.stream import *; from mtrains.train.data.schema import *\n"
        "spec = SampleSpec(CRITEO, (1000,) * 26)\n"
        "stream = SampleStream(paths=('-',), format='criteo', spec=spec, on_bad_line='skip')\n"
        "print(sum(len(block) for block in stream.read()))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        input=gzip.compress(Path(three_files[0]).read_bytes()),
        capture_output=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=True,
    )
    assert done.stdout.strip() == b"96"
