"""Profiles as pictures: each function returns a matplotlib Figure, which a caller saves or embeds.

No pyplot: nothing global, no window, no back end to choose.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator
from numpy.typing import NDArray

from mtrains.figures import COLOURS, save_figures
from mtrains.profiler.profile import DTYPE_BYTES, LocalityCurve, LocalityProfile, TableProfile
from mtrains.units import format_bytes

__all__ = ["PICTURES", "miss_ratio_figure", "reuse_distance_figure", "save_pictures", "size_bandwidth_figure"]

_MAX_NAMED = 8  # tables with a colour of their own; the others are grey
_GREY = "#B8B8B8"


def miss_ratio_figure(profile: LocalityProfile, *, batch_size: int | None = None) -> Figure:
    """Return the misses of each table, first touches included, by the share of its touched rows that a cache holds.

    batch_size: of the curves; by default the middle one. The tables with the most bytes read have names; dotted: LRU,
    where it was measured at that batch size.
    """
    figure, axes = _axes("rows held, % of touched rows", "misses, % of unique rows a batch")
    batch_size = _middle_batch(profile) if batch_size is None else batch_size
    by_traffic = _by_traffic(profile, batch_size)
    held = np.geomspace(1e-3, 1.0, 200)
    for place, table in reversed(list(enumerate(by_traffic))):
        curve = _curve(table, batch_size)
        if curve is None or curve.unique_rows <= 0:
            continue
        colour, label, width = _style(place, table)
        rows = np.array((0.0, *curve.capacity_rows)) / max(table.touched_rows, 1.0)
        misses = 1 - np.array((0.0, *curve.hits)) / curve.unique_rows
        # Straight between the points, which a logarithmic axis bends.
        axes.plot(100 * held, 100 * np.interp(held, rows, misses), color=colour, label=label, linewidth=width)
        axes.plot(100 * rows[1:], 100 * misses[1:], color=colour, linestyle="", marker=".", markersize=4)
        statistics = table.statistics
        if place < _MAX_NAMED and statistics is not None and statistics.batch_size == batch_size:
            lru = [1 - statistics.lru_hit_ratio(share * table.touched_rows) for share in held]
            axes.plot(100 * held, 100 * np.array(lru), color=colour, linewidth=0.8, linestyle=":")
    axes.set_xscale("log")
    axes.set_xlim(0.1, 110)
    axes.xaxis.set_major_formatter(_plain)
    axes.set_ylim(0, 102)
    curves = [curve for table in profile.tables if (curve := _curve(table, batch_size)) is not None]
    policy = f"{curves[0].policy.replace('_', ' ')}, lookahead {curves[0].lookahead}, depth {curves[0].depth}"
    dotted = "; dotted: LRU" if any(table.statistics is not None for table in by_traffic[:_MAX_NAMED]) else ""
    _finish(axes, f"Miss ratio: {policy}, batches of {batch_size:,}{dotted}", len(by_traffic))
    return figure


def size_bandwidth_figure(profile: LocalityProfile, *, samples_per_second: float | None = None) -> Figure:
    """Return one point a table: its bytes against the bytes of unique rows that are read of it.

    samples_per_second: shows bytes a second at that rate; else bytes a sample. What lies high needs fast memory, what
    lies to the right needs much.
    """
    unit = "bytes/s" if samples_per_second else "bytes a sample"
    figure, axes = _axes("table size, bytes of weights", f"unique rows read, {unit}")
    batch_size = _middle_batch(profile)
    scale = (samples_per_second or 1.0) / batch_size
    for place, table in reversed(list(enumerate(_by_traffic(profile, batch_size)))):
        curve = _curve(table, batch_size)
        if curve is None or curve.unique_rows <= 0:
            continue
        row = _row_bytes(table)
        colour, label, _ = _style(place, table)
        size, traffic = table.num_embeddings * row, curve.unique_rows * row * scale
        axes.scatter([size], [traffic], color=colour, s=36, label=label, zorder=3, edgecolors="white", linewidths=0.6)
    axes.margins(0.12)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    for axis, (low, high) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        axis.set_major_locator(LogLocator(base=2 if high < 64 * low else 16, numticks=20))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(_bytes)
    rate = f"at {samples_per_second:,.0f} samples/s, " if samples_per_second else ""
    _finish(axes, f"Size against bandwidth: {rate}batches of {batch_size:,}", len(profile.tables))
    return figure


def reuse_distance_figure(profile: LocalityProfile) -> Figure:
    """Return how many distinct other rows lie between two uses of a row, by table, as shares of accesses.

    Raises: ValueError if no table has statistics.
    """
    figure, axes = _axes("reuse distance, rows", "accesses, % an octave of distance")
    measured = [table for table in _by_traffic(profile, _middle_batch(profile)) if table.statistics is not None]
    if not measured:
        raise ValueError("the profile has no reuse distances: it was made of a model, not of data")
    highest = 0.0
    for place, table in reversed(list(enumerate(measured))):
        statistics = table.statistics
        assert statistics is not None
        colour, label, width = _style(place, table)
        edges = np.array([0.5, *(rows for rows, _ in statistics.reuse_distance)])
        shares = 100 * np.array([share for _, share in statistics.reuse_distance]) / np.diff(np.log2(edges))
        if place < _MAX_NAMED:
            label = f"{label}, {100 * statistics.new_share:.1f} % new"
            highest = max(highest, float(shares.max(initial=0.0)))
        axes.stairs(shares, edges, color=colour, label=label, linewidth=width)
    axes.set_xscale("log")
    axes.set_xlim(left=0.5)
    axes.set_ylim(0, 1.1 * highest if highest > 0 else 100)
    axes.xaxis.set_major_formatter(_plain)
    sizes = sorted({table.statistics.batch_size for table in measured if table.statistics is not None})
    title = f"Reuse distance: batches of {', '.join(f'{size:,}' for size in sizes)}, a row counts once a batch"
    _finish(axes, title, len(measured))
    return figure


def save_pictures(
    profile: LocalityProfile,
    folder: str | os.PathLike[str],
    *,
    formats: Sequence[str] = ("png", "svg"),
    samples_per_second: float | None = None,
) -> list[Path]:
    """Write PICTURES into a folder, which is made; returns the files. Raises: OSError."""
    made: dict[str, Figure] = {
        "miss_ratio": miss_ratio_figure(profile),
        "size_bandwidth": size_bandwidth_figure(profile, samples_per_second=samples_per_second),
    }
    if any(table.statistics is not None for table in profile.tables):
        made["reuse_distance"] = reuse_distance_figure(profile)
    return save_figures(made, folder, formats=formats)


PICTURES = ("miss_ratio", "size_bandwidth", "reuse_distance")


def _axes(x: str, y: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(visible=True, which="major", color="#E4E4E4", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure, axes


def _finish(axes: Axes, title: str, num_tables: int) -> None:
    axes.set_title(title, fontsize=11, loc="left")
    if num_tables > _MAX_NAMED:
        axes.plot([], [], color=_GREY, linewidth=0.8, label=f"{num_tables - _MAX_NAMED:,} others")
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        order = sorted(range(len(handles)), key=lambda place: (labels[place].endswith(" others"), -place))
        axes.legend([handles[place] for place in order], [labels[place] for place in order], fontsize=8, frameon=False)


def _style(place: int, table: TableProfile) -> tuple[str, str, float]:
    """Return colour, label and line width; labels that begin with "_" stay out of a legend."""
    if place >= _MAX_NAMED:
        return _GREY, "_others", 0.8
    return COLOURS[place], _short(table.name).lstrip("_"), 1.6


def _plain(value: float, _: object) -> str:
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"


def _bytes(value: float, _: object) -> str:
    return format_bytes(value).replace(".0 ", " ") if value >= 1 else f"{value:g} B"


def _short(name: str) -> str:
    return name if len(name) <= 28 else name[:27] + "…"


def _row_bytes(table: TableProfile) -> int:
    return table.embedding_dim * DTYPE_BYTES[table.dtype]


def _middle_batch(profile: LocalityProfile) -> int:
    sizes = sorted({setting[3] for setting in profile.settings})
    if not sizes:
        raise ValueError("the tables of the profile have no curve of one setting in common")
    return sizes[(len(sizes) - 1) // 2]


def _curve(table: TableProfile, batch_size: int) -> LocalityCurve | None:
    return next((curve for curve in table.curves if curve.batch_size == batch_size), None)


def _by_traffic(profile: LocalityProfile, batch_size: int) -> list[TableProfile]:
    def unique_bytes(table: TableProfile) -> float:
        curve = _curve(table, batch_size)
        return 0.0 if curve is None else curve.unique_rows * _row_bytes(table)

    traffic: NDArray[np.float64] = np.array([unique_bytes(table) for table in profile.tables])
    return [profile.tables[place] for place in np.argsort(-traffic, kind="stable")]
