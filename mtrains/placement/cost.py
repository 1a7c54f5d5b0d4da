"""What a placement costs: the seconds that each limit takes of a step, outside of any solver."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mtrains.placement.problem import Array, Problem
from mtrains.placement.records import PAGE_BYTES

__all__ = ["Load", "Placement", "Price", "checkpoint_steps", "latency", "overlaps", "price"]


@dataclass(frozen=True)
class Placement:
    """rows[J, K]: rows of each table in each tier. passed[J, K]: whether a table's rows pass through the tier."""

    rows: Array
    passed: np.ndarray

    @property
    def cumulative(self) -> Array:
        """Rows in tiers 0..k: float[J, K]."""
        return np.cumsum(self.rows, axis=1)


@dataclass(frozen=True)
class Load:
    """What a limit is asked for in a step. amount over rate is its seconds; `unit` is of the amount.

    waits: what a step waits for at depth 0, where loads of the same name are of the same work, the longest of which
    counts; "" for what goes on beside it: the log's writer, and bandwidth that the computation has in it.
    """

    name: str
    amount: float
    rate: float
    unit: str
    waits: str = ""

    @property
    def seconds(self) -> float:
        """Of a step that this limit takes by itself."""
        return self.amount / self.rate


@dataclass(frozen=True)
class Price:
    """seconds: of a step, before bursts and latency. misses[J, K]: accesses of tiers 0..k that find nothing."""

    loads: tuple[Load, ...]
    seconds: float
    misses: Array
    used: Array  # bytes of each tier for slots
    log_bytes: float

    @property
    def binding(self) -> Load:
        """The limit that takes longest."""
        return max(self.loads, key=lambda load: load.seconds)


def latency(problem: Problem, misses: Array) -> float:
    """Return the seconds of a step that no rate explains: as given, and of reads that begin only when a row is missing.

    At depth 0 each table that fetches rows waits for a read of its own.
    """
    log, seconds = problem.topology.log, problem.workload.latency_seconds
    if log is None or problem.workload.depth:
        return seconds
    fetches = np.maximum(0.0, misses[:, -1] - problem.new)
    return seconds + log.read_latency_seconds * float(np.minimum(1.0, fetches).sum())


def checkpoint_steps(problem: Problem, step_seconds: float) -> float | None:
    """Return the steps between checkpoints when a step takes so long; None if checkpoints are not counted."""
    workload = problem.workload
    if workload.checkpoint_steps is not None:
        return float(workload.checkpoint_steps)
    if workload.checkpoint_seconds is not None:
        return max(1.0, workload.checkpoint_seconds / step_seconds)
    return None


def overlaps(loads: Sequence[Load], depth: int) -> Array:
    """Return ones, [n, limits]: a step is the longest of n sums of the limits' seconds.

    What is staged ahead overlaps, so that each limit is a sum by itself; at depth 0 one work waits for the other.
    """
    each = np.eye(len(loads))
    if depth:
        return each
    works: dict[str, list[int]] = {}
    for number, load in enumerate(loads):
        if load.waits:
            works.setdefault(load.waits, []).append(number)
    sums = [each[list(choice)].sum(axis=0) for choice in itertools.product(*works.values())]
    return np.concatenate([each, np.stack(sums)])


def price(problem: Problem, placement: Placement, steps_between_checkpoints: float | None = None) -> Price:
    """Return what the placement costs: the slowest limit is the step, or at depth 0 the sum of those it waits for."""
    held = placement.cumulative
    hits = np.stack([problem.hits(held[:, tier]) for tier in range(problem.num_tiers)], axis=1)
    misses = problem.unique[:, None] - hits
    pages = float((problem.pages - problem.saved_pages(held[:, -1])).sum())
    loads = [*_compute_loads(problem, misses, pages), *_tier_loads(problem, placement, misses)]
    dirty = float((problem.log * held[:, -1]).sum())
    if problem.topology.log is not None:
        written = problem.workload.write_amplification * float((problem.log * misses[:, -1]).sum())
        if steps_between_checkpoints is not None:
            written += dirty / steps_between_checkpoints
        loads += _log_loads(problem, pages, written)
    seconds = overlaps(loads, problem.workload.depth) @ np.array([load.seconds for load in loads])
    return Price(
        loads=tuple(loads),
        seconds=float(seconds.max()),
        misses=misses,
        used=(problem.slot[:, None] * placement.rows).sum(axis=0),
        log_bytes=problem.log_fixed_bytes + problem.workload.keep * dirty if problem.topology.log is not None else 0.0,
    )


def _compute_loads(problem: Problem, misses: Array, pages: float) -> list[Load]:
    loads = [Load("compute", problem.compute_seconds, 1.0, "s", "compute")]
    topology, batch = problem.topology, problem.batch_size
    first = float(misses[:, 0].sum())
    if topology.cpu is not None:
        cpu = topology.cpu
        seconds = (
            problem.cpu_base_seconds
            + cpu.seconds_per_hit * float(problem.unique.sum())
            + (cpu.seconds_per_miss + cpu.seconds_per_eviction) * first
            + (cpu.seconds_per_read * pages if topology.log is not None else 0.0)
        )
        loads.append(Load("cpu", seconds, cpu.cores, "core s", "cpu"))
    if topology.network_bytes_per_second is not None:
        amount = problem.workload.network_bytes_per_sample * batch
        loads.append(Load("network", amount, topology.network_bytes_per_second, "B", "network"))
    if topology.link is not None:
        up = float((problem.record * (misses[:, 0] - problem.new)).sum())
        down = float((problem.record * misses[:, 0]).sum())
        loads.append(Load("link up", up, topology.link.up_bytes_per_second, "B", "link up"))
        loads.append(Load("link down", down, topology.link.down_bytes_per_second, "B", "link down"))
    return loads


def _tier_loads(problem: Problem, placement: Placement, misses: Array) -> list[Load]:
    first = problem.topology.slots[0]
    loads = [Load(f"{first.tier} bandwidth", problem.lookup_bytes, first.read_bytes_per_second, "B")]
    for tier, slot in enumerate(problem.topology.slots[1:], start=1):
        passing = np.where(placement.passed[:, tier], misses[:, tier - 1], 0.0)
        moved = float((problem.moved[:, tier] * passing).sum())
        loads.append(Load(f"{slot.tier} bandwidth", moved, slot.round_trip_bytes_per_second, "B", slot.tier))
    return loads


def _log_loads(problem: Problem, pages: float, written: float) -> list[Load]:
    log = problem.topology.log
    assert log is not None
    wears = log.sustained_write_bytes_per_second < log.write_bytes_per_second
    return [
        Load("log IOPS", pages, log.read_iops, "reads", "log"),
        Load("log reads", pages * PAGE_BYTES, log.read_bytes_per_second, "B", "log"),
        Load("log endurance" if wears else "log writes", written, log.sustained_write_bytes_per_second, "B"),
    ]
