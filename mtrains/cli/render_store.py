"""What `mtrains inspect` shows as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from mtrains.cli.render import output_console
from mtrains.units import format_bytes

__all__ = ["print_store", "store_report"]


_MARKS = {"pinned": "held by a state_dict", "leased": "read by a read-only store"}


def print_store(contents: Mapping[str, Any], console: Console | None = None) -> None:
    """Write what `inspect_store` returned to standard output, or to the given console."""
    (console or output_console()).print(store_report(contents))


def store_report(contents: Mapping[str, Any]) -> RenderableType:
    """Return what `inspect_store` returned as something rich prints."""
    disk = contents["disk_bytes"]
    parts = (f"{name} {format_bytes(disk[name])}" for name in ("rows", "catalog"))
    segments = (f"{name} {format_bytes(contents[f'{name}_bytes'])}" for name in ("live", "held", "dead"))
    lines = [
        ("store", contents["path"]),
        ("format", f"{contents['format']}, uuid {contents['uuid']}, seed {contents['seed']}"),
        ("disk", f"{format_bytes(disk['total'])}: {', '.join(parts)}"),
        ("segments", f"{contents['segments']:,}: {', '.join(segments)}"),
    ]
    if contents["in_use"]:
        lines.insert(1, ("state", "open in a process that may be training it; as its last commit says"))
    heading = Text("\n".join(f"{name:<10} {value}" for name, value in lines))
    return Group(heading, Text(), _tables(contents["tables"]), _checkpoints(contents["checkpoints"]))


def _tables(tables: Sequence[Mapping[str, Any]]) -> RenderableType:
    if not tables:
        return Text("no tables\n")
    table = Table(title="tables", title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for column in ("name", "dtype", "optimizer"):
        table.add_column(column)
    for column in ("rows", "dim", "touched", "row bytes", "touched bytes"):
        table.add_column(column, justify="right")
    for entry in tables:
        names = (entry["name"], entry["dtype"], entry["optimizer"] or "none")
        numbers = (entry["num_embeddings"], entry["embedding_dim"], entry["touched_rows"], entry["row_bytes"])
        table.add_row(*names, *(f"{number:,}" for number in numbers), format_bytes(entry["touched_bytes"]))
    return table


def _checkpoints(checkpoints: Sequence[Mapping[str, Any]]) -> RenderableType:
    if not checkpoints:
        return Text("no checkpoints")
    table = Table(
        title="checkpoints, oldest first", title_justify="left", title_style="bold", box=box.SIMPLE_HEAD
    )
    table.add_column("tag")
    for column in ("epoch", "step", "extra"):
        table.add_column(column, justify="right")
    table.add_column("created (UTC)")
    table.add_column("")
    for entry in checkpoints:
        created = datetime.fromtimestamp(entry["created"], timezone.utc)
        table.add_row(
            "-" if entry["tag"] is None else str(entry["tag"]),
            str(entry["epoch"]),
            "-" if entry["step"] is None else f"{entry['step']:,}",
            format_bytes(entry["extra_bytes"]),
            created.strftime("%Y-%m-%d %H:%M:%S"),
            ", ".join(mark for key, mark in _MARKS.items() if entry[key]),
        )
    return table
