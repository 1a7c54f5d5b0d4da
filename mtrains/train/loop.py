"""The training loop: batches in file order, one lookup of all tables a step."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from mtrains.collection import TieredEmbeddingBagCollection
from mtrains.errors import MtrainsError
from mtrains.prefetch.loader import prefetch
from mtrains.threads import get_num_threads, set_num_threads
from mtrains.train.checkpoint import Position
from mtrains.train.config import TrainConfig
from mtrains.train.data.block import BadLine, SampleBlock
from mtrains.train.data.errors import DataError
from mtrains.train.data.schema import SampleSpec
from mtrains.train.data.stream import ReadLog, SampleStream, read_batches
from mtrains.train.dlrm import DLRM
from mtrains.train.metrics import auc, log_loss
from mtrains.train.result import Evaluation, Observer, StepReport, Timer

__all__ = ["RecordRanges", "evaluate", "find_ranges", "run_settings", "train_epochs"]


@dataclass(frozen=True)
class RecordRanges:
    """Which records train and which are held out. stop None: to the end; eval_stream None: none held out."""

    train_stream: SampleStream
    train_stop: int | None
    eval_stream: SampleStream | None
    eval_start: int


@contextmanager
def run_settings(config: TrainConfig) -> Iterator[None]:
    """Set threads and determinism for a run; put them and torch's generator back.

    Without `threads`, table kernels use what torch uses outside: `deterministic` slows only torch down.
    """
    num_threads, table_threads = torch.get_num_threads(), get_num_threads()
    deterministic = torch.are_deterministic_algorithms_enabled()
    dense_threads = config.dense_threads or (1 if config.deterministic else num_threads)
    try:
        set_num_threads(config.threads or table_threads)
        torch.set_num_threads(dense_threads)
        torch.use_deterministic_algorithms(config.deterministic or deterministic)
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        set_num_threads(table_threads)
        torch.set_num_threads(num_threads)
        torch.use_deterministic_algorithms(deterministic)


def find_ranges(config: TrainConfig, observer: Observer) -> RecordRanges:
    """Split the records into those that train and those held out, the last ones in time; never shuffled.

    Raises: DataError if no record is left to train on.
    """
    spec = SampleSpec(config.schema, config.table_rows)

    def stream(paths: tuple[str, ...]) -> SampleStream:
        return SampleStream(
            paths=paths,
            format=config.format,
            spec=spec,
            on_bad_line=config.on_bad_line,
            num_workers=config.workers,
        )

    train_stream = stream(config.data)
    if config.eval_data:
        return RecordRanges(train_stream, None, stream(config.eval_data), 0)
    if config.holdout is None and config.holdout_samples is None:
        return RecordRanges(train_stream, None, None, 0)
    observer.began("counting records")
    total = train_stream.count_records()
    held_out = config.holdout_samples or math.ceil(total * (config.holdout or 0.0))
    if held_out >= total:
        raise DataError(f"holding out {held_out} of {total} records leaves none to train on")
    return RecordRanges(train_stream, total - held_out, train_stream, total - held_out)


def train_epochs(
    model: DLRM,
    optimizers: Sequence[torch.optim.Optimizer],
    config: TrainConfig,
    ranges: RecordRanges,
    position: Position,
    observer: Observer,
    after_step: Callable[[], None],
) -> Timer:
    """Train from `position`, which moves along, to the last epoch or config.max_steps.

    after_step is called at each step boundary, when the position is right.
    Raises: DataError; MtrainsError if the loss is not finite.
    """
    timer = Timer()
    began = time.monotonic()
    model.train()
    while position.epoch < config.epochs and not _enough(config, position):
        if position.record == 0:
            position.epoch_samples, position.epoch_loss_sum, position.epoch_bad_lines = 0, 0.0, 0
        log = ReadLog(observer.bad_line if position.epoch == 0 else _named_before)
        start = position.record
        blocks = ranges.train_stream.read(start, ranges.train_stop, log)
        with closing(_batches(model, config, read_batches(blocks, config.batch_size), timer)) as batches:
            for batch in batches:
                loss = _step(model, optimizers, batch)
                if not math.isfinite(loss):
                    raise MtrainsError(f"the loss is {loss} at step {position.step + 1}; try a smaller --lr")
                _advance(position, batch.block, loss)
                timer.samples += len(batch.block)
                observer.stepped(_report(position, loss, ranges))
                after_step()
                if _enough(config, position):
                    return _ended(timer, began)
        if position.epoch_samples == 0:
            raise DataError(f"no samples in {', '.join(config.data)}")
        position.epoch_bad_lines = start + log.num_records - position.epoch_samples
        position.epoch, position.record = position.epoch + 1, 0
    return _ended(timer, began)


def evaluate(model: DLRM, config: TrainConfig, ranges: RecordRanges, observer: Observer) -> Evaluation | None:
    """Return loss, log loss and AUC on the held-out records, or None if none are held out."""
    if ranges.eval_stream is None:
        return None
    observer.began("evaluating")
    model.eval()
    labels: list[NDArray[np.float32]] = []
    logits: list[NDArray[np.float32]] = []
    loss_sum = 0.0
    blocks = ranges.eval_stream.read(ranges.eval_start, None, ReadLog(observer.bad_line))
    with torch.no_grad():
        for block in read_batches(blocks, config.batch_size):
            predicted, target = _forward(model, _Batch.of(block))
            loss_sum += functional.binary_cross_entropy_with_logits(predicted, target).item() * len(block)
            labels.append(block.labels)
            logits.append(predicted.cpu().numpy())
    if not labels:
        raise DataError("no well-formed record is held out to evaluate on")
    all_labels, all_logits = np.concatenate(labels), np.concatenate(logits)
    return Evaluation(
        loss=loss_sum / len(all_labels),
        logloss=log_loss(all_labels, all_logits),
        auc=auc(all_labels, all_logits),
        samples=len(all_labels),
    )


def _named_before(bad: BadLine) -> None:
    """Each epoch meets the same malformed lines; they are named in the first."""


def _enough(config: TrainConfig, position: Position) -> bool:
    return config.max_steps is not None and position.step >= config.max_steps


def _ended(timer: Timer, began: float) -> Timer:
    timer.training = time.monotonic() - began
    return timer


@dataclass(frozen=True)
class _Batch:
    """Samples as the model takes them. indices, offsets: int64, feature-major."""

    block: SampleBlock
    indices: Tensor
    offsets: Tensor

    @staticmethod
    def of(block: SampleBlock) -> _Batch:
        indices, offsets = block.lookup_arguments()
        return _Batch(block, torch.from_numpy(indices), torch.from_numpy(offsets))


def _batches(
    model: DLRM, config: TrainConfig, blocks: Iterator[SampleBlock], timer: Timer
) -> Generator[_Batch, None, None]:
    """Yield the batches, prefetched where the tables are a store's; the timer learns what was waited for."""
    made = map(_Batch.of, blocks)
    embeddings = model.embeddings
    if not isinstance(embeddings, TieredEmbeddingBagCollection):
        yield from _timed(made, timer)
        return
    loader = prefetch(
        made,
        lambda batch: {embeddings: (batch.indices, batch.offsets)},
        lookahead=config.lookahead,
        depth=config.depth,
    )
    with iter(loader) as batches:
        try:
            yield from batches
        finally:
            times = batches.times
            timer.loader += times.loader_seconds
            timer.rows += times.rows_seconds
            timer.lead += times.lead_seconds
            timer.ahead += times.ahead
            timer.steps += times.batches


