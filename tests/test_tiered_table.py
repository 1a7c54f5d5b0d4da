"""Reading and writing rows by index tensors that are longer than a chunk."""

import re
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mtrains import Store, TieredEmbeddingBag

MIB = 1 << 20


@settings(max_examples=40, deadline=None)
@given(
    indices=st.lists(st.integers(0, 19), max_size=60),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
    index_dtype=st.sampled_from([torch.int64, torch.int32, torch.uint8]),
    chunk_rows=st.integers(1, 7),
)
def test_chunks_change_nothing_and_the_last_of_duplicates_wins(indices, dtype, index_dtype, chunk_rows):
    with pytest.MonkeyPatch.context() as patch, Store(dram="300", seed=1) as store:
        patch.setattr("mtrains.tiered_table._CHUNK_BYTES", chunk_rows * 12)
        emb = TieredEmbeddingBag(20, 3, store=store, name="t", dtype=dtype)
        expected = emb.read_dense()
        numbers = torch.tensor(indices, dtype=index_dtype)
        rows = torch.arange(len(indices) * 3.0).view(-1, 3)
        emb.write_rows(numbers, rows)
        for row, values in zip(indices, rows, strict=True):
            expected[row] = values.to(dtype)
        assert torch.equal(emb.read_dense(), expected)
        assert torch.equal(emb.read_rows(numbers), expected[numbers.long()])
        assert emb.read_rows(numbers).dtype is dtype


@pytest.mark.parametrize("bad", [-1, 20, 2**40])
def test_an_index_out_of_range_in_a_late_chunk_is_named_by_its_position_and_changes_nothing(
    store, monkeypatch, bad
):
    monkeypatch.setattr("mtrains.tiered_table._CHUNK_BYTES", 4 * 12)
    emb = TieredEmbeddingBag(20, 3, store=store, name="t")
    before = emb.read_dense()
    indices = torch.arange(20).repeat(3)
    indices[50] = bad
    message = re.escape(f"table 't': index {bad} at position 50 is out of range [0, 20)")
    with pytest.raises(IndexError, match=message):
        emb.write_rows(indices, torch.zeros(60, 3))
    with pytest.raises(IndexError, match=message):
        emb.read_rows(indices)
    assert torch.equal(emb.read_dense(), before)
    assert store.engine.table_info(0)["touched_rows"] == 0


def test_long_index_tensors_take_no_more_memory_than_their_result():
    with Store(dram="1MiB", seed=1) as store:
        emb = TieredEmbeddingBag(1000, 64, store=store, name="t", dtype=torch.float16)
        indices = torch.arange(1000, dtype=torch.int32).repeat(1000)
        rows = torch.ones(1, 64, dtype=torch.float16).expand(1_000_000, 64)  # float32 would be 244 MiB
        before = reset_peak()
        emb.write_rows(indices, rows)
        assert peak_bytes() - before < 48 * MIB
        before = reset_peak()
        out = emb.read_rows(indices)
        assert peak_bytes() - before < out.nbytes + 48 * MIB
        assert torch.equal(out[::999], rows[::999])


def reset_peak():
    Path("/proc/self/clear_refs").write_text("5")
    return peak_bytes()


def peak_bytes():
    """The highest resident memory of this process since it was reset."""
    return int(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text()).group(1)) * 1024
