"""Embedding tables larger than memory for PyTorch, trained with exactly the bits of in-memory training."""

from __future__ import annotations

import importlib
from importlib import metadata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mtrains import init, optim
    from mtrains.block_reader import BlockReader
    from mtrains.collection import TieredEmbeddingBagCollection
    from mtrains.devices import EmulatedDevice
    from mtrains.embedding_bag import TieredEmbedding, TieredEmbeddingBag
    from mtrains.errors import (
        CapacityError,
        FormatError,
        MtrainsError,
        PlanInfeasibleError,
        StateError,
        TierIOError,
    )
    from mtrains.hbm import Hbm
    from mtrains.ignored import ignored_parameters
    from mtrains.placement.plan import PlacementPlan
    from mtrains.placement.planner import plan
    from mtrains.placement.topology import Topology
    from mtrains.placement.workload import Workload
    from mtrains.prefetch.loader import prefetch
    from mtrains.profiler.profile import LocalityProfile
    from mtrains.profiler.recorder import Recorder
    from mtrains.scm import Scm
    from mtrains.specs import TableSpec
    from mtrains.store import Store
    from mtrains.threads import get_num_threads, set_num_threads

__all__ = [
    "BlockReader",
    "CapacityError",
    "EmulatedDevice",
    "FormatError",
    "Hbm",
    "LocalityProfile",
    "MtrainsError",
    "PlacementPlan",
    "PlanInfeasibleError",
    "Recorder",
    "Scm",
    "StateError",
    "Store",
    "TableSpec",
    "TierIOError",
    "TieredEmbedding",
    "TieredEmbeddingBag",
    "TieredEmbeddingBagCollection",
    "Topology",
    "Workload",
    "get_num_threads",
    "ignored_parameters",
    "init",
    "optim",
    "plan",
    "prefetch",
    "set_num_threads",
]

# Where each name is. It is imported when it is first used (PEP 562), so that `mtrains --help` does not import torch.
_HOMES = {
    "BlockReader": "block_reader",
    "CapacityError": "errors",
    "EmulatedDevice": "devices",
    "FormatError": "errors",
    "Hbm": "hbm",
    "LocalityProfile": "profiler.profile",
    "MtrainsError": "errors",
    "PlacementPlan": "placement.plan",
    "PlanInfeasibleError": "errors",
    "Recorder": "profiler.recorder",
    "Scm": "scm",
    "StateError": "errors",
    "Store": "store",
    "TableSpec": "specs",
    "TierIOError": "errors",
    "TieredEmbedding": "embedding_bag",
    "TieredEmbeddingBag": "embedding_bag",
    "TieredEmbeddingBagCollection": "collection",
    "Topology": "placement.topology",
    "Workload": "placement.workload",
    "get_num_threads": "threads",
    "ignored_parameters": "ignored",
    "plan": "placement.planner",
    "prefetch": "prefetch.loader",
    "set_num_threads": "threads",
}


def __getattr__(name: str) -> object:
    if name in ("init", "optim"):
        return importlib.import_module(f"mtrains.{name}")
    if name == "__version__":
        return metadata.version("mtrains")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'mtrains' has no attribute {name!r}")
    try:
        value = getattr(importlib.import_module(f"mtrains.{home}"), name)
    except ImportError as error:
        if "_native" not in str(error):
            raise
        raise ImportError(
            f"the native module of mtrains is missing or does not load ({error}); build it with `pip install .` in "
            "the source tree, which needs a C++20 compiler",
            name=error.name,
        ) from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
