"""One optimizer step of rows in a slot tensor, in the order of operations of the native update_rows().

Legend: U unique rows, D columns.
"""

from __future__ import annotations

from enum import IntEnum

import torch

from mtrains.tiers.float_mode import exact_floats
from mtrains.tiers.hbm_records import RecordLayout, gather_records, scatter_records, state_of, weights_of
from mtrains.tiers.hbm_rounding import round_weights, rounding_words
from mtrains.tiers.hbm_sums import divide_number, lane_sum

__all__ = ["Decay", "Optimizer", "update_rows"]


class Optimizer(IntEnum):
    """Numbers of mtrains._native.Update."""

    SGD = 0
    ADAGRAD = 1  # state: sum[D]
    ROWWISE_ADAGRAD = 2  # state: sum[1]
    SPARSE_ADAM = 3  # state: exp_avg[D], exp_avg_sq[D]
    PARTIAL_ROWWISE_ADAM = 4  # state: exp_avg[D], exp_avg_sq[1]


class Decay(IntEnum):
    """Numbers of mtrains._native.Update."""

    NONE = 0
    L2 = 1
    DECOUPLED = 2


def update_rows(
    records: torch.Tensor,
    layout: RecordLayout,
    *,
    slots: torch.Tensor,
    rows: torch.Tensor,
    sums: torch.Tensor,
    optimizer: int,
    decay: int,
    maximize: bool,
    lr: float,
    eps: float,
    weight_decay: float,
    decay_factor: float,
    one_minus_beta1: float,
    one_minus_beta2: float,
    rounding_key: int,
    update_count: int,
) -> None:
    """Update weights and state of U rows once, with the bits of native update_rows().

    Args:
        slots: int64[U], unique. rows: int64[U], their row ids, which key stochastic rounding.
        sums: float32[U, D], scaled gradients of sum_rows(); not changed.
        optimizer, decay: of the enumerations above.
        lr .. one_minus_beta2: float32 values, as UpdateTask of kernels.h.
        rounding_key, update_count: of the table; for 16-bit weights only.
    """
    if slots.shape[0] == 0:
        return
    with exact_floats(records.device):
        taken = gather_records(records, slots)
        weights = weights_of(taken, layout).to(torch.float32)
        gradient = -sums if maximize else sums
        if decay == Decay.L2:
            gradient = gradient + weights * weight_decay
        change = _change(
            Optimizer(optimizer), state_of(taken, layout), gradient, lr, eps, one_minus_beta1, one_minus_beta2
        )
        if decay == Decay.DECOUPLED:
            weights = weights * decay_factor
        changed = weights - change
        if layout.dtype is not torch.float32:
            words = rounding_words(rounding_key, update_count, rows, layout.dim)
            changed = round_weights(changed, words, layout.dtype)
        weights_of(taken, layout).copy_(changed)
        scatter_records(records, slots, taken)


def _change(
    optimizer: Optimizer,
    state: torch.Tensor,
    gradient: torch.Tensor,
    lr: float,
    eps: float,
    one_minus_beta1: float,
    one_minus_beta2: float,
) -> torch.Tensor:
    """Update `state`; return what is subtracted from the weights."""
    dim = gradient.shape[1]
    if optimizer is Optimizer.SGD:
        return gradient * lr
    if optimizer is Optimizer.ADAGRAD:
        state += gradient * gradient
        return gradient * lr / (_square_root(state) + eps)
    if optimizer is Optimizer.ROWWISE_ADAGRAD:
        state += _mean_square(gradient)
        return divide_number(lr, _square_root(state) + eps) * gradient
    average, square = state[:, :dim], state[:, dim:]
    average += (gradient - average) * one_minus_beta1
    if optimizer is Optimizer.SPARSE_ADAM:
        square += (gradient * gradient - square) * one_minus_beta2
        return average / (_square_root(square) + eps) * lr
    square += (_mean_square(gradient) - square) * one_minus_beta2
    return divide_number(lr, _square_root(square) + eps) * average


def _mean_square(gradient: torch.Tensor) -> torch.Tensor:
    """Return the mean of squares over the columns, float32[U, 1].

    The divisor is a tensor: CUDA multiplies by the reciprocal of a number.
    """
    sums = lane_sum(gradient * gradient)
    return (sums / torch.full_like(sums, gradient.shape[1]))[:, None]


def _square_root(values: torch.Tensor) -> torch.Tensor:
    """Return square roots, rounded once: in float64 they are precise enough, in float32 not on every CPU."""
    return values.double().sqrt().float()
