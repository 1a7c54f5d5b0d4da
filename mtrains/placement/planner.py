"""From a profile and a machine to a plan."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING

import numpy as np

from mtrains.placement.allocation import allocate
from mtrains.placement.baselines import all_ssd, greedy, size_proportional
from mtrains.placement.cost import Load, Placement, Price, latency, price
from mtrains.placement.plan import LimitUse, PlacementPlan, TablePlacement, TierUse
from mtrains.placement.problem import Problem
from mtrains.placement.reasons import table_reasons
from mtrains.placement.rounding import whole_rows
from mtrains.placement.solve import Solved, least_seconds, solve
from mtrains.placement.topology import Topology
from mtrains.placement.topology_file import load_topology, topology_to_dict
from mtrains.placement.workload import Workload

if TYPE_CHECKING:
    from mtrains.profiler.profile import LocalityProfile

__all__ = ["plan"]

_GIB = 2.0**30
_NOT_CONCAVE = 0.02
_NOTHING = 1e-9  # rows a step: what rounding leaves of none


def plan(
    profile: LocalityProfile,
    topology: Topology | str | os.PathLike[str],
    *,
    target_samples_per_second: float | None = None,
    workload: Workload | None = None,
) -> PlacementPlan:
    """Place each table of the profile: rows in each slot tier, the rest in the log.

    Minimizes the step's seconds; with a target rate, the weighed bytes that reach it. Deterministic; takes seconds for
    1,000 tables. Never slower than a greedy placement on the same curves.

    Args:
        profile: of the tables, with curves for the workload's batch size, lookahead and depth.
        topology: a Topology, the name of a preset, or a TOML or JSON file.
        target_samples_per_second: > 0, of all ranks together.
    Raises: PlanInfeasibleError with the numbers of what is short; ValueError for what does not fit together;
        FormatError, OSError for files.
    Source: the program of docs/placement.md.
    """
    workload = workload or Workload()
    machine = topology if isinstance(topology, Topology) else load_topology(topology)
    problem = Problem.build(profile, machine, workload)
    solved = solve(problem) if target_samples_per_second is None else _at_rate(problem, target_samples_per_second)
    hull_gap = max(curve.hull_gap for curve in problem.curves)
    warnings = []
    if hull_gap > _NOT_CONCAVE:
        worst = max(range(problem.num_tables), key=lambda table: problem.curves[table].hull_gap)
        warnings.append(
            f"curve of table {profile.tables[worst].name!r} is not concave, gap {hull_gap:.2f}: the plan may promise "
            "hits that are not there; a lookahead longer than the loop in the accesses makes it concave"
        )
    return PlacementPlan(
        topology=topology_to_dict(machine),
        workload={**dataclasses.asdict(workload), "batch_size": problem.batch_size},
        profile_source=profile.source,
        batch_size=problem.batch_size,
        target_samples_per_second=target_samples_per_second,
        step_seconds=_step_seconds(problem, solved.price),
        fastest_seconds=solved.fastest_seconds,
        bound_seconds=solved.bound_seconds,
        binding=solved.price.binding.name,
        limits=tuple(_limit(load) for load in solved.price.loads),
        tiers=_tiers(problem, solved),
        tables=_tables(problem, solved.placement, solved.price),
        log_bytes=solved.price.log_bytes,
        log_capacity_bytes=machine.log.capacity_bytes if machine.log is not None else 0.0,
        baselines=_baselines(problem, solved.checkpoint_steps),
        hull_gap=hull_gap,
        cut_gap=max(curve.cut_gap for curve in problem.curves),
        warnings=tuple(warnings),
    )


def _at_rate(problem: Problem, samples_per_second: float) -> Solved:
    """Return the cheapest placement at a rate.

    How long reads keep a step waiting depends on which tables fetch: first as if none did, then as if all do. If that
    leaves no time at all, the fastest placement may still do.
    """
    if not samples_per_second > 0:
        raise ValueError(f"target_samples_per_second must be > 0, got {samples_per_second}")
    step = problem.batch_size / samples_per_second
    most = latency(problem, problem.unique[:, None])
    for waits in (problem.workload.latency_seconds, most):
        if waits < step:
            solved = solve(problem, (step - waits) / problem.workload.burst_ratio)
            if _step_seconds(problem, solved.price) <= step * (1 + 1e-6):
                return solved
    fastest = solve(problem)
    if _step_seconds(problem, fastest.price) > step:
        raise ValueError(f"{samples_per_second:g} samples/s leave nothing of a step after {most:.3g} s of latency")
    return fastest


def _step_seconds(problem: Problem, cost: Price) -> float:
    return cost.seconds * problem.workload.burst_ratio + latency(problem, cost.misses)


def _limit(load: Load) -> LimitUse:
    return LimitUse(name=load.name, amount=load.amount, rate=load.rate, unit=load.unit, seconds=load.seconds)


def _tiers(problem: Problem, solved: Solved) -> tuple[TierUse, ...]:
    topology, allocation = problem.topology, allocate(problem, solved.placement)
    found = []
    for number, slot in enumerate(topology.slots):
        more = topology.with_capacity(slot.tier, slot.capacity_bytes + _GIB)
        saved = solved.relaxed_seconds - least_seconds(dataclasses.replace(problem, topology=more), solved)
        found.append(
            TierUse(
                tier=slot.tier,
                device=slot.device,
                capacity_bytes=slot.capacity_bytes,
                slot_bytes=int(allocation.slot_bytes[:, number].sum()),
                index_bytes=int(allocation.index_bytes[:, number].sum()),
                fixed_bytes=dict(problem.fixed_parts) if number == topology.host_tier else {},
                next_gib_seconds=max(0.0, saved),
            )
        )
    return tuple(found)


def _tables(problem: Problem, placement: Placement, cost: Price) -> tuple[TablePlacement, ...]:
    names = problem.topology.tier_names
    allocation = allocate(problem, placement)
    reasons = table_reasons(problem, placement, cost)
    hits = np.maximum(0.0, -np.diff(np.concatenate([problem.unique[:, None], cost.misses], axis=1), axis=1))
    fetches = np.maximum(0.0, cost.misses[:, -1] - problem.new)
    pages = np.maximum(0.0, problem.pages - problem.saved_pages(placement.cumulative[:, -1]))
    if problem.topology.log is None:
        pages[:] = 0.0
    # The price knows no whole tables (allocation.py), of which no row is ever fetched.
    whole = allocation.resident
    hits[whole, 0], hits[whole, 1:] = np.maximum(0.0, problem.unique - problem.new)[whole], 0.0
    fetches[whole] = pages[whole] = 0.0
    hits, fetches, pages = (np.where(rows > _NOTHING, rows, 0.0) for rows in (hits, fetches, pages))
    placed = []
    for j, table in enumerate(problem.profile.tables):
        placed.append(
            TablePlacement(
                name=table.name,
                num_embeddings=table.num_embeddings,
                embedding_dim=table.embedding_dim,
                dtype=table.dtype,
                record_bytes=int(problem.record[j]),
                touched_rows=float(problem.rows[j]),
                unique_rows=float(problem.unique[j]),
                rows={name: int(allocation.rows[j, k]) for k, name in enumerate(names)},
                bytes={name: int(allocation.slot_bytes[j, k]) for k, name in enumerate(names)},
                hits={name: float(hits[j, k]) for k, name in enumerate(names)},
                new=float(problem.new[j]),
                fetches=float(fetches[j]),
                page_reads=float(pages[j]),
                log_bytes=float(problem.log[j] * problem.rows[j]) / problem.workload.live_ratio
                if problem.topology.log is not None
                else 0.0,
                resident=bool(allocation.resident[j]),
                passes_over=tuple(
                    name for k, name in enumerate(names) if k and not placement.passed[j, k]
                ),
                reason=reasons[j],
            )
        )
    return tuple(placed)


def _baselines(problem: Problem, steps: float | None) -> dict[str, dict[str, float]]:
    """Return what placements without a planner cost on the same curves; only those that hold every row."""
    makers = {"greedy": greedy, "size-proportional": size_proportional}
    if problem.topology.log is not None:
        makers["all-SSD"] = all_ssd
    found = {}
    for name, make in makers.items():
        placement = whole_rows(problem, make(problem))
        cost = price(problem, placement, steps)
        pages = problem.pages - problem.saved_pages(placement.cumulative[:, -1])
        found[name] = {
            "step_seconds": _step_seconds(problem, cost),
            "fetches": float(np.maximum(0.0, cost.misses[:, -1] - problem.new).sum()),
            "page_reads": float(pages.sum()),
        }
    return found
