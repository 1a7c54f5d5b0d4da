import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtrains.train.data.hashing import category_rows, hash_bytes, hash_many

GOLDEN = {
    b"": 0x48218226FF3CD4BF,
    b"a": 0x80BDFD4D3E359A26,
    b"68fd1e64": 0xA5C056D69850BFD1,
    b"N14228": 0x9ECA9F834A5E9381,
    b"exactly8": 0x0BCD8E582A6F29E1,
    b"123456789": 0x054A0D14EB3BCF4B,
    b"x" * 64: 0xB0C5C383211E7CCE,
    b"y" * 65: 0x5462CD538E4996D2,
    b"Z\xc3\xbcrich": 0x5CF0D88DFB4F8891,
}


@pytest.mark.parametrize(("text", "expected"), GOLDEN.items())
def test_hash_never_changes(text, expected):
    assert hash_bytes(text) == expected


@given(st.lists(st.binary(max_size=200), max_size=30))
def test_vectorised_hash_equals_scalar(texts):
    assert hash_many(texts).tolist() == [hash_bytes(text) for text in texts]


def test_trailing_zero_bytes_count():
    assert len({hash_bytes(b"a" + b"\0" * n) for n in range(20)}) == 20


@given(st.lists(st.binary(min_size=1, max_size=20)), st.integers(2, 10**7))
def test_rows_are_within_the_table_and_only_the_missing_category_has_row_0(texts, num_embeddings):
    rows = category_rows([*texts, b""], num_embeddings)
    assert rows[-1] == 0
    assert ((rows[:-1] >= 1) & (rows[:-1] < num_embeddings)).all()


def test_a_table_of_one_row_takes_every_category():
    assert category_rows([b"", b"a", b"b"], 1).tolist() == [0, 0, 0]


def test_rows_spread_evenly():
    rows = category_rows([str(i).encode() for i in range(100_000)], 101)
    counts = np.bincount(rows, minlength=101)[1:]
    # 1,000 expected in each; 5 standard deviations of a binomial is 157.
    assert abs(counts - 1000).max() < 160
