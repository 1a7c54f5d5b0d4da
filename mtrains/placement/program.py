"""The linear program of a placement, solved by HiGHS."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import optimize, sparse

from mtrains.errors import MtrainsError
from mtrains.placement.cost import Placement, overlaps, price
from mtrains.placement.problem import Array, Problem
from mtrains.placement.program_rows import Choice, ProgramRows

__all__ = ["Choice", "Program", "Solution"]

_LEXICOGRAPHIC_SLACK = 5e-4
_INFEASIBLE = 2  # status of scipy.optimize.linprog
_MILP_GAP = 1e-4
_MILP_NODES = 500  # not a limit of time: a plan is the same on every machine


@dataclass(frozen=True)
class Solution:
    """values: of the variables. seconds: of a step, as the program sees it."""

    values: Array
    seconds: float


class Program:
    """The program of a problem with these tiers for its tables; choice None relaxes them, or searches them.

    checkpoint_steps: steps between checkpoints, None if they cost no bandwidth.
    """

    def __init__(
        self, problem: Problem, scale_seconds: float, checkpoint_steps: float | None, choice: Choice | None
    ) -> None:
        self._problem = problem
        self._rows = ProgramRows(problem, scale_seconds, choice)
        matrix, limits = self._rows.constraints()
        rates, constants = self._rows.rates(checkpoint_steps)
        self._total_load, self._constant_load = np.asarray(rates.sum(axis=0)).ravel(), float(constants.sum())
        shape = (problem.num_tables, problem.num_tiers)
        nothing = Placement(np.zeros(shape), np.ones(shape, dtype=bool))
        sums = sparse.csr_array(overlaps(price(problem, nothing, checkpoint_steps).loads, problem.workload.depth))
        rates, constants = sparse.csr_array(sums @ rates), sums @ constants
        time = sparse.csr_array(
            (np.ones(len(constants)), (np.arange(len(constants)), np.full(len(constants), rates.shape[1] - 1))),
            shape=rates.shape,
        )
        self._matrix = sparse.vstack([matrix, rates - time], format="csr")
        self._limits = np.concatenate([limits, -constants])

    def least_seconds(self) -> Solution | None:
        """Return the fastest placement, None if the tables have no room. Without a choice of tiers: a bound."""
        return self._solve(self._time_cost(), np.inf)

    def search(self) -> Solution | None:
        """Return the fastest placement over all choices of tiers; None if the search ended before it found one."""
        whole = np.zeros(self._rows.num_variables)
        whole[self._rows.tier_choices] = 1
        result = optimize.milp(
            self._time_cost(),
            integrality=whole,
            bounds=optimize.Bounds(*self._rows.bounds()),
            constraints=optimize.LinearConstraint(self._matrix, -np.inf, self._limits),
            options={"mip_rel_gap": _MILP_GAP, "node_limit": _MILP_NODES},
        )
        return None if result.x is None else self._solution(result.x)

    def cheapest(self, seconds: float, *, spread_load: bool) -> Solution | None:
        """Return the placement within so many seconds whose bytes weigh least.

        spread_load: among those with the least sum of loads, so that memory that helps anything is used.
        """
        limit = seconds / self._rows.scale_seconds
        rows: list[Array] = []
        bounds: list[float] = []
        if spread_load:
            lightest = self._solve(self._total_load, limit)
            if lightest is None:
                return None
            least = float(self._total_load @ lightest.values)
            rows.append(self._total_load)
            bounds.append(least + _LEXICOGRAPHIC_SLACK * (least + self._constant_load))
        return self._solve(self._rows.byte_cost(), limit, rows, bounds)

    def placement(self, solution: Solution) -> Placement:
        """Return the solution's rows, not whole ones yet."""
        rows = np.maximum((self._rows.shares(solution.values) * self._rows.width).sum(axis=2).T, 0.0)
        passed = np.ones(rows.shape, dtype=bool)
        if self._rows.choice is not None:
            passed[:, 1:] = self._rows.choice
        return Placement(rows, passed)

    def chosen(self, solution: Solution) -> Choice:
        """Return the tiers that a solution of search() chose."""
        chosen = solution.values[self._rows.tier_choices].reshape(self._rows.tiers - 1, self._rows.tables)
        return chosen.T > 0.5

    def usefulness(self, solution: Solution) -> Array:
        """Return, [J, K-1], hits in tiers 1.. over rows that pass through if they may: what a tier is worth."""
        hits = (self._rows.shares(solution.values) * self._rows.gain).sum(axis=2).T
        coming = self._problem.unique[:, None] - np.cumsum(hits, axis=1)[:, :-1]
        useful: Array = np.divide(hits[:, 1:], coming, out=np.zeros_like(coming), where=coming > 1e-12)
        return useful

    def _solve(
        self, cost: Array, limit: float, rows: Sequence[Array] = (), row_limits: Sequence[float] = ()
    ) -> Solution | None:
        matrix, limits = self._matrix, self._limits
        if rows:
            matrix = sparse.vstack([matrix, sparse.csr_array(np.stack(rows))], format="csr")
            limits = np.concatenate([limits, row_limits])
        low, high = self._rows.bounds()
        high[-1] = limit
        result = optimize.linprog(
            cost, A_ub=matrix, b_ub=limits, bounds=np.stack([low, high], axis=1), method="highs"
        )
        if result.status == _INFEASIBLE:
            return None
        if result.x is None:
            raise MtrainsError(f"the solver gave up on the placement: {result.message}")
        return self._solution(result.x)

    def _solution(self, values: Array) -> Solution:
        return Solution(values, float(values[-1]) * self._rows.scale_seconds)

    def _time_cost(self) -> Array:
        cost = np.zeros(self._rows.num_variables)
        cost[-1] = 1.0
        return cost
