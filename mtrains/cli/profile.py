"""`mtrains profile`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from mtrains.cli.usage import UsageError, usage_errors

if TYPE_CHECKING:
    from mtrains.cli.profile_data import DataOptions
    from mtrains.profiler.simulate import Capacity

__all__ = ["profile"]


def profile(
    data: Annotated[
        list[str],
        typer.Argument(
            help="Click logs (Criteo, TSV, CSV, Parquet), a trace (.npz or .parquet with the column row, and table and "
            "sample if there are several), or batches of FBGEMM's benchmarks (.pt).",
            metavar="DATA...",
        ),
    ],
    batch_size: Annotated[int, typer.Option(help="Samples a batch, of all ranks; accesses, if no samples are named.")],
    output: Annotated[
        str | None, typer.Option("--output", "-o", help="Write the profile there, for mtrains plan.", metavar="FILE")
    ] = None,
    plot: Annotated[
        str | None, typer.Option(help="Write pictures there, PNG and SVG.", metavar="FOLDER")
    ] = None,
    rate: Annotated[
        float | None, typer.Option(help="Samples a second: shows bytes a second at that rate.", min=1e-3)
    ] = None,
    embedding_dim: Annotated[int, typer.Option(help="Columns of each table.")] = 16,
    table_dim: Annotated[
        list[str] | None, typer.Option(help="Columns of one table; may be given again.", metavar="NAME=N")
    ] = None,
    dtype: Annotated[Literal["float32", "float16", "bfloat16"], typer.Option(help="Of weights.")] = "float32",
    rows: Annotated[
        int | None,
        typer.Option(help="Rows of each table: of click logs 100000, to which categories are hashed; else as found."),
    ] = None,
    table_rows: Annotated[
        list[str] | None, typer.Option(help="Rows of one table; may be given again.", metavar="NAME=N")
    ] = None,
    format: Annotated[
        Literal["auto", "criteo", "tsv", "csv", "parquet", "trace", "fbgemm"],
        typer.Option(help="auto looks at names and first bytes; tsv and csv have a header line."),
    ] = "auto",
    label: Annotated[str | None, typer.Option(help="Of click logs: column of the label, 0 or 1.")] = None,
    categorical: Annotated[
        str | None, typer.Option(help="Of click logs: columns of categories: a,b,c.", metavar="COLUMNS")
    ] = None,
    bag: Annotated[
        list[str] | None,
        typer.Option(help="A column that holds any number of categories: tags:^.", metavar="COLUMN:SEPARATOR"),
    ] = None,
    schema: Annotated[
        str | None, typer.Option(help="The columns in a TOML or JSON file instead.", metavar="FILE")
    ] = None,
    on_bad_line: Annotated[
        Literal["error", "skip"], typer.Option(help="Stop at a malformed line, or leave it out and count it.")
    ] = "error",
    num_tables: Annotated[
        int | None, typer.Option(help="Of .pt files whose lengths do not say it.", min=1)
    ] = None,
    max_samples: Annotated[
        int | None, typer.Option(help="Profile the first N samples.", metavar="N", min=1)
    ] = None,
    max_rows: Annotated[int, typer.Option(help="Tracked rows a table; smaller tables are exact.")] = 16_384,
    max_accesses: Annotated[
        int, typer.Option(help="Accesses kept in memory, 12 bytes each; beyond, coarser, then the end.")
    ] = 1 << 25,
    seed: Annotated[int, typer.Option(help="Of the sample of rows.", min=0)] = 0,
    threads: Annotated[
        int | None, typer.Option(help="Simulations at once; by default the machine's cores, 4 at most.", min=1)
    ] = None,
    simulate: Annotated[
        str | None,
        typer.Option(
            help="No profile: simulate policies on a trace at --capacity: lru, lfu, s3-fifo, next-use; a,b,c for "
            "several. Belady's opt is added.",
            metavar="POLICIES",
        ),
    ] = None,
    capacity: Annotated[
        str | None,
        typer.Option(help="With --simulate: slots, or a share of the distinct rows: 2474,10%.", metavar="N[,N..]"),
    ] = None,
    lookahead: Annotated[int, typer.Option(help="Batches that next-use knows ahead.")] = 64,
    depth: Annotated[
        int | None, typer.Option(help="Batches that are brought and pinned ahead (2).", show_default=False)
    ] = None,
    beyond: Annotated[
        Literal["lru", "lfu", "s3-fifo"], typer.Option(help="With --simulate: order of rows without a use ahead.")
    ] = "lru",
    evict: Annotated[
        Literal["before", "after"],
        typer.Option(help="With --simulate: make room before a batch, or shrink to the capacity after it (depth 0)."),
    ] = "before",
    lfu_decay: Annotated[
        int, typer.Option(help="Accesses a slot after which lfu halves its counts; 0: never.")
    ] = 8,
    lfu_remembered: Annotated[
        int, typer.Option(help="Rows a slot whose counts lfu keeps when they leave.")
    ] = 1,
    max_pinned_ratio: Annotated[
        float,
        typer.Option(help="With --simulate: batches are brought ahead while they pin no larger share of the slots."),
    ] = 1 / 3,
    jointly: Annotated[
        bool, typer.Option("--jointly", help="With --simulate: one pool for all tables, not one of each table.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure how tables are accessed: sizes, traffic, reuse, and what caches of each size would hit.

    With --simulate: what eviction policies would hit on a trace.
    """
    from mtrains.cli.profile_data import DataOptions

    if simulate is not None:
        if output is not None or plot is not None or rate is not None:
            raise UsageError("--output, --plot and --rate go with a profile, not with --simulate")
        if capacity is None:
            raise UsageError("--simulate needs --capacity, such as 2474,10%")
        if len(data) > 1:
            raise UsageError(f"--simulate takes one trace, got {len(data)} files")
        _simulate(
            data[0], simulate, capacity, batch_size, lookahead, depth, beyond, evict, (lfu_decay, lfu_remembered),
            max_pinned_ratio, jointly, json,
        )  # fmt: skip
        return
    if capacity is not None or jointly or evict == "after" or beyond != "lru":
        raise UsageError("--capacity, --jointly, --evict and --beyond go with --simulate POLICIES")
    options = DataOptions(
        paths=tuple(data),
        format=format,
        rows=rows,
        table_rows=tuple(table_rows or ()),
        embedding_dim=embedding_dim,
        table_dim=tuple(table_dim or ()),
        dtype=dtype,
        label=label,
        categorical=categorical,
        bags=tuple(bag or ()),
        schema=schema,
        on_bad_line=on_bad_line,
        num_tables=num_tables,
    )
    _measure(options, batch_size, max_samples, max_rows, max_accesses, seed, lookahead, 2 if depth is None else depth,
             threads, output, plot, rate, json)  # fmt: skip


