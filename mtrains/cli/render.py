"""Results as text, JSON and progress. Nothing here computes more than a ratio."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from mtrains.units import format_bytes

__all__ = ["counter_table", "format_counter", "format_metric", "output_console", "print_json"]

_WIDTH = 100  # of output that goes to a file or pipe


def output_console() -> Console:
    """Return the console of results, standard output; plain text where it is no terminal."""
    width = None if sys.stdout.isatty() else _WIDTH
    return Console(file=sys.stdout, width=width, highlight=False, markup=False, emoji=False)


def print_json(value: Mapping[str, Any]) -> None:
    """Write one JSON object and a newline to standard output."""
    print(json.dumps(value, allow_nan=False), flush=True)


def format_metric(value: float | None, digits: int = 5) -> str:
    """Return a number with fixed digits, "-" for None."""
    return "-" if value is None else f"{value:.{digits}f}"


def format_counter(name: str, value: float) -> str:
    """Return a counter in the unit that its name tells."""
    words = name.split("_")
    if "bytes" in words:
        return format_bytes(value)
    return f"{value:.2f} s" if "seconds" in words else f"{value:,.0f}"


def counter_table(title: str, groups: Mapping[str, Mapping[str, float]]) -> Table:
    """Return a table of counters: one row a counter, one column a group (tier)."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, title_style="bold")
    table.add_column("")
    names: dict[str, None] = {}
    for group, counters in groups.items():
        table.add_column(group, justify="right")
        names.update(dict.fromkeys(counters))
    for name in names:
        cells = [
            format_counter(name, counters[name]) if name in counters else "" for counters in groups.values()
        ]
        table.add_row(name, *cells)
    return table