def _timed(batches: Iterator[_Batch], timer: Timer) -> Iterator[_Batch]:
    while True:
        began = time.monotonic()
        batch = next(batches, None)
        timer.loader += time.monotonic() - began
        if batch is None:
            return
        yield batch


def _forward(model: DLRM, batch: _Batch) -> tuple[Tensor, Tensor]:
    # Copies, since views into a block are aligned by chance, and BLAS may round by alignment.
    dense = torch.from_numpy(batch.block.dense).clone().to(model.device)
    labels = torch.from_numpy(batch.block.labels).clone().to(model.device)
    return model(dense, batch.indices, batch.offsets), labels


def _step(model: DLRM, optimizers: Sequence[torch.optim.Optimizer], batch: _Batch) -> float:
    for optimizer in optimizers:
        optimizer.zero_grad(set_to_none=True)
    logits, labels = _forward(model, batch)
    loss = functional.binary_cross_entropy_with_logits(logits, labels)
    loss.backward()  # type: ignore[no-untyped-call]
    for optimizer in optimizers:
        optimizer.step()
    return loss.item()


def _advance(position: Position, batch: SampleBlock, loss: float) -> None:
    position.record = int(batch.records[-1]) + 1
    position.step += 1
    position.samples += len(batch)
    position.epoch_samples += len(batch)
    position.epoch_loss_sum += loss * len(batch)
    position.epoch_bad_lines = position.record - position.epoch_samples


def _report(position: Position, loss: float, ranges: RecordRanges) -> StepReport:
    return StepReport(
        epoch=position.epoch,
        step=position.step,
        samples=position.samples,
        loss=loss,
        record=position.record,
        total_records=ranges.train_stop,
    )
