"""The outcome of `mtrains demo` as text."""

from __future__ import annotations

from collections.abc import Mapping

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from mtrains.cli.render import counter_table, format_metric, output_console
from mtrains.train.demo import DemoResult
from mtrains.train.result import TrainResult
from mtrains.units import format_bytes

__all__ = ["demo_report", "print_demo"]


def print_demo(result: DemoResult, console: Console | None = None) -> None:
    """Write the outcome to standard output, or to the given console."""
    (console or output_console()).print(demo_report(result))


def demo_report(result: DemoResult) -> RenderableType:
    """Return the outcome as something rich prints."""
    share = result.dram_bytes / result.touched_bytes
    trained = f"{result.tiered.samples:,} samples in {result.tiered.epochs} epochs"
    touched = format_bytes(result.touched_bytes)
    heading = Text(f"Flights of January to March 2013: {trained}; training touches {touched} of rows.")
    runs = Table(box=box.SIMPLE_HEAD)
    for column in ("", "memory for rows", "loss", "AUC", "samples/s"):
        runs.add_column(column, justify="right" if column else "left")
    _add_run(runs, "mtrains, all in memory", "all", result.in_memory)
    _add_run(runs, "mtrains, over SSD", f"{format_bytes(result.dram_bytes)} ({share:.0%})", result.tiered)
    _add_run(runs, "nn.EmbeddingBag + torch.optim", "all", result.control)
    verdict = "bit-identical" if result.bit_identical else "DIFFERENT: this is a bug, please report it"
    rows = Text(
        f"Rows of the first two: {verdict}\n"
        f"  all in memory  sha256 {result.in_memory.rows_sha256}\n"
        f"  over SSD       sha256 {result.tiered.rows_sha256}\n"
    )
    moved = Text(_moves(result.tiered.tiers) + "\n")
    return Group(
        heading, runs, rows, moved, counter_table("What the tiers did, over SSD", result.tiered.tiers)
    )


def _moves(tiers: Mapping[str, Mapping[str, float]]) -> str:
    dram, ssd = tiers["dram"], tiers["ssd"]
    misses = f"{dram['new'] + dram['fetches']:,} misses ({dram['new']:,} of them first touches)"
    written = f"{format_bytes(ssd['bytes_written'])} written"
    return f"Over SSD: {dram['hits']:,} hits, {misses}, {dram['evictions']:,} evictions, {written}"


def _add_run(table: Table, name: str, memory: str, run: TrainResult) -> None:
    table.add_row(
        name, memory, format_metric(run.loss), format_metric(run.auc), f"{run.samples_per_second:,.0f}"
    )
