"""Opening the arena that an Scm asks for."""

from __future__ import annotations

from pathlib import Path

from mtrains.scm import Scm
from mtrains.tiers.scm import ScmArena
from mtrains.tiers.scm_lmdb import LmdbArena, lmdb_file_bytes
from mtrains.tiers.scm_memory import AnonymousArena, FileArena
from mtrains.tiers.scm_places import NumaNode, choose_place

__all__ = ["describe_scm", "open_scm_arena"]


def open_scm_arena(config: Scm, folder: Path) -> ScmArena:
    """Open the arena of a store whose own folder is `folder`, where it lies if there is no better place.

    Raises: ValueError (no such NUMA node), StateError (no place for this provider), CapacityError (no room),
    TierIOError.
    """
    capacity = config.capacity_bytes
    provider = config.effective_provider
    if provider == "anonymous":
        return AnonymousArena(capacity, None if config.numa_node is None else NumaNode(config.numa_node))
    if provider == "file":
        return FileArena(capacity, choose_place(config.folder, None, capacity))
    return LmdbArena(capacity, choose_place(config.folder, folder, lmdb_file_bytes(capacity)))


def describe_scm(config: Scm, arena: ScmArena) -> str:
    """Return what the tier is, for people: its arena, and what it emulates."""
    if config.device is None:
        return arena.description
    return f"{arena.description}, emulated {config.device.name}"
