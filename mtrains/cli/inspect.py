"""`mtrains inspect`."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["inspect"]


def inspect(
    store: Annotated[str, typer.Argument(help="The store's folder.", metavar="STORE")],
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show what a store holds: tables, rows touched, checkpoints, bytes live, held and dead.

    A store that is being trained is shown as of its last commit; the training does not wait.
    """
    from mtrains.cli.render import print_json
    from mtrains.cli.render_store import print_store
    from mtrains.tiers.inspect import inspect_store

    contents = inspect_store(store)
    if json:
        print_json(contents)
    else:
        print_store(contents)
