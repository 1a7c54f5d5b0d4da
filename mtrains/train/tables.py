"""The embedding side of a model: tables of a store, or nn.EmbeddingBag modules of the same signature."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

import mtrains.init
from mtrains.specs import TableSpec
from mtrains.train.config import TrainConfig

__all__ = ["InMemoryTables", "table_specs"]


def table_specs(config: TrainConfig) -> list[TableSpec]:
    """Return one table for each categorical column.

    Initial rows are uniform in +-1/sqrt(num_embeddings), as facebookresearch/dlrm, dlrm_s_pytorch.py.
    """
    specs: list[TableSpec] = []
    for feature, rows in zip(config.schema.features, config.table_rows, strict=True):
        bound = 1 / math.sqrt(rows)
        init = mtrains.init.uniform(-bound, bound)
        name = _table_name(feature.name, [spec.name for spec in specs])
        specs.append(TableSpec(name, rows, config.shape.embedding_dim, mode="sum", init=init))
    return specs


def _table_name(column: str, taken: Sequence[str]) -> str:
    """Return the column's name, changed where it cannot be the name of a submodule ("a.b", "type")."""
    name = column.replace(".", "_")
    while hasattr(nn.ModuleDict, name) or name in taken:
        name += "_"
    return name


class InMemoryTables(nn.Module):
    """The control: nn.EmbeddingBag(sparse=True) modules with the signature of a tiered collection."""

    def __init__(self, specs: Sequence[TableSpec]) -> None:
        super().__init__()
        self.tables = nn.ModuleList(
            nn.EmbeddingBag(spec.num_embeddings, spec.embedding_dim, mode="sum", sparse=True)
            for spec in specs
        )

    def forward(self, indices: Tensor, offsets: Tensor, per_sample_weights: Tensor | None = None) -> Tensor:
        """Return float32[B, sum of D]. indices: int64[n], offsets: int64[F * B + 1], feature-major."""
        batch_size = (len(offsets) - 1) // len(self.tables)
        pooled = []
        for f, table in enumerate(self.tables):
            part = offsets[f * batch_size : (f + 1) * batch_size + 1]
            begin, end = int(part[0]), int(part[-1])
            weights = None if per_sample_weights is None else per_sample_weights[begin:end]
            pooled.append(table(indices[begin:end], part[:-1] - begin, weights))
        return torch.cat(pooled, dim=1)
