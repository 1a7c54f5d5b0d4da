"""What a table is: its name, shape, features and initial values."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mtrains.init import Init, normal

__all__ = ["DTYPES", "MAX_TABLE_ROWS", "MODES", "TableSpec"]

MAX_EMBEDDING_DIM = 1 << 27  # of the kernels
MODES = ("sum", "mean", "max")
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
MAX_TABLE_ROWS = 1 << 44  # all tables of a store together: 2^46 rows (native/include/mtrains/slot_index.h)


@dataclass(frozen=True)
class TableSpec:
    """One embedding table.

    name: unique in its store. num_embeddings: rows, >= 0. embedding_dim: columns, >= 1.
    features: names of the features that look this table up, in order; one by default, named as the table.
    mode: "sum", "mean" or "max" pooling. init: initial values, `mtrains.init.normal(0, 1)` by default.
    dtype: torch.float32 (default), torch.float16 or torch.bfloat16; sums are float32 in every case.
    padding_idx: a row that starts as zeros, never moves and counts in no sum; negative counts from the end.
    """

    name: str
    num_embeddings: int
    embedding_dim: int
    features: tuple[str, ...] = ()
    mode: str = "sum"
    init: Init | None = None
    dtype: torch.dtype | None = None
    padding_idx: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ValueError(f"a table needs a name, got {self.name!r}")
        for field in ("num_embeddings", "embedding_dim"):
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"table {self.name!r}: {field} must be an int, got {type(value).__name__}")
        if not 0 <= self.num_embeddings <= MAX_TABLE_ROWS:
            raise ValueError(
                f"table {self.name!r}: num_embeddings must be in [0, 2**44], got {self.num_embeddings}"
            )
        if not 1 <= self.embedding_dim <= MAX_EMBEDDING_DIM:
            raise ValueError(
                f"table {self.name!r}: embedding_dim must be in [1, 2**27], got {self.embedding_dim}"
            )
        if self.mode not in MODES:
            raise ValueError(f"table {self.name!r}: mode must be one of {MODES}, got {self.mode!r}")
        features = (self.features,) if isinstance(self.features, str) else tuple(self.features)
        object.__setattr__(self, "features", features or (self.name,))
        if not isinstance(self.init, (Init, type(None))):
            raise TypeError(
                f"table {self.name!r}: init must be of mtrains.init (normal, uniform, constant, zeros), got "
                f"{type(self.init).__name__}; existing rows come by from_pretrained() or load_state_dict()"
            )
        object.__setattr__(self, "init", self.init if self.init is not None else normal(0.0, 1.0))
        dtype = self.dtype if self.dtype is not None else torch.float32
        if dtype not in DTYPES.values():
            raise ValueError(f"table {self.name!r}: dtype must be float32, float16 or bfloat16, got {dtype}")
        object.__setattr__(self, "dtype", dtype)
        padding = self.padding_idx
        if padding is not None:
            if not -self.num_embeddings <= padding < self.num_embeddings:
                raise ValueError(
                    f"table {self.name!r}: padding_idx must be within num_embeddings "
                    f"{self.num_embeddings}, got {padding}"
                )
            object.__setattr__(self, "padding_idx", padding % self.num_embeddings)
