"""What `mtrains profile --simulate` shows, as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from mtrains.cli.render import output_console
from mtrains.profiler.simulate import Simulation, SimulationSpec
from mtrains.profiler.trace import Trace

__all__ = ["print_simulations", "simulations_object", "simulations_report"]


def print_simulations(
    path: str,
    trace: Trace,
    spec: SimulationSpec,
    simulations: Sequence[Simulation],
    console: Console | None = None,
) -> None:
    """Write the simulations of a trace to standard output, or to the given console."""
    (console or output_console()).print(simulations_report(path, trace, spec, simulations))


def simulations_report(
    path: str, trace: Trace, spec: SimulationSpec, simulations: Sequence[Simulation]
) -> RenderableType:
    """Return the simulations as something rich prints."""
    _, num_batches = trace.batches(spec.batch_size)
    room = "after" if spec.evict_after else "before"
    lines = [
        ("trace", f"{path}: {len(trace):,} accesses, {len(trace.tables):,} tables"),
        ("batches", f"{num_batches:,} of {spec.batch_size:,} samples, room made {room} each, depth {spec.depth}"),
        ("next-use", f"{spec.lookahead:,} batches ahead, beyond them {spec.beyond}"),
    ]
    table = Table(box=box.SIMPLE_HEAD)
    if not spec.jointly:
        table.add_column("table")
    table.add_column("capacity", justify="right")
    table.add_column("policy")
    for column in ("accesses", "hits", "new", "fetches", "miss %", "x opt", "ahead"):
        table.add_column(column, justify="right")
    optimal = {(each.table, each.capacity): each for each in simulations if each.policy == "opt"}
    for each in simulations:
        best = optimal[each.table, each.capacity].miss_ratio
        table.add_row(
            *(() if each.table is None else (each.table,)),
            f"{each.capacity:,}",
            each.policy,
            *(f"{number:,}" for number in (each.accesses, each.hits, each.new, each.fetches)),
            f"{100 * each.miss_ratio:.1f}",
            f"{each.miss_ratio / best:.3f}" if best else "-",
            f"{each.ahead:.1f}",
        )
    parts: list[RenderableType] = [Text("\n".join(f"{name:<10} {value}" for name, value in lines)), table]
    split = max((each.split_batches for each in simulations), default=0)
    if split:
        note = "have more unique rows than slots: brought in pieces, opt is no bound"
        parts.append(Text(f"up to {split:,} batches {note}"))
    return Group(*parts)


def simulations_object(
    path: str, trace: Trace, spec: SimulationSpec, simulations: Sequence[Simulation]
) -> dict[str, Any]:
    """Return the same numbers, and those of each table, as one JSON object."""
    _, num_batches = trace.batches(spec.batch_size)
    return {
        "trace": path,
        "num_accesses": len(trace),
        "tables": list(trace.tables),
        "num_batches": num_batches,
        "batch_size": spec.batch_size,
        "depth": spec.depth,
        "beyond": spec.beyond,
        "evict": "after" if spec.evict_after else "before",
        "jointly": spec.jointly,
        "simulations": [_simulation_object(each) for each in simulations],
    }


def _simulation_object(each: Simulation) -> dict[str, Any]:
    return {
        "table": each.table,
        "policy": each.policy,
        "capacity": each.capacity,
        "lookahead": each.lookahead,
        "accesses": each.accesses,
        "hits": each.hits,
        "new": each.new,
        "fetches": each.fetches,
        "hit_ratio": each.hit_ratio,
        "miss_ratio": each.miss_ratio,
        "evictions": each.evictions,
        "batches_ahead": each.ahead,
        "split_batches": each.split_batches,
        "tables": {
            name: dict(zip(("hits", "new", "fetches"), counts, strict=True))
            for name, counts in each.tables.items()
        },
    }
