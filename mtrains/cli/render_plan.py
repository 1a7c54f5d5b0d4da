"""What `mtrains plan` shows as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from mtrains.cli.render import output_console
from mtrains.placement.feasibility import describe_amount
from mtrains.placement.plan import PlacementPlan, TablePlacement
from mtrains.units import format_bytes

__all__ = ["describe_workload", "format_rate", "format_time", "plan_report", "print_plan"]


def print_plan(plan: PlacementPlan) -> None:
    """Write a plan to standard output."""
    output_console().print(plan_report(plan))


def plan_report(plan: PlacementPlan) -> RenderableType:
    """Return a plan as something rich prints."""
    target = plan.target_samples_per_second
    lines = [
        ("topology", str(plan.topology["name"])),
        ("profile", plan.profile_source or "-"),
        ("workload", f"\n{'':<10} ".join(describe_workload(plan.workload))),
        (
            "step",
            f"{format_time(plan.step_seconds)}, {format_rate(plan.samples_per_second)}"
            + (f" (target {target:,.0f})" if target is not None else ""),
        ),
        ("limit", f"{plan.binding}; fastest step within {100 * plan.gap_ratio:.2f} % of the bound"),
        ("curves", f"hulls at most {plan.hull_gap:.3f} over the profile, segments {plan.cut_gap:.3f} under the hulls"),
    ]
    return Group(
        Text("\n".join(f"{name:<10} {value}" for name, value in lines)),
        Text(),
        _tiers(plan),
        _limits(plan),
        _tables(plan),
        _reasons(plan),
        _baselines(plan.step_seconds, sum(table.fetches for table in plan.tables), plan.baselines),
    )


def describe_workload(workload: Mapping[str, Any]) -> tuple[str, str]:
    """Return what a plan is for, in two lines."""
    return (
        f"batch {workload['batch_size']:,}, {workload['optimizer']}, {workload['policy']} lookahead "
        f"{workload['lookahead']}, depth {workload['depth']}",
        f"write amplification {workload['write_amplification']:g}, log "
        f"{100 * workload['live_ratio']:.0f} % live, {workload['keep']} checkpoints kept",
    )


def _table(title: str, left: Sequence[str], right: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for column in left:
        table.add_column(column)
    for column in right:
        table.add_column(column, justify="right")
    return table


def _tiers(plan: PlacementPlan) -> Table:
    table = _table("tiers", ("tier", "device"), ("capacity", "slots", "of them index", "other", "next GiB saves"))
    for tier in plan.tiers:
        table.add_row(
            tier.tier,
            tier.device,
            format_bytes(tier.capacity_bytes),
            format_bytes(tier.slot_bytes),
            format_bytes(tier.index_bytes),
            format_bytes(sum(tier.fixed_bytes.values())),
            f"{format_time(tier.next_gib_seconds)} a step",
        )
    if plan.log_capacity_bytes:
        table.add_row("log", str(plan.topology["log"]["device"]), format_bytes(plan.log_capacity_bytes), "", "",
                      format_bytes(plan.log_bytes), "")  # fmt: skip
    others = {name: size for tier in plan.tiers for name, size in tier.fixed_bytes.items()}
    if others:
        table.caption = "other: " + ", ".join(f"{name} {format_bytes(size)}" for name, size in others.items())
        table.caption_justify = "left"
    return table


def _limits(plan: PlacementPlan) -> Table:
    table = _table("what a step asks of each limit", ("limit",), ("a step", "can do", "takes", "of the step"))
    for limit in sorted(plan.limits, key=lambda limit: -limit.seconds):
        if not limit.seconds:
            continue
        table.add_row(
            limit.name,
            "" if limit.name == "compute" else describe_amount(limit.amount, limit.unit),
            "" if limit.name == "compute" else describe_amount(limit.rate, f"{limit.unit}/s"),
            format_time(limit.seconds),
            f"{100 * limit.seconds / plan.step_seconds:.1f} %",
        )
    return table


def _tables(plan: PlacementPlan) -> Table:
    names = [tier.tier for tier in plan.tiers]
    table = _table("tables", ("table",), ("rows", "dim", "uses a step", *names, "fetches", "pages", "log"))
    for placed in plan.tables:
        table.add_row(
            placed.name,
            f"{placed.num_embeddings:,}",
            str(placed.embedding_dim),
            f"{placed.unique_rows:,.0f}",
            *(_place(placed, name) for name in names),
            f"{placed.fetches:,.0f}",
            f"{placed.page_reads:,.0f}",
            format_bytes(placed.log_bytes),
        )
    table.caption = "by tier: bytes of slots, and the share of the table's uses (unique rows a step) that they serve"
    table.caption_justify = "left"
    return table


def _reasons(plan: PlacementPlan) -> Text:
    return Text("why\n" + "\n".join(f"  {table.name}: {table.reason}" for table in plan.tables) + "\n")


def _baselines(step_seconds: float, fetches: float, baselines: Mapping[str, Mapping[str, float]]) -> Table:
    columns = ("step", "fetches a step", "of the plan's step")
    table = _table("against placements without a planner", ("placement",), columns)
    table.add_row("this plan", format_time(step_seconds), f"{fetches:,.0f}", "1.00x")
    for name, figures in baselines.items():
        ratio = figures["step_seconds"] / step_seconds if step_seconds else 1.0
        table.add_row(name, format_time(figures["step_seconds"]), f"{figures['fetches']:,.0f}", f"{ratio:.2f}x")
    return table


def format_time(seconds: float) -> str:
    """Return a time in s, ms or us with three digits."""
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def format_rate(samples_per_second: float | None) -> str:
    """Return samples a second for people; None: no limit is known that takes any time."""
    return "no limit takes any time" if samples_per_second is None else f"{samples_per_second:,.0f} samples/s"


def _place(table: TablePlacement, tier: str) -> str:
    if not table.rows[tier]:
        return "-"
    share = table.hits[tier] / table.unique_rows if table.unique_rows else 0.0
    return f"{format_bytes(table.bytes[tier])}\n{100 * share:.1f} %"
