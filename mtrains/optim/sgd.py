"""SGD without momentum."""

from __future__ import annotations

from typing import Any

import torch

from mtrains.optim.base import ParamsT, TieredOptimizer, check_hyper_parameters

__all__ = ["SGD"]


class SGD(TieredOptimizer):
    """torch.optim.SGD: w -= lr * g. Tables keep no state.

    Duplicates of a row are summed over all lookups since zero_grad(), then it is updated once.

    Args:
        weight_decay: of the rows that have a gradient.
        weight_decay_mode: "l2": g += weight_decay * w, as torch; "decoupled": w -= lr * weight_decay * w
            first.
        foreach, fused: for ordinary parameters.
    Raises:
        NotImplementedError: momentum or nesterov (torch's sparse momentum moves rows that have no gradient).
    """

    kind = "sgd"
    number = 0
    dense_class = torch.optim.SGD

    def __init__(
        self,
        params: ParamsT,
        lr: float | torch.Tensor = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
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
                "momentum": momentum,
                "dampening": dampening,
                "weight_decay": weight_decay,
                "nesterov": nesterov,
                "weight_decay_mode": weight_decay_mode,
                "maximize": maximize,
                "foreach": foreach,
                "differentiable": differentiable,
                "fused": fused,
            },
        )

    def check_group(self, group: dict[str, Any]) -> None:
        check_hyper_parameters(group)
        if group["momentum"] or group["nesterov"] or group["dampening"]:
            raise NotImplementedError(
                "SGD with momentum, dampening or nesterov would move rows that have no gradient; use "
                "momentum=0 here, and a torch.optim.SGD of their own for the ordinary parameters"
            )

    def state_fields(self, dim: int) -> tuple[tuple[str, int], ...]:
        return ()

    def scalars(self, group: dict[str, Any], step: int) -> dict[str, float]:
        return {"lr": float(group["lr"])}
