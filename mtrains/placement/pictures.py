"""Plans as pictures: each function returns a matplotlib Figure, which a caller saves or embeds.

No pyplot: nothing global, no window, no back end to choose.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mtrains.figures import COLOURS
from mtrains.placement.plan import PlacementPlan, TablePlacement, TierUse
from mtrains.placement.what_if import FACTORS, WhatIf
from mtrains.units import format_bytes

__all__ = [
    "limits_figure",
    "plan_figures",
    "tables_figure",
    "tiers_figure",
    "what_if_figure",
]

_LEGEND_COLUMNS = 5
MAX_TABLES = 40  # in a picture: those with the most uses
_TIERS = {"hbm": "#CC79A7", "dram": "#0072B2", "scm": "#009E73"}  # Okabe and Ito's colours, as all here
_FETCHED, _NEW, _FREE, _OTHER = "#D55E00", "#B8B8B8", "#EFEFEF", "#8C6D31"
_PARTS = ("#56B4E9", "#E69F00", "#F0E442", "#000000")


def tiers_figure(plan: PlacementPlan) -> Figure:
    """Return what each slot tier is full of: rows, their index, directory and buffers, and what is left free."""
    figure, axes = _bars(len(plan.tiers), "% of the tier's capacity")
    colours = dict(zip(_fixed_parts(plan.tiers), _PARTS * 4, strict=False))
    labelled: set[str] = set()
    for place, tier in enumerate(plan.tiers):
        rows, index = float(tier.slot_bytes - tier.index_bytes), float(tier.index_bytes)
        parts = {"rows": rows, "index": index, **tier.fixed_bytes}
        parts["free"] = max(0.0, tier.capacity_bytes - sum(parts.values()))
        own = {"rows": _TIERS[tier.tier], "index": _OTHER, "free": _FREE, **colours}
        _stack(axes, place, _shares(parts, tier.capacity_bytes), own, labelled)
        axes.annotate(
            f"{format_bytes(tier.used_bytes)} of {format_bytes(tier.capacity_bytes)}",
            (100, place), xytext=(6, 0), textcoords="offset points", va="center", fontsize=8,
        )  # fmt: skip
    axes.set_yticks(range(len(plan.tiers)), [tier.tier for tier in plan.tiers])
    return _finished(figure, axes, "What the tiers hold")


def tables_figure(plan: PlacementPlan) -> Figure:
    """Return, for the tables with the most uses, the share of uses that each tier serves, and the bytes of slots."""
    shown = sorted(plan.tables, key=lambda table: -table.unique_rows)[:MAX_TABLES]
    figure, axes = _bars(len(shown), "% of the table's uses, unique rows a step")
    labelled: set[str] = set()
    colours = {**_TIERS, "first touch": _NEW, "fetched": _FETCHED}
    for place, table in enumerate(shown):
        _stack(axes, place, _shares(_uses(table), table.unique_rows), colours, labelled)
        sizes = ", ".join(f"{format_bytes(size)} {tier}" for tier, size in table.bytes.items() if size) or "no slots"
        axes.annotate(sizes, (100, place), xytext=(6, 0), textcoords="offset points", va="center", fontsize=7)
    axes.set_yticks(range(len(shown)), [_short(table.name) for table in shown], fontsize=8)
    more = f", the {len(shown)} with the most uses of {len(plan.tables):,}" if len(shown) < len(plan.tables) else ""
    return _finished(figure, axes, f"Who serves the uses of each table{more}")


def limits_figure(plan: PlacementPlan) -> Figure:
    """Return the milliseconds that each limit takes of a step, the longest first."""
    limits = sorted((limit for limit in plan.limits if limit.seconds > 0), key=lambda limit: -limit.seconds)
    figure, axes = _bars(len(limits), "ms of a step that it takes by itself")
    colours = [_FETCHED if limit.name == plan.binding else "#56B4E9" for limit in limits]
    axes.barh(range(len(limits)), [1e3 * limit.seconds for limit in limits], color=colours, height=0.6)
    axes.set_yticks(range(len(limits)), [limit.name for limit in limits])
    axes.axvline(1e3 * plan.step_seconds, color="#000000", linewidth=0.8, linestyle=":")
    step = f"{1e3 * plan.step_seconds:.3g} ms"
    return _finished(figure, axes, f"What a step asks of each limit; dotted: the step, {step}")


def what_if_figure(answers: Sequence[WhatIf]) -> Figure:
    """Return the step's time over that of the machine as it is, by how much there is of each resource."""
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot()
    factors = sorted({1.0, *FACTORS})
    resources = dict.fromkeys(answer.resource for answer in answers)
    for number, resource in enumerate(resources):
        ratios = {answer.factor: answer.ratio for answer in answers if answer.resource == resource}
        known = [(factor, 1.0 if factor == 1 else ratios.get(factor)) for factor in factors]
        drawn = [(factor, ratio) for factor, ratio in known if ratio is not None]
        marker = "os^v"[number // len(COLOURS) % 4]
        axes.plot(*zip(*drawn, strict=True), color=COLOURS[number % len(COLOURS)], marker=marker, markersize=4,
                  label=resource)  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_xticks(factors, [f"{factor:g} x" for factor in factors])
    axes.minorticks_off()
    axes.set_xlabel("of what the machine has, one thing at a time")
    axes.set_ylabel("step, over the step now")
    axes.set_ylim(bottom=0)
    axes.grid(visible=True, color="#E4E4E4", linewidth=0.6)
    return _finished(figure, axes, "What if there were more or less of it")


def plan_figures(plan: PlacementPlan, answers: Sequence[WhatIf] = ()) -> dict[str, Figure]:
    """Return every picture of a plan by its name; of the answers of what_if() too, where there are some."""
    figures = {"tables": tables_figure(plan), "tiers": tiers_figure(plan), "limits": limits_figure(plan)}
    return {**figures, "what_if": what_if_figure(answers)} if answers else figures


def _bars(count: int, label: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(8, 1.4 + 0.28 * max(count, 2)), layout="constrained")
    axes = figure.add_subplot()
    axes.set_xlabel(label)
    axes.set_ylim(max(count, 1) - 0.4, -0.6)  # the first one on top
    if label.startswith("%"):
        axes.set_xlim(0, 100)
    axes.set_axisbelow(True)
    axes.grid(visible=True, axis="x", color="#E4E4E4", linewidth=0.6)
    return figure, axes


def _stack(axes: Axes, place: int, shares: Mapping[str, float], colours: Mapping[str, str], labelled: set[str]) -> None:
    begin = 0.0
    for name, share in shares.items():
        if share < 0.05:  # invisible
            continue
        label = "_" + name if name in labelled else name  # a legend leaves out what begins with "_"
        labelled.add(name)
        axes.barh(place, share, left=begin, color=colours[name], height=0.62, label=label)
        begin += share


def _finished(figure: Figure, axes: Axes, title: str) -> Figure:
    handles, labels = axes.get_legend_handles_labels()
    lines = -(-len(handles) // _LEGEND_COLUMNS)
    axes.set_title(title, fontsize=11, loc="left", pad=6 + (8 + 14 * lines if lines else 0))
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    if handles:
        axes.legend(
            handles, labels, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=min(_LEGEND_COLUMNS, len(handles)),
            fontsize=8, frameon=False, borderaxespad=0.2, columnspacing=1.2,
        )  # fmt: skip
    return figure


def _fixed_parts(tiers: Sequence[TierUse]) -> list[str]:
    return list(dict.fromkeys(name for tier in tiers for name in tier.fixed_bytes))


def _uses(table: TablePlacement) -> dict[str, float]:
    return {**table.hits, "first touch": table.new, "fetched": table.fetches}


def _shares(parts: Mapping[str, float], whole: float) -> dict[str, float]:
    return {name: float(np.clip(100 * part / whole, 0, 100)) if whole else 0.0 for name, part in parts.items()}


def _short(name: str) -> str:
    return name if len(name) <= 28 else name[:27] + "…"
