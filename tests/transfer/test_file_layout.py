"""Heads of .safetensors and .npy files, as their own libraries read them."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from mtrains.transfer.file_layout import Array, npy_layout, safetensors_layout

ARRAYS = st.lists(
    st.builds(
        Array,
        name=st.text(min_size=1, max_size=20).filter(lambda name: name != "__metadata__"),
        dtype=st.sampled_from(["float32", "float16", "bfloat16"]),
        shape=st.lists(st.integers(0, 5), max_size=3).map(tuple),
    ),
    max_size=6,
    unique_by=lambda array: array.name,
)


@given(arrays=ARRAYS, seed=st.integers(0, 99))
def test_the_library_reads_what_lies_at_the_offsets(tmp_path_factory, arrays, seed):
    random = torch.Generator().manual_seed(seed)
    values = [torch.randn(array.shape, generator=random).to(getattr(torch, array.dtype)) for array in arrays]
    layout = safetensors_layout(arrays)
    file = bytearray(layout.num_bytes)
    file[: len(layout.head)] = layout.head
    for array, value, offset in zip(arrays, values, layout.offsets, strict=True):
        data = value.reshape(-1).view(torch.uint8).numpy().tobytes()
        assert len(data) == array.num_bytes
        assert offset % value.itemsize == 0
        file[offset : offset + len(data)] = data
    path = tmp_path_factory.mktemp("layout") / "arrays.safetensors"
    path.write_bytes(file)
    loaded = load_file(path)
    assert loaded.keys() == {array.name for array in arrays}
    for array, value in zip(arrays, values, strict=True):
        assert loaded[array.name].dtype is value.dtype
        assert torch.equal(loaded[array.name], value)


def test_the_head_says_that_tensors_are_pytorchs_and_is_aligned():
    layout = safetensors_layout([Array(name="weight", dtype="float32", shape=(3, 2))])
    length = int.from_bytes(layout.head[:8], "little")
    assert length % 8 == 0
    assert len(layout.head) == 8 + length
    assert json.loads(layout.head[8:])["__metadata__"] == {"format": "pt"}


def test_numpy_has_no_bfloat16():
    with pytest.raises(ValueError, match=r"numpy has no bfloat16: export 'w' to \.safetensors, or with dtype="):
        npy_layout(Array(name="w", dtype="bfloat16", shape=(1, 1)))
