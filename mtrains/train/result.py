"""What a training run gives back, and what it says while it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from mtrains.placement.measured import MeasuredPlan
from mtrains.train.checkpoint import Position
from mtrains.train.data.block import BadLine

__all__ = ["Evaluation", "Observer", "StepReport", "StoreFacts", "Timer", "TrainResult", "make_result"]


@dataclass
class Timer:
    """Seconds of this process while it trained, and what it trained.

    loader: waiting for batches. rows: for rows of a batch that was not brought ahead in time; io_wait: the same, and
    passes that fetch on demand. write_back: for room in the log. checkpoint: in checkpoints. training: all of it.
    steps: batches that were prefetched; of these, summed: lead, seconds from when rows were there until their batch
    was given out; ahead, batches that were ready when it was asked for.
    """

    loader: float = 0.0
    rows: float = 0.0
    lead: float = 0.0
    ahead: int = 0
    steps: int = 0
    io_wait: float = 0.0
    write_back: float = 0.0
    checkpoint: float = 0.0
    training: float = 0.0
    samples: int = 0

    @property
    def compute(self) -> float:
        """Seconds of training that were no wait."""
        waits = self.loader + self.io_wait + self.write_back + self.checkpoint
        return max(self.training - waits, 0.0)


@dataclass(frozen=True)
class Evaluation:
    """Quality on held-out samples."""

    loss: float
    logloss: float
    auc: float | None
    samples: int


@dataclass(frozen=True, kw_only=True)
class PrefetchFacts:
    """What came of bringing rows ahead. lookahead, depth: as asked for. effective_depth: batches that were ready
    when the next one was asked for, on average: it shrinks where pins would take more than a third of the slots.
    lead_seconds: from when the rows of a batch were there until it was given out, on average. staged_fetches,
    demand_fetches: rows out of the log that came ahead, and that a pass waited for. cancelled: lookups that were
    staged and lost their slots to a pass."""

    lookahead: int
    depth: int
    effective_depth: float
    lead_seconds: float
    staged_fetches: int
    demand_fetches: int
    cancelled: int


@dataclass(frozen=True, kw_only=True)
class StoreFacts:
    """What a store did and holds: see TrainResult."""

    rows_sha256: str
    io_engine: str
    providers: Mapping[str, str]
    emulated: tuple[str, ...]
    tiers: Mapping[str, Mapping[str, float]]
    prefetch: PrefetchFacts | None


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """The outcome of a run. Counts are of the whole training, also of a resumed one; times of this process.

    loss, logloss, auc: on the held-out records (logloss is the same mean in float64). Without held-out
    records `evaluated_on` is "training": loss is the mean over the last epoch as it trained, the others None.
    auc is None too where the records are of one class.
    providers: what each slot tier is made of. tiers: counters of each tier.
    seconds: of training: compute, and waits as in `Timer`. prefetch: None without a store. plan: the run beside its
    plan, if it had one.
    """

    steps: int
    samples: int
    epochs: int
    loss: float
    logloss: float | None
    auc: float | None
    evaluated_on: str
    evaluated_samples: int
    training_loss: float
    bad_lines: int
    resumed_at_step: int | None
    samples_per_second: float
    rows_sha256: str | None
    io_engine: str | None
    providers: Mapping[str, str]
    emulated: tuple[str, ...]
    tiers: Mapping[str, Mapping[str, float]]
    seconds: Mapping[str, float]
    prefetch: PrefetchFacts | None = None
    plan: MeasuredPlan | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """The state after one step. total_records: of one epoch, or None if it was not counted."""

    epoch: int
    step: int
    samples: int
    loss: float
    record: int
    total_records: int | None


class Observer:
    """Is told what happens; this one ignores it."""

    def stepped(self, report: StepReport) -> None:
        """A step is done."""

    def bad_line(self, bad: BadLine) -> None:
        """A malformed record was left out."""

    def began(self, phase: str) -> None:
        """A phase began: "counting records", "training", "evaluating", ..."""


def make_result(
    position: Position,
    timer: Timer,
    evaluation: Evaluation | None,
    resumed_at_step: int | None = None,
    store: StoreFacts | None = None,
    plan: MeasuredPlan | None = None,
) -> TrainResult:
    """Put the outcome together; without a store there are no tiers."""
    training_loss = position.epoch_loss_sum / max(position.epoch_samples, 1)
    waits = {
        "io_wait": timer.io_wait,
        "write_back": timer.write_back,
        "loader": timer.loader,
        "checkpoint": timer.checkpoint,
    }
    return TrainResult(
        steps=position.step,
        samples=position.samples,
        epochs=position.epoch,
        loss=evaluation.loss if evaluation else training_loss,
        logloss=evaluation.logloss if evaluation else None,
        auc=evaluation.auc if evaluation else None,
        evaluated_on="held-out" if evaluation else "training",
        evaluated_samples=evaluation.samples if evaluation else 0,
        training_loss=training_loss,
        bad_lines=position.epoch_bad_lines,
        resumed_at_step=resumed_at_step,
        samples_per_second=timer.samples / timer.training if timer.training else 0.0,
        rows_sha256=store.rows_sha256 if store else None,
        io_engine=store.io_engine if store else None,
        providers=store.providers if store else {},
        emulated=store.emulated if store else (),
        tiers=store.tiers if store else {},
        seconds={"compute": timer.compute, **waits},
        prefetch=store.prefetch if store else None,
        plan=plan,
    )
