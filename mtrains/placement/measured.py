"""What a plan promised against what a run measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mtrains.placement.plan import PlacementPlan, TablePlacement
from mtrains.placement.records import PAGE_BYTES

__all__ = ["Eviction", "Figure", "MeasuredPlan", "MeasuredTable", "measure_plan"]


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One number as the plan has it and as a run did. predicted None: the plan does not say."""

    predicted: float | None
    measured: float


@dataclass(frozen=True, kw_only=True)
class Eviction:
    """How rows were evicted and staged, of which curves and plans are made."""

    policy: str
    lookahead: int
    depth: int


@dataclass(frozen=True, kw_only=True)
class MeasuredTable:
    """accesses: unique rows a step. hit_ratios: hits of each tier over accesses. new, fetches: a step."""

    name: str
    accesses: Figure
    hit_ratios: dict[str, Figure]
    new: Figure
    fetches: Figure


@dataclass(frozen=True, kw_only=True)
class MeasuredPlan:
    """A plan beside a run of `steps` steps. Bytes and seconds are of a step; hit_ratio of all tables and tiers.

    read_bytes: of the log's blocks. written_bytes: of its segments, with what garbage collection and checkpoints wrote.
    planned, ran: eviction, with the batch size; where they differ, so do the figures, and `warnings` says it.
    """

    steps: int
    planned: Eviction
    ran: Eviction
    planned_batch_size: int
    batch_size: int
    step_seconds: Figure
    hit_ratio: Figure
    fetches: Figure
    read_bytes: Figure
    written_bytes: Figure
    tables: tuple[MeasuredTable, ...]
    warnings: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the same as plain values for JSON."""
        return dataclasses.asdict(self)


def measure_plan(
    plan: PlacementPlan,
    tables: Mapping[str, Mapping[str, float]],
    log: Mapping[str, float],
    *,
    steps: int,
    seconds: float,
    batch_size: int,
    ran: Eviction,
) -> MeasuredPlan:
    """Return the plan beside what a store counted in these steps.

    Args:
        tables, log: StoreStats.tables and StoreStats.tiers["ssd"], or differences of two of them.
        steps, seconds: > 0.
    """
    planned = Eviction(
        policy=plan.workload["policy"], lookahead=plan.workload["lookahead"], depth=plan.workload["depth"]
    )
    accesses = sum(_accesses(counters) for counters in tables.values())
    unique = sum(table.unique_rows for table in plan.tables)
    return MeasuredPlan(
        steps=steps,
        planned=planned,
        ran=ran,
        planned_batch_size=plan.batch_size,
        batch_size=batch_size,
        step_seconds=Figure(predicted=plan.step_seconds, measured=seconds / steps),
        hit_ratio=Figure(
            predicted=_ratio(sum(sum(table.hits.values()) for table in plan.tables), unique),
            measured=_ratio(sum(_hits(counters) for counters in tables.values()), accesses),
        ),
        fetches=Figure(
            predicted=sum(table.fetches for table in plan.tables),
            measured=sum(counters["fetches"] for counters in tables.values()) / steps,
        ),
        read_bytes=Figure(
            predicted=PAGE_BYTES * sum(table.page_reads for table in plan.tables), measured=log["bytes_read"] / steps
        ),
        written_bytes=Figure(predicted=_planned_writes(plan), measured=log["bytes_written"] / steps),
        tables=tuple(_table(table, tables[table.name], steps) for table in plan.tables),
        warnings=_warnings(planned, ran, plan.batch_size, batch_size),
    )


def _table(table: TablePlacement, counters: Mapping[str, float], steps: int) -> MeasuredTable:
    accesses = _accesses(counters)
    return MeasuredTable(
        name=table.name,
        accesses=Figure(predicted=table.unique_rows, measured=accesses / steps),
        hit_ratios={
            tier: Figure(
                predicted=_ratio(hits, table.unique_rows), measured=_ratio(counters.get(f"{tier}_hits", 0.0), accesses)
            )
            for tier, hits in table.hits.items()
        },
        new=Figure(predicted=table.new, measured=counters["new"] / steps),
        fetches=Figure(predicted=table.fetches, measured=counters["fetches"] / steps),
    )


def _warnings(planned: Eviction, ran: Eviction, planned_batch: int, batch: int) -> tuple[str, ...]:
    found = []
    if planned != ran:
        found.append(
            f"the plan is of eviction by {_words(planned)}, this run evicted by {_words(ran)}; plan with --policy "
            f"{ran.policy} --lookahead {ran.lookahead} --depth {ran.depth} for figures of such a run"
        )
    if planned_batch != batch:
        found.append(f"the plan is of batches of {planned_batch:,} samples, this run had {batch:,}")
    return tuple(found)


def _words(eviction: Eviction) -> str:
    return f"{eviction.policy} (lookahead {eviction.lookahead}, depth {eviction.depth})"


def _planned_writes(plan: PlacementPlan) -> float | None:
    """Return the bytes that the plan writes to the log in a step, with write amplification; None without a log."""
    found = [limit.amount for limit in plan.limits if limit.name in ("log writes", "log endurance")]
    return found[0] if found else None


def _hits(counters: Mapping[str, float]) -> float:
    return sum(value for name, value in counters.items() if name.endswith("_hits"))


def _accesses(counters: Mapping[str, float]) -> float:
    return _hits(counters) + counters["new"] + counters["fetches"]


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
