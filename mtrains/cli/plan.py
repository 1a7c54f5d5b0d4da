"""`mtrains plan`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from mtrains.cli.plan_place import PlanOutputs, run_plan
from mtrains.cli.plan_probe import run_probe
from mtrains.cli.usage import UsageError, usage_errors

if TYPE_CHECKING:
    from mtrains.placement.workload import Workload

__all__ = ["plan"]


def plan(
    profile: Annotated[
        str | None, typer.Argument(help="A file that LocalityProfile.save() wrote.", metavar="PROFILE")
    ] = None,
    topology: Annotated[
        str | None, typer.Option(help="A preset, or a .toml or .json file that describes the machine.")
    ] = None,
    nodes: Annotated[
        str | None,
        typer.Option(help="How many servers of each kind: a model's name, or a profile's file.", metavar="MODEL"),
    ] = None,
    server: Annotated[
        list[str] | None, typer.Option(help="With --nodes, a kind: preset or file; again for more.")
    ] = None,
    target_rate: Annotated[float | None, typer.Option(help="Samples a second to reach.", min=1e-3)] = None,
    output: Annotated[str | None, typer.Option("--output", "-o", help="Write the plan there.", metavar="FILE")] = None,
    html: Annotated[
        str | None, typer.Option(help="Write one page with pictures, tables and what-if figures there.", metavar="FILE")
    ] = None,
    pictures: Annotated[
        str | None, typer.Option(help="Write the plan's pictures there, as PNG and SVG.", metavar="FOLDER")
    ] = None,
    batch_size: Annotated[int | None, typer.Option(help="Samples a step, of all ranks.", min=1)] = None,
    optimizer: Annotated[str, typer.Option(help="Whose state rows carry.")] = "rowwise_adagrad",
    policy: Annotated[
        str, typer.Option(help="Eviction that the curves are of: next_use; lru, lfu, s3_fifo, as profiled.")
    ] = "next_use",
    lookahead: Annotated[int, typer.Option(help="Batches whose ids are known.", min=0)] = 64,
    depth: Annotated[int, typer.Option(help="Batches staged ahead.", min=0)] = 2,
    compute_seconds: Annotated[
        float | None, typer.Option(help="Of a step that waits for no row; by default from the topology.", min=0)
    ] = None,
    compute_limit: Annotated[
        float | None, typer.Option(help="With --nodes, samples a second that a server computes.", min=1)
    ] = None,
    write_amplification: Annotated[float, typer.Option(help="Bytes written over bytes evicted.", min=1)] = 1.5,
    checkpoint_seconds: Annotated[float | None, typer.Option(help="Between checkpoints.", min=1)] = None,
    pages_per_fetch: Annotated[
        float | None, typer.Option(help="4 KiB reads a fetched row, in place of the profile's.", min=1e-3)
    ] = None,
    all_rows: Annotated[bool, typer.Option("--all-rows", help="Make room for rows that were not seen.")] = False,
    index_bytes: Annotated[int, typer.Option(help="Of a slot.", min=0)] = 16,
    lookups: Annotated[
        float | None, typer.Option(help="With --nodes and a model of one table, lookups a sample.", min=1e-3)
    ] = None,
    distinct_share: Annotated[
        float | None, typer.Option(help="With --nodes, unique rows of a batch over its lookups.", min=1e-6, max=1)
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="With --nodes, of weights: float32 or float16.")] = None,
    probe: Annotated[
        str | None,
        typer.Option(help="Measure this machine and this folder's disk; -o writes its topology.", metavar="FOLDER"),
    ] = None,
    probe_seconds: Annotated[
        float | None, typer.Option(help="With --probe, of each measurement; 3 by default.", min=0.1)
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Place each table of a profile on a machine's tiers, count the servers that a model needs, or measure a machine.

    Exit code 1 and the numbers where no placement meets the limits or the rate.
    """
    from mtrains.placement.workload import Workload

    if sum(one is not None for one in (profile, nodes, probe)) != 1:
        raise UsageError("give a PROFILE to place, --nodes MODEL to count servers, or --probe FOLDER to measure one")
    if probe_seconds is not None and probe is None:
        raise UsageError("--probe-seconds goes with --probe")
    if (html or pictures) and profile is None:
        raise UsageError("--html and --pictures show where tables live: they go with a PROFILE")
    if probe is not None:
        if topology is not None or server or target_rate is not None:
            raise UsageError("--probe measures and places nothing: use its file as --topology afterwards")
        run_probe(probe, probe_seconds, output, json=json)
        return
    with usage_errors():
        workload = Workload(
            batch_size=batch_size,
            optimizer=optimizer,
            policy=policy,
            lookahead=lookahead,
            depth=depth,
            compute_seconds=compute_seconds,
            write_amplification=write_amplification,
            checkpoint_seconds=checkpoint_seconds,
            pages_per_fetch=pages_per_fetch,
            all_rows_touched=all_rows,
            index_bytes=index_bytes,
        )
    if profile is not None:
        given = (server, lookups, distinct_share, dtype, compute_limit)
        if any(option is not None for option in given):
            raise UsageError("--server, --lookups, --distinct-share, --dtype and --compute-limit go with --nodes")
        if topology is None:
            raise UsageError("--topology says on what to place: a preset or a file")
        outputs = PlanOutputs(file=output, html=html, pictures=pictures, json=json)
        run_plan(profile, topology, target_rate, workload, outputs)
        return
    assert nodes is not None
    if topology is not None or output is not None or compute_seconds is not None:
        raise UsageError("with --nodes use --server and --compute-limit; there is no plan to write")
    if target_rate is None:
        raise UsageError("--nodes needs --target-rate, samples a second")
    _count(nodes, server or [], target_rate, workload, compute_limit, (lookups, distinct_share, dtype), json)


def _count(
    name: str,
    servers: list[str],
    target_rate: float,
    workload: Workload,
    compute_limit: float | None,
    replaced: tuple[float | None, float | None, str | None],
    json: bool,
) -> None:
    from mtrains.cli.plan_nodes import answer_nodes, choose_model
    from mtrains.cli.render import output_console, print_json
    from mtrains.cli.render_nodes import nodes_report

    lookups, distinct_share, dtype = replaced
    with usage_errors():
        model = choose_model(name, lookups=lookups, distinct_share=distinct_share, dtype=dtype)
        answer = answer_nodes(name, model, servers, target_rate, workload, compute_limit)
    if json:
        print_json(answer)
    else:
        output_console().print(nodes_report(answer))