def _measure(
    options: DataOptions,
    batch_size: int,
    max_samples: int | None,
    max_rows: int,
    max_accesses: int,
    seed: int,
    lookahead: int,
    depth: int,
    threads: int | None,
    output: str | None,
    plot: str | None,
    rate: float | None,
    json: bool,
) -> None:
    from mtrains.cli.profile_data import make_tracker, measure
    from mtrains.cli.profile_progress import ProfileProgress
    from mtrains.cli.render import output_console, print_json
    from mtrains.cli.render_profile import profile_object, profile_report
    from mtrains.profiler.mini_simulation import CurveSpec
    from mtrains.profiler.pictures import save_pictures
    from mtrains.profiler.tracking import TrackingSpec

    with usage_errors():
        spec = TrackingSpec(
            batch_size=batch_size,
            max_rows=max_rows,
            hot_rows=max_rows // 8,
            max_accesses=max_accesses,
            seed=seed,
        )
        curves = CurveSpec(lookahead=lookahead, depth=depth)
    with ProfileProgress() as progress:
        source, tracker = make_tracker(options, spec, progress)
        made = measure(source, tracker, curves, options, max_samples, threads, progress)
    if tracker.full:
        print(
            f"mtrains: warning: the profile is of the first {tracker.num_samples:,} samples: the {max_accesses:,} "
            "accesses that are kept were full; raise --max-accesses for more",
            file=sys.stderr,
        )
    if output is not None:
        made.save(output)
    pictures = [] if plot is None else save_pictures(made, plot, samples_per_second=rate)
    if json:
        print_json(profile_object(made, batch_size, rate, output, pictures))
    else:
        output_console().print(profile_report(made, batch_size, rate))
        for path in (*([output] if output else []), *pictures):
            print(f"wrote {path}", file=sys.stderr)


def _simulate(
    trace: str,
    policies: str,
    capacity: str,
    batch_size: int,
    lookahead: int,
    depth: int | None,
    beyond: str,
    evict: str,
    lfu: tuple[int, int],
    max_pinned_ratio: float,
    jointly: bool,
    json: bool,
) -> None:
    from mtrains.cli.render import print_json
    from mtrains.cli.render_simulations import print_simulations, simulations_object
    from mtrains.profiler.simulate import SimulationSpec
    from mtrains.profiler.simulate import simulate as run
    from mtrains.profiler.trace import read_trace

    with usage_errors():
        names = [name.strip() for name in policies.split(",") if name.strip()]
        spec = SimulationSpec(
            policies=list(dict.fromkeys([*names, "opt"])) if names else [],
            capacities=[_capacity(text) for text in capacity.split(",")],
            lookahead=lookahead,
            depth=(0 if evict == "after" else 2) if depth is None else depth,
            batch_size=batch_size,
            beyond=beyond,
            jointly=jointly,
            evict_after=evict == "after",
            lfu_decay=lfu[0],
            lfu_remembered=lfu[1],
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
