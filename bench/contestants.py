"""Those who do a workload: mtrains with all rows resident, mtrains with a cache that always hits, and its peers."""

from __future__ import annotations

from typing import Protocol

import torch

import mtrains
from bench.workload import EPS, INITIAL_VALUE, LEARNING_RATE, Workload


class Contestant(Protocol):
    """One way to do a workload. The first call of everything is part of the warm-up."""

    name: str
    row_wise: bool  # whether its optimizer is row-wise Adagrad, so that rows can be compared

    def forward(self, batch: int) -> torch.Tensor:
        """Return the pooled rows without gradient, [B, T * D]."""

    def step(self, batch: int) -> None:
        """Forward, backward from the workload's gradient, update."""

    def close(self) -> None:
        """Give memory and files back."""


class Mtrains:
    """mtrains: resident (the tables fit the budget), or cached (they do not, but every access hits)."""

    row_wise = True

    def __init__(self, workload: Workload, *, cached: bool) -> None:
        self.name = "mtrains cached" if cached else "mtrains resident"
        self._workload = workload
        record_bytes = 4 * workload.dim + 4
        slot_bytes = record_bytes + (16 if cached else 0)
        budget = workload.num_tables * workload.num_rows * slot_bytes
        self._store = mtrains.Store(dram=budget + (1 << 20), seed=1)
        init = mtrains.init.constant(INITIAL_VALUE)
        tables = [
            mtrains.TableSpec(f"t{number}", workload.num_rows, workload.dim, init=init)
            for number in range(workload.num_tables)
        ]
        self._bags = mtrains.TieredEmbeddingBagCollection(tables, store=self._store)
        params = list(self._bags.parameters())
        if cached:
            # A table that nobody looks up makes the store larger than its budget: rows are in slots then.
            larger = mtrains.TieredEmbeddingBag(
                1 << 40, workload.dim, mode="sum", init=init, store=self._store, name="larger"
            )
            params += list(larger.parameters())
        self._optimizer = mtrains.optim.RowWiseAdagrad(params, lr=LEARNING_RATE, eps=EPS)
        self._bring_all_in()

    def _bring_all_in(self) -> None:
        tables, rows = self._workload.num_tables, self._workload.num_rows
        for begin in range(0, rows, 1 << 16):
            ids = torch.arange(begin, min(rows, begin + (1 << 16)))
            self._bags(ids.repeat(tables), torch.arange(0, tables * len(ids) + 1))

    def forward(self, batch: int) -> torch.Tensor:
        with torch.no_grad():
            return self._bags(self._workload.indices[batch], self._workload.offsets)

    def step(self, batch: int) -> None:
        self._optimizer.zero_grad()
        self._bags(self._workload.indices[batch], self._workload.offsets).backward(self._workload.grad)
        self._optimizer.step()

    def close(self) -> None:
        self._store.close()


class Torch:
    """torch.nn.EmbeddingBag(sparse=True) and torch.optim.Adagrad (element-wise: torch has no row-wise one)."""

    name = "torch"
    row_wise = False

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        weight = torch.full((workload.num_rows, workload.dim), INITIAL_VALUE)
        self._bags = [
            torch.nn.EmbeddingBag.from_pretrained(weight.clone(), freeze=False, mode="sum", sparse=True)
            for _ in range(workload.num_tables)
        ]
        self._optimizer = torch.optim.Adagrad([bag.weight for bag in self._bags], lr=LEARNING_RATE)
        self._grads = self._workload.grad.split(workload.dim, 1)

    def _lookup(self, batch: int) -> list[torch.Tensor]:
        return [bag(*self._workload.of_table(batch, number)) for number, bag in enumerate(self._bags)]

    def forward(self, batch: int) -> torch.Tensor:
        with torch.no_grad():
            return torch.cat(self._lookup(batch), 1)

    def step(self, batch: int) -> None:
        self._optimizer.zero_grad()
        torch.autograd.backward(self._lookup(batch), list(self._grads))
        self._optimizer.step()

    def close(self) -> None:
        pass


class Fbgemm:
    """FBGEMM's table-batched embedding on the CPU with its fused row-wise Adagrad."""

    name = "fbgemm"
    row_wise = True

    def __init__(self, workload: Workload) -> None:
        import fbgemm_gpu  # noqa: F401 (registers the operators)
        from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
            ComputeDevice,
            EmbeddingLocation,
            OptimType,
            SplitTableBatchedEmbeddingBagsCodegen,
        )

        self._workload = workload
        self._bags = SplitTableBatchedEmbeddingBagsCodegen(
            [(workload.num_rows, workload.dim, EmbeddingLocation.HOST, ComputeDevice.CPU)]
            * workload.num_tables,
            optimizer=OptimType.EXACT_ROWWISE_ADAGRAD,
            learning_rate=LEARNING_RATE,
            eps=EPS,
        )
        for weight in self._bags.split_embedding_weights():
            weight.fill_(INITIAL_VALUE)

    def forward(self, batch: int) -> torch.Tensor:
        with torch.no_grad():
            return self._bags(self._workload.indices[batch], self._workload.offsets)

    def step(self, batch: int) -> None:
        self._bags(self._workload.indices[batch], self._workload.offsets).backward(self._workload.grad)

    def close(self) -> None:
        pass
