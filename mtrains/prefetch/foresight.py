"""What a batch will look up: the tickets of a batch, from what the user's `inputs` says of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

from mtrains.errors import StateError
from mtrains.lookup import Bags, PooledLookup
from mtrains.prefetch.ticket import Ticket

__all__ = ["Foreseeing", "Inputs", "tickets_of"]


@runtime_checkable
class Foreseeing(Protocol):
    """A module that can tell which lookups its forward will make."""

    @property
    def lookups_of(self) -> Callable[..., list[tuple[PooledLookup, Bags]]]:
        """Return the lookups that forward() makes of the same arguments, in their order."""


_Batch = TypeVar("_Batch")
# batch -> {module: arguments of its forward}
Inputs = Callable[[_Batch], Mapping[Any, Any]]


def tickets_of(inputs: Inputs[_Batch], batch: _Batch) -> list[Ticket]:
    """Return the tickets of a batch.

    Raises: TypeError, ValueError: `inputs` returned what is not {module: arguments}, or arguments that the module
    does not take. Indices out of range and wrong offsets are left to the forward, which names them.
    """
    lookups = inputs(batch)
    if not isinstance(lookups, Mapping):
        raise TypeError(
            f"inputs(batch) must return a mapping of modules to their arguments, got {type(lookups).__name__}"
        )
    tickets: list[Ticket] = []
    for module, given in lookups.items():
        if not isinstance(module, Foreseeing):
            raise TypeError(f"inputs(batch) names a {type(module).__name__}, which is no tiered module")
        for arguments in _calls(given):
            for lookup, bags in module.lookups_of(*arguments):
                ticket = _ticket(lookup, bags)
                if ticket is not None:
                    tickets.append(ticket)
    return tickets


def _calls(given: object) -> Sequence[tuple[Any, ...]]:
    """Return the arguments of each call: of one, or a list of tuples of several."""
    if isinstance(given, list) and given and all(isinstance(item, tuple) for item in given):
        return given
    if isinstance(given, (tuple, list)):
        return [tuple(given)]
    if given is None or isinstance(given, (str, bytes, Mapping)):
        raise TypeError(f"inputs(batch) gives a module {type(given).__name__}, not the arguments of its forward")
    return [(given,)]


def _ticket(lookup: PooledLookup, bags: Bags) -> Ticket | None:
    if bags.indices.numel() == 0:
        return None  # nothing to bring
    try:
        return Ticket(lookup, bags)
    except StateError:
        store = lookup.store  # StateError if it is closed
        store.check_open()
        return None  # it was restored meanwhile
    except (IndexError, ValueError):
        return None  # the forward of this batch says what is wrong, where the user sees which batch it is

