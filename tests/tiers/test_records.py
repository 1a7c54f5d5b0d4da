import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtrains.errors import FormatError
from mtrains.tiers.records import (
    PAYLOAD_BYTES,
    VALUE_BYTES,
    Kind,
    join,
    key_of,
    open_value,
    page_key,
    piece_key,
    seal_value,
    split,
    split_page_key,
    split_piece_key,
)


@given(st.binary(max_size=3000))
def test_a_value_opens_as_it_was_sealed(payload):
    key = key_of(Kind.TABLE, 3)
    value = seal_value(key, payload)
    assert open_value(key, value) == payload
    assert len(value) <= 1920 or len(value) == VALUE_BYTES


@given(st.binary(min_size=1, max_size=100), st.data())
def test_any_flipped_bit_is_found_and_named(payload, data):
    key = piece_key(Kind.DELTA, 7, 2)
    value = bytearray(seal_value(key, payload))
    bit = data.draw(st.integers(0, len(value) * 8 - 1))
    value[bit // 8] ^= 1 << bit % 8
    with pytest.raises(FormatError, match="DELTA 7/2"):
        open_value(key, bytes(value))


def test_a_value_under_another_key_is_found():
    value = seal_value(key_of(Kind.TABLE, 3), b"x")
    with pytest.raises(FormatError, match="TABLE 4"):
        open_value(key_of(Kind.TABLE, 4), value)


@pytest.mark.parametrize("size", [0, 1, PAYLOAD_BYTES - 8, PAYLOAD_BYTES - 7, 3 * PAYLOAD_BYTES])
def test_split_and_join(size):
    data = bytes(range(256)) * (size // 256 + 1)
    pieces = list(split(data[:size]))
    assert all(len(piece) <= PAYLOAD_BYTES for piece in pieces)
    assert join(pieces, "it") == data[:size]
    with pytest.raises(FormatError, match="pieces of it"):
        join(pieces[:-1], "it")


@given(
    st.integers(0, 2**32 - 1), st.integers(0, 2**24 - 1), st.integers(0, 2**24 - 1), st.integers(0, 2**32 - 1)
)
def test_keys_split(number, piece, table, page):
    assert split_piece_key(piece_key(Kind.EXTRA, number, piece)) == (number, piece)
    assert split_page_key(page_key(table, page)) == (table, page)
