"""Where the arrays of an exported file lie: the bytes before them and the place of each, before any is written.

The safetensors package writes tensors that are all in memory, and has no way to fill a file piece by piece. Its
format is an 8-byte little-endian length, that much JSON, and the tensors' bytes without gaps, so this module makes
the head itself. Source: github.com/safetensors/safetensors, README, "Format".
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["Array", "FileLayout", "npy_layout", "safetensors_layout"]

_ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
_SAFETENSORS_CODES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
_NUMPY_CODES = {"float32": "<f4", "float16": "<f2"}
_HEAD_ALIGNMENT = 8  # of the first tensor in a .safetensors file


@dataclass(frozen=True, kw_only=True)
class Array:
    """One array of a file. dtype: "float32", "float16" or "bfloat16"."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * _ITEM_BYTES[self.dtype]


@dataclass(frozen=True, kw_only=True)
class FileLayout:
    """head: the first bytes. offsets: of each array in the file, in the order in which they were given."""

    head: bytes
    offsets: tuple[int, ...]
    num_bytes: int


def safetensors_layout(arrays: Sequence[Array]) -> FileLayout:
    """Lay out a .safetensors file. Wider items go first, so that all are aligned."""
    order = sorted(range(len(arrays)), key=lambda i: (-_ITEM_BYTES[arrays[i].dtype], arrays[i].name))
    begins = [0] * len(arrays)
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}  # what loaders of Hugging Face look for
    end = 0
    for number in order:
        array = arrays[number]
        begins[number] = end
        end += array.num_bytes
        header[array.name] = {
            "dtype": _SAFETENSORS_CODES[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [begins[number], end],
        }
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _HEAD_ALIGNMENT)
    head = len(text).to_bytes(8, "little") + text
    return FileLayout(
        head=head, offsets=tuple(len(head) + begin for begin in begins), num_bytes=len(head) + end
    )


def npy_layout(array: Array) -> FileLayout:
    """Lay out a .npy file. Raises: ValueError for bfloat16, which numpy does not have."""
    code = _NUMPY_CODES.get(array.dtype)
    if code is None:
        raise ValueError(
            f"numpy has no {array.dtype}: export {array.name!r} to .safetensors, or with dtype=torch.float32"
        )
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        head, {"descr": code, "fortran_order": False, "shape": array.shape}
    )
    begin = head.tell()
    return FileLayout(head=head.getvalue(), offsets=(begin,), num_bytes=begin + array.num_bytes)
