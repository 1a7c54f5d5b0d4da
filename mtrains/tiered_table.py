"""The part that all modules share: one table, its weight, reading and writing rows, state_dict."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
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
from mtrains.transfer.export import ExportOptions, Progress, export_table
from mtrains.transfer.sources import Rows, RowSource, open_source
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
        wanted = _flat_indices(indices)
        out = torch.empty((len(wanted), self.embedding_dim), dtype=self.weight.dtype)
        self._check_range(wanted)
        for begin, end in self._chunks(len(wanted)):
            part = out[begin:end]
            values = part if part.dtype is torch.float32 else torch.empty(part.shape)
            self.store.engine.read_rows(self.table.number, _numbers(wanted[begin:end]), values.numpy())
            if values is not part:
                part.copy_(values)
        return out

    def write_rows(self, indices: torch.Tensor, rows: torch.Tensor) -> None:
        """Set rows by id; of duplicates the last wins. Optimizer state stays. Rows count as touched.

        Args:
            indices: integers of any shape, each in [0, num_embeddings).
            rows: floating [len, D]; rounded to nearest even where the table has 16 bits.
        Raises:
            IndexError: an index is out of range; nothing has changed then. StateError: the store is
            read-only.
        """
        wanted = _flat_indices(indices)
        if not torch.is_floating_point(rows):
            raise TypeError(f"rows must be a floating-point tensor, got {rows.dtype}")
        if tuple(rows.shape) != (len(wanted), self.embedding_dim):
            raise ValueError(
                f"table {self.table.name!r}: rows must have shape ({len(wanted)}, {self.embedding_dim}) for "
                f"{len(wanted)} indices, got {tuple(rows.shape)}"
            )
        self._check_writable()
        self._check_range(wanted)
        self._check_padding_row(
            rows[begin:end][torch.eq(wanted[begin:end], self.padding_idx or 0).to(rows.device)]
            for begin, end in self._chunks(len(wanted))
        )
        for begin, end in self._chunks(len(wanted)):
            self._write(_numbers(wanted[begin:end]), rows[begin:end])

    def _write(self, numbers: NDArray[np.int64], rows: torch.Tensor) -> None:
        self.store.engine.write_rows(self.table.number, numbers, _values(rows))

    def _check_writable(self) -> None:
        self.store.check_writable()
        if self.store.read_only:
            raise StateError(
                f"table {self.table.name!r}: its store is open read-only, rows cannot be written"
            )

    def _check_range(self, wanted: torch.Tensor) -> None:
        """Raise IndexError for the first index that is out of range, before a part of them has been used."""
        for begin, end in self._chunks(len(wanted)):
            numbers = _numbers(wanted[begin:end])
            bad = np.flatnonzero((numbers < 0) | (numbers >= self.num_embeddings))
            if len(bad):
                raise IndexError(
                    f"table {self.table.name!r}: index {numbers[bad[0]]} at position {begin + bad[0]} is out of "
                    f"range [0, {self.num_embeddings})"
                )

    def _check_padding_row(self, written: Iterable[torch.Tensor]) -> None:
        """Raise ValueError if the row of padding_idx may not have one of these values; here it may have any.

        written: consumed only if it matters.
        """

    def _chunks(self, count: int) -> Iterator[tuple[int, int]]:
        rows = max(1, _CHUNK_BYTES // (4 * self.embedding_dim))
        for begin in range(0, count, rows):
            yield begin, min(begin + rows, count)

    def write_dense(self, weight: Rows, *, key: str | None = None) -> None:
        """Set all rows, in chunks, from what from_pretrained() takes; their number and length must be the
        table's.

        Raises: ValueError, TypeError, FormatError: the source does not fit, nothing has changed. Another error
            half way leaves the rows before it written and the store usable: call it again, or restore().
        """
        with open_source(weight, key) as source:
            self._write_source(source)

    def _write_source(self, source: RowSource) -> None:
        if source.shape != (self.num_embeddings, self.embedding_dim):
            raise ValueError(
                f"table {self.table.name!r}: expected a weight of shape "
                f"({self.num_embeddings}, {self.embedding_dim}), got {source.shape} from {source.name}"
            )
        self._check_writable()
        if self.padding_idx is not None:
            self._check_padding_row([source.read(self.padding_idx, self.padding_idx + 1)])
        for begin, end in self._chunks(self.num_embeddings):
            self._write(np.arange(begin, end), source.read(begin, end))

    def read_dense(self) -> torch.Tensor:
        """Return all rows as one ordinary tensor (N, D), which must fit in memory."""
        weight = torch.empty((self.num_embeddings, self.embedding_dim), dtype=self.weight.dtype)
        for begin, end in self._chunks(self.num_embeddings):
            weight[begin:end] = self.read_rows(torch.arange(begin, end))
        return weight

    def export(
        self,
        path: str | os.PathLike[str],
        *,
        optimizer_state: bool = False,
        dtype: torch.dtype | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Write all rows to a .safetensors or .npy file, by its suffix, in chunks; the opposite of
        from_pretrained(). Rows that were never touched have their initial values.

        The file appears under its name when it is complete and durable, in place of one that has it; after an
        error nothing of it is left. Call it between steps.

        Args:
            optimizer_state: a .safetensors file then holds, beside `weight`, the state of each row [N, values] by
                torch's names (`sum`, `exp_avg`, `exp_avg_sq`) and `step`.
            dtype: of `weight`; by default the table's. A .npy file cannot hold bfloat16.
            progress: called with the bytes written so far and the bytes of all.
        Raises:
            TierIOError: the disk has less room than the file needs (nothing was written then), or failed.
            StateError: rows changed meanwhile, or there is no optimizer state. ValueError: suffix or dtype.
        """
        self.store.check_open()
        options = ExportOptions(optimizer_state=optimizer_state, dtype=dtype, progress=progress)
        export_table(self.table, path, options)

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


def _flat_indices(indices: torch.Tensor) -> torch.Tensor:
    if (
        not isinstance(indices, torch.Tensor)
        or indices.dtype.is_floating_point
        or indices.dtype is torch.bool
    ):
        kind = indices.dtype if isinstance(indices, torch.Tensor) else type(indices).__name__
        raise TypeError(f"indices must be a tensor of integers, got {kind}")
    return indices.detach().reshape(-1)


def _numbers(indices: torch.Tensor) -> NDArray[np.int64]:
    array: NDArray[np.int64] = indices.to("cpu", torch.int64).contiguous().numpy()
    return array


def _values(rows: torch.Tensor) -> NDArray[np.float32]:
    array: NDArray[np.float32] = rows.detach().to("cpu", torch.float32).contiguous().numpy()
    return array
