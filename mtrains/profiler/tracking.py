"""Lookups of several tables, tracked in bounded memory until a profile is made of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mtrains import _native
from mtrains.errors import MtrainsError
from mtrains.profiler.profile import DTYPE_BYTES

__all__ = ["BATCH_FACTORS", "LookupTracker", "OutsideTableError", "TableLayout", "TrackingSpec", "batch_sizes"]

BATCH_FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
_PAGE_BYTES = 4096
_BLOCK_BYTES = 4080  # of a page of the log, without its header (docs/file-format.md)


class OutsideTableError(MtrainsError, IndexError):
    """A lookup is of a row that the table does not have."""


@dataclass(frozen=True, kw_only=True)
class TableLayout:
    """A table whose lookups are tracked. num_embeddings: None takes the largest row that is looked up, and one."""

    name: str
    num_embeddings: int | None = None
    embedding_dim: int = 16
    dtype: str = "float32"

    def __post_init__(self) -> None:
        if self.dtype not in DTYPE_BYTES:
            raise ValueError(f"table {self.name!r}: dtype must be one of {', '.join(DTYPE_BYTES)}, got {self.dtype!r}")
        if self.embedding_dim < 1 or (self.num_embeddings is not None and self.num_embeddings < 1):
            raise ValueError(f"table {self.name!r}: {self.num_embeddings} rows of {self.embedding_dim} are no table")

    @property
    def row_bytes(self) -> int:
        """Bytes of a row's weights."""
        return self.embedding_dim * DTYPE_BYTES[self.dtype]

    @property
    def rows_per_page(self) -> int:
        """Rows of weights in 4 KiB, one at least."""
        return max(1, _PAGE_BYTES // self.row_bytes)

    @property
    def rows_per_block(self) -> int:
        """Records with the state of row-wise Adagrad, 4 bytes, in a block of the log, one at least."""
        return max(1, _BLOCK_BYTES // (self.row_bytes + 4))


@dataclass(frozen=True, kw_only=True)
class TrackingSpec:
    """How much is kept.

    Attributes:
        batch_size: samples of all ranks. Curves are made at a quarter, a half, once, twice and four times of it.
        max_rows: tracked rows a table; a table of fewer is profiled exactly.
        hot_rows: of them, the most accessed; the others are a uniform sample by hash.
        max_accesses: of all tables together, 12 bytes each. Beyond, tables are sampled; then samples are taken together
            up to a quarter of a batch; then no more is tracked.
        seed: of the sample.
        count_unique: unique rows of a batch are counted, not estimated from the sample. Costs a look into a table of
            the rows of a few batches for each lookup.
        samples_a_unit: samples that are taken together from the begin; divides the smallest batch of a curve.
        sample_at_rows: a table is sampled as soon as more rows are tracked than these; 0: where memory asks for it.
    """

    batch_size: int
    max_rows: int = 16_384
    hot_rows: int = 2_048
    max_accesses: int = 1 << 25
    seed: int = 0
    count_unique: bool = True
    samples_a_unit: int = 1
    sample_at_rows: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.batch_size < 1 << 29:
            raise ValueError(f"a batch has at least one sample and fewer than 2**29, got {self.batch_size}")
        if not 2 <= self.max_rows < 1 << 31 or not 0 <= self.hot_rows < self.max_rows:
            raise ValueError(
                f"at least 2 rows are tracked, fewer of them as the hottest; got {self.max_rows} and {self.hot_rows}"
            )
        if self.max_accesses < 1:
            raise ValueError(f"max_accesses must be at least 1, got {self.max_accesses}")
        if self.samples_a_unit < 1 or batch_sizes(self.batch_size)[0] % self.samples_a_unit:
            raise ValueError(f"samples_a_unit must divide a quarter of the batch, got {self.samples_a_unit}")


def batch_sizes(batch_size: int) -> tuple[int, ...]:
    """Return the batch sizes of the curves: BATCH_FACTORS of this one, whole ones only."""
    return tuple(int(batch_size * factor) for factor in BATCH_FACTORS if (batch_size * factor).is_integer())


class LookupTracker:
    """Tracks the lookups of tables; measure.profile_of() makes a profile of it, at any time. Not thread-safe."""

    def __init__(self, tables: Sequence[TableLayout], spec: TrackingSpec) -> None:
        self.spec = spec
        self.batch_sizes = batch_sizes(spec.batch_size)
        self.num_samples = 0
        self.full = False
        self.samples_a_unit = spec.samples_a_unit
        self.tables: list[TableLayout] = []
        self.tracked: list[_native.TrackedTable] = []
        for table in tables:
            self.add_table(table)

    def add_table(self, table: TableLayout) -> int:
        """Return the number of a new table."""
        if any(known.name == table.name for known in self.tables):
            raise ValueError(f"a profile has names that differ; there is a table {table.name!r} already")
        self.tables.append(table)
        self.tracked.append(
            _native.TrackedTable(
                max_rows=self.spec.max_rows,
                hot_rows=self.spec.hot_rows,
                seed=self.spec.seed,
                batch_sizes=self.batch_sizes if self.spec.count_unique else (),
                rows_per_page=table.rows_per_page,
                samples_a_unit=self.samples_a_unit,
                sample_at_rows=self.spec.sample_at_rows,
            )
        )
        return len(self.tables) - 1

    def add(self, table: int, rows: NDArray[np.int64], samples: NDArray[np.int64]) -> None:
        """Track lookups of rows[i] by sample samples[i]; samples ascend, over all calls for a table.

        Nothing happens once the tracker is `full`. Raises: OutsideTableError naming the first.
        """
        if self.full or not len(rows):
            return
        shape = self.tables[table]
        if shape.num_embeddings is not None:
            outside = np.flatnonzero((rows < 0) | (rows >= shape.num_embeddings))
            if outside.size:
                raise OutsideTableError(
                    f"table {shape.name!r}, sample {samples[outside[0]]}: row {rows[outside[0]]} is not in "
                    f"[0, {shape.num_embeddings})"
                )
        self.tracked[table].add(np.ascontiguousarray(rows, np.int64), np.ascontiguousarray(samples, np.int64))
        self.num_samples = max(self.num_samples, int(samples[-1]) + 1)

    def end_samples(self, num_samples: int) -> None:
        """Say that the lookups of the first `num_samples` samples are in; keeps the memory bounded."""
        if self.full:
            return
        self.num_samples = max(self.num_samples, num_samples)
        if self._num_accesses() <= self.spec.max_accesses:
            return
        for table in self.tracked:
            table.sample()
        while self._num_accesses() > self.spec.max_accesses // 2 and self._may_coarsen():
            self.samples_a_unit *= 2
            for table in self.tracked:
                table.coarsen()
        self.full = self._num_accesses() > self.spec.max_accesses * 3 // 4

    def _may_coarsen(self) -> bool:
        return self.batch_sizes[0] % (2 * self.samples_a_unit) == 0

    def _num_accesses(self) -> int:
        return sum(table.num_accesses for table in self.tracked)
