"""Adagrad, with one sum of squares per column or per row."""

from __future__ import annotations

from typing import Any

import torch

from mtrains.optim.base import ParamsT, TieredOptimizer, check_hyper_parameters

__all__ = ["Adagrad", "RowWiseAdagrad"]


class Adagrad(TieredOptimizer):
    """torch.optim.Adagrad: s += g^2; w -= clr * g / (sqrt(s) + eps) with clr = lr / (1 + (t - 1) * lr_decay).

    Duplicates of a row are summed over all lookups since zero_grad(), then it is updated once. t counts the
    steps of a table with a gradient.

    Args:
        weight_decay: of the rows that have a gradient.
        weight_decay_mode: "l2": g += weight_decay * w, as torch; "decoupled": w -= lr * weight_decay * w
            first.
        initial_accumulator_value: s of a row that was never updated.
        foreach, fused: for ordinary parameters.
    """

    kind = "adagrad"
    number = 1
    dense_class = torch.optim.Adagrad

    def __init__(
        self,
        params: ParamsT,
        lr: float | torch.Tensor = 1e-2,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
        foreach: bool | None = None,
        *,
        weight_decay_mode: str = "l2",
        maximize: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr,
                "lr_decay": lr_decay,
                "eps": eps,
                "weight_decay": weight_decay,
                "initial_accumulator_value": initial_accumulator_value,
                "weight_decay_mode": weight_decay_mode,
                "foreach": foreach,
                "maximize": maximize,
                "differentiable": differentiable,
                "fused": fused,
            },
        )

    def check_group(self, group: dict[str, Any]) -> None:
        check_hyper_parameters(group)

    def state_fields(self, dim: int) -> tuple[tuple[str, int], ...]:
        return (("sum", dim),)

    def initial_state(self, group: dict[str, Any]) -> float:
        return float(group["initial_accumulator_value"])

    def scalars(self, group: dict[str, Any], step: int) -> dict[str, float]:
        return {"lr": float(group["lr"]) / (1.0 + (step - 1) * group["lr_decay"]), "eps": float(group["eps"])}


class RowWiseAdagrad(Adagrad):
    """Adagrad with one value of state a row: s += mean over D of g^2; w -= clr * g / (sqrt(s) + eps).

    The usual optimizer of recommendation models: its state is 4 bytes a row. Ordinary parameters get
    torch.optim.Adagrad. Otherwise as Adagrad.

    Source: FBGEMM's EXACT_ROWWISE_ADAGRAD (docs of split_table_batched_embeddings_ops), eps = 1e-8 outside
    the root.
    """

    kind = "rowwise_adagrad"
    number = 2

    def __init__(
        self,
        params: ParamsT,
        lr: float | torch.Tensor = 1e-2,
        eps: float = 1e-8,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        *,
        weight_decay_mode: str = "l2",
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        super().__init__(
            params,
            lr,
            lr_decay,
            weight_decay,
            initial_accumulator_value,
            eps,
            foreach,
            weight_decay_mode=weight_decay_mode,
            maximize=maximize,
            differentiable=differentiable,
            fused=fused,
        )

    def state_fields(self, dim: int) -> tuple[tuple[str, int], ...]:
        return (("sum", 1),)
