"""`mtrains plan --probe`: measures this machine and writes its topology."""

from __future__ import annotations

import sys
from pathlib import Path

from mtrains.cli.usage import UsageError, usage_errors

__all__ = ["run_probe"]


def run_probe(folder: str, seconds: float | None, output: str | None, *, json: bool) -> None:
    """Measure with the disk under `folder`, write the topology to `output`, and show what was measured."""
    from mtrains.cli.render import output_console, print_json
    from mtrains.cli.render_probe import probe_report
    from mtrains.probe.machine import ProbeOptions, probe

    if output is not None and Path(output).suffix != ".json":
        raise UsageError(f"--output {output}: a topology is written as JSON, so name a .json file")
    if not Path(folder).is_dir():
        raise UsageError(f"--probe {folder}: give a folder on the disk that shall hold the log")
    with usage_errors():
        options = ProbeOptions() if seconds is None else ProbeOptions(seconds=seconds)
    probed = probe(folder, options, began=lambda what: print(f"mtrains: measuring {what}", file=sys.stderr))
    if output is not None:
        probed.save(output)
    if json:
        print_json(probed.to_dict())
        return
    output_console().print(probe_report(probed))
    if output is not None:
        print(f"\nwritten to {output}: mtrains plan PROFILE --topology {output}")
