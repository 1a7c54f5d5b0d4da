"""Are plans right? Predicted against measured, on the batches that were profiled and on later ones.

A stream is profiled, its tables are placed on a machine with little DRAM over a log, and a store with that plan trains
on the stream: hits by table, fetched rows, bytes read and written, the step's time. What the machine can do is probed;
what a step takes that waits for no row is the time of the same steps with all rows in memory.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

import mtrains
from bench.harness import Options, Result, Timing, environment
from bench.streams import Stream, criteo, made_up, orm_busy
from mtrains.placement.measured import Eviction, MeasuredPlan, measure_plan
from mtrains.placement.topology import LogTier, SlotTier, Topology
from mtrains.probe.machine import ProbeOptions, probe
from mtrains.profiler.measure import profile_of
from mtrains.profiler.mini_simulation import CurveSpec
from mtrains.profiler.tracking import LookupTracker, TableLayout, TrackingSpec

DIM = 32
SHARES = (0.05, 0.1, 0.2, 0.4)  # of the bytes of all rows that were touched, as DRAM for slots
OTHER_SHARE = 0.2  # for batches that were not profiled
BUSY = 5_000  # unique accesses of a table from which its hits are judged by themselves


@dataclass(frozen=True, kw_only=True)
class Staging:
    """How the engine evicts and stages: next use known so many batches ahead, rows staged so many ahead."""

    lookahead: int = 0
    depth: int = 0


STAGINGS = (Staging(), Staging(lookahead=64, depth=2))


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A plan of `share` beside its run. unique_accesses: of each table, in the whole run."""

    share: float
    plan: mtrains.PlacementPlan
    measured: MeasuredPlan

    @property
    def largest_hit_error(self) -> float:
        """Of the tables with BUSY unique accesses or more; of all together if there is none such."""
        errors = [
            abs(sum(hit.measured - (hit.predicted or 0.0) for hit in table.hit_ratios.values()))
            for table in self.measured.tables
            if table.accesses.measured * self.measured.steps >= BUSY
        ]
        total = self.measured.hit_ratio
        return max(errors, default=abs(total.measured - (total.predicted or 0.0)))

    @property
    def total_hit_error(self) -> float:
        """Of all tables together."""
        return abs(self.measured.hit_ratio.measured - (self.measured.hit_ratio.predicted or 0.0))


