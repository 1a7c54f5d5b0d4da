"""Sums in the fixed orders of the native kernels, and the gradient of rows, in torch operations.

Every operation is one correctly rounded float32 + - * / : no FMA, no atomics, none whose order depends on the
device (native/include/mtrains/kernels.h). Where both operands of an operation are NaN, the result is a NaN,
but which one is not defined. Legend: U unique rows, B bags, D columns, K occurrences.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from mtrains.tiers.float_mode import exact_floats

__all__ = ["divide_by_counts", "divide_number", "lane_sum", "left_fold", "sum_rows"]

_LANES = 16
_NEGATIVE_ZERO_BITS = -(1 << 31)


def sum_rows(
    *,
    csr: torch.Tensor | None,
    positions: torch.Tensor | None,
    bag_of_position: torch.Tensor | None,
    grad: torch.Tensor | None,
    per_sample_weights: torch.Tensor | None,
    argmax: torch.Tensor | None,
    sums: torch.Tensor | None,
    sum_of_unique: torch.Tensor | None,
    scale: float,
    dim: int,
) -> torch.Tensor:
    """Return scale times the left fold of each unique row's gradients, in the order of its occurrences.

    Args:
        csr: int64[U + 1]; occurrences of unique row u are positions[csr[u] : csr[u + 1]]. None: `sums` only.
        positions: int64[K]. bag_of_position: int64[positions of the lookup]; None: bag p is position p.
        grad: float32[B, D], columns contiguous; of a mean, divided by divide_by_counts().
        per_sample_weights: float32[positions of the lookup] or None; multiplies an occurrence's gradient.
        argmax: int64[B, D] or None; column d of an occurrence counts only where argmax[bag, d] is its position.
        sums: float32[n, D] or None: what the fold continues from. sum_of_unique: int64[U], the index into
            `sums`, -1 for none; None: u.
        scale: of the finished sums; a float32 value.
    Returns:
        float32[U, D]; `sums` itself if there is nothing to do to it.
    """
    some = sums if grad is None else grad
    assert some is not None
    with exact_floats(some.device):
        start = None if sums is None else _starts(sums, sum_of_unique)
        if csr is None:
            assert start is not None
            folded = start
        else:
            assert positions is not None
            assert grad is not None
            bags = positions if bag_of_position is None else bag_of_position.index_select(0, positions)
            if per_sample_weights is None and argmax is None:
                folded = left_fold(grad, csr, start, bags)
            else:
                values = grad.index_select(0, bags)
                if per_sample_weights is not None:
                    values *= per_sample_weights.index_select(0, positions)[:, None]
                if argmax is not None:
                    values.masked_fill_(argmax.index_select(0, bags) != positions[:, None], -0.0)
                folded = left_fold(values, csr, start)
        assert folded.shape[1] == dim
        return folded * scale if scale != 1.0 else folded


def divide_by_counts(grad: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Return the gradient of a mean's positions, float32[B, D]; of an empty bag it means nothing.

    grad: float32[B, D]. counts: float32[B], as pool() left them.
    """
    with exact_floats(grad.device):
        return grad / counts[:, None]


def left_fold(
    values: torch.Tensor,
    bounds: torch.Tensor,
    start: torch.Tensor | None = None,
    indices: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return (start + first) + second ... of each run of rows; runs without rows give their start.

    embedding_bag's sum is that fold from +0, on the CPU and on CUDA: a column of a run is summed in order by
    one thread. Its own weights are not used, since they may be multiplied by FMA. Adding a row of -0 is adding
    nothing. To be called inside exact_floats().

    Args:
        values: float32[n, D]. indices: int64[K], rows of `values` in order; None: all.
        bounds: int64[runs + 1], from 0 to K, ascending. start: float32[runs, D] or None: +0.
    Returns:
        float32[runs, D]; `start` itself if there are no rows at all.
    """
    runs = bounds.shape[0] - 1
    num_values = values.shape[0] if indices is None else indices.shape[0]
    if num_values == 0 or runs == 0:
        return values.new_zeros((runs, values.shape[1])) if start is None else start
    if indices is None:
        indices = torch.arange(num_values, device=values.device)
    if start is None:
        return _fold_from_zero(values, bounds, indices)
    runs_of_values = torch.searchsorted(
        bounds[1:], torch.arange(num_values, device=values.device), right=True
    )
    numbers = torch.arange(runs, device=values.device)
    # The start of a run comes before its values, in `extended` as well as in `order`.
    extended = torch.cat((start, values))
    order = indices.new_empty(num_values + runs)
    order[bounds[:-1] + numbers] = numbers
    order[torch.arange(1, num_values + 1, device=values.device) + runs_of_values] = indices + runs
    folded = _fold_from_zero(extended, bounds + torch.arange(runs + 1, device=values.device), order)
    keeps = (bounds.diff() == 0)[:, None] | _only_negative_zeros(values, bounds, start, indices)
    return torch.where(keeps, start, folded)


def lane_sum(values: torch.Tensor) -> torch.Tensor:
    """Return the sum over the columns of each row: 16 lanes from +0, then one fixed tree. float32[n]."""
    padded = functional.pad(values, (0, -values.shape[1] % _LANES))
    lanes = padded[:, :_LANES] + 0.0
    for begin in range(_LANES, padded.shape[1], _LANES):
        lanes += padded[:, begin : begin + _LANES]
    for half in (8, 4, 2, 1):
        lanes = lanes[:, :half] + lanes[:, half : 2 * half]
    return lanes[:, 0]


def divide_number(number: float, values: torch.Tensor) -> torch.Tensor:
    """Return number / values, each rounded once; `number / tensor` would multiply by the reciprocal."""
    return torch.full_like(values, number) / values


def _starts(sums: torch.Tensor, sum_of_unique: torch.Tensor | None) -> torch.Tensor:
    if sum_of_unique is None:
        return sums
    if sums.shape[0] == 0:
        return sums.new_zeros((sum_of_unique.shape[0], sums.shape[1]))
    starts = sums.index_select(0, sum_of_unique.clamp(min=0))
    return starts.masked_fill_((sum_of_unique < 0)[:, None], 0.0)


def _fold_from_zero(values: torch.Tensor, bounds: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    return functional.embedding_bag(indices, values, bounds, mode="sum", include_last_offset=True)


def _only_negative_zeros(
    values: torch.Tensor, bounds: torch.Tensor, start: torch.Tensor, indices: torch.Tensor
) -> torch.Tensor:
    """Where the start and all values are -0, whose sum is -0; a fold from +0 would lose the sign."""
    negative = start.view(torch.int32) == _NEGATIVE_ZERO_BITS
    if not bool(negative.any()):
        return negative
    others = (values.view(torch.int32) != _NEGATIVE_ZERO_BITS).to(torch.float32)
    return negative & (_fold_from_zero(others, bounds, indices) == 0)
