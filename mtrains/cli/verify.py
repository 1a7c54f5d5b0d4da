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
    """Check every block, header and catalog value of a store; exit 1 and name what is wrong.

    Of a store that is being trained, the newest checkpoint and the catalog are checked; the training does not wait.
    """
    from mtrains.cli.render import print_json
    from mtrains.tiers.verify import check_store

    verdict = check_store(store, rebuild=rebuild)
    problems, served = verdict.problems, verdict.served
    if json:
        checked = {} if served is None else {"only_checkpoint": {"tag": served.tag, "epoch": served.epoch}}
        print_json({"store": store, "ok": not problems, "problems": problems, **checked})
    elif problems:
        print("\n".join(problems))
    elif served is None:
        print(f"{store}: every block, header and catalog value is right")
    else:
        print(
            f"{store} is open in a process that may be training it: the catalog and checkpoint {served.tag!r} (epoch "
            f"{served.epoch}) are right; segments that only other checkpoints need were not read"
        )
    if problems:
        raise typer.Exit(1)
