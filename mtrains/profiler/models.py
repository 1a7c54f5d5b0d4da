"""Published models as profiles: sizes and lookups as published, accesses by Zipf's law or Meta's distinct share."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from mtrains.profiler.analytic import TableShape, zipf_table
from mtrains.profiler.popularity import META_2021_DISTINCT_SHARE
from mtrains.profiler.profile import LocalityProfile, TableProfile

__all__ = ["MODELS", "ModelShape", "TableGroup", "model_profile"]


@dataclass(frozen=True)
class TableGroup:
    """`count` tables alike; features: lookups a sample of each feature that shares a table."""

    count: int
    features: tuple[float, ...]
    num_embeddings: int
    embedding_dim: int


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """A model's tables and batches. distinct_share: unique rows of a batch over lookups, None: the law's own.

    num_features: pooled vectors a sample that cross the network, None: as the groups say.
    """

    name: str
    groups: tuple[TableGroup, ...]
    dtype: str = "float32"
    batch_size: int = 65_536
    exponent: float = 1.05
    distinct_share: float | None = None
    num_features: int | None = None
    source: str = ""

    @property
    def lookups_per_sample(self) -> float:
        """Lookups of a sample in all tables."""
        return sum(group.count * sum(group.features) for group in self.groups)

    @property
    def num_rows(self) -> int:
        """Rows of all tables."""
        return sum(group.count * group.num_embeddings for group in self.groups)

    @property
    def network_values_per_sample(self) -> float:
        """Values of pooled vectors of a sample, forward and backward, which go to where they are used and back."""
        if self.num_features is not None:
            return 2.0 * self.num_features * self.groups[0].embedding_dim
        return 2.0 * sum(group.count * len(group.features) * group.embedding_dim for group in self.groups)


def model_profile(
    model: ModelShape, *, lookahead: int = 64, depth: int = 2, pages_per_fetch: float = 1.0
) -> LocalityProfile:
    """Return the profile of the model, all rows touched; tables that are alike have one curve between them."""
    tables: list[TableProfile] = []
    for number, group in enumerate(model.groups):
        shape = TableShape(
            name=f"group{number}",
            num_embeddings=group.num_embeddings,
            embedding_dim=group.embedding_dim,
            dtype=model.dtype,
            lookups_per_sample=sum(group.features),
            batch_size=model.batch_size,
            lookahead=lookahead,
            depth=depth,
            pages_per_fetch=pages_per_fetch,
        )
        one = zipf_table(shape, exponent=model.exponent, distinct_share=model.distinct_share)
        tables.append(_alike(one, group.count) if group.count > 1 else one)
    source = f"{model.name}: {model.source}"
    return LocalityProfile(tables=tuple(tables), samples=float(model.batch_size), source=source)


def _alike(table: TableProfile, count: int) -> TableProfile:
    """Return `count` equal tables as one, of which a share is that share of each: best where curves are concave."""

    def times(values: Sequence[float]) -> tuple[float, ...]:
        return tuple(value * count for value in values)

    return dataclasses.replace(
        table,
        num_embeddings=table.num_embeddings * count,
        touched_rows=table.touched_rows * count,
        lookups_per_sample=table.lookups_per_sample * count,
        footprint=tuple((samples, rows * count) for samples, rows in table.footprint),
        curves=tuple(
            dataclasses.replace(
                curve,
                unique_rows=curve.unique_rows * count,
                pinned_rows=curve.pinned_rows * count,
                capacity_rows=times(curve.capacity_rows),
                hits=times(curve.hits),
                fetches=times(curve.fetches),
            )
            for curve in table.curves
        ),
    )


_ROWS_12T = 93_750_000_000  # 12e12 parameters of dim 128
_SYNTHETIC = "sizes of NVIDIA-Merlin/distributed-embeddings, synthetic models v3; power law 1.05, batch 65,536"
_ZIONEX = "12e12 parameters (arXiv 2104.05158), dim 128"


def _synthetic(name: str, *groups: tuple[int, tuple[int, ...], int, int]) -> ModelShape:
    made = tuple(TableGroup(count, tuple(map(float, hots)), rows, dim) for count, hots, rows, dim in groups)
    return ModelShape(name=name, groups=made, source=_SYNTHETIC)


def _parameters_12t(name: str, lookups: float, num_features: int, source: str) -> ModelShape:
    return ModelShape(
        name=name,
        groups=(TableGroup(1, (lookups,), _ROWS_12T, 128),),
        dtype="float16",
        distinct_share=META_2021_DISTINCT_SHARE,
        num_features=num_features,
        source=f"{_ZIONEX}; {source}; distinct rows over lookups of Meta 2021",
    )


_ONE, _T, _S, _M, _L, _J, _C = ((1,), (1, 10), (1, 30), (1, 50), (1, 100), (1, 200), (1, 300))  # lookups a feature

MODELS: dict[str, ModelShape] = {
    model.name: model
    for model in (
        _parameters_12t("12t-dcnv2", 214.0, 26, "lookups of MLPerf DLRM-DCNv2"),
        _parameters_12t("12t-meta", 13_534.0, 856, "lookups of Meta's 856 tables of 2021"),
        _synthetic(
            "tiny", (1, _T, 10_000, 8), (1, _T, 1_000_000, 16), (1, _T, 25_000_000, 16), (1, _ONE, 25_000_000, 16),
            (16, _ONE, 10, 8), (10, _ONE, 1000, 8), (4, _ONE, 10_000, 8), (2, _ONE, 100_000, 16),
            (19, _ONE, 1_000_000, 16),
        ),
        _synthetic(
            "small", (5, _S, 10_000, 16), (3, _S, 4_000_000, 32), (1, _S, 50_000_000, 32), (1, _ONE, 50_000_000, 32),
            (30, _ONE, 10, 16), (30, _ONE, 1000, 16), (5, _ONE, 10_000, 16), (5, _ONE, 100_000, 32),
            (27, _ONE, 4_000_000, 32),
        ),
        _synthetic(
            "medium", (20, _M, 100_000, 64), (5, _M, 10_000_000, 64), (1, _M, 100_000_000, 128),
            (1, _ONE, 100_000_000, 128), (80, _ONE, 10, 32), (60, _ONE, 1000, 32), (80, _ONE, 100_000, 64),
            (24, _ONE, 200_000, 64), (40, _ONE, 10_000_000, 64),
        ),
        _synthetic(
            "large", (40, _L, 100_000, 64), (16, _L, 15_000_000, 64), (1, _L, 200_000_000, 128),
            (1, _ONE, 200_000_000, 128), (100, _ONE, 10, 32), (100, _ONE, 10_000, 32), (160, _ONE, 100_000, 64),
            (50, _ONE, 500_000, 64), (144, _ONE, 15_000_000, 64),
        ),
        _synthetic(
            "jumbo", (50, _J, 100_000, 128), (24, _J, 20_000_000, 128), (1, _J, 400_000_000, 256),
            (1, _ONE, 400_000_000, 256), (100, _ONE, 10, 32), (200, _ONE, 10_000, 64), (350, _ONE, 100_000, 128),
            (80, _ONE, 1_000_000, 128), (216, _ONE, 20_000_000, 128),
        ),
        _synthetic(
            "colossal", (100, _C, 100_000, 128), (50, _C, 40_000_000, 256), (1, _C, 2_000_000_000, 256),
            (1, _ONE, 1_000_000_000, 256), (100, _ONE, 10, 32), (400, _ONE, 10_000, 128), (100, _ONE, 100_000, 128),
            (800, _ONE, 1_000_000, 128), (450, _ONE, 40_000_000, 256),
        ),
    )
}  # fmt: skip
