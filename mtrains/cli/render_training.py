"""The outcome of `mtrains train` as text."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.text import Text

from mtrains.cli.render import counter_table, format_metric, output_console
from mtrains.cli.render_measured import measured_report
from mtrains.train.result import PrefetchFacts, TrainResult

__all__ = ["print_training", "training_report"]


def print_training(result: TrainResult, console: Console | None = None) -> None:
    """Write the outcome to standard output, or to the given console."""
    (console or output_console()).print(training_report(result))


def training_report(result: TrainResult) -> RenderableType:
    """Return the outcome as something rich prints."""
    steps = f"{result.steps:,} steps, {result.samples:,} samples, {result.epochs:g} epochs"
    if result.resumed_at_step is not None:
        steps += f" (resumed at step {result.resumed_at_step:,})"
    lines = [
        ("trained", steps),
        ("speed", f"{result.samples_per_second:,.0f} samples/s"),
        ("time", ", ".join(f"{name} {value:.2f} s" for name, value in result.seconds.items())),
        ("quality", _quality(result)),
    ]
    if result.prefetch is not None:
        lines.append(("prefetch", _prefetch(result.prefetch)))
    if result.bad_lines:
        lines.append(("malformed", f"{result.bad_lines:,} lines left out of each epoch"))
    if result.rows_sha256 is not None:
        lines.append(("rows", f"sha256 {result.rows_sha256}"))
    if result.io_engine is not None:
        lines.append(("IO engine", result.io_engine))
    if result.providers.keys() - {"dram"}:
        lines += [(f"{tier} tier", provider) for tier, provider in result.providers.items()]
    if result.emulated:
        lines.append(("emulated", ", ".join(result.emulated)))
    text = Text("\n".join(f"{name:<10} {value}" for name, value in lines))
    parts: list[RenderableType] = [text]
    if result.tiers:
        parts.append(counter_table("tiers", result.tiers))
    if result.plan is not None:
        parts.append(measured_report(result.plan))
    return Group(*parts)


def _prefetch(facts: PrefetchFacts) -> str:
    if not facts.depth:
        ahead = "no rows ahead"
    else:
        ahead = (
            f"rows of {facts.effective_depth:.1f} of {facts.depth} batches ahead, there "
            f"{1000 * facts.lead_seconds:.1f} ms before their batch"
        )
    return (
        f"{facts.lookahead} batches of ids, {ahead}; rows from disk: {facts.staged_fetches:,} ahead, "
        f"{facts.demand_fetches:,} on demand"
    )


def _quality(result: TrainResult) -> str:
    if result.logloss is None:
        return f"loss {format_metric(result.loss)}, the mean over the last epoch (nothing held out)"
    return (
        f"loss {format_metric(result.loss)}, AUC {format_metric(result.auc)} on {result.evaluated_samples:,} "
        f"held-out samples ({format_metric(result.training_loss)} while training)"
    )
