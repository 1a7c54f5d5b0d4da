import bz2
import gzip
import io
import lzma
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtrains.train.data import source
from mtrains.train.data.errors import DataError
from mtrains.train.data.source import Source, open_source, read_lines


def lines_of(data, chunk_bytes):
    stream = Source("test", io.BytesIO(data), compressed=False)
    parts = list(read_lines(stream, chunk_bytes))
    assert all(parts)
    return [line for part in parts for line in part]


@given(
    st.lists(st.text("ab\t\r é", max_size=12).map(str.encode).filter(lambda line: not line.endswith(b"\r"))),
    st.sampled_from([b"\n", b"\r\n"]),
    st.integers(1, 40),
    st.booleans(),
)
def test_lines_do_not_depend_on_chunks_or_line_ends(lines, line_end, chunk_bytes, ends):
    data = line_end.join(lines) + (line_end if ends and lines else b"")
    expected = lines if ends or not lines or lines[-1] else lines[:-1]
    assert lines_of(data, chunk_bytes) == expected


@pytest.mark.parametrize("compress", [bytes, gzip.compress, lzma.compress, bz2.compress])
def test_compression_is_recognised_by_content(tmp_path, compress):
    path = tmp_path / "anything"
    path.write_bytes(compress(b"one\ntwo\n" * 1000))
    with open_source(str(path)) as opened:
        assert sum(len(part) for part in read_lines(opened)) == 2000


@pytest.mark.parametrize("compress", [gzip.compress, lzma.compress, bz2.compress])
def test_a_cut_compressed_file_is_one_clear_error(tmp_path, compress):
    path = tmp_path / "cut"
    path.write_bytes(compress(os.urandom(100_000))[:-50])
    with (
        open_source(str(path)) as opened,
        pytest.raises(DataError, match=r"cut: the compressed data is damaged"),
    ):
        list(read_lines(opened))


@pytest.mark.parametrize("compress", [gzip.compress, lzma.compress])
def test_a_flipped_byte_is_one_clear_error(tmp_path, compress):
    data = bytearray(compress(os.urandom(10_000)))
    data[len(data) // 2] ^= 0xFF
    path = tmp_path / "flipped"
    path.write_bytes(data)
    with (
        open_source(str(path)) as opened,
        pytest.raises(DataError, match=r"flipped: the compressed data is damaged"),
    ):
        list(read_lines(opened))


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    cases = {"absent": "No such file", "folder": "Is a directory", "empty": "is empty", "zstd": "zstd"}
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty").touch()
    (tmp_path / "zstd").write_bytes(b"\x28\xb5\x2f\xfd\x00")
    for name, message in cases.items():
        with (
            pytest.raises(DataError, match=f"{name}.*{message}|{message}"),
            open_source(str(tmp_path / name)),
        ):
            pass


def test_a_file_without_lines_ends_before_memory_does(monkeypatch):
    monkeypatch.setattr(source, "MAX_LINE_BYTES", 1000)
    with pytest.raises(DataError, match="line 2: longer than"):
        lines_of(b"ok\n" + b"x" * 5000, 100)
