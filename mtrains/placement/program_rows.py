"""The rows of the linear program of a placement: its variables, constraints and limits, scaled.

Variables: d[k, j, s] in [0, 1], the share of segment s of table j's curve that tiers 0..k hold together; for tiers
k >= 1 z[k, j] in [0, 1], whether table j's rows pass through tier k, and y[k, j] in [0, 1], the share of its unique
rows that do; t, the step's seconds over a scale. Each capacity row is divided by its capacity and each rate row by
what its limit does in the scale's seconds: unscaled rows silently gave steps many times too long.

Rows are written down in h[k] = d[k] - d[k - 1], what tier k holds by itself, and turned into rows of d: the simplex
needs a tenth of the time in d (1,000 tables, 3 slot tiers).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from mtrains.placement.problem import Array, Problem
from mtrains.placement.records import PAGE_BYTES

__all__ = ["Choice", "ProgramRows"]

Matrix: TypeAlias = Any  # scipy.sparse.csr_array; scipy has no types
Choice = NDArray[np.bool_]  # [J, K-1]: whether a table's rows pass through tier 1..K-1


class ProgramRows:
    """Rows over the variables in the order d, z, y, t. scale_seconds: of t.

    choice: tiers that tables use; then z and y are in no row, and what they would say is in their place. None leaves
    them free.
    """

    def __init__(self, problem: Problem, scale_seconds: float, choice: Choice | None) -> None:
        self.problem = problem
        self.scale_seconds = scale_seconds
        self.choice = choice
        self.tiers, self.tables = problem.num_tiers, problem.num_tables
        self.segments = max(len(curve.rows) - 1 for curve in problem.curves)
        columns = [(curve.rows, curve.hits, curve.pages_saved) for curve in problem.curves]
        # Of each segment, [J, S]: rows, hits a batch, page reads saved a batch.
        self.width, self.gain, self.page_gain = (
            np.stack([np.pad(np.diff(values), (0, self.segments + 1 - len(values))) for values in part])
            for part in zip(*columns, strict=True)
        )
        self.num_shares = self.tiers * self.tables * self.segments
        self.num_choices = (self.tiers - 1) * self.tables
        self.num_variables = self.num_shares + 2 * self.num_choices + 1
        self._all_tiers = range(self.tiers)
        self._used = np.ones((self.tiers, self.tables), dtype=bool)
        if choice is not None:
            self._used[1:] = choice.T
        self._to_held = self._differences()

    @property
    def tier_choices(self) -> slice:
        """The variables z."""
        return slice(self.num_shares, self.num_shares + self.num_choices)

    def shares(self, values: Array) -> Array:
        """Return h[k, j, s] of a solution."""
        held: Array = (self._to_held @ values)[: self.num_shares]
        return held.reshape(self.tiers, self.tables, self.segments)

    def bounds(self) -> tuple[Array, Array]:
        """Return the least and largest value of each variable."""
        low, high = np.zeros(self.num_variables), np.ones(self.num_variables)
        high[-1] = np.inf
        high[: self.num_shares] = np.repeat(self._used.ravel(), self.segments)
        # The first segments of a concave curve gain most, so pins fill them in order.
        begins = np.cumsum(self.width, axis=1) - self.width
        filled = (self.problem.pinned_rows[:, None] - begins) / np.where(self.width > 0, self.width, np.inf)
        size = self.tables * self.segments
        low[:size] = np.clip(filled, 0.0, 1.0).ravel()
        if self.problem.topology.log is None:  # no other home: every touched row is in a slot
            last = self._used & (np.cumsum(self._used[::-1], axis=0)[::-1] == 1)
            low[: self.num_shares] = np.maximum(low[: self.num_shares], np.repeat(last.ravel(), self.segments))
        return low, high

    def constraints(self) -> tuple[Matrix, Array]:
        """Return A and b of A v <= b: room, tiers in order, and which tiers a table may use."""
        rows, limits = self._room_rows()
        for tier in range(1, self.tiers):
            for row in self._order_rows(tier) if self.choice is not None else self._choice_rows(tier):
                rows.append(row)
                limits += [0.0] * row.shape[0]
        return sparse.csr_array(sparse.vstack(rows) @ self._to_held), np.array(limits, dtype=float)

    def rates(self, checkpoint_steps: float | None) -> tuple[Matrix, Array]:
        """Return R and c: R v + c are the seconds that each limit takes, over scale_seconds. As cost.price has them.

        checkpoint_steps: steps between checkpoints; None: they cost no bandwidth.
        """
        limits = [*self._compute_rates(), *self._tier_rates(), *self._log_rates(checkpoint_steps)]
        rows = [row / (rate * self.scale_seconds) for row, _, rate in limits]
        constants = [constant / (rate * self.scale_seconds) for _, constant, rate in limits]
        return sparse.csr_array(sparse.vstack(rows) @ self._to_held), np.array(constants)

    def byte_cost(self) -> Array:
        """Return the weights of the bytes in tiers, scaled."""
        weights = np.array([slot.cost_per_gib for slot in self.problem.topology.slots])
        cost = weights[:, None, None] * self.problem.slot[None, :, None] * self.width[None]
        scale = float((weights * np.maximum(self.problem.capacity, 1.0)).max()) or 1.0
        weighed: Array = self._to_held.T @ np.concatenate([cost.ravel() / scale, np.zeros(2 * self.num_choices + 1)])
        return weighed

    # --- rooms and tiers

    def _room_rows(self) -> tuple[list[Matrix], list[float]]:
        problem = self.problem
        rows, limits = [], []
        for tier, capacity in enumerate(problem.capacity):
            scale = max(float(capacity), 1.0)
            rows.append(self._sum([tier], problem.slot[:, None] * self.width / scale))
            limits.append(max(float(capacity), 0.0) / scale)
        if problem.topology.log is not None:
            room = problem.topology.log.capacity_bytes - problem.log_fixed_bytes
            scale = max(room, 1.0)
            kept = problem.workload.keep * problem.log[:, None] * self.width
            rows.append(self._sum(self._all_tiers, kept / scale))
            limits.append(max(room, 0.0) / scale)
        return rows, limits

    def _order_rows(self, tier: int) -> list[Matrix]:
        """Return rows <= 0: no tier holds less than nothing of a table."""
        return [-self._each([tier], self.width / np.maximum(self.problem.rows, 1.0)[:, None])]

    def _choice_rows(self, tier: int) -> list[Matrix]:
        """Return rows <= 0: shares of a segment only where z; y at least 1 - hits above where z, and hits here.

        By segments, and with the last one, which whole z imply, the relaxed bound is close to what can be reached.
        """
        gain = self.gain / np.maximum(self.problem.unique, 1e-12)[:, None]
        above, here = self._each(range(tier), gain), self._each([tier], gain)
        chosen, passing = self._per_table(tier), self._per_table(tier, passing=True)
        size = self.tables * self.segments
        table_of = sparse.csr_array(
            (np.ones(size), (np.arange(size), np.repeat(np.arange(self.tables), self.segments))),
            shape=(size, self.tables),
        )
        held = self._segment_shares(tier)
        return [-held, held - table_of @ chosen, chosen - above - passing, here - passing]

    # --- limits: row, constant, rate

    def _compute_rates(self) -> list[tuple[Matrix, float, float]]:
        problem, topology = self.problem, self.problem.topology
        unique, pages = float(problem.unique.sum()), float(problem.pages.sum())
        limits = [(self._none(), problem.compute_seconds, 1.0)]
        if topology.cpu is not None:
            cpu = topology.cpu
            a_miss = cpu.seconds_per_miss + cpu.seconds_per_eviction
            a_read = cpu.seconds_per_read if topology.log is not None else 0.0
            row = -self._sum([0], a_miss * self.gain) - self._sum(self._all_tiers, a_read * self.page_gain)
            base = problem.cpu_base_seconds + (cpu.seconds_per_hit + a_miss) * unique + a_read * pages
            limits.append((row, base, cpu.cores))
        if topology.network_bytes_per_second is not None:
            amount = problem.workload.network_bytes_per_sample * problem.batch_size
            limits.append((self._none(), amount, topology.network_bytes_per_second))
        if topology.link is not None:
            row = -self._sum([0], problem.record[:, None] * self.gain)
            up = float((problem.record * (problem.unique - problem.new)).sum())
            limits.append((row, up, topology.link.up_bytes_per_second))
            limits.append((row, float((problem.record * problem.unique).sum()), topology.link.down_bytes_per_second))
        return limits

    def _tier_rates(self) -> list[tuple[Matrix, float, float]]:
        problem = self.problem
        slots = problem.topology.slots
        limits = [(self._none(), problem.lookup_bytes, slots[0].read_bytes_per_second)]
        for tier, slot in enumerate(slots[1:], start=1):
            moved = problem.moved[:, tier]
            if self.choice is None:
                all_pass = sparse.csr_array((moved * problem.unique)[None, :])
                row, constant = sparse.csr_array(all_pass @ self._per_table(tier, passing=True)), 0.0
            else:
                moved = moved * self.choice[:, tier - 1]
                row = -self._sum(range(tier), moved[:, None] * self.gain)
                constant = float((moved * problem.unique).sum())
            limits.append((row, constant, slot.round_trip_bytes_per_second))
        return limits

    def _log_rates(self, checkpoint_steps: float | None) -> list[tuple[Matrix, float, float]]:
        problem, log = self.problem, self.problem.topology.log
        if log is None:
            return []
        pages, reads = float(problem.pages.sum()), -self._sum(self._all_tiers, self.page_gain)
        a_miss = problem.workload.write_amplification * problem.log
        written = -a_miss[:, None] * self.gain
        if checkpoint_steps is not None:
            written = written + problem.log[:, None] * self.width / checkpoint_steps
        return [
            (reads, pages, log.read_iops),
            (PAGE_BYTES * reads, PAGE_BYTES * pages, log.read_bytes_per_second),
            (
                self._sum(self._all_tiers, written),
                float((a_miss * problem.unique).sum()),
                log.sustained_write_bytes_per_second,
            ),
        ]

    # --- parts of rows

    def _differences(self) -> Matrix:
        """Return the matrix that makes h of d, where a table's next faster tier is the next one that it uses."""
        size = self.tables * self.segments
        own = np.flatnonzero(np.repeat(self._used.ravel(), self.segments))
        rest = np.arange(self.num_shares, self.num_variables)
        rows, columns, values = [own, rest], [own, rest], [np.ones(len(own)), np.ones(len(rest))]
        faster = np.zeros(self.tables, dtype=np.int64)
        for tier in range(1, self.tiers):
            here = np.flatnonzero(np.repeat(self._used[tier], self.segments))
            rows.append(tier * size + here)
            columns.append(np.repeat(faster, self.segments)[here] * size + here)
            values.append(np.full(len(here), -1.0))
            faster[self._used[tier]] = tier
        place = (np.concatenate(rows), np.concatenate(columns))
        return sparse.csr_array((np.concatenate(values), place), shape=(self.num_variables, self.num_variables))

    def _none(self, rows: int = 1) -> Matrix:
        return sparse.csr_array((rows, self.num_variables))

    def _columns(self, tiers: Sequence[int]) -> NDArray[np.int64]:
        """Return the columns of h of these tiers: [tiers, J x S]."""
        size = self.tables * self.segments
        return np.array(tiers, dtype=np.int64)[:, None] * size + np.arange(size)

    def _sum(self, tiers: Sequence[int], weights: Array) -> Matrix:
        """Return the row sum_kjs weights[j, s] h[k, j, s] over these tiers."""
        columns = self._columns(tiers).ravel()
        values = np.tile(weights.ravel(), len(tiers))
        place = (np.zeros(len(columns), dtype=int), columns)
        return sparse.csr_array((values, place), shape=(1, self.num_variables))

    def _each(self, tiers: Sequence[int], weights: Array) -> Matrix:
        """Return, a row a table, sum_ks weights[j, s] h[k, j, s] over these tiers."""
        columns = self._columns(tiers).ravel()
        values = np.tile(weights.ravel(), len(tiers))
        tables = np.tile(np.repeat(np.arange(self.tables), self.segments), len(tiers))
        return sparse.csr_array((values, (tables, columns)), shape=(self.tables, self.num_variables))

    def _segment_shares(self, tier: int) -> Matrix:
        """Return, a row a segment, h[tier, j, s]."""
        columns = self._columns([tier]).ravel()
        place = (np.arange(len(columns)), columns)
        return sparse.csr_array((np.ones(len(columns)), place), shape=(len(columns), self.num_variables))

    def _per_table(self, tier: int, *, passing: bool = False) -> Matrix:
        """Return, a row a table, z[tier, j], or y."""
        begin = self.num_shares + (self.num_choices if passing else 0) + (tier - 1) * self.tables
        place = (np.arange(self.tables), begin + np.arange(self.tables))
        return sparse.csr_array((np.ones(self.tables), place), shape=(self.tables, self.num_variables))
