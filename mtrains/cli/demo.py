"""`mtrains demo`."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["demo"]


def demo(
    epochs: Annotated[int, typer.Option(help="Passes over the sample.", min=1)] = 2,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Train on a bundled sample with a quarter of the memory it needs, and show that no bit differs."""
    from mtrains.cli.progress import ProgressBar
    from mtrains.cli.render import print_json
    from mtrains.cli.render_demo import print_demo
    from mtrains.train.demo import run_demo

    with ProgressBar() as progress:
        result = run_demo(epochs, progress)
    if json:
        print_json(result.to_json())
    else:
        print_demo(result)
    if not result.bit_identical:
        raise typer.Exit(1)
