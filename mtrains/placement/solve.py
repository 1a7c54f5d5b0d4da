"""The search for a placement: bound, choice of tiers, the fastest or cheapest, whole rows."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from mtrains.errors import MtrainsError
from mtrains.placement.baselines import greedy
from mtrains.placement.cost import Placement, Price, checkpoint_steps, price
from mtrains.placement.feasibility import check_rate, check_room
from mtrains.placement.problem import Problem
from mtrains.placement.program import Choice, Program, Solution
from mtrains.placement.rounding import whole_rows

__all__ = ["Solved", "least_seconds", "solve"]

MILP_TABLES = 100  # up to so many the choice of tiers is exact
_GOOD_ENOUGH = 1e-4
_SLACK = 5e-4  # of time, for a cheaper placement
_TARGET_RESERVE = 1e-3  # of a target's time, for whole rows
_USEFULNESS = (0.0, 0.02, 0.1, 0.3)
_PRICE_TOLERANCE = 1e-6
_CHECKPOINT_ROUNDS = 6
_NO_LIMIT = 1e18  # bytes a second


@dataclass(frozen=True)
class Solved:
    """placement: in whole rows. bound_seconds: no placement on these curves is faster. choice: tiers of tables.

    fastest_seconds: the fastest placement's step in whole rows; relaxed_seconds: the same in parts of rows.
    """

    placement: Placement
    price: Price
    bound_seconds: float
    fastest_seconds: float
    relaxed_seconds: float
    choice: Choice
    checkpoint_steps: float | None


def solve(problem: Problem, target_seconds: float | None = None) -> Solved:
    """Return the fastest placement, or the cheapest that takes target_seconds a step.

    Deterministic. Never slower than greedy on the same curves, where that has room for pins.

    Raises: PlanInfeasibleError.
    """
    check_room(problem)
    by_greedy = whole_rows(problem, greedy(problem))
    seconds = target_seconds or price(problem, by_greedy).seconds or 1e-9
    steps = checkpoint_steps(problem, seconds)
    for _ in range(_CHECKPOINT_ROUNDS):
        search = _Search(problem, seconds, steps)
        choice, fastest, bound = search.run()
        if target_seconds is not None or problem.workload.checkpoint_seconds is None:
            break
        if abs(fastest - seconds) <= _SLACK * seconds:  # checkpoints a second cost more of a longer step
            break
        seconds, steps = fastest, checkpoint_steps(problem, fastest)
    program = Program(problem, seconds, steps, choice)
    placement, cost = _finished(program, problem, steps, fastest * (1 + _SLACK), spread_load=True)
    its_price = price(problem, by_greedy, steps)
    if its_price.seconds < cost.seconds and _holds_pins(problem, by_greedy):
        placement, cost = by_greedy, its_price
    fastest_whole = cost.seconds
    if target_seconds is not None:
        check_rate(problem, cost, target_seconds)
        limit = max(target_seconds * (1 - _TARGET_RESERVE), min(target_seconds, fastest * (1 + _SLACK)))
        cheap = _finished(program, problem, steps, limit, spread_load=False)
        if cheap[1].seconds <= target_seconds:
            placement, cost = cheap
    return Solved(placement, cost, bound, fastest_whole, fastest, choice, steps)


def least_seconds(problem: Problem, solved: Solved) -> float:
    """Return the fastest step on another machine or curve with the tiers that were chosen: what would change."""
    return _seconds_of(problem, solved.relaxed_seconds or 1e-9, solved.checkpoint_steps, solved.choice)


@dataclass(frozen=True)
class _Search:
    """The search for the tiers that each table uses."""

    problem: Problem
    scale_seconds: float
    checkpoint_steps: float | None

    def run(self) -> tuple[Choice, float, float]:
        """Return the tiers, the fastest step with them, and a bound of every placement."""
        every = np.ones((self.problem.num_tables, self.problem.num_tiers - 1), dtype=bool)
        fastest = self._seconds(every)
        free = self._without_bandwidth_of_tiers(every)
        if fastest <= free * (1 + _GOOD_ENOUGH):  # no slot tier's bandwidth limits: passing one over gains nothing
            return every, fastest, free
        program = Program(self.problem, self.scale_seconds, self.checkpoint_steps, None)
        relaxed = _found(program.least_seconds())
        best, bound = every, relaxed.seconds
        usefulness = program.usefulness(relaxed)
        choices = [usefulness > threshold for threshold in _USEFULNESS]
        best, fastest = self._better(best, fastest, choices)
        if fastest > bound * (1 + _GOOD_ENOUGH) and self.problem.num_tables <= MILP_TABLES:
            exact = program.search()
            if exact is not None:
                best, fastest = self._better(best, fastest, [program.chosen(exact)])
        return best, fastest, bound

    def _better(self, best: Choice, fastest: float, choices: list[Choice]) -> tuple[Choice, float]:
        for choice in choices:
            seconds = self._seconds(choice)
            if seconds < fastest:
                best, fastest = choice, seconds
        return best, fastest

    def _seconds(self, choice: Choice) -> float:
        return _seconds_of(self.problem, self.scale_seconds, self.checkpoint_steps, choice)

    def _without_bandwidth_of_tiers(self, every: Choice) -> float:
        """Return the fastest step if rows passed through slot tiers at no cost: a bound, and often the answer."""
        topology = self.problem.topology
        slots = (
            topology.slots[0],
            *(
                dataclasses.replace(slot, read_bytes_per_second=_NO_LIMIT, write_bytes_per_second=_NO_LIMIT)
                for slot in topology.slots[1:]
            ),
        )
        easier = dataclasses.replace(self.problem, topology=dataclasses.replace(topology, slots=slots))
        return _seconds_of(easier, self.scale_seconds, self.checkpoint_steps, every)


def _seconds_of(problem: Problem, scale_seconds: float, steps: float | None, choice: Choice) -> float:
    """Return the fastest step with these tiers, infinite if the tables do not fit in them."""
    solution = Program(problem, scale_seconds, steps, choice).least_seconds()
    return np.inf if solution is None else solution.seconds


def _holds_pins(problem: Problem, placement: Placement) -> bool:
    return bool((placement.rows[:, 0] >= np.floor(problem.pinned_rows)).all())


def _found(solution: Solution | None) -> Solution:
    """Return the solution. Raises: MtrainsError if there is none although every room was checked."""
    if solution is None:
        raise MtrainsError("the solver calls a placement impossible that has room; please report this with its inputs")
    return solution


def _finished(
    program: Program, problem: Problem, steps: float | None, limit: float, *, spread_load: bool
) -> tuple[Placement, Price]:
    """Return the whole-row placement within `limit` seconds, priced outside the solver.

    Raises: MtrainsError if the solver's figure and the price differ: a bug, or numbers it cannot handle.
    """
    solution = _found(program.cheapest(limit, spread_load=spread_load))
    exact = program.placement(solution)
    outside = price(problem, exact, steps).seconds
    if outside > solution.seconds * (1 + _PRICE_TOLERANCE):
        raise MtrainsError(
            f"the solver promised a step of {solution.seconds:.6g} s and its placement takes {outside:.6g} s; please "
            "report this with the profile and the topology"
        )
    whole = whole_rows(problem, exact)
    return whole, price(problem, whole, steps)
