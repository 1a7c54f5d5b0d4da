"""The memory that a store is asked for: sizes of tiers and budgets of tables, or a plan that says both."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from mtrains import _native
from mtrains.errors import StateError
from mtrains.hbm import Hbm
from mtrains.placement.plan import PlacementPlan
from mtrains.scm import MIN_SCM_BYTES, Scm
from mtrains.slot_tiers import SLOT_TIERS
from mtrains.specs import TableSpec
from mtrains.tiers.budgets import parse_budgets
from mtrains.tiers.catalog_records import TableRecord
from mtrains.tiers.chain import ChainConfig
from mtrains.units import format_bytes, parse_bytes

__all__ = ["AskedMemory", "ask_memory", "planned_scm_bytes"]

DEFAULT_DRAM = "256MiB"
_RANGES_OF_A_POOL = 3  # records, and the two halves of their index (native/include/mtrains/slot_index.h)


@dataclass(frozen=True)
class AskedMemory:
    """The tiers of a store, and what its tables must be for the budgets to be theirs. plan: None without one."""

    chain: ChainConfig
    plan: PlacementPlan | None = None

    def check_table(self, spec: TableSpec) -> None:
        """Refuse a table that the plan was not made for. Raises: StateError naming it."""
        if self.plan is not None:
            self.plan.check_table(spec.name, spec.num_embeddings, spec.embedding_dim, str(spec.dtype).split(".")[1])

    def check_record(self, spec: TableSpec, kind: str, state_floats: int) -> None:
        """Refuse an optimizer whose state makes rows longer or shorter than the plan's. Raises: StateError."""
        if self.plan is None:
            return
        record = TableRecord.of(spec).with_layout(state_floats, 0.0)
        size, planned = record.stride(len(record.layouts) - 1), self.plan.table(spec.name).record_bytes
        if size != planned:
            raise StateError(
                f"table {spec.name!r}: a row with the state of optimizer {kind!r} takes {size} bytes, the plan is of "
                f"{planned} ({self.plan.workload['optimizer']}); plan again with this optimizer"
            )

    def check_all_there(self, names: Collection[str]) -> None:
        """Refuse budgets of tables that are not there. names: of the store's tables. Raises: StateError naming one."""
        lacking = [name for name in self.chain.budgets if name not in names]
        if not lacking:
            return
        known = ", ".join(map(repr, names)) or "none"
        if self.plan is not None:
            raise StateError(
                f"the plan places table {lacking[0]!r}, which the store does not have (its tables are: {known}); plan "
                "for these tables, or create all of them before the first step"
            )
        raise StateError(
            f"budgets= has a table {lacking[0]!r}, which the store does not have; its tables are: {known}. Correct the "
            "name, or create all tables before the first step"
        )


def ask_memory(
    *,
    dram: int | str | None,
    hbm: int | str | Hbm,
    scm: int | str | Scm,
    budgets: Mapping[str, Mapping[str, int | str]] | None,
    plan: PlacementPlan | str | os.PathLike[str] | None,
) -> AskedMemory:
    """Return what the arguments of a store say. Raises: ValueError, TypeError, CapacityError; FormatError, OSError
    for the plan's file; StateError if the plan cannot be applied to a store."""
    if plan is None:
        return AskedMemory(
            ChainConfig(
                dram_bytes=parse_bytes(DEFAULT_DRAM if dram is None else dram),
                hbm=hbm if isinstance(hbm, Hbm) else Hbm(hbm) if parse_bytes(hbm) else None,
                scm=scm if isinstance(scm, Scm) else Scm(scm) if parse_bytes(scm) else None,
                budgets=parse_budgets(budgets),
            )
        )
    for name, given in (("dram", dram is not None), ("budgets", budgets is not None)):
        if given:
            raise ValueError(f"plan= says what each table has in each tier, so {name}= contradicts it; leave it out")
    return _planned(_loaded(plan), hbm, scm)


def planned_scm_bytes(plan: PlacementPlan) -> int:
    """Return the capacity of an SCM tier that holds the plan's slots: a pool of its own a table, in whole units."""
    sizes = [table.bytes.get("scm", 0) for table in plan.tables]
    pools = sum(size > 0 for size in sizes)
    if not pools:
        return 0
    capacity = 0
    needed = max(MIN_SCM_BYTES, sum(sizes))
    while needed > capacity:
        capacity = needed
        needed = sum(sizes) + pools * _RANGES_OF_A_POOL * _native.FileMemory.unit_for(capacity)
    return capacity


def _loaded(plan: object) -> PlacementPlan:
    if isinstance(plan, PlacementPlan):
        return plan
    if isinstance(plan, (str, os.PathLike)):
        return PlacementPlan.load(Path(plan))
    raise TypeError(f"plan must be a PlacementPlan or the path of one's file, got {type(plan).__name__}")


def _planned(plan: PlacementPlan, hbm: int | str | Hbm, scm: int | str | Scm) -> AskedMemory:
    machine = plan.topology
    if machine["static"] or machine["nodes"] != 1:
        what = "whose rows never move" if machine["static"] else f"of {machine['nodes']} nodes together"
        raise StateError(f"the plan is for {machine['name']!r}, {what}; a store is one machine's, and its rows move")
    budgets = plan.budgets()
    sizes = {tier: sum(own.get(tier, 0) for own in budgets.values()) for tier in SLOT_TIERS}
    sizes["scm"] = planned_scm_bytes(plan)
    for name, value, kind in (("hbm", hbm, Hbm), ("scm", scm, Scm)):
        _check_given(name, value, kind, sizes[name])
    return AskedMemory(
        ChainConfig(
            dram_bytes=sizes["dram"],
            hbm=hbm if isinstance(hbm, Hbm) else Hbm(sizes["hbm"]) if sizes["hbm"] else None,
            scm=scm if isinstance(scm, Scm) else Scm(sizes["scm"]) if sizes["scm"] else None,
            budgets=budgets,
            only_budgeted=True,
        ),
        plan,
    )


def _check_given(name: str, value: int | str | Hbm | Scm, kind: type[Hbm] | type[Scm], planned: int) -> None:
    """Refuse a size beside the plan's; an Hbm or Scm says where its bytes come from, and must have as many."""
    if not isinstance(value, (Hbm, Scm)):
        if parse_bytes(value):
            raise ValueError(
                f"plan= says what each table has in each tier, so {name}= contradicts it; leave it out, or give an "
                f"{kind.__name__} to say where its memory comes from"
            )
        return
    if not planned:
        raise ValueError(f"the plan uses no {name} tier, so {name}= contradicts it; leave it out")
    if value.capacity_bytes < planned:
        raise ValueError(
            f"the plan needs {planned} bytes of {name} ({format_bytes(planned)}), {name}= has {value.capacity_bytes}"
        )
