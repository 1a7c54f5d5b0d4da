"""prefetch(): any loader, with the rows of its next batches brought before they are needed."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

from mtrains import _native
from mtrains.prefetch.foresight import Inputs
from mtrains.prefetch.pipeline import Pipeline, PipelineTimes

__all__ = ["MAX_DEPTH", "PrefetchIterator", "PrefetchedLoader", "prefetch"]

MAX_DEPTH = _native.MAX_SIMULATED_DEPTH  # a slot counts so many pins

_Batch = TypeVar("_Batch")


def prefetch(
    loader: Iterable[_Batch], inputs: Inputs[_Batch], *, lookahead: int = 64, depth: int = 2
) -> PrefetchedLoader[_Batch]:
    """Wrap a loader: it yields the same batches in the same order, and their rows are there when they come.

    No bit changes, whatever lookahead and depth are. A background thread reads `lookahead` batches ahead, whose ids
    decide which rows leave a tier (those that are needed last), and another brings the rows of the next `depth`
    batches to the tier that computes and keeps them there until their forward. So batches are held in memory, as many
    as are read ahead. A lookup that `inputs` does not name is served as without prefetch, on demand.

    Args:
        loader: a DataLoader or any other iterable of batches.
        inputs: called with each batch, on a thread of its own: {module: arguments of its forward}, for modules of this
            package: a tensor, a tuple such as (indices, offsets), or a list of tuples where the module is called
            several times a batch. It must give what the model will be given: lookups are recognised by their content.
        lookahead: batches of ids that are known ahead, >= 0; 0: rows leave by recent use alone.
        depth: batches whose rows are brought ahead, 0 to 30; 0: rows are fetched on demand. It shrinks by itself while
            rows that wait for their forward would take more than a third of the tier.
    Returns:
        A loader: iterate it as often as the one inside, whose attributes it has (len, batch_size, dataset, sampler,
        set_epoch, ...). state_dict() is that of the batch given out last, not of the one read last.
    Raises:
        TypeError, ValueError: arguments. What the loader or `inputs` raises comes up with its batch, in order.

    Batches are read long before they are used: a loader that fills the same tensors again and again must copy them.
    A dataset that draws from torch's global generator in this process does so on another thread, earlier than without
    prefetch: give it a generator of its own, or workers.
    """
    if not isinstance(loader, Iterable):
        raise TypeError(f"loader must be iterable, got {type(loader).__name__}")
    if not callable(inputs):
        raise TypeError(f"inputs must be callable: batch -> {{module: arguments}}, got {type(inputs).__name__}")
    lookahead, depth = operator.index(lookahead), operator.index(depth)
    if lookahead < 0:
        raise ValueError(f"lookahead must be >= 0, got {lookahead}")
    if not 0 <= depth <= MAX_DEPTH:
        raise ValueError(f"depth must be from 0 to {MAX_DEPTH}, got {depth}")
    return PrefetchedLoader(loader, inputs, lookahead, depth)


class PrefetchedLoader(Generic[_Batch]):
    """What prefetch() returns: a loader around a loader."""

    def __init__(self, loader: Iterable[_Batch], inputs: Inputs[_Batch], lookahead: int, depth: int) -> None:
        self.loader = loader
        self.inputs = inputs
        self.lookahead = lookahead
        self.depth = depth
        self._given_state: object = None  # of the loader, as of the batch that was given out last

    def __iter__(self) -> PrefetchIterator[_Batch]:
        """Begin a pass over the loader. Close it, or let it end or go, and its threads end."""
        self._given_state = None
        return PrefetchIterator(self)

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]  # TypeError where it has none, as it should be

    def __bool__(self) -> bool:
        return True  # a loader without a length too

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 whatever the loader has
        if name.startswith("__") or name == "loader":
            raise AttributeError(name)
        return getattr(self.loader, name)

    def state_dict(self) -> object:
        """Return the loader's state as of the batch that was given out last."""
        if self._given_state is not None:
            return self._given_state
        return self.loader.state_dict()  # type: ignore[attr-defined]

    def load_state_dict(self, state: object) -> None:
        """Set the loader's state; the next iteration goes on from there."""
        self._given_state = None
        self.loader.load_state_dict(state)  # type: ignore[attr-defined]


class PrefetchIterator(Iterator[_Batch]):
    """One pass over a loader. A context manager; close() is implied when it ends, fails or is dropped."""

    def __init__(self, owner: PrefetchedLoader[_Batch]) -> None:
        self._owner = owner
        self._pipeline = Pipeline(iter(owner.loader), owner.loader, owner.inputs, owner.lookahead, owner.depth)
        self.close = weakref.finalize(self, self._pipeline.close)

    def __iter__(self) -> PrefetchIterator[_Batch]:
        return self

    def __next__(self) -> _Batch:
        """Return the next batch. Raises: StopIteration; what the loader or `inputs` raised for it."""
        if not self.close.alive:
            raise StopIteration
        try:
            batch = self._pipeline.next()
        except StopIteration:
            self._owner._given_state = None  # the loader's own is of the end
            self.close()
            raise
        except Exception:  # but Ctrl-C may be survived
            self.close()
            raise
        self._owner._given_state = self._pipeline.loader_state
        return batch

    def __enter__(self) -> PrefetchIterator[_Batch]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def times(self) -> PipelineTimes:
        """What the iteration waited for so far."""
        return self._pipeline.times
