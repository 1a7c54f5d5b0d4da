"""Times contestants in one interleaved run, checks that they agree, keeps every sample."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

import mtrains
from mtrains import _native

RESULTS = Path(__file__).parent / "results"
# A run in which the baseline's median is beyond this many times its p10 was disturbed; contention inflates peers more
# than it does us, so its ratios would flatter.
MAX_MEDIAN_OVER_P10 = 1.5


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Samples of one contestant, in seconds."""

    name: str
    seconds: list[float]

    def percentile(self, percent: float) -> float:
        return float(np.percentile(self.seconds, percent))

    @property
    def steady(self) -> bool:
        return self.percentile(50) <= MAX_MEDIAN_OVER_P10 * self.percentile(10)


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to measure. quick: tiny sizes, to see that a question works; its figures mean nothing.

    folder: where stores and files are written; its device is what is measured.
    """

    rounds: int
    quick: bool
    folder: Path


@dataclass(frozen=True, kw_only=True)
class Target:
    """What a figure should be, as the design says: at least or at most `value`."""

    value: float
    at_most: bool = False

    def distance(self, figure: float) -> str:
        """Return the target and how far the figure is from it, as text."""
        wanted = f"target {'<=' if self.at_most else '>='} {self.value:g}"
        met = figure <= self.value if self.at_most else figure >= self.value
        return f"{wanted}, met" if met else f"{wanted}, missed by {abs(figure / self.value - 1):.0%}"


@dataclass(kw_only=True)
class Result:
    """One question's answer: what was measured and where."""

    question: str
    parameters: dict[str, Any]
    timings: list[Timing]
    baseline: str
    figures: dict[str, float] = field(default_factory=dict)
    targets: dict[str, Target] = field(default_factory=dict)  # of figures
    missing: dict[str, str] = field(default_factory=dict)  # peers that were not measured, and why
    environment: dict[str, Any] = field(default_factory=dict)

    def timing(self, name: str) -> Timing:
        return next(timing for timing in self.timings if timing.name == name)

    def ratio(self, name: str, to: str) -> float | None:
        """p10 of `to` over p10 of `name`: how many times faster `name` is. None if `to` was disturbed."""
        if not self.timing(to).steady:
            return None
        return self.timing(to).percentile(10) / self.timing(name).percentile(10)

    def save(self) -> Path:
        RESULTS.mkdir(exist_ok=True)
        name = re.sub(r"[^a-z0-9]+", "-", self.question)
        path = RESULTS / f"{name}-{time.strftime('%Y%m%dT%H%M%S')}.json"
        path.write_text(json.dumps(asdict(self), indent=1))
        return path


def interleave(
    calls: dict[str, Callable[[int], object]], *, rounds: int, warm_up: int, batches: int
) -> list[Timing]:
    """Call each contestant once a round, in ABBA order; the warm-up rounds are not kept."""
    samples: dict[str, list[float]] = {name: [] for name in calls}
    names = list(calls)
    for number in range(warm_up + rounds):
        for name in names if number % 2 == 0 else reversed(names):
            begin = time.perf_counter()
            calls[name](number % batches)
            if number >= warm_up:
                samples[name].append(time.perf_counter() - begin)
    return [Timing(name=name, seconds=seconds) for name, seconds in samples.items()]


def interleave_seconds(
    calls: dict[str, Callable[[], float]], *, rounds: int, warm_up: int
) -> list[Timing]:
    """As `interleave`, of calls that return the seconds of what counts in them: they prepare and check, too."""
    samples: dict[str, list[float]] = {name: [] for name in calls}
    names = list(calls)
    for number in range(warm_up + rounds):
        for name in names if number % 2 == 0 else reversed(names):
            seconds = calls[name]()
            if number >= warm_up:
                samples[name].append(seconds)
    return [Timing(name=name, seconds=seconds) for name, seconds in samples.items()]


def check_same(outputs: dict[str, torch.Tensor]) -> None:
    """Raise AssertionError unless all contestants give the same pooled rows, to rounding."""
    (first, expected), *others = outputs.items()
    for name, output in others:
        torch.testing.assert_close(
            output,
            expected,
            rtol=1e-3,
            atol=1e-4,
            msg=lambda text, name=name: f"{name} differs from {first}: {text}",
        )


def environment() -> dict[str, Any]:
    """What the figures depend on. Raises RuntimeError for a debug build."""
    if _native.BUILD_TYPE != "Release":
        raise RuntimeError(
            f"benchmarks need a Release build of the native core, this is {_native.BUILD_TYPE}"
        )
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "mtrains_commit": _commit(),
        "threads": torch.get_num_threads(),
        "instruction_set": _native.isa(),
        "load_average": os.getloadavg(),
        "native_threads": mtrains.get_num_threads(),
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def _commit() -> str:
    try:
        return subprocess.run(
            ["git", "describe", "--always", "--dirty"],
            capture_output=True,
            text=True,
            check=True,
            cwd=Path(__file__).parent,
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def table(results: Sequence[Result]) -> str:
    """The results as one Markdown table."""
    lines = ["| question | contestant | p10 ms | median ms | p95 ms | p99 ms |", "|---|---|---|---|---|---|"]
    for result in results:
        for timing in result.timings:
            cells = [f"{1e3 * timing.percentile(percent):.3f}" for percent in (10, 50, 95, 99)]
            lines.append(f"| {result.question} | {timing.name} | {' | '.join(cells)} |")
    return "\n".join(lines)
