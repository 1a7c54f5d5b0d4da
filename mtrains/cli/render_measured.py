"""What a plan promised against what a run measured, as text."""

from __future__ import annotations

from collections.abc import Callable

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from mtrains.placement.measured import Figure, MeasuredPlan
from mtrains.units import format_bytes

__all__ = ["measured_report"]


def measured_report(measured: MeasuredPlan) -> RenderableType:
    """Return the comparison as something rich prints."""
    warnings = [Text(f"note: {warning}") for warning in measured.warnings]
    return Group(_totals(measured), _tables(measured), *warnings)


def _table(title: str, first: str, columns: list[str]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    table.add_column(first)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _totals(measured: MeasuredPlan) -> Table:
    table = _table(f"the plan against {measured.steps:,} steps", "a step", ["planned", "measured", "of the plan"])
    for name, figure, words in (
        ("time", measured.step_seconds, lambda seconds: f"{1e3 * seconds:.3g} ms"),
        ("hits", measured.hit_ratio, _percent),
        ("fetches", measured.fetches, lambda rows: f"{rows:,.1f}"),
        ("fetched rows", measured.fetched_bytes, format_bytes),
        ("evicted rows", measured.evicted_bytes, format_bytes),
        ("read from the log", measured.read_bytes, format_bytes),
        ("written to the log", measured.written_bytes, format_bytes),
    ):
        planned = "-" if figure.predicted is None else words(figure.predicted)
        ratio = f"{figure.measured / figure.predicted:.2f}x" if figure.predicted else "-"
        table.add_row(name, planned, words(figure.measured), ratio)
    return table


def _tables(measured: MeasuredPlan) -> Table:
    tiers = list(measured.tables[0].hit_ratios) if measured.tables else []
    columns = ["uses a step", *(f"{tier} hits" for tier in tiers), "new", "fetches", "written"]
    table = _table("tables, planned / measured", "table", columns)
    for one in measured.tables:
        table.add_row(
            one.name,
            _pair(one.accesses, _count),
            *(_pair(one.hit_ratios[tier], _percent) for tier in tiers),
            _pair(one.new, _count),
            _pair(one.fetches, _count),
            _pair(one.written, _count),
        )
    return table


def _pair(figure: Figure, words: Callable[[float], str]) -> str:
    planned = "-" if figure.predicted is None else words(figure.predicted)
    return f"{planned} / {words(figure.measured)}"


def _count(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def _percent(ratio: float) -> str:
    return f"{100 * ratio:.1f} %"
