"""python -m bench [QUESTION ...] [--rounds N] [--quick] [--folder DIR]: measure, print a table, keep the samples in
bench/results/."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

import torch

import mtrains
from bench import checkpoint, overhead, planner, plans, prefetch, step, tiers, write
from bench.harness import Options, Result, table

QUESTIONS = {
    "step": step.main,
    "overhead": overhead.main,
    "tiers": tiers.main,
    "write": write.main,
    "checkpoint": checkpoint.main,
    "planner": planner.main,
    "plans": plans.main,
    "prefetch": prefetch.main,
}


def main() -> int:
    """Run the questions named, all by default."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("questions", nargs="*", help=f"of: {', '.join(QUESTIONS)} (default: all)")
    parser.add_argument("--rounds", type=int, default=40, help="samples of each contestant (default: 40)")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="for all contestants")
    parser.add_argument("--quick", action="store_true", help="tiny sizes and 2 rounds: does it work?")
    parser.add_argument("--folder", type=Path, default=None, help="on the device to measure (default: temporary)")
    args = parser.parse_args()
    unknown = set(args.questions) - set(QUESTIONS)
    if unknown or args.rounds < 1:
        parser.error(
            f"no such question: {', '.join(sorted(unknown))}" if unknown else "--rounds must be >= 1"
        )
    torch.set_num_threads(args.threads)
    mtrains.set_num_threads(args.threads)
    results = []
    for name in args.questions or QUESTIONS:
        with tempfile.TemporaryDirectory(prefix="mtrains-bench-", dir=args.folder) as folder:
            options = Options(
                rounds=2 if args.quick else args.rounds, quick=args.quick, folder=Path(folder)
            )
            for result in QUESTIONS[name](options):
                path = result.save()
                print(f"{result.question}: samples in {path}", file=sys.stderr)
                results.append(result)
    print(table(results))
    for result in results:
        _print_figures(result)
    return 0


def _print_figures(result: Result) -> None:
    for figure, value in result.figures.items():
        target = result.targets.get(figure)
        distance = "" if target is None else f" ({target.distance(value)})"
        print(f"{result.question}: {figure}: {value:.2f}{distance}")
    disturbed = [timing.name for timing in result.timings if not timing.steady]
    if disturbed:
        print(f"{result.question}: disturbed (median > 1.5 x p10), no ratio to: {', '.join(disturbed)}")
    for peer, reason in result.missing.items():
        print(f"{result.question}: {peer} not measured: {reason}")


if __name__ == "__main__":
    sys.exit(main())
