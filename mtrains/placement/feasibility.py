"""Whether any placement is possible, and by how much it is not."""

from __future__ import annotations

from mtrains.errors import PlanInfeasibleError, Shortfall
from mtrains.placement.cost import Price
from mtrains.placement.problem import Problem
from mtrains.units import format_bytes

__all__ = ["check_rate", "check_room", "describe_amount"]


def check_room(problem: Problem) -> None:
    """Raise PlanInfeasibleError with every room that is too small for what must be there."""
    topology = problem.topology
    short: list[Shortfall] = []
    for slot, fixed in zip(topology.slots, problem.fixed, strict=True):
        _add(short, f"{slot.tier} capacity for {_names(problem)}", float(fixed), slot.capacity_bytes)
    pinned = float((problem.slot * problem.pinned_rows).sum())
    first = topology.slots[0].tier
    _add(
        short,
        f"{first} capacity for rows of {problem.workload.depth + 1} batches at once",
        pinned,
        float(problem.capacity[0]),
    )
    if topology.log is None:
        _add(
            short,
            f"capacity of {' + '.join(topology.tier_names)} for all touched rows",
            float((problem.slot * problem.rows).sum()),
            float(problem.capacity.sum()),
        )
    else:
        kept = problem.workload.keep * float((problem.log * problem.pinned_rows).sum())
        _add(short, "log capacity for all touched rows", problem.log_fixed_bytes + kept, topology.log.capacity_bytes)
    if short:
        raise PlanInfeasibleError(f"no placement on {topology.name}: {'; '.join(map(_describe, short))}", short)


def check_rate(problem: Problem, fastest: Price, target_seconds: float) -> None:
    """Raise PlanInfeasibleError if even the fastest placement needs more than these seconds a step."""
    if fastest.seconds <= target_seconds:
        return
    short = [
        Shortfall(load.name, load.amount / target_seconds, load.rate, f"{load.unit}/s")
        for load in fastest.loads
        if load.seconds > target_seconds
    ]
    batch = problem.batch_size
    detail = "; ".join(map(_describe, short)) or "at depth 0 a step waits for one limit after another"
    raise PlanInfeasibleError(
        f"{batch / target_seconds:,.0f} samples/s are out of reach on {problem.topology.name}: the fastest placement "
        f"reaches {batch / fastest.seconds:,.0f}; {detail}",
        short,
    )


def describe_amount(amount: float, unit: str) -> str:
    """Return an amount in its unit for people: "3.2 GiB/s", "1,200 reads/s", "0.5 core s/s"."""
    if unit.startswith("B"):
        return format_bytes(amount) + unit[1:]
    return f"{amount:,.0f} {unit}" if amount >= 100 else f"{amount:.3g} {unit}"


def _add(short: list[Shortfall], limit: str, needed: float, available: float) -> None:
    if needed > available * (1 + 1e-9):
        short.append(Shortfall(limit, needed, available, "B"))


def _describe(short: Shortfall) -> str:
    over = f" ({short.needed / short.available:.2f}x)" if short.available > 0 else ""
    needed, available = (describe_amount(value, short.unit) for value in (short.needed, short.available))
    return f"{short.limit} needs {needed}, there are {available}{over}"


def _names(problem: Problem) -> str:
    return ", ".join(problem.fixed_parts) or "buffers"
