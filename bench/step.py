"""How long does a training step take, and a forward alone, against FBGEMM and torch? (design targets 1 to 4)"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from bench.contestants import Contestant, Fbgemm, Mtrains, Torch
from bench.harness import Options, Result, Target, check_same, environment, interleave
from bench.workload import Workload

WORKLOADS = {
    "zipf-pooling-20": Workload(
        name="zipf-pooling-20",
        num_tables=8,
        num_rows=1_000_000,
        dim=64,
        batch_size=2048,
        pooling_factor=20,
        zipf_exponent=1.05,
    ),
    "zipf-pooling-1": Workload(
        name="zipf-pooling-1",
        num_tables=8,
        num_rows=1_000_000,
        dim=64,
        batch_size=2048,
        pooling_factor=1,
        zipf_exponent=1.05,
    ),
    "uniform-128": Workload(
        name="uniform-128",
        num_tables=4,
        num_rows=1_000_000,
        dim=128,
        batch_size=2048,
        pooling_factor=20,
        zipf_exponent=0.0,
    ),
}
# Times that FBGEMM and torch should take of ours, for a whole step.
TARGETS = {"zipf-pooling-20": (3.0, 7.0), "zipf-pooling-1": (2.0, 3.0), "uniform-128": (3.0, 12.0)}
WARM_UP = 4


def _contestants(workload: Workload) -> tuple[list[Contestant], dict[str, str]]:
    contestants: list[Contestant] = [
        Mtrains(workload, cached=False),
        Mtrains(workload, cached=True),
        Torch(workload),
    ]
    try:
        return [*contestants, Fbgemm(workload)], {}
    except ImportError as error:
        return contestants, {"fbgemm": f"not installed ({error}); pip install 'mtrains[bench]'"}


def measure(workload: Workload, rounds: int) -> list[Result]:
    """Return the timings of steps and of forwards alone."""
    where = environment()
    contestants, missing = _contestants(workload)
    check_same({contestant.name: contestant.forward(0) for contestant in contestants})
    results = []
    for kind, call in (("step", _step), ("forward", _forward)):
        result = Result(
            question=f"{kind} {workload.name}",
            parameters={
                "tables": workload.num_tables,
                "rows": workload.num_rows,
                "dim": workload.dim,
                "batch_size": workload.batch_size,
                "pooling_factor": workload.pooling_factor,
                "zipf_exponent": workload.zipf_exponent,
                "unique_rows_a_table": workload.unique_rows,
            },
            timings=interleave(
                {contestant.name: call(contestant) for contestant in contestants},
                rounds=rounds,
                warm_up=WARM_UP,
                batches=workload.num_batches,
            ),
            baseline="mtrains resident",
            targets=_targets(workload, kind),
            missing=missing,
            environment=where,
        )
        for name in ("torch", "fbgemm"):
            if name not in missing and (ratio := result.ratio("mtrains resident", name)) is not None:
                result.figures[f"{name} over mtrains resident"] = ratio
        result.figures["mtrains cached over resident"] = result.timing("mtrains cached").percentile(
            10
        ) / result.timing("mtrains resident").percentile(10)
        results.append(result)
    # After the same steps, those with the same optimizer hold the same rows, to rounding.
    check_same({contestant.name: contestant.forward(0) for contestant in contestants if contestant.row_wise})
    for contestant in contestants:
        contestant.close()
    return results


def _targets(workload: Workload, kind: str) -> dict[str, Target]:
    if kind == "forward":
        return {"torch over mtrains resident": Target(value=1 / 1.05)}
    fbgemm, torch = TARGETS[workload.name]
    return {
        "fbgemm over mtrains resident": Target(value=fbgemm),
        "torch over mtrains resident": Target(value=torch),
        "mtrains cached over resident": Target(value=1.15, at_most=True),
    }


def _step(contestant: Contestant) -> Callable[[int], object]:
    return contestant.step


def _forward(contestant: Contestant) -> Callable[[int], object]:
    return contestant.forward


def main(options: Options) -> list[Result]:
    """Measure all workloads."""
    workloads = list(WORKLOADS.values())
    if options.quick:
        workloads = [replace(workload, num_rows=1000, batch_size=16) for workload in workloads]
    return [result for workload in workloads for result in measure(workload, options.rounds)]
