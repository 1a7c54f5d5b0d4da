"""What the contestants of a training step do: the same tables, ids and gradients for all."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from bench.generators import Zipf

INITIAL_VALUE = 0.01
LEARNING_RATE = 0.1
EPS = 1e-8


@dataclass(frozen=True, kw_only=True)
class Workload:
    """T tables of N rows and D columns, B bags of L indices a table and step; sum pooling, row-wise Adagrad."""

    name: str
    num_tables: int
    num_rows: int
    dim: int
    batch_size: int
    pooling_factor: int
    zipf_exponent: float
    num_batches: int = 8
    seed: int = 1

    @cached_property
    def indices(self) -> list[torch.Tensor]:
        """One int64[T * B * L] a batch, feature-major."""
        ids = Zipf(self.num_rows, self.zipf_exponent, self.seed)
        count = self.num_tables * self.batch_size * self.pooling_factor
        return [torch.from_numpy(ids.draw(count)) for _ in range(self.num_batches)]

    @cached_property
    def offsets(self) -> torch.Tensor:
        """int64[T * B + 1]."""
        return torch.arange(0, self.num_tables * self.batch_size + 1) * self.pooling_factor

    @cached_property
    def grad(self) -> torch.Tensor:
        """float32[B, T * D]: what comes back from the dense part."""
        random = torch.Generator().manual_seed(self.seed)
        return torch.randn(self.batch_size, self.num_tables * self.dim, generator=random)

    @cached_property
    def unique_rows(self) -> float:
        """Unique rows of a table in a batch, on average."""
        size = self.batch_size * self.pooling_factor
        per_table = [len(np.unique(t.numpy())) for batch in self.indices for t in batch.split(size)]
        return float(np.mean(per_table))

    def of_table(self, batch: int, table: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (indices, offsets[B]) of one table."""
        size = self.batch_size * self.pooling_factor
        return self.indices[batch][table * size : (table + 1) * size], self.offsets[: self.batch_size]
