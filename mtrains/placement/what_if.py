"""What a step would take on a machine with more or less of one thing."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mtrains.placement.cost import latency
from mtrains.placement.problem import Problem
from mtrains.placement.solve import least_seconds, solve
from mtrains.placement.topology import Topology, scaled
from mtrains.placement.topology_file import load_topology
from mtrains.placement.workload import Workload

if TYPE_CHECKING:
    from mtrains.profiler.profile import LocalityProfile

__all__ = ["FACTORS", "WhatIf", "what_if"]

FACTORS = (0.5, 2.0, 4.0)


@dataclass(frozen=True, kw_only=True)
class WhatIf:
    """The fastest step with `factor` times of a resource; None if the tables have no room then.

    ratio: over the step on the machine as it is.
    """

    resource: str
    factor: float
    step_seconds: float | None
    ratio: float | None


def what_if(
    profile: LocalityProfile, topology: Topology | str | os.PathLike[str], workload: Workload | None = None
) -> tuple[WhatIf, ...]:
    """Return the fastest step with half, twice and four times of each thing that the machine has, one at a time.

    In parts of rows, and with the tiers that tables use now, as the gain of a GiB in a plan. Takes a program each.
    What no rate explains, the latency of reads, stays that of the plan.
    Raises: as plan().
    """
    workload = workload or Workload()
    machine = topology if isinstance(topology, Topology) else load_topology(topology)
    problem = Problem.build(profile, machine, workload)
    solved = solve(problem)
    waits = latency(problem, solved.price.misses)

    def step(seconds: float) -> float:
        return seconds * workload.burst_ratio + waits

    now = step(solved.relaxed_seconds)
    found = []
    for resource, factor, changed in _variants(problem):
        seconds = least_seconds(changed, solved) if (changed.capacity >= 0).all() else math.inf
        fits = math.isfinite(seconds)
        found.append(
            WhatIf(
                resource=resource,
                factor=factor,
                step_seconds=step(seconds) if fits else None,
                ratio=step(seconds) / now if fits and now else None,
            )
        )
    return tuple(found)


def _variants(problem: Problem) -> Iterator[tuple[str, float, Problem]]:
    machine, workload = problem.topology, problem.workload
    for factor in FACTORS:
        for slot in machine.slots:
            yield f"{slot.tier} capacity", factor, _on(problem, _replaced(machine, slot.tier, factor, "capacity_bytes"))
        for slot in machine.slots[1:]:
            rates = ("read_bytes_per_second", "write_bytes_per_second")
            yield f"{slot.tier} bandwidth", factor, _on(problem, _replaced(machine, slot.tier, factor, *rates))
        if machine.log is not None:
            for resource, names in (
                ("log reads", ("read_iops", "read_bytes_per_second")),
                ("log writes", ("write_bytes_per_second", "endurance_bytes_per_day")),
            ):
                log = scaled(machine.log, factor, *names)
                yield resource, factor, _on(problem, dataclasses.replace(machine, log=log))
        if machine.link is not None:
            link = scaled(machine.link, factor, "up_bytes_per_second", "down_bytes_per_second")
            yield "link", factor, _on(problem, dataclasses.replace(machine, link=link))
        if machine.cpu is not None:
            cpu = scaled(machine.cpu, factor, "cores")
            yield "cpu cores", factor, _on(problem, dataclasses.replace(machine, cpu=cpu))
        if problem.compute_seconds:
            faster = dataclasses.replace(workload, compute_seconds=problem.compute_seconds / factor)
            yield "compute", factor, dataclasses.replace(problem, workload=faster)


def _replaced(machine: Topology, tier: str, factor: float, *names: str) -> Topology:
    slots = tuple(scaled(slot, factor, *names) if slot.tier == tier else slot for slot in machine.slots)
    return dataclasses.replace(machine, slots=slots)


def _on(problem: Problem, machine: Topology) -> Problem:
    return dataclasses.replace(problem, topology=machine)
