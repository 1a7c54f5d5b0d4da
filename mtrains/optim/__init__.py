"""Optimizers of tables and ordinary parameters; formulas, defaults and names are torch.optim's."""

from __future__ import annotations

from mtrains.optim.adagrad import Adagrad, RowWiseAdagrad
from mtrains.optim.adam import PartialRowWiseAdam, SparseAdam
from mtrains.optim.base import TieredOptimizer
from mtrains.optim.sgd import SGD

__all__ = ["SGD", "Adagrad", "PartialRowWiseAdam", "RowWiseAdagrad", "SparseAdam", "TieredOptimizer"]