def profile(stream: Stream, staging: Staging) -> mtrains.LocalityProfile:
    """Return the profile of the stream's lookups."""
    layouts = [
        TableLayout(name=name, num_embeddings=size, embedding_dim=DIM)
        for name, size in zip(stream.tables, stream.sizes, strict=True)
    ]
    tracker = LookupTracker(layouts, TrackingSpec(batch_size=stream.batch_size))
    for number, batch in enumerate(stream.batches):
        first = number * stream.batch_size
        for table, rows in enumerate(batch):
            # The place of a lookup within its batch changes nothing but the curves of smaller batches.
            tracker.add(table, rows, first + np.arange(len(rows)) * stream.batch_size // max(1, len(rows)))
        tracker.end_samples(first + stream.batch_size)
    spec = CurveSpec(lookahead=staging.lookahead, depth=staging.depth, num_points=24)
    return profile_of(tracker, spec, source=stream.name)


def place(
    profiled: mtrains.LocalityProfile, machine: Topology, share: float, workload: mtrains.Workload
) -> mtrains.PlacementPlan:
    """Return the plan where DRAM has room for this share of the touched rows beside all that is no row."""
    from mtrains.placement.problem import Problem

    wanted = Problem.build(profiled, machine, workload)
    slots = share * float((wanted.slot * wanted.rows).sum())
    least = float((wanted.slot * wanted.pinned_rows).sum())
    capacity = float(wanted.fixed.sum()) + max(slots, 1.001 * least)
    return mtrains.plan(profiled, machine.with_capacity("dram", capacity), workload=workload)


class Trainer:
    """Tables of a store, trained on batches by row-wise Adagrad, the gradient of a sum of all rows."""

    def __init__(self, stream: Stream, store: mtrains.Store) -> None:
        self.store = store
        specs = [
            mtrains.TableSpec(name, size, DIM, init=mtrains.init.zeros())
            for name, size in zip(stream.tables, stream.sizes, strict=True)
        ]
        self._tables = mtrains.TieredEmbeddingBagCollection(specs, store=store)
        self._optimizer = mtrains.optim.RowWiseAdagrad(self._tables.parameters(), lr=0.05)

    def steps(self, batches: list[list[np.ndarray]], staging: Staging) -> Iterator[float]:
        """Train; yield the seconds of each step, with the wait for its batch."""
        loader: Iterable[tuple[torch.Tensor, torch.Tensor]] = [
            (torch.from_numpy(np.concatenate(batch)), torch.from_numpy(np.cumsum([0, *map(len, batch)])))
            for batch in batches  # one bag a table
        ]
        if staging != Staging():
            loader = mtrains.prefetch(
                loader, lambda pair: {self._tables: pair}, lookahead=staging.lookahead, depth=staging.depth
            )
        begin = time.perf_counter()
        for indices, offsets in loader:
            self._tables(indices, offsets).sum().backward()
            self._optimizer.step()
            self._optimizer.zero_grad()
            yield time.perf_counter() - begin
            begin = time.perf_counter()


def run_plan(
    stream: Stream, plan: mtrains.PlacementPlan, share: float, staging: Staging
) -> tuple[Outcome, dict[str, list[float]]]:
    """Train the whole stream in a store of the plan's memory, and with all rows in memory: in turns, or afterwards
    where rows are staged meanwhile.

    Returns what came of it, and the seconds of the steps of both, "planned" and "in memory".
    """
    total = sum(size * (4 * DIM + 4) for size in stream.sizes)
    seconds: dict[str, list[float]] = {"planned": [], "in memory": []}
    with mtrains.Store(seed=0, plan=plan) as store, mtrains.Store(seed=0, dram=2 * total + (1 << 20)) as whole:
        in_memory = Trainer(stream, whole)
        for _ in in_memory.steps(stream.batches, Staging()):
            pass  # first touches are no part of the computation
        runs = {
            "planned": Trainer(stream, store).steps(stream.batches, staging),
            "in memory": in_memory.steps(stream.batches, Staging()),
        }
        if staging.depth:
            for name, run in runs.items():
                seconds[name] = list(run)
        else:
            for pair in zip(*runs.values(), strict=True):
                for name, took in zip(runs, pair, strict=True):
                    seconds[name].append(took)
        stats = store.stats()
    measured = measure_plan(
        plan, stats.tables, stats.tiers["ssd"], steps=len(stream.batches), seconds=sum(seconds["planned"]),
        batch_size=stream.batch_size, ran=Eviction(policy="next_use", **dataclasses.asdict(staging)),
    )  # fmt: skip
    return Outcome(share=share, plan=plan, measured=measured), seconds


def slow_machine(folder: Path, quick: bool) -> Topology:
    """Return this machine, measured."""
    if not quick:
        return probe(folder, ProbeOptions(seconds=3.0)).topology
    return Topology(
        name="not measured",
        slots=(
            SlotTier(
                tier="dram", device="some", capacity_bytes=1e9, read_bytes_per_second=1e10, write_bytes_per_second=1e10
            ),
        ),
        log=LogTier(
            device="some", capacity_bytes=1e11, read_iops=5e4, read_bytes_per_second=2e8, write_bytes_per_second=2e8
        ),
    )  # fmt: skip


def main(options: Options) -> list[Result]:
    """Place and run each stream at each share of its bytes; then other batches than those that were profiled."""
    where = environment()
    machine = slow_machine(options.folder, options.quick)
    streams = [made_up(4, 4096, 256, 24)] if options.quick else [orm_busy(2_000_000, 1024), criteo(20_000, 32)]
    results = []
    for stream, staging in itertools.product(filter(None, streams), STAGINGS):
        workload = mtrains.Workload(policy="next_use", max_segments=16, **dataclasses.asdict(staging))
        result = Result(
            question=f"plans for {stream.name}, lookahead {staging.lookahead}, depth {staging.depth}",
            parameters={
                "steps": len(stream.batches), "batch_size": stream.batch_size, "tables": len(stream.tables), "dim": DIM,
                **dataclasses.asdict(staging), "emulated": [],
                "io_engine": "auto", "page_cache": "bypassed where there is O_DIRECT",
            },
            timings=[],
            baseline=_name(SHARES[-1]),
            environment=where,
        )  # fmt: skip
        profiled = profile(stream, staging)
        for share in SHARES:
            _run(result, _name(share), stream, profiled, machine, share, workload)
        half = len(stream.batches) // 2
        earlier = profile(stream.part(0, half), staging)
        _run(result, "later batches", stream.part(half, 2 * half), earlier, machine, OTHER_SHARE, workload)
        for factor in (2, 4):
            larger = dataclasses.replace(workload, batch_size=factor * stream.batch_size)
            name = f"batches x {factor}"
            _run(result, name, stream.recut(factor), profiled, machine, OTHER_SHARE, larger)
        results.append(result)
    return results


def _name(share: float) -> str:
    return f"{share:.0%} in DRAM"


def _run(
    result: Result,
    name: str,
    stream: Stream,
    profiled: mtrains.LocalityProfile,
    machine: Topology,
    share: float,
    workload: mtrains.Workload,
) -> None:
    staging = Staging(lookahead=workload.lookahead, depth=workload.depth)
    outcome, each = run_plan(stream, place(profiled, machine, share, workload), share, staging)
    # The same placement with the computation as it was during this very run.
    computed = dataclasses.replace(workload, compute_seconds=float(np.mean(each["in memory"])))
    planned_seconds = place(profiled, machine, share, computed).step_seconds
    result.timings.append(Timing(name=name, seconds=each["planned"]))
    measured = outcome.measured
    result.figures[f"{name}: % hits planned"] = 100 * (measured.hit_ratio.predicted or 0.0)
    result.figures[f"{name}: % hits measured"] = 100 * measured.hit_ratio.measured
    result.figures[f"{name}: largest error of a busy table's hits, %"] = 100 * outcome.largest_hit_error
    for what, figure in (
        ("bytes of fetched rows", measured.fetched_bytes),
        ("bytes of evicted rows", measured.evicted_bytes),
        ("bytes read from the log", measured.read_bytes),
        ("bytes written to the log", measured.written_bytes),
        ("step time", dataclasses.replace(measured.step_seconds, predicted=planned_seconds)),
    ):
        if figure.predicted:
            result.figures[f"{name}: {what}, measured over planned"] = figure.measured / figure.predicted
