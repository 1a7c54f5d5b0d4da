"""`mtrains export`."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from mtrains.cli.usage import usage_errors

__all__ = ["export"]


def export(
    store: Annotated[str, typer.Argument(help="The store's folder.", metavar="STORE")],
    to: Annotated[
        str,
        typer.Option(help="A .safetensors or .npy file; any other name is a new folder with a file a table."),
    ],
    table: Annotated[
        list[str] | None, typer.Option(help="A table; again for more. All by default.", metavar="NAME")
    ] = None,
    optimizer_state: Annotated[
        bool, typer.Option("--optimizer-state", help="Write sum, exp_avg, exp_avg_sq and step too.")
    ] = False,
    dtype: Annotated[
        Literal["float32", "float16", "bfloat16"] | None,
        typer.Option(help="Of the weights; by default the table's."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Write the rows of the last checkpoint to files of other libraries; the store may be trained meanwhile.

    One table that is named goes to a file as "weight", several as "NAME.weight". Untouched rows have their initial
    values, so the size is that of the whole table.
    """
    from pathlib import Path

    from mtrains.cli.export_progress import export_progress
    from mtrains.cli.render import print_json
    from mtrains.specs import DTYPES
    from mtrains.store import Store
    from mtrains.transfer.export import ExportOptions, export_store, export_table, is_file_path
    from mtrains.units import format_bytes

    with Store(store, read_only=True) as opened, export_progress() as progress:
        tables = opened.tables(table or None)
        options = ExportOptions(
            optimizer_state=optimizer_state, dtype=DTYPES[dtype] if dtype else None, progress=progress
        )
        with usage_errors():
            if table and len(tables) == 1 and is_file_path(to):
                export_table(tables[0], to, options)
            else:
                export_store(tables, to, "safetensors", options)
    files = [Path(to)] if is_file_path(to) else sorted(Path(to).iterdir())
    size = sum(file.stat().st_size for file in files)
    if json:
        print_json({"store": store, "path": to, "tables": [one.name for one in tables], "bytes": size})
    else:
        what = f"table {tables[0].name}" if len(tables) == 1 else f"{len(tables)} tables"
        print(f"{to}: {what}, {format_bytes(size)}")
