"""What `mtrains profile` shows, as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from mtrains.profiler.profile import DTYPE_BYTES, LocalityCurve, LocalityProfile, TableProfile
from mtrains.units import format_bytes

__all__ = ["HELD_SHARES", "profile_object", "profile_report", "table_object"]

HELD_SHARES = (0.01, 0.05, 0.2)  # of the touched rows, for which hits are shown


def table_object(table: TableProfile, batch_size: int, rate: float | None) -> dict[str, Any]:
    """Return the figures of a table at a batch size. rate: samples a second."""
    curve = _curve(table, batch_size)
    row_bytes = table.embedding_dim * DTYPE_BYTES[table.dtype]
    unique = max(curve.unique_rows, 1e-300)
    rows = (0.0, *curve.capacity_rows)
    hits = np.interp([share * table.touched_rows for share in HELD_SHARES], rows, (0.0, *curve.hits))
    statistics = table.statistics
    assert statistics is not None
    per_second = None if rate is None else rate / batch_size
    return {
        "name": table.name,
        "num_embeddings": table.num_embeddings,
        "touched_rows": table.touched_rows,
        "embedding_dim": table.embedding_dim,
        "dtype": table.dtype,
        "bytes": table.num_embeddings * row_bytes,
        "tracked_rows": statistics.tracked_rows,
        "row_weight": statistics.row_weight,
        "lookups_per_sample": table.lookups_per_sample,
        "lookups_per_batch": table.lookups_per_sample * batch_size,
        "unique_rows_per_batch": curve.unique_rows,
        "new_rows_per_batch": curve.new_rows,
        "pinned_rows": curve.pinned_rows,
        "unique_bytes_per_second": None if per_second is None else curve.unique_rows * row_bytes * per_second,
        "lookup_bytes_per_second": None if rate is None else table.lookups_per_sample * rate * row_bytes,
        "hit_ratio": {f"{share:g}": float(hit / unique) for share, hit in zip(HELD_SHARES, hits, strict=True)},
        "lru_hit_ratio": {f"{share:g}": statistics.lru_hit_ratio(share * table.touched_rows) for share in HELD_SHARES},
        "pages_per_fetch": float(np.mean(curve.pages_per_fetch)),
        "pages_by_number": statistics.pages_by_number,
        "top_shares": {f"{top:g}": share for top, share in statistics.top_shares},
        "zipf_exponent": statistics.zipf_exponent,
        "zipf_error": statistics.zipf_error,
        "hot_drift": statistics.hot_drift,
        "hit_drift": statistics.hit_drift,
    }


def profile_object(
    profile: LocalityProfile, batch_size: int, rate: float | None, output: str | None, pictures: Sequence[Path]
) -> dict[str, Any]:
    """Return the figures of a profile as one JSON object; the curves are in the file."""
    return {
        "source": profile.source,
        "source_sha256": list(profile.source_sha256),
        "samples": profile.samples,
        "batch_size": batch_size,
        "batch_sizes": sorted({setting[3] for setting in profile.settings}),
        "samples_per_second": rate,
        "seed": profile.seed,
        "tables": [table_object(table, batch_size, rate) for table in profile.tables],
        "profile": output,
        "pictures": [str(path) for path in pictures],
    }


def profile_report(profile: LocalityProfile, batch_size: int, rate: float | None) -> RenderableType:
    """Return the figures of a profile as something rich prints; tables by the bytes of unique rows, most first."""
    tables = [table_object(table, batch_size, rate) for table in profile.tables]
    sizes = sorted({setting[3] for setting in profile.settings})
    policy, lookahead, depth, _ = profile.settings[0]
    exact = sum(table["row_weight"] == 1 for table in tables)
    lines = [
        ("data", profile.source),
        ("samples", f"{profile.samples:,.0f}, {profile.samples / batch_size:,.1f} batches of {batch_size:,}"),
        ("tables", f"{len(tables):,}, {format_bytes(sum(table['bytes'] for table in tables))}; {exact:,} exact"),
        ("curves", f"{policy} lookahead {lookahead}, depth {depth}, batches of {', '.join(f'{n:,}' for n in sizes)}"),
    ]
    tables.sort(key=lambda table: -table["unique_rows_per_batch"] * table["bytes"] / table["num_embeddings"])
    return Group(
        Text("\n".join(f"{name:<10} {value}" for name, value in lines)),
        Text(),
        _traffic(tables, rate),
        _locality(tables),
    )


def _traffic(tables: Sequence[dict[str, Any]], rate: float | None) -> Table:
    shown = _table("size and traffic of a batch")
    for column in ("rows", "touched", "dim", "bytes", "lookups", "unique", "new", "pinned"):
        shown.add_column(column, justify="right")
    if rate is not None:
        shown.add_column(f"read at {rate:,.0f}/s", justify="right")
    for table in tables:
        shown.add_row(
            table["name"],
            f"{table['num_embeddings']:,}",
            ("" if table["row_weight"] == 1 else "~") + f"{table['touched_rows']:,.0f}",
            f"{table['embedding_dim']}",
            format_bytes(table["bytes"]),
            *(_count(table[name]) for name in ("lookups_per_batch", "unique_rows_per_batch", "new_rows_per_batch")),
            _count(table["pinned_rows"]),
            *([f"{format_bytes(table['unique_bytes_per_second'])}/s"] if rate is not None else []),
        )
    return shown


def _locality(tables: Sequence[dict[str, Any]]) -> Table:
    shown = _table("locality: hits in % of unique rows, with a share of the touched rows held")
    for share in HELD_SHARES:
        shown.add_column(f"{100 * share:g} % held", justify="right")
    for column in (f"lru {100 * HELD_SHARES[-1]:g} %", "top 1 %", "zipf", "+-", "pages/fetch", "drift"):
        shown.add_column(column, justify="right")
    for table in tables:
        top = table["top_shares"].get("0.01")
        shown.add_row(
            table["name"],
            *(f"{100 * hit:.1f}" for hit in table["hit_ratio"].values()),
            f"{100 * list(table['lru_hit_ratio'].values())[-1]:.1f}",
            "-" if top is None else f"{100 * top:.1f}",
            f"{table['zipf_exponent']:.2f}",
            f"{table['zipf_error']:.2f}",
            f"{table['pages_per_fetch']:.2f}",
            f"{100 * table['hit_drift']:.1f}",
        )
    return shown


def _table(title: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    table.add_column("table", no_wrap=True, max_width=28)
    return table


def _count(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _curve(table: TableProfile, batch_size: int) -> LocalityCurve:
    return next(curve for curve in table.curves if curve.batch_size == batch_size)
