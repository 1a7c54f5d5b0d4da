"""state_dict by reference: a small tensor that names a committed epoch of the store, never the rows."""

from __future__ import annotations

import json
import weakref
from typing import Any

import torch

from mtrains.errors import StateError
from mtrains.store import Store, Table

__all__ = ["load_reference", "reference_to"]

_FORMAT = "mtrains.reference.1"


def reference_to(table: Table) -> torch.Tensor:
    """Return uint8[n], JSON that names the table, its store and an epoch with the present rows.

    Commits a checkpoint if rows changed since the last one. The epoch is kept until `store.release(epoch)`.
    """
    store = table.store
    reference = {
        "format": _FORMAT,
        "store": store.uuid,
        "epoch": store.hold_epoch(),
        "table": table.name,
    }
    return torch.frombuffer(bytearray(json.dumps(reference, sort_keys=True).encode()), dtype=torch.uint8)


def load_reference(table: Table, reference: torch.Tensor, error_msgs: list[str], own_table: Table) -> None:
    """Take one table's part in a load_state_dict(); restores the store when all of its tables were named.

    error_msgs: the list that torch passes to every module of one load_state_dict() and raises at its end if
    it is not empty. It holds a message as long as tables are missing.
    own_table: of a module that is tied to `table`, the table that it does not use; it needs no entry.
    Raises: StateError, and the store stays as it is: another store, or tables named with different epochs.
    """
    named = _parse(reference, table)
    store = table.store
    if named["table"] != table.name:
        raise StateError(
            f"state_dict names table {named['table']!r} where this module has table {table.name!r}"
        )
    if named["store"] != store.uuid:
        raise StateError(
            f"table {table.name!r}: state_dict is a reference to store {named['store']}, this is store "
            f"{store.uuid}{_place(store)}; open that store, or load an ordinary weight of shape "
            f"({table.spec.num_embeddings}, {table.spec.embedding_dim})"
        )
    load = _LOADS.get(store)
    if load is None or load.error_msgs is not error_msgs:
        load = _LOADS[store] = _Load(error_msgs, named["epoch"])
    if load.epoch != named["epoch"]:
        raise StateError(
            f"state_dict names epoch {named['epoch']} for table {table.name!r} and epoch {load.epoch} for "
            "others; a store goes back as a whole, so all of its tables must be saved by one state_dict()"
        )
    load.names |= {table.name, own_table.name}
    missing = [other.name for other in store.tables() if other.name not in load.names]
    if load.message in error_msgs:
        error_msgs.remove(load.message)
    if missing:
        load.message = (
            f"StateError: state_dict names epoch {load.epoch} of a store, but not for its tables {missing}; "
            "a store goes back as a whole, so load them together (nothing was restored)"
        )
        error_msgs.append(load.message)
        return
    del _LOADS[store]
    store.load_epoch(load.epoch)


class _Load:
    """One load_state_dict() in progress: the tables of a store that it has named so far."""

    def __init__(self, error_msgs: list[str], epoch: int) -> None:
        self.error_msgs = error_msgs
        self.epoch = epoch
        self.names: set[str] = set()
        self.message = ""


_LOADS: weakref.WeakKeyDictionary[Store, _Load] = weakref.WeakKeyDictionary()


def _parse(reference: torch.Tensor, table: Table) -> dict[str, Any]:
    try:
        named = json.loads(bytes(reference.cpu().contiguous().numpy()))
        if named["format"] != _FORMAT:
            raise ValueError
        return {"store": str(named["store"]), "epoch": int(named["epoch"]), "table": str(named["table"])}
    except (ValueError, KeyError, TypeError) as error:
        raise StateError(
            f"table {table.name!r}: state_dict has neither a reference of this version of mtrains nor a "
            "weight"
        ) from error


def _place(store: Store) -> str:
    return "" if store.path is None else f" at {store.path}"
