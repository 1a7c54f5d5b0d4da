"""How the tables of a model are accessed: the planner's input."""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mtrains.errors import FormatError
from mtrains.profiler.profile_file import read_profile_file, write_profile_file
from mtrains.profiler.table_statistics import TableStatistics

__all__ = ["DTYPE_BYTES", "LocalityCurve", "LocalityProfile", "TableProfile"]

DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
PROFILE_FORMAT = 1
_TOLERANCE = 1e-6


@dataclass(frozen=True, kw_only=True)
class LocalityCurve:
    """What a cache of each size catches of a table's accesses, under one policy, at one batch size.

    An access is one unique row of one batch: a hit, new (first touch, no read) or a fetch (a read). Figures are
    means over batches. policy: "next_use" or another name. lookahead, depth: in batches. batch_size: samples of all
    ranks together. capacity_rows: ascending, > 0. pages_per_fetch: 4 KiB reads a fetched row. pinned_rows: rows of
    depth + 1 successive batches together, p99.9. fetches_std: spread between batches, empty where it is not known.
    """

    policy: str
    lookahead: int
    depth: int
    batch_size: int
    unique_rows: float
    pinned_rows: float
    new_rows: float
    capacity_rows: tuple[float, ...]
    hits: tuple[float, ...]
    fetches: tuple[float, ...]
    pages_per_fetch: tuple[float, ...]
    fetches_std: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        points = len(self.capacity_rows)
        for name in ("capacity_rows", "hits", "fetches", "pages_per_fetch", "fetches_std"):
            values = tuple(float(value) for value in getattr(self, name))
            object.__setattr__(self, name, values)
            if any(not math.isfinite(value) or value < 0 for value in values):
                raise ValueError(f"{name} of a curve must be finite and >= 0")
            if len(values) != points and not (name == "fetches_std" and not values):
                raise ValueError(f"a curve has {points} capacities and {len(values)} {name}")
        capacities = (0.0, *self.capacity_rows)
        if not points or any(after <= before for before, after in itertools.pairwise(capacities)):
            raise ValueError("capacity_rows of a curve must ascend from above 0, with one point at least")
        slack = _TOLERANCE * max(1.0, self.unique_rows)
        for hits, fetches in zip(self.hits, self.fetches, strict=True):
            if abs(hits + self.new_rows + fetches - self.unique_rows) > slack:
                raise ValueError(
                    f"hits {hits:g} + new {self.new_rows:g} + fetches {fetches:g} of a curve are not its "
                    f"{self.unique_rows:g} unique rows a batch"
                )

    @property
    def setting(self) -> tuple[str, int, int, int]:
        """policy, lookahead, depth, batch size: what a curve is chosen by."""
        return self.policy, self.lookahead, self.depth, self.batch_size


@dataclass(frozen=True, kw_only=True)
class TableProfile:
    """One table. touched_rows: distinct rows of the whole trace. lookups_per_sample: mean, duplicates counted.

    footprint: (samples, mean distinct rows in that many consecutive samples), ascending. statistics: what was measured
    beyond that, None for a model of a table.
    """

    name: str
    num_embeddings: int
    embedding_dim: int
    dtype: str
    touched_rows: float
    lookups_per_sample: float
    footprint: tuple[tuple[float, float], ...]
    curves: tuple[LocalityCurve, ...]
    statistics: TableStatistics | None = None

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("a table of a profile needs a name")
        if self.dtype not in DTYPE_BYTES:
            raise ValueError(f"table {self.name!r}: dtype must be one of {', '.join(DTYPE_BYTES)}, got {self.dtype!r}")
        if self.num_embeddings < 0 or self.embedding_dim < 1:
            raise ValueError(f"table {self.name!r}: {self.num_embeddings} rows of {self.embedding_dim} are no table")
        if not 0 <= self.touched_rows <= self.num_embeddings:
            raise ValueError(
                f"table {self.name!r}: {self.touched_rows} touched rows of {self.num_embeddings} are impossible"
            )
        settings = [curve.setting for curve in self.curves]
        if len(set(settings)) != len(settings):
            raise ValueError(f"table {self.name!r} has two curves of one policy, lookahead, depth and batch size")

    def curve(self, *, policy: str, lookahead: int, depth: int, batch_size: int) -> LocalityCurve | None:
        """Return the curve of this setting, None if the profile has none."""
        wanted = (policy, lookahead, depth, batch_size)
        return next((curve for curve in self.curves if curve.setting == wanted), None)


@dataclass(frozen=True, kw_only=True)
class LocalityProfile:
    """How the tables of a model are accessed, from a trace or a model of one.

    samples: of the trace. sampling_rate: share of rows that was tracked. source: what it was made of, for people.
    source_sha256: hashes of the inputs.
    """

    tables: tuple[TableProfile, ...]
    samples: float
    sampling_rate: float = 1.0
    seed: int = 0
    source: str = ""
    source_sha256: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        names = [table.name for table in self.tables]
        twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
        if twice:
            raise ValueError(f"a profile has table {twice[0]!r} twice")
        if not names:
            raise ValueError("a profile needs one table at least")

    @property
    def settings(self) -> list[tuple[str, int, int, int]]:
        """What every table has a curve of, in the first table's order."""
        common = [{curve.setting for curve in table.curves} for table in self.tables]
        return [curve.setting for curve in self.tables[0].curves if all(curve.setting in own for own in common)]

    def to_dict(self) -> dict[str, Any]:
        """Return what the file holds."""
        return {"mtrains_profile": PROFILE_FORMAT, **dataclasses.asdict(self)}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any], path: str = "the profile") -> LocalityProfile:
        """Return the profile that to_dict() gave. Raises: FormatError naming `path`."""
        version = content.get("mtrains_profile")
        if version != PROFILE_FORMAT:
            raise FormatError(
                f"{path} has profile format {version!r}; this version of mtrains reads format {PROFILE_FORMAT}"
            )
        try:
            fields = {name: value for name, value in content.items() if name != "mtrains_profile"}
            fields["tables"] = tuple(_table(table) for table in fields["tables"])
            fields["source_sha256"] = tuple(fields.get("source_sha256", ()))
            return cls(**fields)
        except (KeyError, TypeError, ValueError) as error:
            raise FormatError(f"{path} is not a profile: {error}") from None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the profile as JSON, replacing the file at once. Raises: OSError."""
        write_profile_file(path, self.to_dict())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> LocalityProfile:
        """Read what save() wrote. Raises: FormatError, OSError."""
        return cls.from_dict(read_profile_file(path), os.fspath(path))


def _table(content: Mapping[str, Any]) -> TableProfile:
    fields = dict(content)
    fields["footprint"] = tuple((float(samples), float(rows)) for samples, rows in fields["footprint"])
    fields["curves"] = tuple(LocalityCurve(**_columns(curve)) for curve in fields["curves"])
    statistics = fields.get("statistics")
    fields["statistics"] = None if statistics is None else TableStatistics.from_dict(statistics)
    return TableProfile(**fields)


def _columns(curve: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else value
            for name, value in curve.items()}  # fmt: skip
