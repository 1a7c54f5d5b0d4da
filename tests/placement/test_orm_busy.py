"""A real shop's object accesses, 30 types as 30 tables: plans from its curves against equal shares, both simulated."""

import lzma
from pathlib import Path

import numpy as np
import pytest

from mtrains.placement.baselines import size_proportional
from mtrains.placement.problem import Problem
from mtrains.placement.rounding import whole_rows
from mtrains.placement.solve import solve
from mtrains.placement.topology import LogTier, SlotTier, Topology
from mtrains.placement.workload import Workload
from mtrains.profiler.profile import LocalityCurve, LocalityProfile, TableProfile

TRACE = Path(__file__).parents[3] / "shared" / "data" / "cache2k" / "orm-busy.trace.xz"
ACCESSES, BATCH, LOOKAHEAD, DIM = 600_000, 4096, 64, 16
NEVER = 1 << 30


def read_tables():
    """Rows, renumbered from 0, of each table by batch: {table: [unique rows of batch 0, ..]}."""
    with lzma.open(TRACE) as file:
        value = np.frombuffer(file.read(4 * ACCESSES), dtype=">i4").astype(np.int64)
    table, found = value >> 27, {}
    for number in np.unique(table):
        _, row = np.unique(value[table == number], return_inverse=True)
        batch = np.flatnonzero(table == number) // BATCH
        found[int(number)] = [np.unique(row[batch == b]) for b in range(-(-ACCESSES // BATCH))]
    return found


def next_uses(batches, rows):
    following, upcoming = [], np.full(rows, NEVER)
    for number in reversed(range(len(batches))):
        following.append(upcoming[batches[number]])
        upcoming[batches[number]] = number
    return following[::-1]


def simulate(batches, rows, capacity):
    """(hits, first touches, fetches) of next use in a window, LRU beyond, evicting after each batch."""
    held, touched = np.zeros(rows, dtype=bool), np.zeros(rows, dtype=bool)
    last, following = np.full(rows, -1), np.full(rows, NEVER)
    hits = new = fetches = 0
    for number, (batch, uses) in enumerate(zip(batches, next_uses(batches, rows), strict=True)):
        found = int(held[batch].sum())
        first = int((~touched[batch]).sum())
        hits, new, fetches = hits + found, new + first, fetches + len(batch) - found - first
        held[batch], touched[batch], last[batch], following[batch] = True, True, number, uses
        here = np.flatnonzero(held)
        over = len(here) - capacity
        if over > 0:
            known = following[here] <= number + LOOKAHEAD
            worth = np.where(known, NEVER - following[here] + NEVER, last[here])
            held[here[np.argpartition(worth, over - 1)[:over]]] = False
    return hits, new, fetches


def profile_of(tables):
    made = []
    for number, batches in tables.items():
        rows = int(max(batch.max(initial=-1) for batch in batches)) + 1
        capacities = np.unique(np.geomspace(1, rows, 14).astype(int))
        counted = [simulate(batches, rows, int(capacity)) for capacity in capacities]
        steps = len(batches)
        curve = LocalityCurve(
            policy="next_use",
            lookahead=LOOKAHEAD,
            depth=2,
            batch_size=BATCH,
            unique_rows=sum(len(batch) for batch in batches) / steps,
            pinned_rows=0.0,  # the simulation evicts after each batch and stages nothing
            new_rows=counted[0][1] / steps,
            capacity_rows=tuple(capacities),
            hits=tuple(hits / steps for hits, _, _ in counted),
            fetches=tuple(fetches / steps for _, _, fetches in counted),
            pages_per_fetch=(0.5,) * len(capacities),
        )
        made.append(
            TableProfile(
                name=f"type{number}",
                num_embeddings=rows,
                embedding_dim=DIM,
                dtype="float32",
                touched_rows=rows,
                lookups_per_sample=1.0,
                footprint=(),
                curves=(curve,),
            )
        )
    return LocalityProfile(tables=tuple(made), samples=ACCESSES)


def machine(slot_bytes, total):
    dram = SlotTier(
        tier="dram",
        device="x",
        capacity_bytes=slot_bytes,
        read_bytes_per_second=1e12,
        write_bytes_per_second=1e12,
    )
    log = LogTier(
        device="x", capacity_bytes=10 * total, read_iops=5e4, read_bytes_per_second=1e12, write_bytes_per_second=1e12
    )
    return Topology(name="x", slots=(dram,), log=log)


@pytest.mark.skipif(not TRACE.exists(), reason="the recorded trace is not in this checkout (shared/data/cache2k)")
def test_plans_fetch_less_than_equal_shares_and_what_they_promise():
    tables = read_tables()
    profile = profile_of(tables)
    workload = Workload(writer_bytes=0, max_segments=14)
    probe = Problem.build(profile, machine(1e12, 1e12), workload)
    total, fixed = float((probe.slot * probe.rows).sum()), float(probe.fixed.sum())
    steps = len(next(iter(tables.values())))
    for share in (0.02, 0.05, 0.1, 0.2, 0.4):
        problem = Problem.build(profile, machine(fixed + share * total, total), workload)
        solved = solve(problem)
        fetched = {}
        for name, rows in (
            ("plan", solved.placement.rows[:, 0]),
            ("equal", whole_rows(problem, size_proportional(problem)).rows[:, 0]),
        ):
            runs = [
                simulate(batches, one.num_embeddings, int(count))
                for batches, one, count in zip(tables.values(), profile.tables, rows, strict=True)
            ]
            fetched[name] = sum(fetches for _, _, fetches in runs)
            if name == "plan":
                hits = np.array([hits for hits, _, _ in runs]) / steps
                promised = problem.unique - solved.price.misses[:, 0]
                busy = problem.unique * steps >= 5_000
                assert np.abs((hits - promised) / problem.unique)[busy].max() <= 0.02
        assert fetched["plan"] < fetched["equal"]
