"""What does Python cost a step? Batches of one index leave almost nothing else. (design target: Python per step)"""

from __future__ import annotations

from collections.abc import Callable

import torch

import mtrains
from bench.harness import Options, Result, Target, environment, interleave

NUM_TABLES = 26
DIM = 16
WARM_UP = 50


def _separate(num_modules: int) -> tuple[Callable[[int], object], mtrains.Store]:
    store = mtrains.Store(dram="64MiB", seed=1)
    bags = [
        mtrains.TieredEmbeddingBag(10, DIM, mode="sum", store=store, name=f"t{number}")
        for number in range(num_modules)
    ]
    optimizer = mtrains.optim.RowWiseAdagrad([bag.weight for bag in bags], lr=0.1)
    indices, grad = torch.zeros(1, 1, dtype=torch.int64), torch.ones(1, DIM)

    def step(batch: int) -> None:
        optimizer.zero_grad()
        outputs = [bag(indices) for bag in bags]
        torch.autograd.backward(outputs, [grad] * num_modules)
        optimizer.step()

    return step, store


def _collection(num_tables: int) -> tuple[Callable[[int], object], mtrains.Store]:
    store = mtrains.Store(dram="64MiB", seed=1)
    tables = [mtrains.TableSpec(f"t{number}", 10, DIM) for number in range(num_tables)]
    bags = mtrains.TieredEmbeddingBagCollection(tables, store=store)
    optimizer = mtrains.optim.RowWiseAdagrad(bags.parameters(), lr=0.1)
    indices, offsets = torch.zeros(num_tables, dtype=torch.int64), torch.arange(num_tables + 1)
    grad = torch.ones(1, num_tables * DIM)

    def step(batch: int) -> None:
        optimizer.zero_grad()
        bags(indices, offsets).backward(grad)
        optimizer.step()

    return step, store


def _torch(num_modules: int) -> Callable[[int], object]:
    bags = [torch.nn.EmbeddingBag(10, DIM, mode="sum", sparse=True) for _ in range(num_modules)]
    optimizer = torch.optim.SGD([bag.weight for bag in bags], lr=0.1)
    indices, grad = torch.zeros(1, 1, dtype=torch.int64), torch.ones(1, DIM)

    def step(batch: int) -> None:
        optimizer.zero_grad()
        torch.autograd.backward([bag(indices) for bag in bags], [grad] * num_modules)
        optimizer.step()

    return step


def main(options: Options) -> list[Result]:
    """Measure collections of 1 and 26 tables and 1 and 26 separate modules, with nn.EmbeddingBag beside them."""
    where = environment()
    calls: dict[str, Callable[[int], object]] = {}
    stores = []
    for name, make, count in (
        ("collection of 1", _collection, 1),
        (f"collection of {NUM_TABLES}", _collection, NUM_TABLES),
        ("1 module", _separate, 1),
        (f"{NUM_TABLES} modules", _separate, NUM_TABLES),
    ):
        calls[name], store = make(count)
        stores.append(store)
    calls[f"{NUM_TABLES} nn.EmbeddingBag"] = _torch(NUM_TABLES)
    timings = interleave(calls, rounds=20 * options.rounds, warm_up=WARM_UP, batches=1)
    result = Result(
        question="python overhead",
        parameters={"dim": DIM, "batch_size": 1},
        timings=timings,
        baseline=f"{NUM_TABLES} nn.EmbeddingBag",
        environment=where,
        targets={
            "collection: us a table": Target(value=20, at_most=True),
            "collection: us beside its tables": Target(value=150, at_most=True),
            "separate modules: us each": Target(value=60, at_most=True),
        },
    )
    p10 = {timing.name: 1e6 * timing.percentile(10) for timing in timings}
    per_table = (p10[f"collection of {NUM_TABLES}"] - p10["collection of 1"]) / (NUM_TABLES - 1)
    result.figures["collection: us a table"] = per_table
    result.figures["collection: us beside its tables"] = p10["collection of 1"] - per_table
    result.figures["separate modules: us each"] = p10[f"{NUM_TABLES} modules"] / NUM_TABLES
    for store in stores:
        store.close()
    return [result]
