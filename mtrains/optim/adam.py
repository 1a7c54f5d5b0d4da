"""Adam on the rows that have a gradient, with the second moment per column or per row."""

from __future__ import annotations

import math
from typing import Any

import torch

from mtrains.optim.base import ParamsT, TieredOptimizer, check_hyper_parameters

__all__ = ["PartialRowWiseAdam", "SparseAdam"]


class SparseAdam(TieredOptimizer):
    """torch.optim.SparseAdam on tables, torch.optim.Adam on ordinary parameters.

    m += (g - m)(1 - b1); v += (g^2 - v)(1 - b2); w -= lr sqrt(1 - b2^t) / (1 - b1^t) m / (sqrt(v) + eps).
    Rows without a gradient do not move, unlike under Adam. Duplicates of a row are summed over all lookups
    since zero_grad(), then it is updated once. t counts the steps of a table with a gradient.

    Args:
        weight_decay: of the rows that have a gradient.
        weight_decay_mode: "l2": g += weight_decay * w, as torch's Adam; "decoupled": w -= lr * weight_decay * w
            first, as AdamW.
        foreach, fused: for ordinary parameters.
    """

    kind = "sparse_adam"
    number = 3
    dense_class = torch.optim.Adam

    def __init__(
        self,
        params: ParamsT,
        lr: float | torch.Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        weight_decay_mode: str = "l2",
        maximize: bool = False,
        foreach: bool | None = None,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr,
                "betas": betas,
                "eps": eps,
                "weight_decay": weight_decay,
                "weight_decay_mode": weight_decay_mode,
                "maximize": maximize,
                "foreach": foreach,
                "differentiable": differentiable,
                "fused": fused,
            },
        )

    def check_group(self, group: dict[str, Any]) -> None:
        check_hyper_parameters(group)

    def state_fields(self, dim: int) -> tuple[tuple[str, int], ...]:
        return (("exp_avg", dim), ("exp_avg_sq", dim))

    def scalars(self, group: dict[str, Any], step: int) -> dict[str, float]:
        beta1, beta2 = group["betas"]
        correction = math.sqrt(1.0 - _power(beta2, step)) / (1.0 - _power(beta1, step))
        return {
            "lr": float(group["lr"]) * correction,
            "eps": float(group["eps"]),
            "one_minus_beta1": 1.0 - beta1,
            "one_minus_beta2": 1.0 - beta2,
        }


class PartialRowWiseAdam(SparseAdam):
    """SparseAdam with one second moment a row: v += (mean over D of g^2 - v)(1 - b2). Otherwise as
    SparseAdam.

    Source: FBGEMM's PARTIAL_ROWWISE_ADAM (docs of split_table_batched_embeddings_ops).
    """

    kind = "partial_rowwise_adam"
    number = 4

    def state_fields(self, dim: int) -> tuple[tuple[str, int], ...]:
        return (("exp_avg", dim), ("exp_avg_sq", 1))


def _power(base: float, exponent: int) -> float:
    """Return base ** exponent by squaring: the same bits everywhere, which libm's pow does not promise."""
    result = 1.0
    while exponent:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result
