"""Optimizers by the names of the command line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import mtrains.optim
from mtrains.train.config import OPTIMIZERS

__all__ = ["CONTROL_OPTIMIZERS", "control_optimizers", "tiered_optimizer"]

_TIERED: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": mtrains.optim.SGD,
    "adagrad": mtrains.optim.Adagrad,
    "rowwise_adagrad": mtrains.optim.RowWiseAdagrad,
    "sparse_adam": mtrains.optim.SparseAdam,
    "partial_rowwise_adam": mtrains.optim.PartialRowWiseAdam,
}
assert tuple(_TIERED) == OPTIMIZERS

# What torch.optim offers for sparse gradients, with the optimizer of the other parameters.
_CONTROL: dict[str, tuple[Any, Any]] = {
    "sgd": (torch.optim.SGD, torch.optim.SGD),
    "adagrad": (torch.optim.Adagrad, torch.optim.Adagrad),
    "sparse_adam": (torch.optim.SparseAdam, torch.optim.Adam),
}
CONTROL_OPTIMIZERS = tuple(_CONTROL)


def tiered_optimizer(name: str, model: nn.Module, lr: float) -> torch.optim.Optimizer:
    """Return the mtrains optimizer over tables and MLPs of a model."""
    return _TIERED[name](model.parameters(), lr=lr)


def control_optimizers(
    name: str, tables: nn.Module, model: nn.Module, lr: float
) -> tuple[torch.optim.Optimizer, ...]:
    """Return the torch.optim counterparts: one over `tables`, one over the other parameters of `model`.

    Raises: ValueError where torch.optim has none (row-wise optimizers).
    """
    if name not in _CONTROL:
        raise ValueError(f"torch.optim has no {name}; the control needs one of {', '.join(_CONTROL)}")
    for_tables, for_others = _CONTROL[name]
    in_tables = {id(parameter) for parameter in tables.parameters()}
    others = [parameter for parameter in model.parameters() if id(parameter) not in in_tables]
    return (for_tables(tables.parameters(), lr=lr), for_others(others, lr=lr))
