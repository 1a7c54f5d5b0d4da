"""A plan: where each table lives, what that costs, and why; a versioned JSON file."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mtrains.errors import FormatError, StateError

__all__ = ["LimitUse", "PlacementPlan", "TablePlacement", "TierUse"]

PLAN_FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class TablePlacement:
    """One table. rows, hits (a step), bytes (slots with their index): by slot tier; every slot tier is named.

    passes_over: tiers that its rows never enter. new, fetches, page_reads, bytes_moved... are of one step.
    log_bytes: at the log's live ratio. resident: the first tier holds it whole, without an index.
    """

    name: str
    num_embeddings: int
    embedding_dim: int
    dtype: str
    record_bytes: int
    touched_rows: float
    unique_rows: float
    rows: dict[str, int]
    bytes: dict[str, int]
    hits: dict[str, float]
    new: float
    fetches: float
    page_reads: float
    log_bytes: float
    resident: bool
    passes_over: tuple[str, ...]
    reason: str


@dataclass(frozen=True, kw_only=True)
class TierUse:
    """One slot tier. slot_bytes: of all tables, of which index_bytes are index; fixed_bytes: by purpose.

    next_gib_seconds: what one GiB more would save of a step.
    """

    tier: str
    device: str
    capacity_bytes: float
    slot_bytes: int
    index_bytes: int
    fixed_bytes: dict[str, float]
    next_gib_seconds: float

    @property
    def used_bytes(self) -> float:
        """Bytes of slots, directory, windows and buffers together."""
        return self.slot_bytes + sum(self.fixed_bytes.values())


@dataclass(frozen=True, kw_only=True)
class LimitUse:
    """What one limit is asked for in a step: `amount` in `unit`, at `rate` a second."""

    name: str
    amount: float
    rate: float
    unit: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class PlacementPlan:
    """Where each table lives. Each table of the profile is in it once.

    step_seconds: predicted, with bursts and latency. fastest_seconds: of the fastest placement, without them, which
    this is unless a slower one meets the target; no placement on the same curves is faster than bound_seconds, and
    gap_ratio is one over the other, less 1. limits: what a step asks of each, `binding`
    names the longest. baselines: step seconds, page reads and fetches of placements without a planner. hull_gap: by how
    much the concave curves lie above the profile's, as a share of unique rows, at most.
    """

    topology: dict[str, Any]
    workload: dict[str, Any]
    profile_source: str
    batch_size: int
    target_samples_per_second: float | None
    step_seconds: float
    fastest_seconds: float
    bound_seconds: float
    binding: str
    limits: tuple[LimitUse, ...]
    tiers: tuple[TierUse, ...]
    tables: tuple[TablePlacement, ...]
    log_bytes: float
    log_capacity_bytes: float
    baselines: dict[str, dict[str, float]]
    hull_gap: float
    cut_gap: float
    warnings: tuple[str, ...] = field(default=())

    @property
    def samples_per_second(self) -> float | None:
        """What the placement reaches; None if no limit is known that takes any time."""
        return self.batch_size / self.step_seconds if self.step_seconds else None

    @property
    def gap_ratio(self) -> float:
        """How far the placement is from the bound, at most."""
        return max(0.0, self.fastest_seconds / self.bound_seconds - 1) if self.bound_seconds else 0.0

    def budgets(self) -> dict[str, dict[str, int]]:
        """Return {table: {tier: bytes}} as `Store(budgets=)` takes them: each table's slots and their index."""
        return {table.name: dict(table.bytes) for table in self.tables}

    def table(self, name: str) -> TablePlacement:
        """Return the table of this name. Raises: StateError if there is none."""
        found = self._by_name.get(name)
        if found is None:
            raise StateError(f"the plan has no table {name!r}; profile these tables and plan again")
        return found

    def check_table(self, name: str, num_embeddings: int, embedding_dim: int, dtype: str) -> None:
        """Refuse a table that the plan was not made for. Raises: StateError naming it and what differs."""
        planned = self.table(name)
        there, here = (
            f"{rows:,} rows x {dim} {kind}"
            for rows, dim, kind in (
                (planned.num_embeddings, planned.embedding_dim, planned.dtype),
                (num_embeddings, embedding_dim, dtype),
            )
        )
        if there != here:
            raise StateError(
                f"the plan does not fit table {name!r}: planned {there}, here {here}; profile these tables and plan "
                "again"
            )

    @functools.cached_property
    def _by_name(self) -> dict[str, TablePlacement]:
        return {table.name: table for table in self.tables}

    def to_dict(self) -> dict[str, Any]:
        """Return what the file holds."""
        derived = {"samples_per_second": self.samples_per_second, "gap_ratio": self.gap_ratio}
        return {"mtrains_plan": PLAN_FORMAT, **dataclasses.asdict(self), **derived}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any], path: str = "the plan") -> PlacementPlan:
        """Return the plan that to_dict() gave. Raises: FormatError naming `path`."""
        version = content.get("mtrains_plan")
        if version != PLAN_FORMAT:
            raise FormatError(f"{path} has plan format {version!r}; this version of mtrains reads format {PLAN_FORMAT}")
        names = {one.name for one in dataclasses.fields(cls)}
        try:
            fields = {name: value for name, value in content.items() if name in names}
            fields["limits"] = tuple(LimitUse(**one) for one in fields["limits"])
            fields["tiers"] = tuple(TierUse(**one) for one in fields["tiers"])
            fields["tables"] = tuple(
                TablePlacement(**{**one, "passes_over": tuple(one["passes_over"])}) for one in fields["tables"]
            )
            fields["warnings"] = tuple(fields["warnings"])
            return cls(**fields)
        except (KeyError, TypeError) as error:
            raise FormatError(f"{path} is not a plan: {error}") from None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan as JSON, replacing the file at once. Raises: OSError."""
        final = Path(path)
        partial = final.with_name(final.name + ".tmp")
        partial.write_text(json.dumps(self.to_dict(), allow_nan=False) + "\n")
        partial.replace(final)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> PlacementPlan:
        """Read what save() wrote. Raises: FormatError, OSError."""
        try:
            content = json.loads(Path(path).read_bytes())
        except ValueError as error:
            raise FormatError(f"{os.fspath(path)} is not a plan: {error}") from None
        if not isinstance(content, dict):
            raise FormatError(f"{os.fspath(path)} is not a plan: no JSON object")
        return cls.from_dict(content, os.fspath(path))

