"""A plan as one HTML page: pictures, tables and what-if figures in one file that needs no network."""

from __future__ import annotations

import html
import io
from collections.abc import Iterable, Mapping, Sequence

import matplotlib
from matplotlib.figure import Figure

from mtrains.cli.render_plan import describe_workload, format_rate, format_time
from mtrains.placement.feasibility import describe_amount
from mtrains.placement.pictures import plan_figures
from mtrains.placement.plan import PlacementPlan, TablePlacement
from mtrains.placement.what_if import WhatIf
from mtrains.units import format_bytes

__all__ = ["plan_page"]

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1d2430; background: #fff; max-width: 1280px;
       margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.5rem; }
dl { display: grid; grid-template-columns: 9rem auto; gap: .2rem 1rem; } dt { color: #5b6675; } dd { margin: 0; }
table { border-collapse: collapse; font-size: .875rem; margin: .5rem 0; }
caption { text-align: left; color: #5b6675; caption-side: bottom; padding-top: .3rem; }
th, td { padding: .25rem .7rem; text-align: right; vertical-align: top; border-bottom: 1px solid #e6e9ee;
         font-variant-numeric: tabular-nums; white-space: nowrap; }
th { position: sticky; top: 0; background: #fff; border-bottom: 2px solid #c6ccd6; }
th.text, td.text { text-align: left; } td.words { text-align: left; white-space: normal; min-width: 20rem; }
figure { margin: 1rem 0; } figure svg { width: 100%; max-width: 900px; height: auto; }
.warning { background: #fff4e5; border-left: 4px solid #d55e00; padding: .4rem .8rem; }
.wide { overflow-x: auto; }
"""


def plan_page(plan: PlacementPlan, answers: Sequence[WhatIf], profile_figures: Mapping[str, Figure]) -> str:
    """Return the page. answers: of what_if(). profile_figures: pictures of the profile, by what they show."""
    figures = plan_figures(plan, answers)
    parts = [
        f"<h1>Placement on {_text(plan.topology['name'])}</h1>",
        *(f'<p class="warning">{_text(warning)}</p>' for warning in plan.warnings),
        _summary(plan),
        _section("Where the tables live", _picture("tables", figures["tables"]), _tables(plan)),
        _section("The tiers", _picture("tiers", figures["tiers"]), _tiers(plan)),
        _section("What limits a step", _picture("limits", figures["limits"]), _limits(plan)),
        _section("What if", _picture("what_if", figures["what_if"]), _what_if(answers)) if answers else "",
        _section("Against placements without a planner", _baselines(plan)),
        *(_section(title, _picture(title, figure)) for title, figure in profile_figures.items()),
        _section("What it is made of", _assumptions(plan)),
    ]
    title = f"mtrains plan: {plan.topology['name']}"
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{_text(title)}</title>\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<link rel="icon" href="data:,">\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n{''.join(parts)}</body>\n</html>\n"
    )


def _summary(plan: PlacementPlan) -> str:
    target = plan.target_samples_per_second
    reached = f"{format_time(plan.step_seconds)}, {format_rate(plan.samples_per_second)}"
    fetches = sum(table.fetches for table in plan.tables)
    unique = sum(table.unique_rows for table in plan.tables)
    hits = sum(sum(table.hits.values()) for table in plan.tables)
    return _pairs(
        {
            "profile": plan.profile_source or "-",
            "workload": "; ".join(describe_workload(plan.workload)),
            "step": reached + (f" (target {target:,.0f})" if target is not None else ""),
            "limit": f"{plan.binding}; fastest step within {100 * plan.gap_ratio:.2f} % of the bound",
            "uses": f"{unique:,.0f} unique rows a step: {100 * hits / unique if unique else 0:.1f} % found, "
            f"{fetches:,.0f} fetched from the log",
            "curves": f"hulls at most {plan.hull_gap:.3f} over the profile, segments {plan.cut_gap:.3f} under them",
        }
    )


def _tables(plan: PlacementPlan) -> str:
    names = [tier.tier for tier in plan.tiers]
    rows = [
        (
            table.name,
            f"{table.num_embeddings:,}",
            f"{table.embedding_dim} {table.dtype}",
            f"{table.unique_rows:,.0f}",
            *(_place(table, name) for name in names),
            f"{table.fetches:,.0f}",
            f"{table.page_reads:,.0f}",
            format_bytes(table.log_bytes),
            table.reason,
        )
        for table in plan.tables
    ]
    header = ("table", "rows", "columns", "uses a step", *names, "fetches", "page reads", "log", "why")
    note = "by tier: bytes of slots with their index, and the share of the table's uses that they serve"
    return _table(header, rows, text=(0,), words=(len(header) - 1,), caption=note)


def _place(table: TablePlacement, tier: str) -> str:
    if not table.rows[tier]:
        return "-"
    share = table.hits[tier] / table.unique_rows if table.unique_rows else 0.0
    return f"{format_bytes(table.bytes[tier])}, {100 * share:.1f} %"


def _tiers(plan: PlacementPlan) -> str:
    rows = [
        (
            tier.tier,
            tier.device,
            format_bytes(tier.capacity_bytes),
            format_bytes(tier.slot_bytes),
            format_bytes(tier.index_bytes),
            ", ".join(f"{name} {format_bytes(size)}" for name, size in tier.fixed_bytes.items()) or "-",
            f"{format_time(tier.next_gib_seconds)} a step",
        )
        for tier in plan.tiers
    ]
    if plan.log_capacity_bytes:
        log = plan.topology["log"]["device"]
        rows.append(("log", log, format_bytes(plan.log_capacity_bytes), "-", "-", format_bytes(plan.log_bytes), "-"))
    header = ("tier", "device", "capacity", "slots", "of them index", "other", "next GiB saves")
    return _table(header, rows, text=(0, 1))


def _limits(plan: PlacementPlan) -> str:
    rows = [
        (
            limit.name,
            "-" if limit.name == "compute" else describe_amount(limit.amount, limit.unit),
            "-" if limit.name == "compute" else describe_amount(limit.rate, f"{limit.unit}/s"),
            format_time(limit.seconds),
            f"{100 * limit.seconds / plan.step_seconds:.1f} %",
        )
        for limit in sorted(plan.limits, key=lambda limit: -limit.seconds)
        if limit.seconds
    ]
    return _table(("limit", "a step asks", "can do", "takes", "of the step"), rows, text=(0,))


def _what_if(answers: Sequence[WhatIf]) -> str:
    factors = list(dict.fromkeys(answer.factor for answer in answers))
    by_resource: dict[str, dict[float, WhatIf]] = {}
    for answer in answers:
        by_resource.setdefault(answer.resource, {})[answer.factor] = answer
    rows = [(name, *(_answer(found.get(factor)) for factor in factors)) for name, found in by_resource.items()]
    header = ("resource", *(f"{factor:g} x" for factor in factors))
    note = "the fastest step with so much of one thing, the tables in the tiers that they use now"
    return _table(header, rows, text=(0,), caption=note)


def _answer(answer: WhatIf | None) -> str:
    if answer is None or answer.step_seconds is None:
        return "no room"
    change = "" if answer.ratio is None else f" ({100 * (answer.ratio - 1):+.1f} %)"
    return f"{format_time(answer.step_seconds)}{change}"


def _baselines(plan: PlacementPlan) -> str:
    fetches, pages = (sum(getattr(table, name) for table in plan.tables) for name in ("fetches", "page_reads"))
    own = {"step_seconds": plan.step_seconds, "fetches": fetches, "page_reads": pages}
    rows = [
        (
            name,
            format_time(figures["step_seconds"]),
            f"{figures['fetches']:,.0f}",
            f"{figures['page_reads']:,.0f}",
            f"{figures['step_seconds'] / plan.step_seconds:.2f}x" if plan.step_seconds else "-",
        )
        for name, figures in {"this plan": own, **plan.baselines}.items()
    ]
    return _table(("placement", "step", "fetches a step", "page reads", "of the plan's step"), rows, text=(0,))


def _assumptions(plan: PlacementPlan) -> str:
    machine = plan.topology
    sources = {f"{slot['tier']}: {slot['device']}": slot["source"] for slot in machine["slots"]}
    for part in ("log", "link", "cpu"):
        if machine[part] is not None:
            sources[f"{part}: {machine[part].get('device', '')}".removesuffix(": ")] = machine[part]["source"]
    workload = {name: "-" if value is None else value for name, value in plan.workload.items()}
    return _table(("part", "source"), sources.items(), text=(0, 1)) + _table(
        ("workload", "value"), ((name, str(value)) for name, value in workload.items()), text=(0,)
    )


def _section(title: str, *parts: str) -> str:
    return f"<section>\n<h2>{_text(title)}</h2>\n{''.join(parts)}</section>\n"


def _pairs(pairs: Mapping[str, str]) -> str:
    body = "".join(f"<dt>{_text(name)}</dt><dd>{_text(value)}</dd>" for name, value in pairs.items())
    return f"<dl>{body}</dl>\n"


def _table(
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    text: Sequence[int] = (),
    words: Sequence[int] = (),
    caption: str = "",
) -> str:
    def cell(tag: str, place: int, value: str) -> str:
        kind = "words" if place in words and tag == "td" else "text" if place in (*text, *words) else ""
        return f"<{tag}{f' class={kind!r}' if kind else ''}>{_text(value)}</{tag}>"

    head = "".join(cell("th", place, name) for place, name in enumerate(header))
    body = "".join(
        "<tr>" + "".join(cell("td", place, value) for place, value in enumerate(row)) + "</tr>\n" for row in rows
    )
    note = f"<caption>{_text(caption)}</caption>" if caption else ""
    return f'<div class="wide"><table>{note}<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table></div>\n'


def _picture(name: str, figure: Figure) -> str:
    """Return the picture as SVG within the page."""
    out = io.StringIO()
    # A salt a picture: what it defines has names of its own in the page, and equal plans give equal pages.
    with matplotlib.rc_context({"svg.hashsalt": name}):
        figure.savefig(out, format="svg", metadata={"Date": None})
    svg = out.getvalue()
    drawn = svg[svg.index("<svg") :].replace("<svg", f'<svg role="img" aria-label="{_text(name)}"', 1)
    return f"<figure>{drawn}</figure>\n"


def _text(value: object) -> str:
    return html.escape(str(value))
