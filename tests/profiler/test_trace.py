import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from mtrains.profiler.trace import Trace, TraceError, read_trace


@pytest.fixture(params=["npz", "parquet"])
def write(request, tmp_path):
    """Write columns to a file of either format."""

    def write(**columns):
        path = tmp_path / f"trace.{request.param}"
        if request.param == "npz":
            np.savez(path, **columns)
        else:
            pyarrow.parquet.write_table(pyarrow.table(columns), path)
        return str(path)

    return write


def test_a_column_of_rows_is_one_table_with_a_sample_an_access(write):
    trace = read_trace(write(row=np.array([3, 1, 3], np.int32)))
    assert trace.tables == ("rows",)
    assert (trace.row.tolist(), trace.table.tolist(), trace.sample.tolist()) == (
        [3, 1, 3],
        [0, 0, 0],
        [0, 1, 2],
    )
    assert len(trace) == 3


def test_tables_are_named_by_texts_or_numbers(write):
    rows, sample = np.array([9, 9, 2**40]), np.array([0, 0, 7])
    trace = read_trace(write(row=rows, table=np.array(["user", "item", "user"]), sample=sample))
    assert trace.tables == ("item", "user")
    assert trace.table.tolist() == [1, 0, 1]
    assert trace.row.tolist() == [9, 9, 2**40]
    batches, num_batches = trace.batches(4)
    assert (batches.tolist(), num_batches) == ([0, 0, 1], 2)
    assert read_trace(write(row=rows, table=np.array([7, -2, 7]))).tables == ("-2", "7")


def test_64_bit_ids_keep_their_bits(write):
    ids = np.array([2**64 - 1, 2**63, 0], np.uint64)
    assert read_trace(write(row=ids)).row.tolist() == [-1, -(2**63), 0]


def test_a_trace_without_accesses(write):
    trace = read_trace(write(row=np.empty(0, np.int64)))
    assert len(trace) == 0
    assert trace.batches(5)[1] == 0


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"rows": np.arange(3)}, "has no column row"),
        ({"row": np.arange(3) / 2}, "column row holds float64, no integers"),
        ({"row": np.arange(3), "table": np.arange(3) / 2}, "column table holds float64"),
        ({"row": np.arange(3), "sample": np.array([0, 2, 1])}, "ascend from 0; not at access 2"),
        ({"row": np.arange(3), "sample": np.array([-1, 2, 3])}, "ascend from 0; not at access 0"),
    ],
)
def test_files_that_are_no_trace_are_named(write, columns, message):
    path = write(**columns)
    with pytest.raises(TraceError, match=message) as error:
        read_trace(path)
    assert path in str(error.value)


def test_other_files_are_no_trace(tmp_path):
    text, array, names = (str(tmp_path / name) for name in ("text.npz", "array.npy", "names.parquet"))
    (tmp_path / "text.npz").write_text("1\n2\n")
    np.save(array, np.arange(3))
    (tmp_path / "names.parquet").write_text("no")
    pairs = str(tmp_path / "pairs.npz")
    np.savez(pairs, row=np.zeros((2, 2), np.int64))
    for path, message in (
        (text, "no .npz file"),
        (array, "is one array"),
        (names, "as Parquet"),
        (pairs, "one-dim"),
    ):
        with pytest.raises(TraceError, match=message):
            read_trace(path)
    with pytest.raises(FileNotFoundError):
        read_trace(str(tmp_path / "absent.npz"))
    nulls = str(tmp_path / "nulls.parquet")
    pyarrow.parquet.write_table(pyarrow.table({"row": [1, None]}), nulls)
    with pytest.raises(TraceError, match="column row has nulls"):
        read_trace(nulls)


def test_shapes_and_tables_must_agree():
    one = np.zeros(1, np.int64)
    with pytest.raises(ValueError, match="differ in shape"):
        Trace(tables=("a",), table=np.zeros(2, np.uint32), row=one, sample=one)
    with pytest.raises(ValueError, match="table 1 of a trace of 1 tables"):
        Trace(tables=("a",), table=np.ones(1, np.uint32), row=one, sample=one)
