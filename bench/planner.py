"""How long does a plan take, and what does it save over giving every table the same share of its rows?

1,000 tables on HBM, DRAM and SCM over a log; and 60 tables of Meta's published reuse on DRAM over a log, at several
budgets, predicted, with the same eviction everywhere.
"""

from __future__ import annotations

import dataclasses
import time

import numpy as np

import mtrains
from bench.harness import Options, Result, Target, Timing, environment
from mtrains.placement.presets import log_of, slots_of
from mtrains.placement.problem import Problem
from mtrains.placement.topology import SlotTier, Topology
from mtrains.profiler.analytic import TableShape, meta2021_table
from mtrains.profiler.profile import LocalityProfile

BATCH = 65_536
DIMS = (16, 32, 64, 128)
SHARES = (0.02, 0.05, 0.1, 0.2, 0.4)
MAX_SECONDS = 10.0  # for 1,000 tables
_LOG = log_of("p5800x-3200")


def meta_tables(count: int, seed: int = 0) -> LocalityProfile:
    """Return tables of Meta's 2021 reuse, of different sizes, dims and traffic: 60 kinds, in several dims if more."""
    random = np.random.default_rng(seed)
    kinds = [
        meta2021_table(
            TableShape(
                name=f"kind{number}",
                num_embeddings=int(10 ** random.uniform(4.5, 7)),
                embedding_dim=16,
                lookups_per_sample=float(10 ** random.uniform(-1, 1)),
                batch_size=BATCH,
            )
        )
        for number in range(min(count, 60))
    ]
    tables = [
        dataclasses.replace(kinds[number % len(kinds)], name=f"t{number}", embedding_dim=int(random.choice(DIMS)))
        for number in range(count)
    ]
    return LocalityProfile(tables=tuple(tables), samples=64.0 * BATCH, source=f"{count} tables of Meta's 2021 reuse")


def on_dram(share: float, profiled: LocalityProfile, workload: mtrains.Workload) -> Topology:
    """Return a machine whose DRAM holds this share of the bytes of all rows, over a log."""
    dram = SlotTier(
        tier="dram", device="DRAM", capacity_bytes=1e15, read_bytes_per_second=2e11, write_bytes_per_second=1e11
    )
    machine = Topology(name="DRAM over a log", slots=(dram,), log=_LOG)
    wanted = Problem.build(profiled, machine, workload)
    slots = max(share * float((wanted.slot * wanted.rows).sum()), float((wanted.slot * wanted.pinned_rows).sum()))
    return machine.with_capacity("dram", float(wanted.fixed.sum()) + 1.001 * slots)


def four_tiers(profiled: LocalityProfile, workload: mtrains.Workload, scm_modules: float) -> Topology:
    """Return HBM, DRAM and SCM that hold a tenth, a fifth and two fifths of the rows, over a log.

    scm_modules: as fast as so many; with few, tables had better pass SCM over, which is searched for.
    """
    slots = (slots_of("a100-40"), slots_of("ddr4-3200-x8"), slots_of("optane-pmem-100-256", scm_modules))
    machine = Topology(name="four tiers", slots=slots, log=_LOG)
    wanted = Problem.build(profiled, machine, workload)
    total = float((wanted.slot * wanted.rows).sum())
    for tier, share, fixed in zip(("hbm", "dram", "scm"), (0.1, 0.2, 0.4), wanted.fixed, strict=True):
        machine = machine.with_capacity(tier, share * total + float(fixed))
    return machine


def main(options: Options) -> list[Result]:
    """Time the plan of many tables, and compare plans with equal shares."""
    workload = mtrains.Workload(writer_bytes=32 << 20)
    many = meta_tables(30 if options.quick else 1000, seed=1)
    result = Result(
        question="the planner",
        parameters={"batch_size": BATCH, "emulated": [], "io_engine": "none", "page_cache": "none"},
        timings=[],
        baseline=f"{len(many.tables)} tables, 4 tiers, SCM of 6 modules",
        environment=environment(),
    )
    for modules in (6, 0.1):
        machine = four_tiers(many, workload, modules)
        name = f"{len(many.tables)} tables, 4 tiers, SCM of {modules:g} modules"
        seconds, cpu = [], []
        for _ in range(1 if options.quick else 3):
            begin, cpu_begin = time.perf_counter(), time.process_time()
            made = mtrains.plan(many, machine, workload=workload)
            seconds.append(time.perf_counter() - begin)
            cpu.append(time.process_time() - cpu_begin)
        result.timings.append(Timing(name=name, seconds=seconds))
        result.figures[f"{name}: seconds of CPU"] = min(cpu)
        result.targets[f"{name}: seconds of CPU"] = Target(value=MAX_SECONDS, at_most=True)
        result.figures[f"{name}: % over the bound"] = 100 * made.gap_ratio
        over = sum("scm" in table.passes_over for table in made.tables)
        result.figures[f"{name}: tables that pass SCM over"] = over
    some = meta_tables(8 if options.quick else 60)
    for share in SHARES:
        made = mtrains.plan(some, on_dram(share, some, workload), workload=workload)
        own, equal = sum(table.fetches for table in made.tables), made.baselines["size-proportional"]["fetches"]
        figure = f"{share:.0%} in DRAM: fetches of equal shares over the plan's"
        result.figures[f"{share:.0%} in DRAM: fetches a step, plan"] = own
        result.figures[f"{share:.0%} in DRAM: fetches a step, equal shares"] = equal
        result.figures[figure] = equal / own if own else float("inf")
        result.targets[figure] = Target(value=1.0)
    return [result]
