"""`mtrains profile`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from mtrains.cli.usage import usage_errors

if TYPE_CHECKING:
    from mtrains.profiler.simulate import Capacity

__all__ = ["profile"]


def profile(
    trace: Annotated[
        str,
        typer.Argument(
            help="A .npz or .parquet file with the column row, and table and sample if there are several.",
            metavar="TRACE",
        ),
    ],
    simulate: Annotated[
        str,
        typer.Option(
            help="Eviction policies: lru, lfu, s3-fifo, next-use; a,b,c for several. Belady's opt is added.",
            metavar="POLICIES",
        ),
    ],
    capacity: Annotated[
        str, typer.Option(help="Slots, or a share of the distinct rows: 2474,10%.", metavar="N[,N..]")
    ],
    batch_size: Annotated[int, typer.Option(help="Samples a batch; accesses, if no samples are named.")],
    lookahead: Annotated[int, typer.Option(help="Batches that next-use knows ahead.")] = 64,
    depth: Annotated[
        int | None, typer.Option(help="Batches that are brought and pinned ahead (2).", show_default=False)
    ] = None,
    beyond: Annotated[
        Literal["lru", "lfu", "s3-fifo"], typer.Option(help="Order of rows without a use ahead.")
    ] = "lru",
    evict: Annotated[
        Literal["before", "after"],
        typer.Option(help="Make room before a batch, or shrink to the capacity after it (depth 0)."),
    ] = "before",
    lfu_decay: Annotated[
        int, typer.Option(help="Accesses a slot after which lfu halves its counts; 0: never.")
    ] = 8,
    lfu_remembered: Annotated[
        int, typer.Option(help="Rows a slot whose counts lfu keeps when they leave.")
    ] = 1,
    max_pinned_ratio: Annotated[
        float, typer.Option(help="Batches are brought ahead while they pin no larger share of the slots.")
    ] = 1 / 3,
    jointly: Annotated[
        bool, typer.Option("--jointly", help="One pool for all tables, not one of each table.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Simulate caches on a recorded stream of lookups: hits, new and fetched rows of each policy."""
    from mtrains.cli.render import print_json
    from mtrains.cli.render_simulations import print_simulations, simulations_object
    from mtrains.profiler.simulate import SimulationSpec
    from mtrains.profiler.simulate import simulate as run
    from mtrains.profiler.trace import read_trace

    with usage_errors():
        policies = [name.strip() for name in simulate.split(",") if name.strip()]
        spec = SimulationSpec(
            policies=list(dict.fromkeys([*policies, "opt"])) if policies else [],
            capacities=[_capacity(text) for text in capacity.split(",")],
            lookahead=lookahead,
            depth=(0 if evict == "after" else 2) if depth is None else depth,
            batch_size=batch_size,
            beyond=beyond,
            jointly=jointly,
            evict_after=evict == "after",
            lfu_decay=lfu_decay,
            lfu_remembered=lfu_remembered,
            max_pinned_ratio=max_pinned_ratio,
        )
    accesses = read_trace(trace)
    simulations = list(run(accesses, spec))
    if json:
        print_json(simulations_object(trace, accesses, spec, simulations))
    else:
        print_simulations(trace, accesses, spec, simulations)


def _capacity(text: str) -> Capacity:
    from mtrains.profiler.simulate import Capacity

    text = text.strip()
    try:
        return Capacity(share=float(text[:-1]) / 100) if text.endswith("%") else Capacity(rows=int(text))
    except ValueError:
        raise ValueError(
            f"--capacity is a list of rows or shares such as 2474,10%, above 0 and up to 100%, got {text!r}"
        ) from None
