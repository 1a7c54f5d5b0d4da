"""`mtrains plan PROFILE`: places the tables, and writes what was asked for."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mtrains.cli.usage import usage_errors

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from mtrains.placement.plan import PlacementPlan
    from mtrains.placement.topology import Topology
    from mtrains.placement.workload import Workload
    from mtrains.profiler.profile import LocalityProfile

__all__ = ["PlanOutputs", "run_plan"]


@dataclass(frozen=True, kw_only=True)
class PlanOutputs:
    """Where a plan goes beside standard output. file: as JSON. html: as a page. pictures: a folder of PNG and SVG."""

    file: str | None
    html: str | None
    pictures: str | None
    json: bool


def run_plan(
    path: str, topology: str, target_rate: float | None, workload: Workload, outputs: PlanOutputs
) -> None:
    """Place the tables of the profile in `path` on the machine `topology` names."""
    from mtrains.cli.render import print_json
    from mtrains.cli.render_plan import print_plan
    from mtrains.placement.planner import plan
    from mtrains.placement.topology_file import load_topology
    from mtrains.profiler.profile import LocalityProfile

    with usage_errors():
        machine = load_topology(topology)
    profile = LocalityProfile.load(path)
    made = plan(profile, machine, target_samples_per_second=target_rate, workload=workload)
    for warning in made.warnings:
        print(f"mtrains: warning: {warning}", file=sys.stderr)
    if outputs.file is not None:
        made.save(outputs.file)
    if outputs.html is not None or outputs.pictures is not None:
        _draw(made, profile, machine, workload, outputs)
    if outputs.json:
        print_json(made.to_dict())
    else:
        print_plan(made)


def _draw(
    made: PlacementPlan, profile: LocalityProfile, machine: Topology, workload: Workload, outputs: PlanOutputs
) -> None:
    from mtrains.cli.plan_page import plan_page
    from mtrains.figures import save_figures
    from mtrains.placement.pictures import plan_figures
    from mtrains.placement.what_if import what_if

    answers = what_if(profile, machine, workload)
    if outputs.pictures is not None:
        save_figures(plan_figures(made, answers), outputs.pictures)
    if outputs.html is not None:
        page = plan_page(made, answers, _profile_figures(made, profile))
        Path(outputs.html).write_text(page, encoding="utf-8")


def _profile_figures(made: PlacementPlan, profile: LocalityProfile) -> dict[str, Figure]:
    from mtrains.profiler.pictures import miss_ratio_figure, reuse_distance_figure, size_bandwidth_figure

    figures = {
        "What a cache of each table misses": miss_ratio_figure(profile, batch_size=made.batch_size),
        "Size against bandwidth": size_bandwidth_figure(profile, samples_per_second=made.samples_per_second),
    }
    if any(table.statistics is not None for table in profile.tables):
        figures["How soon rows come again"] = reuse_distance_figure(profile)
    return figures
