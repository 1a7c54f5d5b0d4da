"""`mtrains demo`: the bundled sample trained three ways, to show that a small memory budget changes no bit.

1. a store whose budget holds every row, so that nothing leaves DRAM;
2. a store whose budget is a quarter of the bytes touched, so that rows come from the SSD and go there;
3. the control: nn.EmbeddingBag and torch.optim, from the same initial rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from importlib import resources
from typing import Any

import numpy as np
import torch
from torch import nn

from mtrains.collection import TieredEmbeddingBagCollection
from mtrains.specs import TableSpec
from mtrains.store import Store
from mtrains.tiered_table import TieredTable
from mtrains.train.checkpoint import Position
from mtrains.train.config import ModelShape, TrainConfig
from mtrains.train.data.schema import schema_of_columns
from mtrains.train.data.stream import ReadLog
from mtrains.train.dlrm import build_dlrm
from mtrains.train.loop import RecordRanges, evaluate, find_ranges, run_settings, train_epochs
from mtrains.train.optimizers import control_optimizers
from mtrains.train.result import Observer, TrainResult, make_result
from mtrains.train.run import train
from mtrains.train.tables import InMemoryTables, table_specs

__all__ = ["DemoResult", "demo_config", "run_demo", "train_control"]

_SAMPLE = "flights_2013_q1.tsv.xz"
_STATE_FLOATS = 2  # Adam keeps two float32 for each weight
_FLOAT_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class DemoResult:
    """The three outcomes. touched_bytes: weights and optimizer state of the rows that training looks up."""

    touched_bytes: int
    dram_bytes: int
    bit_identical: bool
    in_memory: TrainResult
    tiered: TrainResult
    control: TrainResult

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        return asdict(self)


def demo_config(data: str, epochs: int) -> TrainConfig:
    """Return the demo's run over the sample at path `data`, with a budget that holds everything."""
    schema = schema_of_columns(
        label="late",
        dense=("month", "day", "sched_dep_time", "sched_arr_time", "distance"),
        categorical=("carrier", "flight", "tailnum", "origin", "dest"),
        bags=(),
        dense_transform="log1p",
    )
    return TrainConfig(
        data=(data,),
        format="tsv",
        schema=schema,
        table_rows=(50_000,) * len(schema.features),
        shape=ModelShape(embedding_dim=32, bottom_mlp=(64,), top_mlp=(64, 32)),
        optimizer="sparse_adam",
        lr=0.001,
        batch_size=256,
        epochs=epochs,
        holdout=0.2,
        deterministic=True,
        dram="1GiB",
    )


def run_demo(epochs: int, observer: Observer | None = None) -> DemoResult:
    """Train the sample three ways and compare. Rows live in temporary stores, gone afterwards."""
    observer = observer or Observer()
    with resources.as_file(resources.files("mtrains.train") / "sample" / _SAMPLE) as sample:
        config = demo_config(str(sample), epochs)
        with run_settings(config):
            touched_bytes = _touched_bytes(config, find_ranges(config, observer))
            dram_bytes = touched_bytes // 4
            in_memory = train(config, observer)
            tiered = train(replace(config, dram=dram_bytes), observer)
            control = train_control(config, observer)
    return DemoResult(
        touched_bytes=touched_bytes,
        dram_bytes=dram_bytes,
        bit_identical=in_memory.rows_sha256 == tiered.rows_sha256 and in_memory.loss == tiered.loss,
        in_memory=in_memory,
        tiered=tiered,
        control=control,
    )


def _touched_bytes(config: TrainConfig, ranges: RecordRanges) -> int:
    """Count the distinct rows of the training records, and what weights and state of these take."""
    touched = [np.zeros(rows, bool) for rows in config.table_rows]
    for block in ranges.train_stream.read(0, ranges.train_stop, ReadLog(lambda bad: None)):
        for rows, feature in zip(touched, block.features, strict=True):
            rows[feature.indices] = True
    record_bytes = config.shape.embedding_dim * (1 + _STATE_FLOATS) * _FLOAT_BYTES
    return sum(int(rows.sum()) for rows in touched) * record_bytes


def train_control(config: TrainConfig, observer: Observer) -> TrainResult:
    """Train the same model with nn.EmbeddingBag and torch.optim, in memory, from a store's initial rows.

    Raises: ValueError if torch.optim lacks the optimizer.
    """
    specs = table_specs(config)
    tables = InMemoryTables(specs)
    _copy_initial_rows(config, specs, tables)
    with run_settings(config):
        model = build_dlrm(config, tables)
        optimizers = control_optimizers(config.optimizer, tables, model, config.lr)
        position = Position()
        ranges = find_ranges(config, observer)
        observer.began("training")
        # Says what torch does anyway (no check of its sparse gradients), which it else warns about.
        unchecked = torch.sparse.check_sparse_tensor_invariants(enable=False)  # type: ignore[no-untyped-call]
        with unchecked:
            timer = train_epochs(model, optimizers, config, ranges, position, observer, lambda: None)
        return make_result(position, timer, evaluate(model, config, ranges, observer))


def _copy_initial_rows(config: TrainConfig, specs: Sequence[TableSpec], tables: InMemoryTables) -> None:
    """Set the rows of the control to those that a store with the run's seed begins with."""
    with Store(dram=config.dram, seed=config.seed) as store, torch.no_grad():
        initial = TieredEmbeddingBagCollection(specs, store=store)
        for spec, table in zip(specs, tables.tables, strict=True):
            tiered = initial.embedding_bags[spec.name]
            assert isinstance(tiered, TieredTable)
            assert isinstance(table, nn.EmbeddingBag)
            table.weight.copy_(tiered.read_rows(torch.arange(spec.num_embeddings)))
