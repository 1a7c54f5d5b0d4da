"""What a plan promised against what a run measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
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
    """How rows were evicted and staged, of which curves and plans are made. Next use without a lookahead is "lru"."""

    policy: str
    lookahead: int
    depth: int

    def __post_init__(self) -> None:
        if self.policy == "next_use" and self.lookahead == 0:
            object.__setattr__(self, "policy", "lru")


@dataclass(frozen=True, kw_only=True)
class MeasuredTable:
    """accesses: unique rows a step. hit_ratios: hits of each tier over accesses. new, fetches, written: rows a step, of
    which training wrote the last to the log."""

    name: str
    accesses: Figure
    hit_ratios: dict[str, Figure]
    new: Figure
    fetches: Figure
    written: Figure


@dataclass(frozen=True, kw_only=True)
class MeasuredPlan:
    """A plan beside a run of `steps` steps. Bytes and seconds are of a step; hit_ratio of all tables and tiers.

    fetched_bytes, evicted_bytes: of records that came from the log, and that training wrote to it. A run begins with
    empty slots and ends with full ones, so it evicts that much less than it misses.
    read_bytes: of the log's blocks; rows that still wait to be written are fetched without. written_bytes: of its
    segments, with what garbage collection and checkpoints wrote.
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
    fetched_bytes: Figure
    evicted_bytes: Figure
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
    compute_seconds: float | None = None,
) -> MeasuredPlan:
    """Return the plan beside what a store counted in these steps.

    Args:
        tables, log: StoreStats.tables and StoreStats.tiers["ssd"], or differences of two of them.
        steps, seconds: > 0.
        compute_seconds: of a step that the run computed, if that is known.
    """
    planned = Eviction(
        policy=plan.workload["policy"], lookahead=plan.workload["lookahead"], depth=plan.workload["depth"]
    )
    accesses = sum(_accesses(counters) for counters in tables.values())
    unique = sum(table.unique_rows for table in plan.tables)
    compared = tuple(_table(table, tables[table.name], steps) for table in plan.tables)
    records = [table.record_bytes for table in plan.tables]
    evicted = _records([table.written for table in compared], records)
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
        fetched_bytes=_records([table.fetches for table in compared], records),
        evicted_bytes=evicted,
        read_bytes=Figure(
            predicted=PAGE_BYTES * sum(table.page_reads for table in plan.tables), measured=log["bytes_read"] / steps
        ),
        written_bytes=Figure(predicted=_planned_writes(plan, evicted.predicted), measured=log["bytes_written"] / steps),
        tables=compared,
        warnings=(*_warnings(planned, ran, plan.batch_size, batch_size), *_computation(plan, compute_seconds)),
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
        written=Figure(predicted=_planned_rows(table, steps), measured=counters["rows_appended"] / steps),
    )


def _planned_rows(table: TablePlacement, steps: int) -> float:
    """Return the rows that leave the slots in a step of such a run; of a table that is held whole none does."""
    if table.resident:
        return 0.0
    kept = min(float(sum(table.rows.values())), table.touched_rows)
    return max(0.0, table.new + table.fetches - kept / steps)


def _records(rows: Sequence[Figure], record_bytes: Sequence[int]) -> Figure:
    pairs = list(zip(rows, record_bytes, strict=True))
    return Figure(
        predicted=sum((figure.predicted or 0.0) * size for figure, size in pairs),
        measured=sum(figure.measured * size for figure, size in pairs),
    )


def _warnings(planned: Eviction, ran: Eviction, planned_batch: int, batch: int) -> tuple[str, ...]:
    found = []
    if planned != ran:
        found.append(
            f"the plan is of eviction by {_words(planned)}, this run evicted by {_words(ran)}; profile and plan with "
            f"--lookahead {ran.lookahead} --depth {ran.depth} for figures of such a run"
        )
    if planned_batch != batch:
        found.append(f"the plan is of batches of {planned_batch:,} samples, this run had {batch:,}")
    return tuple(found)


def _computation(plan: PlacementPlan, compute_seconds: float | None) -> tuple[str, ...]:
    if any(limit.name == "compute" and limit.seconds > 0 for limit in plan.limits):
        return ()
    known = "" if compute_seconds is None else f"; plan with --compute-seconds {compute_seconds:.3g} for this run's"
    return (f"the plan knows no computation, so its time is of moving rows alone{known}",)


def _words(eviction: Eviction) -> str:
    return f"{eviction.policy} (lookahead {eviction.lookahead}, depth {eviction.depth})"


def _planned_writes(plan: PlacementPlan, evicted_bytes: float | None) -> float | None:
    """Return the bytes that the plan writes to the log in a step of such a run, with write amplification; None without
    a log."""
    found = [limit.amount for limit in plan.limits if limit.name in ("log writes", "log endurance")]
    missed = sum((table.new + table.fetches) * table.record_bytes for table in plan.tables)
    return found[0] * _ratio(evicted_bytes or 0.0, missed) if found else None


def _hits(counters: Mapping[str, float]) -> float:
    return sum(value for name, value in counters.items() if name.endswith("_hits"))


def _accesses(counters: Mapping[str, float]) -> float:
    return _hits(counters) + counters["new"] + counters["fetches"]


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
