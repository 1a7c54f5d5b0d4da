"""The parameter that stands for a table: shape (num_embeddings, embedding_dim) and no storage."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import nn
from torch._ops import OpOverload

from mtrains.eager import outside_graphs
from mtrains.errors import StateError

if TYPE_CHECKING:
    from mtrains.store import Table

__all__ = ["CPU", "TableGraph", "TieredWeight"]

CPU = torch.device("cpu")

_aten = torch.ops.aten
_ALIASES = frozenset({_aten.detach.default, _aten.alias.default})


class TableGraph:
    """What autograd and the optimizer hold of one table; one object a table, shared by aliases of its weight.

    open: sequence numbers of the lookups whose backward may still come. Gradients are summed in forward
    order, so a sum is fixed only when no earlier lookup is open.
    optimizer: the mtrains optimizer that has the table, weakly.
    """

    __slots__ = (
        "__weakref__",
        "_untrained_pass",
        "device",
        "dtype",
        "next_sequence",
        "open",
        "optimizer",
        "shape",
        "store",
        "table",
        "weight",
    )

    def __init__(self, table: Table) -> None:
        self.table = table
        self.store = table.store  # a table knows its store weakly; whoever has the weight needs it open
        self.shape = (table.spec.num_embeddings, table.spec.embedding_dim)
        self.dtype = table.spec.dtype
        self.device = self.store.device
        self.next_sequence = 0
        self.open: set[int] = set()
        self.optimizer: Callable[[], torch.optim.Optimizer | None] = _no_optimizer
        self.weight: Callable[[], TieredWeight | None] = _no_weight
        self._untrained_pass: int | None = None

    def open_next(self) -> int:
        """Number a lookup whose backward may come; it is open until its number leaves `open`."""
        sequence = self.next_sequence
        self.next_sequence = sequence + 1
        self.open.add(sequence)
        return sequence

    def has_open_before(self, sequence: int) -> bool:
        """Whether a lookup made before `sequence` may still send a gradient."""
        return any(number < sequence for number in self.open)

    def attach(self, optimizer: torch.optim.Optimizer) -> None:
        """Name the optimizer that steps this table."""
        self.optimizer = weakref.ref(optimizer)
        self._untrained_pass = None

    def check_trained(self) -> None:
        """Refuse the second backward pass into a table that no mtrains optimizer has.

        Raises: StateError. One pass is let through: the optimizer may be made after it.
        """
        if self.optimizer() is not None:
            return
        graph_task = torch._C._current_graph_task_id()
        if self._untrained_pass is None:
            self._untrained_pass = graph_task
        elif self._untrained_pass != graph_task:
            raise StateError(
                f"table {self.table.name!r} received gradients in a second backward pass and no mtrains "
                "optimizer has it, so it would never change; give its weight to an optimizer of "
                "mtrains.optim (model.parameters() contains it), or freeze it with requires_grad_(False)"
            )


def _no_optimizer() -> None:
    return None


def _no_weight() -> None:
    return None


class TieredWeight(nn.Parameter):
    """A Parameter of shape (num_embeddings, embedding_dim) whose rows live in a store.

    It has shape, dtype, numel, requires_grad and a gradient (a RowGrad) as any parameter has, and no storage,
    so a table of 1e12 rows costs nothing. Operations on it other than detach raise NotImplementedError,
    copies and pickles TypeError. `TieredWeight.of(table)` returns the one weight of a table.
    """

    graph: TableGraph

    @staticmethod
    def __new__(cls: type[TieredWeight], graph: TableGraph, requires_grad: bool = True) -> TieredWeight:
        weight = torch.Tensor._make_wrapper_subclass(
            cls, graph.shape, dtype=graph.dtype, device=graph.device, requires_grad=requires_grad
        )
        weight.graph = graph
        return weight

    def __init__(self, graph: TableGraph, requires_grad: bool = True) -> None:
        pass  # all is done in __new__; nn.Parameter's signature does not fit

    @classmethod
    def of(cls, table: Table) -> TieredWeight:
        """Return the weight of `table`: modules that name one table of a store share one parameter."""
        graph = _GRAPHS.get(id(table))
        if graph is None:
            graph = _GRAPHS[id(table)] = TableGraph(table)
        weight = graph.weight()
        if weight is None:
            weight = cls(graph)
            graph.weight = weakref.ref(weight)
        return weight

    @property
    def table(self) -> Table:
        """The table of the store that holds the rows."""
        return self.graph.table

    @property
    def data(self) -> torch.Tensor:
        """An alias without gradient; it has no storage either."""
        return self.detach()

    @data.setter
    def data(self, value: torch.Tensor) -> NoReturn:
        self._refuse("assigning .data")

    def __repr__(self) -> str:  # type: ignore[override]
        rows, dim = self.shape
        return (
            f"TieredWeight(table={self.table.name!r}, num_embeddings={rows}, embedding_dim={dim}, "
            f"dtype={self.dtype}, requires_grad={self.requires_grad})"
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> NoReturn:
        raise TypeError(
            f"a copy of table {self.table.name!r} is refused, its rows live in the store; use to_dense() for "
            "a copy in memory, or open the store again with read_only=True"
        )

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(
            f"pickling table {self.table.name!r} is refused, its rows live in the store; save state_dict() "
            "(a reference to a checkpoint) or use store.checkpoint()"
        )

    def _refuse(self, operation: str) -> NoReturn:
        raise NotImplementedError(
            f"{operation}: the rows of table {self.table.name!r} are in its store, not in this tensor; look "
            "them up with the module, read them with read_rows(), set them with write_rows() or init=, train "
            "them with mtrains.optim, copy them with to_dense()"
        )

    @classmethod
    @outside_graphs
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: OpOverload,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        if func in _ALIASES:
            weight: TieredWeight = args[0]
            return cls(weight.graph, requires_grad=False)
        weight_or_none = _first_weight((args, tuple((kwargs or {}).values())))
        assert weight_or_none is not None
        weight_or_none._refuse(str(func))


def _first_weight(values: Sequence[object]) -> TieredWeight | None:
    for value in values:
        if type(value) is TieredWeight:
            return value
        if isinstance(value, (list, tuple)) and (found := _first_weight(value)) is not None:
            return found
    return None


# By id(table): a graph keeps its table alive, so no other table can get the id while the entry exists.
_GRAPHS: weakref.WeakValueDictionary[int, TableGraph] = weakref.WeakValueDictionary()
