"""The part that all modules share: one table, its weight, reading and writing rows, state_dict."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from mtrains.errors import StateError
from mtrains.specs import TableSpec
from mtrains.state import load_reference, reference_to
from mtrains.store import Store, Table
from mtrains.weight import TieredWeight

__all__ = ["TieredTable"]

_CHUNK_BYTES = 4 << 20  # of float32 rows copied at a time between tensors and tiers


class TieredTable(nn.Module):
    """A module with one table of a store as its parameter `weight`.

    `.to()`, `.cuda()`, `.half()` and the like leave the table as it is: its rows belong to the store. A
    checkpoint reference, not the rows, is in state_dict(). Two modules over one table of a store share one
    `weight`.
    """

    weight: TieredWeight

    def __init__(self, spec: TableSpec, store: Store) -> None:
        super().__init__()
        self._own_table = store.add_table(spec)
        self.weight = TieredWeight.of(self._own_table)

    @property
    def table(self) -> Table:
        """The table that `weight` stands for: this module's own, or the one of a module that it is tied to."""
        weight = self._parameters["weight"]
        return weight.graph.table if type(weight) is TieredWeight else self._own_table

    @property
    def store(self) -> Store:
        """The store of `table`."""
        weight = self._parameters["weight"]
        return weight.graph.store if type(weight) is TieredWeight else self._own_table.store

    @property
    def num_embeddings(self) -> int:
        """Rows of the table."""
        return self.table.spec.num_embeddings

    @property
    def embedding_dim(self) -> int:
        """Columns of the table."""
        return self.table.spec.embedding_dim

    @property
    def padding_idx(self) -> int | None:
        """The row that starts as zeros, never moves and counts in no sum; never negative."""
        return self._own_table.spec.padding_idx

    def checked_weight(self, weight: object) -> TieredWeight:
        """Return `weight` if it may stand in for this module's own: TypeError or ValueError says why not."""
        if type(weight) is not TieredWeight:
            raise TypeError(
                f"the weight of table {self._own_table.name!r} was replaced by a {type(weight).__name__}; only "
                "the weight of another tiered module can take its place (write_rows() or load_state_dict() "
                "set its rows)"
            )
        spec = weight.table.spec
        if spec.padding_idx != self.padding_idx:
            raise ValueError(
                f"the weight of table {spec.name!r} has padding_idx={spec.padding_idx}, this module has "
                f"{self.padding_idx}: modules that share a table must agree on it"
            )
        return weight

    def read_rows(self, indices: torch.Tensor) -> torch.Tensor:
        """Return rows by id, from whatever tier they are in. Changes nothing: not even what is cached.

        Args:
            indices: integers of any shape, duplicates welcome, each in [0, num_embeddings).
        Returns:
            [len, D] in the order of `indices`, of the table's dtype, on the CPU.
        Raises:
            IndexError: an index is out of range.
        """
        self.store.check_open()
        rows = _rows_array(indices)
        out = np.empty((len(rows), self.embedding_dim), np.float32)
        self.store.engine.read_rows(self.table.number, rows, out)
        return torch.from_numpy(out).to(self.weight.dtype)

    def write_rows(self, indices: torch.Tensor, rows: torch.Tensor) -> None:
        """Set rows by id; of duplicates the last wins. Optimizer state stays. Rows count as touched.

        Args:
            indices: integers of any shape, each in [0, num_embeddings).
            rows: floating [len, D]; rounded to nearest even where the table has 16 bits.
        Raises:
            IndexError: an index is out of range; nothing has changed then. StateError: the store is
            read-only.
        """
        self.store.check_writable()
        numbers = _rows_array(indices)
        if not torch.is_floating_point(rows):
            raise TypeError(f"rows must be a floating-point tensor, got {rows.dtype}")
        if tuple(rows.shape) != (len(numbers), self.embedding_dim):
            raise ValueError(
                f"table {self.table.name!r}: rows must have shape ({len(numbers)}, {self.embedding_dim}) for "
                f"{len(numbers)} indices, got {tuple(rows.shape)}"
            )
        values = rows.detach().to("cpu", torch.float32).contiguous().numpy()
        self._check_written(numbers, values)
        self.store.engine.write_rows(self.table.number, numbers, values)

    def _check_written(self, rows: NDArray[np.int64], values: NDArray[np.float32]) -> None:
        if self.store.read_only:
            raise StateError(
                f"table {self.table.name!r}: its store is open read-only, rows cannot be written"
            )

    def _chunks(self) -> Iterator[tuple[int, int]]:
        rows = max(1, _CHUNK_BYTES // (4 * self.embedding_dim))
        for begin in range(0, self.num_embeddings, rows):
            yield begin, min(begin + rows, self.num_embeddings)

    def write_dense(self, weight: torch.Tensor) -> None:
        """Set all rows from an ordinary weight of shape (N, D), in chunks."""
        if tuple(weight.shape) != (self.num_embeddings, self.embedding_dim):
            raise ValueError(
                f"table {self.table.name!r}: expected a weight of shape "
                f"({self.num_embeddings}, {self.embedding_dim}), got {tuple(weight.shape)}"
            )
        for begin, end in self._chunks():
            self.write_rows(torch.arange(begin, end), weight[begin:end])

    def read_dense(self) -> torch.Tensor:
        """Return all rows as one ordinary tensor (N, D), which must fit in memory."""
        weight = torch.empty((self.num_embeddings, self.embedding_dim), dtype=self.weight.dtype)
        for begin, end in self._chunks():
            weight[begin:end] = self.read_rows(torch.arange(begin, end))
        return weight

    def extra_repr(self) -> str:
        spec = self._own_table.spec
        parts = [
            str(spec.num_embeddings),
            str(spec.embedding_dim),
            f"name={spec.name!r}",
            f"mode={spec.mode!r}",
        ]
        if spec.padding_idx is not None:
            parts.append(f"padding_idx={spec.padding_idx}")
        return ", ".join(parts)

    # The weight is not torch's to convert, copy or load; what else a subclass or a caller registered here is.

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> TieredTable:
        with self._without_weight():
            super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        destination[prefix + "weight"] = reference_to(self.table)
        with self._without_weight():
            super()._save_to_state_dict(destination, prefix, keep_vars)

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Mapping[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        key, unexpected = prefix + "weight", list[str]()
        with self._without_weight():
            super()._load_from_state_dict(
                state_dict, prefix, local_metadata, strict, missing_keys, unexpected, error_msgs
            )
        unexpected_keys.extend(other for other in unexpected if other != key)
        value = state_dict.get(key)
        if value is None:
            missing_keys.append(key)
        elif value.dtype is torch.uint8 and value.ndim == 1:
            load_reference(self.table, value, error_msgs, self._own_table)
        elif tuple(value.shape) != (self.num_embeddings, self.embedding_dim):
            error_msgs.append(
                f"size mismatch for {key}: copying a param with shape {value.shape} from checkpoint, the "
                f"shape in current model is {self.weight.shape}."
            )
        else:
            self.write_dense(value)

    @contextmanager
    def _without_weight(self) -> Iterator[None]:
        others = self._parameters
        self._parameters = {name: param for name, param in others.items() if name != "weight"}
        try:
            yield
        finally:
            self._parameters = {"weight": others["weight"]} | self._parameters


def _rows_array(indices: torch.Tensor) -> NDArray[np.int64]:
    if (
        not isinstance(indices, torch.Tensor)
        or indices.dtype.is_floating_point
        or indices.dtype is torch.bool
    ):
        kind = indices.dtype if isinstance(indices, torch.Tensor) else type(indices).__name__
        raise TypeError(f"indices must be a tensor of integers, got {kind}")
    array: NDArray[np.int64] = indices.detach().to("cpu", torch.int64).reshape(-1).contiguous().numpy()
    return array
