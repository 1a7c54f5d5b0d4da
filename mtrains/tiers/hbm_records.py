"""Row records in a slot tensor: where the weights and the state of a row are, and moving whole records.

Legend: `records` is uint8[capacity, stride], contiguous, on any device; slot s is records[s]. D columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

__all__ = ["RecordLayout", "gather_records", "load_rows", "scatter_records", "state_of", "weights_of"]


@dataclass(frozen=True, kw_only=True)
class RecordLayout:
    """The bytes of one row: `dim` weights of `dtype`, padded to 4 bytes, then float32 optimizer state.

    dtype: float32, float16 or bfloat16. state_floats: 0, 1, D, D + 1 or 2 D. As record_layout.h.
    """

    dtype: torch.dtype
    dim: int
    state_floats: int = 0

    @property
    def state_offset(self) -> int:
        return (self.dtype.itemsize * self.dim + 3) // 4 * 4

    @property
    def stride(self) -> int:
        return self.state_offset + 4 * self.state_floats


def weights_of(records: torch.Tensor, layout: RecordLayout) -> torch.Tensor:
    """Return the weights of all records as a view: layout.dtype[capacity, D]."""
    return records.view(layout.dtype)[:, : layout.dim]


def state_of(records: torch.Tensor, layout: RecordLayout) -> torch.Tensor:
    """Return the state of all records as a view: float32[capacity, state_floats]."""
    return records.view(torch.float32)[:, layout.state_offset // 4 :]


def load_rows(records: torch.Tensor, layout: RecordLayout, slots: torch.Tensor) -> torch.Tensor:
    """Return the weights of records, float32[n, D], a new tensor. slots: int64[n], duplicates welcome.

    Every value of 16 bits is a float32; a table holds no signalling NaN of 16 bits.
    """
    return weights_of(records, layout).index_select(0, slots).to(torch.float32)


def gather_records(records: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """Return whole records, uint8[n, stride], a new tensor. slots: int64[n], duplicates welcome."""
    return records.view(torch.int32).index_select(0, slots).view(torch.uint8)


def scatter_records(records: torch.Tensor, slots: torch.Tensor, rows_bytes: torch.Tensor) -> None:
    """Overwrite whole records. slots: int64[n], unique. rows_bytes: uint8[n, stride], contiguous."""
    records.view(torch.int32).index_copy_(0, slots, rows_bytes.view(torch.int32))
