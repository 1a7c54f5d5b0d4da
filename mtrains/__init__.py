"""Embedding tables larger than memory for PyTorch, trained with exactly the bits of in-memory training."""

from __future__ import annotations

try:
    from mtrains import _native as _native
except ImportError as error:
    raise ImportError(
        f"the native module of mtrains is missing or does not load ({error}); build it with `pip install .` "
        "in the source tree, which needs a C++20 compiler"
    ) from error

from mtrains import init, optim
from mtrains.collection import TieredEmbeddingBagCollection
from mtrains.embedding_bag import TieredEmbedding, TieredEmbeddingBag
from mtrains.errors import CapacityError, FormatError, MtrainsError, StateError, TierIOError
from mtrains.ignored import ignored_parameters
from mtrains.specs import TableSpec
from mtrains.store import Store
from mtrains.threads import get_num_threads, set_num_threads

__all__ = [
    "CapacityError",
    "FormatError",
    "MtrainsError",
    "StateError",
    "Store",
    "TableSpec",
    "TierIOError",
    "TieredEmbedding",
    "TieredEmbeddingBag",
    "TieredEmbeddingBagCollection",
    "get_num_threads",
    "ignored_parameters",
    "init",
    "optim",
    "set_num_threads",
]
