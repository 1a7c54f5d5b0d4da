"""The slot tiers of a store, from fast to slow, as its creator asks for them and as the native engine takes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from mtrains import _native
from mtrains.errors import CapacityError, StateError
from mtrains.hbm import Hbm
from mtrains.scm import Scm
from mtrains.slot_tiers import SLOT_TIERS
from mtrains.tiers.hbm import HbmMemory
from mtrains.tiers.scm import ScmArena, bandwidth_limit, file_memory
from mtrains.tiers.scm_open import describe_scm, open_scm_arena
from mtrains.units import format_bytes

__all__ = ["Chain", "ChainConfig"]

# A table's bytes in each tier: 0 passes the tier over, a tier that is not named is shared.
TableBudgets = Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class ChainConfig:
    """Which slot tiers a store has. dram_bytes: 0 is no such tier. budgets: by table, by tier, in bytes.

    only_budgeted: a plan made the budgets, so there is nothing for other tables.
    """

    dram_bytes: int
    hbm: Hbm | None = None
    scm: Scm | None = None
    budgets: Mapping[str, TableBudgets] = field(default_factory=dict)
    only_budgeted: bool = False

    def __post_init__(self) -> None:
        if not any(self.tier_bytes.values()):
            raise ValueError("a store needs memory for rows: give dram=, hbm= or scm= some bytes")
        for tier, total in self.set_aside.items():
            if total > self.tier_bytes[tier]:
                raise CapacityError(
                    f"budgets give tables {format_bytes(total)} of {tier}, which has "
                    f"{format_bytes(self.tier_bytes[tier])}; raise {tier}= or lower budgets"
                )

    @property
    def tier_bytes(self) -> dict[str, int]:
        """Bytes of each tier; 0 if the store has none such."""
        return {
            "hbm": 0 if self.hbm is None else self.hbm.capacity_bytes,
            "dram": self.dram_bytes,
            "scm": 0 if self.scm is None else self.scm.capacity_bytes,
        }

    @property
    def total_bytes(self) -> int:
        """Bytes of all tiers."""
        return sum(self.tier_bytes.values())

    @property
    def set_aside(self) -> dict[str, int]:
        """Bytes of each tier that are for tables with budgets of their own."""
        return {tier: sum(own.get(tier, 0) for own in self.budgets.values()) for tier in SLOT_TIERS}

    def budgets_of(self, table: str) -> list[int | None]:
        """Return a table's own bytes by tier, None where it shares; as the engine takes them.

        Raises: StateError if the plan has nothing for it.
        """
        if self.only_budgeted and table not in self.budgets:
            raise StateError(f"the plan has no table {table!r}; profile these tables and plan again")
        own = self.budgets.get(table, {})
        return [own.get(tier) for tier in SLOT_TIERS]


class Chain:
    """The open tiers: memory that outlives the engines of a session."""

    def __init__(self, config: ChainConfig, folder: Path) -> None:
        """Open them. Raises: as open_scm_arena. folder: the store's own."""
        self.config = config
        self._hbm = None if config.hbm is None or not config.tier_bytes["hbm"] else HbmMemory(config.hbm.torch_device)
        self._arena: ScmArena | None = None
        self._memory: _native.FileMemory | None = None
        self._limit: _native.BandwidthLimit | None = None
        if config.scm is not None and config.tier_bytes["scm"]:
            self._arena = open_scm_arena(config.scm, folder)
            self._memory = file_memory(self._arena)
            if config.scm.device is not None:
                self._limit = bandwidth_limit(config.scm.device)

    @property
    def device(self) -> torch.device:
        """The device that computes."""
        return torch.device("cpu") if self._hbm is None else self._hbm.device

    @property
    def on_device(self) -> bool:
        """Whether rows are computed in the HBM tier, emulated or not."""
        return self._hbm is not None

    @property
    def emulated(self) -> tuple[str, ...]:
        """Tiers that stand in for a device that is not there."""
        names = []
        if self.config.hbm is not None and self._hbm is not None and self.config.hbm.emulated:
            names.append("hbm")
        if self._arena is not None and self.config.scm is not None and self.config.scm.device is not None:
            names.append("scm")
        return tuple(names)

    @property
    def providers(self) -> dict[str, str]:
        """What each tier is made of, for people."""
        found = {}
        if self._hbm is not None:
            found["hbm"] = f"torch tensor on {self._hbm.device}" + (", emulated" if "hbm" in self.emulated else "")
        if self.config.dram_bytes:
            found["dram"] = "anonymous memory"
        if self._arena is not None and self.config.scm is not None:
            found["scm"] = describe_scm(self.config.scm, self._arena)
        return found

    def native_tiers(self) -> list[tuple[Any, ...]]:
        """Return what the engine's constructor takes; each engine needs the one before to be closed."""
        aside, sizes = self.config.set_aside, self.config.tier_bytes
        tiers = []
        for kind, name in enumerate(SLOT_TIERS):
            if not sizes[name]:
                continue
            scm = name == "scm"
            tiers.append(
                (
                    kind,
                    sizes[name],
                    aside[name],
                    self._memory if scm else None,
                    self._hbm if name == "hbm" else None,
                    self._limit if scm else None,
                )
            )
        return tiers

    @property
    def disk_files(self) -> tuple[Path, ...]:
        """Files of tiers that take room on the store's disk."""
        return () if self._arena is None else self._arena.disk_files

    def close(self) -> None:
        """Give the memory back. REQUIRES: no engine uses it any more."""
        if self._arena is not None:
            self._memory = None
            self._arena.close()
            self._arena = None
