"""From the options of `mtrains profile` to lookups, and from those to a profile."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mtrains.cli.profile_progress import ProfileProgress
from mtrains.cli.usage import usage_errors
from mtrains.profiler.bag_files import BagFiles
from mtrains.profiler.lookups import LookupSource, track
from mtrains.profiler.measure import profile_of
from mtrains.profiler.mini_simulation import CurveSpec
from mtrains.profiler.profile import LocalityProfile
from mtrains.profiler.trace_file import TraceFile
from mtrains.profiler.tracking import LookupTracker, TableLayout, TrackingSpec

__all__ = ["DataOptions", "make_tracker", "measure"]

_DEFAULT_ROWS = 100_000  # of click logs, as of `mtrains train`
_MAX_THREADS = 4
_HASH_BYTES = 1 << 20
_STDIN = "-"


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """What is profiled, as on the command line."""

    paths: tuple[str, ...]
    format: str
    rows: int | None
    table_rows: tuple[str, ...]
    embedding_dim: int
    table_dim: tuple[str, ...]
    dtype: str
    label: str | None
    categorical: str | None
    bags: tuple[str, ...]
    schema: str | None
    on_bad_line: str
    num_tables: int | None

    @property
    def names_columns(self) -> bool:
        """Whether columns of a click log are named."""
        return any((self.label, self.categorical, self.bags, self.schema))


def make_tracker(
    options: DataOptions, spec: TrackingSpec, progress: ProfileProgress
) -> tuple[LookupSource, LookupTracker]:
    """Return the lookups and a tracker of their tables. Raises: UsageError, DataError, TraceError, OSError."""
    kind = _kind(options)
    if kind not in ("trace", "fbgemm"):
        return _click_log(options, kind, spec, progress)
    with usage_errors():
        if options.names_columns:
            raise ValueError(f"--label, --categorical, --bag and --schema are of click logs, not of a {kind}")
        if kind == "trace" and len(options.paths) > 1:
            raise ValueError(f"a trace is one file, got {len(options.paths)}; profile each and merge the profiles")
    source: LookupSource
    source = TraceFile(options.paths[0]) if kind == "trace" else BagFiles(options.paths, num_tables=options.num_tables)
    return source, _tracker(options, source.tables, options.rows, spec)


def _kind(options: DataOptions) -> str:
    """Return "trace", "fbgemm" or a format of click logs."""
    path = options.paths[0]
    if options.format != "auto":
        return options.format
    if path.endswith(".npz"):
        return "trace"
    if path.endswith((".pt", ".pth")):
        return "fbgemm"
    if path.endswith(".parquet") and not options.names_columns:
        return "trace"
    from mtrains.train.data.stream import detect_format

    return detect_format(path)


def _click_log(
    options: DataOptions, format_name: str, spec: TrackingSpec, progress: ProfileProgress
) -> tuple[LookupSource, LookupTracker]:
    # Imported here, since the readers of click logs load torch, which takes seconds and traces have no use for.
    from mtrains.cli.options import choose_schema
    from mtrains.train.data.schema import SampleSpec
    from mtrains.train.data.stream import ReadLog, SampleStream
    from mtrains.train.lookups import ClickLog

    with usage_errors():
        schema = choose_schema(
            format_name,
            schema_file=options.schema,
            label=options.label,
            dense=None,
            categorical=options.categorical,
            bags=options.bags,
            dense_transform=None,
        )
    tracker = _tracker(
        options, [feature.name for feature in schema.features], options.rows or _DEFAULT_ROWS, spec
    )
    rows = tuple(table.num_embeddings or _DEFAULT_ROWS for table in tracker.tables)
    stream = SampleStream(
        paths=options.paths,
        format=format_name,
        spec=SampleSpec(schema, rows),
        on_bad_line=options.on_bad_line,
    )
    return ClickLog(stream, ReadLog(progress.bad_line)), tracker


def _tracker(options: DataOptions, names: Sequence[str], rows: int | None, spec: TrackingSpec) -> LookupTracker:
    with usage_errors():
        by_name = _overrides("--table-rows", options.table_rows, names)
        dims = _overrides("--table-dim", options.table_dim, names)
        return LookupTracker(
            [
                TableLayout(
                    name=name,
                    num_embeddings=by_name.get(name, rows),
                    embedding_dim=dims.get(name, options.embedding_dim),
                    dtype=options.dtype,
                )
                for name in names
            ],
            spec,
        )


def _overrides(option: str, texts: Sequence[str], names: Sequence[str]) -> dict[str, int]:
    numbers: dict[str, int] = {}
    for text in texts:
        name, _, number = text.rpartition("=")
        if not name or not number.isdecimal() or int(number) < 1:
            raise ValueError(f"{option} is NAME=N, such as user=1000000, got {text!r}")
        if name not in names:
            shown = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
            raise ValueError(f"{option} names {name!r}, which is none of the tables: {shown}")
        numbers[name] = int(number)
    return numbers


def measure(
    source: LookupSource,
    tracker: LookupTracker,
    curves: CurveSpec,
    options: DataOptions,
    max_samples: int | None,
    threads: int | None,
    progress: ProfileProgress,
) -> LocalityProfile:
    """Read the lookups and return their profile."""
    progress.began("reading", max_samples)
    track(source.read(), tracker, max_samples=max_samples, progress=progress.advanced)
    progress.began("simulating tables", len(tracker.tables))
    return profile_of(
        tracker,
        curves,
        source=", ".join(options.paths),
        source_sha256=[_sha256(path) for path in options.paths if path != _STDIN],
        num_threads=threads or min(_MAX_THREADS, os.cpu_count() or 1),
        progress=lambda done, _: progress.advanced(done),
    )


def _sha256(path: str) -> str:
    digest = hashlib.sha256()
    with Path(path).open("rb") as file:
        while piece := file.read(_HASH_BYTES):
            digest.update(piece)
    return digest.hexdigest()
