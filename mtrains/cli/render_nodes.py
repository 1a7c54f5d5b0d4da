"""What `mtrains plan --nodes` shows as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

__all__ = ["nodes_report"]


def nodes_report(result: Mapping[str, Any]) -> RenderableType:
    """Return what _count() of cli/plan_nodes.py made as something rich prints."""
    table = Table(title="nodes", title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    table.add_column("server", no_wrap=True)
    for column in ("nodes", "ratio", "even above", "power", "price"):
        table.add_column(column, justify="right")
    table.add_column("short with one less")
    for count in result["servers"]:
        table.add_row(
            count["server"],
            "-" if count["nodes"] is None else f"{count['nodes']:,}",
            "-" if count["ratio"] is None else f"{count['ratio']:.1f}x",
            "-" if count["even_rate"] is None else f"{count['even_rate']:,.0f}/s",
            "-" if count["device_watts"] is None else f"{count['device_watts'] / 1000:,.1f} kW",
            "-" if count["device_usd"] is None else f"${count['device_usd']:,.0f}",
            count["first_limit"] or "nothing",
        )
    first = result["servers"][0]["server"]
    notes = (
        f"ratio: nodes of {first} over these; even above: from that rate on, these need as many as {first} needs for "
        "its room alone, and the ratio is 1 or less. Power and price: of the devices whose figure is published."
    )
    return Group(
        Text(f"{result['model']}: {result['target_samples_per_second']:,.0f} samples/s\n"),
        table,
        Text(notes + "\n"),
        _assumptions(result["assumptions"]),
        _sources(result["sources"]),
    )


def _assumptions(assumptions: Mapping[str, Any]) -> Text:
    lines = (f"  {name.replace('_', ' '):<34} {_value(value)}" for name, value in assumptions.items())
    return Text("assumptions\n" + "\n".join(lines) + "\n")


def _sources(sources: Sequence[str]) -> Text:
    return Text("devices\n" + "\n".join(f"  {source}" for source in sources))


def _value(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return "-" if value is None else str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
