"""`mtrains verify`."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["verify"]


def verify(
    store: Annotated[str, typer.Argument(help="The store's folder.", metavar="STORE")],
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Recreate a damaged catalog from the segments' headers first.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check every block, header and catalog value of a store; exit 1 and name what is wrong."""
    from mtrains.cli.render import print_json
    from mtrains.tiers.verify import verify_store

    problems = verify_store(store, rebuild=rebuild)
    if json:
        print_json({"store": store, "ok": not problems, "problems": problems})
    elif problems:
        print("\n".join(problems))
    else:
        print(f"{store}: every block, header and catalog value is right")
    if problems:
        raise typer.Exit(1)
