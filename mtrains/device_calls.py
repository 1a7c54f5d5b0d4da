"""What one call of the native core computes on a device: it plans and brings the rows, this runs the kernels.

One object a call: it knows the tensors that the core knows no address of. The methods are the core's
DeviceCompute (mtrains/_native.pyi); arrays that it gives are valid during the method.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from mtrains.tiers import hbm_kernels
from mtrains.tiers.hbm import HbmRecords, to_indices
from mtrains.tiers.hbm_kernels import RecordLayout

__all__ = ["LookupOnDevice", "StepOnDevice", "StepSource", "WeightGradOnDevice"]

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)  # by the core's number

Layout: TypeAlias = tuple[int, int, int]  # dtype, dim, state_floats


def _layout(layout: Layout) -> RecordLayout:
    dtype, dim, state_floats = layout
    return RecordLayout(dtype=_DTYPES[dtype], dim=dim, state_floats=state_floats)


def _slots(slots: NDArray[np.uint32] | None, device: torch.device) -> torch.Tensor:
    return torch.empty(0, dtype=torch.int64, device=device) if slots is None else to_indices(slots, device)


class LookupOnDevice:
    """The pooling of one forward. out: float32[B, columns]; columns: first of each feature; starts: first position of
    each feature in per_sample_weights; argmax: int64[B, D] or None."""

    def __init__(
        self,
        out: torch.Tensor,
        columns: Sequence[int],
        per_sample_weights: torch.Tensor | None,
        starts: Sequence[int],
        argmax: torch.Tensor | None,
    ) -> None:
        self._out = out
        self._columns = columns
        self._weights = per_sample_weights
        self._starts = starts
        self._argmax = argmax

    def pool(
        self,
        feature: int,
        records: HbmRecords,
        *,
        layout: Layout,
        slot_of_position: NDArray[np.uint32] | None,
        offsets: NDArray[np.int64],
        position_begin: int,
        position_end: int,
        first_piece: bool,
        last_piece: bool,
        mode: int,
        counts: NDArray[np.float32] | None,
    ) -> None:
        device, column, record = records.memory.device, self._columns[feature], _layout(layout)
        with records.memory.computing():
            counts_there = None if counts is None else torch.from_numpy(counts).to(device, copy=True)
            hbm_kernels.pool(
                records.tensor,
                record,
                slot_of_position=_slots(slot_of_position, device),
                offsets=torch.from_numpy(offsets.copy()).to(device),
                bag_begin=0,
                bag_end=len(offsets) - 1,
                position_begin=position_begin,
                position_end=position_end,
                first_piece=first_piece,
                last_piece=last_piece,
                mode=mode,
                per_sample_weights=None if self._weights is None else self._weights[self._starts[feature] :],
                out=self._out[:, column : column + record.dim],
                argmax=self._argmax,
                counts=counts_there,
            )
            if counts is not None and counts_there is not None:
                torch.from_numpy(counts).copy_(counts_there)


class WeightGradOnDevice:
    """The gradient of per_sample_weights of one feature. grad: float32[B, D]; out: float32[positions]."""

    def __init__(self, grad: torch.Tensor, out: torch.Tensor) -> None:
        self._grad = grad
        self._out = out

    def weight_grad(
        self,
        records: HbmRecords,
        *,
        layout: Layout,
        slot_of_position: NDArray[np.uint32] | None,
        offsets: NDArray[np.int64],
        position_begin: int,
        position_end: int,
    ) -> None:
        device = records.memory.device
        with records.memory.computing():
            hbm_kernels.per_sample_weight_grad(
                records.tensor,
                _layout(layout),
                slot_of_position=_slots(slot_of_position, device),
                offsets=torch.from_numpy(offsets.copy()).to(device),
                bag_begin=0,
                bag_end=len(offsets) - 1,
                position_begin=position_begin,
                position_end=position_end,
                grad=self._grad,
                out=self._out,
            )


class PieceOfGradient(Protocol):
    """What is used of a GradPiece."""

    grad: torch.Tensor
    column: int
    per_sample_weights: torch.Tensor | None
    argmax: torch.Tensor | None


StepSource: TypeAlias = "PieceOfGradient | tuple[NDArray[np.int64], NDArray[np.float32]]"


class StepOnDevice:
    """The updates of one step. sources: of each, the piece of a gradient, or (rows, sums) in memory."""

    def __init__(self, sources: Sequence[StepSource]) -> None:
        self._sources = sources

    def update(
        self,
        number: int,
        records: HbmRecords,
        *,
        layout: Layout,
        slots: NDArray[np.uint32],
        rows: NDArray[np.uint64],
        begin: int,
        end: int,
        csr: NDArray[np.uint32] | None,
        positions: NDArray[np.uint32] | None,
        bag_of_position: NDArray[np.uint32] | None,
        counts: NDArray[np.float32] | None,
        scale: float,
        **scalars: Any,  # noqa: ANN401 - as update_rows takes them
    ) -> None:
        device, record, source = records.memory.device, _layout(layout), self._sources[number]
        with records.memory.computing():
            if isinstance(source, tuple):
                sums = torch.from_numpy(source[1][begin:end].copy()).to(device)
                sums = hbm_kernels.sum_rows(
                    csr=None, positions=None, bag_of_position=None, grad=None, per_sample_weights=None,
                    argmax=None, sums=sums, sum_of_unique=None, scale=scale, dim=record.dim,
                )  # fmt: skip
            else:
                assert csr is not None
                assert positions is not None
                grad = source.grad[:, source.column : source.column + record.dim]
                if counts is not None:
                    grad = hbm_kernels.divide_by_counts(grad, torch.from_numpy(counts.copy()).to(device))
                first, last = int(csr[0]), int(csr[-1])
                sums = hbm_kernels.sum_rows(
                    csr=to_indices(csr, device) - first,
                    positions=to_indices(positions[first:last], device),
                    bag_of_position=None if bag_of_position is None else to_indices(bag_of_position, device),
                    grad=grad,
                    per_sample_weights=source.per_sample_weights,
                    argmax=source.argmax,
                    sums=None,
                    sum_of_unique=None,
                    scale=scale,
                    dim=record.dim,
                )
            hbm_kernels.update_rows(
                records.tensor,
                record,
                slots=to_indices(slots, device),
                rows=to_indices(rows, device),
                sums=sums,
                **scalars,
            )
