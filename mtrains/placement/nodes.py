"""How many machines of each kind a model needs at a target rate."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mtrains.errors import PlanInfeasibleError
from mtrains.placement.cost import Price
from mtrains.placement.feasibility import check_rate
from mtrains.placement.problem import Problem
from mtrains.placement.solve import solve
from mtrains.placement.topology import Topology
from mtrains.placement.workload import Workload

if TYPE_CHECKING:
    from mtrains.profiler.profile import LocalityProfile

__all__ = ["NODE_SEGMENTS", "NodeCount", "count_nodes", "nodes_of_servers"]

MAX_NODES = 4096
NODE_SEGMENTS = 48  # of a table's curve: few tables, whose far ends decide


@dataclass(frozen=True, kw_only=True)
class NodeCount:
    """Machines of one kind. nodes: None if MAX_NODES are too few.

    ratio: nodes of the first kind asked over these. first_limit: what is short with one node less. even_rate: samples a
    second above which this kind needs as many as the first kind's room alone does: the ratio is 1 at most from there.
    device_watts, device_usd: of the devices whose figure is known, all nodes; None if none is.
    """

    server: str
    nodes: int | None
    ratio: float | None
    first_limit: str
    binding: str
    step_seconds: float | None
    even_rate: float | None
    device_watts: float | None
    device_usd: float | None


def nodes_of_servers(
    profile: LocalityProfile, servers: Sequence[Topology], workload: Workload, target_samples_per_second: float
) -> tuple[NodeCount, ...]:
    """Return the machines that each kind needs; the first kind is what the others are compared with.

    Raises: ValueError if the profile has no curves of this workload.
    """
    counts = [count_nodes(profile, server, workload, target_samples_per_second) for server in servers]
    base = counts[0]
    room = _nodes_for_room(profile, servers[0], workload)
    found = []
    for server, count in zip(servers, counts, strict=True):
        ratio = base.nodes / count.nodes if base.nodes and count.nodes else None
        even = None
        if count is not base and room is not None and room > 1:
            even = _best_rate(profile, server.times(room - 1), workload)
        found.append(dataclasses.replace(count, ratio=ratio, even_rate=even))
    return tuple(found)


def count_nodes(
    profile: LocalityProfile, server: Topology, workload: Workload, target_samples_per_second: float
) -> NodeCount:
    """Return how many machines of this kind train the model at this rate, and what one machine less lacks."""

    def problem(nodes: int) -> Problem:
        return Problem.build(profile, server.times(nodes), workload)

    step = problem(1).batch_size / target_samples_per_second
    target = (step - workload.latency_seconds) / workload.burst_ratio
    if target <= 0:
        raise ValueError(f"{target_samples_per_second:g} samples/s leave no time for a step")
    few, enough = 0, 1
    costs: dict[int, Price | str] = {}
    while isinstance(reached := _try(problem(enough), target), str):
        costs[enough] = reached
        few, enough = enough, enough * 2
        if enough > MAX_NODES:
            return _too_few(server.name, reached)
    costs[enough] = reached
    while enough - few > 1:
        middle = (few + enough) // 2
        costs[middle] = _try(problem(middle), target)
        few, enough = (middle, enough) if isinstance(costs[middle], str) else (few, middle)
    cost, lacking = costs[enough], costs.get(enough - 1, "")
    assert not isinstance(cost, str)
    assert isinstance(lacking, str)
    return NodeCount(
        server=server.name,
        nodes=enough,
        ratio=None,
        first_limit=lacking,
        binding=cost.binding.name,
        step_seconds=cost.seconds,
        even_rate=None,
        device_watts=_known(server, "watts", enough),
        device_usd=_known(server, "price_usd", enough),
    )


def _too_few(server: str, limit: str) -> NodeCount:
    return NodeCount(
        server=server,
        nodes=None,
        ratio=None,
        first_limit=limit,
        binding="",
        step_seconds=None,
        even_rate=None,
        device_watts=None,
        device_usd=None,
    )


def _try(problem: Problem, target_seconds: float) -> Price | str:
    """Return what the fastest placement costs, or the limits that are short."""
    workload = problem.workload
    if workload.checkpoint_seconds is not None:  # per step at the target's pace
        steps = max(1, round(workload.checkpoint_seconds / target_seconds))
        workload = dataclasses.replace(workload, checkpoint_seconds=None, checkpoint_steps=steps)
        problem = dataclasses.replace(problem, workload=workload)
    try:
        solved = solve(problem)
        check_rate(problem, solved.price, target_seconds)
    except PlanInfeasibleError as error:
        return ", ".join(dict.fromkeys(_short_name(short.limit) for short in error.shortfalls))
    return solved.price


def _short_name(limit: str) -> str:
    """Return the limit without what it was for: "capacity", "log capacity", "compute", "log IOPS"."""
    name = limit.split(" for ")[0]
    return name if name.startswith("log") or "capacity" not in name else "capacity"


def _nodes_for_room(profile: LocalityProfile, server: Topology, workload: Workload) -> int | None:
    """Return the machines that the model needs at any rate, however low."""
    slow = dataclasses.replace(workload, latency_seconds=0.0)
    return count_nodes(profile, server, slow, 1e-3).nodes


def _best_rate(profile: LocalityProfile, machines: Topology, workload: Workload) -> float | None:
    """Return the samples a second that these machines reach, None if the model has no room on them."""
    problem = Problem.build(profile, machines, workload)
    try:
        seconds = solve(problem).fastest_seconds
    except PlanInfeasibleError:
        return None
    return problem.batch_size / (seconds * workload.burst_ratio + workload.latency_seconds)


def _known(server: Topology, field: str, nodes: int) -> float | None:
    parts = [*server.slots, *([server.log] if server.log is not None else [])]
    values = [getattr(part, field) for part in parts if getattr(part, field) is not None]
    return sum(values) * nodes if values else None
