"""What `mtrains plan --probe` measured, as text."""

from __future__ import annotations

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from mtrains.probe.machine import ProbedMachine
from mtrains.probe.memory import MemoryRates
from mtrains.units import format_bytes

__all__ = ["probe_report"]


def probe_report(probed: ProbedMachine) -> RenderableType:
    """Return a measured machine as something rich prints."""
    table = Table(title="this machine", title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    table.add_column("what")
    table.add_column("measured", justify="right")
    for tier in probed.topology.slots:
        table.add_row(f"{tier.tier} for rows ({tier.device})", format_bytes(tier.capacity_bytes))
    log = probed.topology.log
    if log is not None:
        table.add_row(f"log ({log.device})", format_bytes(log.capacity_bytes))
    _memory(table, "dram", probed.memory)
    if probed.accelerator is not None:
        _memory(table, "hbm", probed.accelerator)
    if probed.link is not None:
        table.add_row("link to the accelerator, from it", f"{_rate(probed.link.up)}, {_rate(probed.link.down)}")
    disk, engine = probed.disk, probed.engine
    for depth, reads in disk.reads_per_second.items():
        table.add_row(f"disk: 4 KiB reads by {disk.io_engine}, {depth} in flight", f"{reads:,.0f}/s")
    table.add_row("disk: long reads", _rate(disk.bytes_per_second))
    table.add_row("log: segments written", _rate(engine.write_bytes_per_second))
    for what, seconds in (
        ("a row of 64 columns in a table held whole", engine.cpu_seconds_per_row),
        ("beyond that, a row in a cache", engine.cpu_seconds_per_hit),
        ("beyond that, a row that is not there", engine.cpu_seconds_per_miss),
        ("the read of its block", disk.cpu_seconds_per_read),
    ):
        table.add_row(f"CPU: {what}", f"{1e6 * seconds:.2f} us")
    return Group(table, Text("\n".join(f"note: {note}" for note in probed.notes)))


def _memory(table: Table, tier: str, rates: MemoryRates) -> None:
    table.add_row(f"{tier}: copies, read and written", _rate(rates.copy))
    for record, gathered in rates.gather.items():
        table.add_row(
            f"{tier}: {record}-byte rows gathered, scattered", f"{_rate(gathered)}, {_rate(rates.scatter[record])}"
        )


def _rate(bytes_per_second: float) -> str:
    return f"{format_bytes(bytes_per_second)}/s"
