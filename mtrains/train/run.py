"""One training run over a store: open or resume, train, evaluate, checkpoint, close."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from mtrains.collection import TieredEmbeddingBagCollection
from mtrains.errors import StateError
from mtrains.placement.measured import Eviction, measure_plan
from mtrains.placement.plan import PlacementPlan
from mtrains.store import Store
from mtrains.store_memory import planned_scm_bytes
from mtrains.store_stats import StoreStats
from mtrains.train.checkpoint import Position, RunState, check_same_run, pack_state, unpack_state
from mtrains.train.config import TrainConfig
from mtrains.train.dlrm import build_dlrm
from mtrains.train.loop import evaluate, find_ranges, run_settings, train_epochs
from mtrains.train.optimizers import tiered_optimizer
from mtrains.train.result import Observer, PrefetchFacts, StoreFacts, Timer, TrainResult, make_result
from mtrains.train.tables import table_specs
from mtrains.units import parse_bytes

__all__ = ["train"]


def train(config: TrainConfig, observer: Observer | None = None) -> TrainResult:
    """Train as the configuration says and return the outcome; with a store, the last state is a checkpoint.

    Raises: DataError, StateError (a store that cannot be used for this run), TierIOError, CapacityError.
    """
    observer = observer or Observer()
    plan = None if config.plan is None else PlacementPlan.load(config.plan)
    scm_bytes = parse_bytes(config.scm) if plan is None else planned_scm_bytes(plan)
    if plan is not None and config.scm_emulate is not None and not scm_bytes:
        raise StateError(f"the plan {config.plan} uses no SCM tier, so --scm-emulate has nothing to say")
    with (
        run_settings(config),
        Store(
            config.store,
            dram=config.dram,
            hbm=config.hbm,
            scm=config.scm_tier(scm_bytes) or 0,
            plan=plan,
            ssd=config.ssd,
            seed=config.seed,
            io_engine=config.io_engine,
        ) as store,
    ):
        return _train_in(store, config, observer, plan)


def _train_in(store: Store, config: TrainConfig, observer: Observer, plan: PlacementPlan | None) -> TrainResult:
    fingerprint = config.fingerprint()
    saved = _saved_state(store, config, fingerprint)
    ranges = find_ranges(config, observer)
    model = build_dlrm(config, TieredEmbeddingBagCollection(table_specs(config), store=store)).to(store.device)
    optimizers = (tiered_optimizer(config.optimizer, model, config.lr),)
    position = Position()
    if saved is not None:
        saved.load_into(model.mlps, optimizers)
        position = saved.position
    resumed_at_step = committed_step = None if saved is None else position.step

    checkpoint_seconds = 0.0

    def checkpoint(*, wait: bool) -> None:
        nonlocal committed_step, checkpoint_seconds
        began = time.monotonic()
        extra = pack_state(fingerprint, position, model.mlps, optimizers)
        store.checkpoint(f"step-{position.step:09d}", step=position.step, extra=extra, wait=wait)
        committed_step = position.step
        checkpoint_seconds += time.monotonic() - began

    def after_step() -> None:
        if config.checkpoint_every is not None and position.step % config.checkpoint_every == 0:
            checkpoint(wait=False)  # training goes on while it is written; an error comes up at the next one

    observer.began("training")
    timer = train_epochs(model, optimizers, config, ranges, position, observer, after_step)
    trained = store.stats()
    timer.checkpoint, timer.io_wait, timer.write_back = (
        checkpoint_seconds,
        trained.seconds["io_wait"] + timer.rows,
        trained.seconds["write_back"],
    )
    if config.store is not None:
        observer.began("committing the last checkpoint")
        if committed_step != position.step:
            checkpoint(wait=True)
        store.flush()  # waits for a checkpoint that is still being written, and raises its error
    stats = store.stats()
    evaluation = evaluate(model, config, ranges, observer)
    observer.began("computing the digest of the rows")
    facts = StoreFacts(
        rows_sha256=store.digest(),
        io_engine=stats.io_engine,
        providers=stats.providers,
        emulated=stats.emulated,
        tiers=stats.tiers,
        prefetch=_prefetch_facts(config, timer, trained),
    )
    measured = None
    steps = position.step - (resumed_at_step or 0)
    if plan is not None and steps:
        measured = measure_plan(
            plan,
            trained.tables,
            trained.tiers["ssd"],
            steps=steps,
            seconds=timer.training,
            batch_size=config.batch_size,
            ran=Eviction(policy="next_use", lookahead=config.lookahead, depth=config.depth),
            compute_seconds=timer.compute / steps,
        )
    return make_result(position, timer, evaluation, resumed_at_step, facts, measured)


def _prefetch_facts(config: TrainConfig, timer: Timer, trained: StoreStats) -> PrefetchFacts:
    steps = max(timer.steps, 1)
    return PrefetchFacts(
        lookahead=config.lookahead,
        depth=config.depth,
        effective_depth=timer.ahead / steps,
        lead_seconds=timer.lead / steps,
        staged_fetches=int(trained.prefetch["staged_fetches"]),
        demand_fetches=int(trained.prefetch["demand_fetches"]),
        cancelled=int(trained.prefetch["cancelled"]),
    )


def _saved_state(store: Store, config: TrainConfig, fingerprint: Mapping[str, Any]) -> RunState | None:
    """Return the state to resume from, None to start from the beginning. Raises: StateError."""
    checkpoints = store.checkpoints()
    if not checkpoints:
        return None
    last = checkpoints[-1]
    source = f"checkpoint {last.tag!r} of {config.store}"
    if not config.resume:
        raise StateError(
            f"{config.store} already holds a training run ({source}); continue it with --resume, or name "
            "another folder with --store"
        )
    state = unpack_state(last.extra, source)
    check_same_run(state.fingerprint, fingerprint, source)
    return state
