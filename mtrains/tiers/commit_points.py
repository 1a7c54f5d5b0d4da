"""The moments of the storage protocol between which a crash may come, by name, for tests that crash there."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

__all__ = ["CommitPoint", "PassedPoint", "pass_silently"]


class CommitPoint(Enum):
    """What has just happened when `PassedPoint` is called (storage.md, "Crash protocol")."""

    CREATE_BEGUN = "the folder of a new store is locked, and empty"
    CREATE_ROWS = "rows.lmdb of a new store is durable"
    CREATE_CATALOG = "catalog.lmdb of a new store is durable"
    CREATE_FOLDERS = "the names of both are durable"
    CREATE_DESCRIBED = "store.json is durable under another name"
    CREATE_RENAMED = "store.json has its name"
    CREATE_DONE = "that name is durable"
    OPEN_READ = "both environments were opened and read, nothing is written yet"
    OPEN_INCARNATION = "the new incarnation is committed"
    OPEN_LOADED = "the engine is at the last checkpoint, the writer thread runs"
    APPEND_SEALED = "a group of segments is sealed and waits for its commit"
    APPEND_COMMITTED = "a group of segments is committed"
    APPEND_PUBLISHED = "readers know where that group lies"
    DELETE_CHOSEN = "segments that nothing needs were chosen for the next commit, perhaps beside a group"
    DELETE_COMMITTED = "that commit is done"
    ORPHANS_DELETED = "segments that no checkpoint names were deleted"
    GC_EVACUATED = "the live rows of a segment were appended again"
    CHECKPOINT_BEGUN = "a checkpoint's moment is fixed"
    CHECKPOINT_SWEPT = "nothing of its epoch is owed, its last segment is sealed"
    CHECKPOINT_WRITTEN = "its segments are committed"
    CHECKPOINT_SYNCED = "its segments are durable"
    CHECKPOINT_COMMITTED = "the catalog has it"
    CHECKPOINT_FINISHED = "the engine knows that, what it dropped may be deleted"
    CATALOG_STAGED = "a transaction of the catalog is complete but for its commit"
    CATALOG_COMMITTED = "a transaction of the catalog is committed"
    FOLD_COMMITTED = "some base pages of a fold are committed"
    FOLD_DONE = "the deltas that were folded are dropped"
    MARKS_CHANGED = "a checkpoint was pinned or released, and what nothing keeps was dropped"
    RESTORE_BEGUN = "a restore waits for nothing any more"
    RESTORE_COMMITTED = "the catalog is back at the checkpoint"
    RESTORE_STOPPED = "the engine of what was dropped is closed"
    RESTORE_LOADED = "another engine is at the checkpoint"
    CLOSE_BEGUN = "closing has begun"
    CLOSE_STOPPED = "engine and writer thread are stopped"
    CLOSE_DONE = "the environments are closed, the lock is held"


# Called on the thread that passed the point, with the locks that it holds: it must return soon, or never.
PassedPoint = Callable[[CommitPoint], None]


def pass_silently(point: CommitPoint) -> None:
    """Do nothing: what a store does but in tests."""
