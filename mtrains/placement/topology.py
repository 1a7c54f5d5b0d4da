"""A machine as the planner sees it: tiers for rows from fast to slow, a log, links, cores."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, TypeVar

from mtrains.slot_tiers import SLOT_TIERS

__all__ = ["Cpu", "Link", "LogTier", "SlotTier", "Topology", "scaled"]

_Part = TypeVar("_Part", "SlotTier", "LogTier", "Link", "Cpu", "Topology")



@dataclass(frozen=True, kw_only=True)
class SlotTier:
    """Memory that holds rows in slots.

    capacity_bytes: what rows, their index and, in host memory, directory and buffers may take together. one_medium:
    reads and writes share the medium's time (Optane); else each direction has its own. granule_bytes: a record is
    rounded up to it. cost_per_gib: weight among placements that are equally fast, not a price. price_usd and
    watts: of all devices of the tier, None where not known.
    """

    tier: str
    device: str
    capacity_bytes: float
    read_bytes_per_second: float
    write_bytes_per_second: float
    one_medium: bool = False
    granule_bytes: int = 64
    cost_per_gib: float = 1.0
    price_usd: float | None = None
    watts: float | None = None
    source: str = ""

    def __post_init__(self) -> None:
        if self.tier not in SLOT_TIERS:
            raise ValueError(f"a slot tier is one of {', '.join(SLOT_TIERS)}, got {self.tier!r}")
        _check(self, f"{self.tier} tier", at_least_0=("capacity_bytes", "cost_per_gib"))
        _check(
            self, f"{self.tier} tier", above_0=("read_bytes_per_second", "write_bytes_per_second", "granule_bytes")
        )


    @property
    def round_trip_bytes_per_second(self) -> float:
        """Bytes a second that pass through, written once and read once."""
        read, write = self.read_bytes_per_second, self.write_bytes_per_second
        return 1 / (1 / read + 1 / write) if self.one_medium else min(read, write)


@dataclass(frozen=True, kw_only=True)
class LogTier:
    """The SSDs under the log. endurance_bytes_per_day: rated writes of all devices, None: not limited.

    read_latency_seconds: of one block read alone, which a step without rows staged ahead waits for; 0: not counted.
    """

    device: str
    capacity_bytes: float
    read_iops: float
    read_bytes_per_second: float
    write_bytes_per_second: float
    endurance_bytes_per_day: float | None = None
    read_latency_seconds: float = 0.0
    price_usd: float | None = None
    watts: float | None = None
    source: str = ""

    def __post_init__(self) -> None:
        _check(self, "log", at_least_0=("capacity_bytes", "read_latency_seconds"))
        _check(self, "log", above_0=("read_iops", "read_bytes_per_second", "write_bytes_per_second"))
        if self.endurance_bytes_per_day is not None:
            _check(self, "log", above_0=("endurance_bytes_per_day",))

    @property
    def sustained_write_bytes_per_second(self) -> float:
        """Bytes a second that may be written for the device's rated life, and that it can write."""
        if self.endurance_bytes_per_day is None:
            return self.write_bytes_per_second
        return min(self.write_bytes_per_second, self.endurance_bytes_per_day / 86_400)


@dataclass(frozen=True, kw_only=True)
class Link:
    """Between accelerators and host, all of them together, each direction."""

    up_bytes_per_second: float
    down_bytes_per_second: float
    source: str = ""

    def __post_init__(self) -> None:
        _check(self, "link", above_0=("up_bytes_per_second", "down_bytes_per_second"))


@dataclass(frozen=True, kw_only=True)
class Cpu:
    """Cores, and the seconds of one core that each event takes. 0: not measured, not counted.

    seconds_per_hit: beyond what the row takes in a table that is held whole, which is a step's compute_seconds.
    """

    cores: float
    seconds_per_hit: float = 0.0
    seconds_per_miss: float = 0.0
    seconds_per_eviction: float = 0.0
    seconds_per_read: float = 0.0
    source: str = ""

    def __post_init__(self) -> None:
        seconds = tuple(field.name for field in dataclasses.fields(self) if field.name.startswith("seconds"))
        _check(self, "cpu", above_0=("cores",), at_least_0=seconds)


@dataclass(frozen=True, kw_only=True)
class Topology:
    """Tiers from fast to slow, each kind once; at most three, over a log or none.

    static: rows never move between tiers and a row's slot is its number: no index, no directory (a sharded model
    without a cache). compute_samples_per_second: what the machine computes when it waits for no row; None: not known.
    nodes: machines of this kind that work together; every other figure is of all of them.
    """

    name: str
    slots: tuple[SlotTier, ...]
    log: LogTier | None = None
    link: Link | None = None
    cpu: Cpu | None = None
    static: bool = False
    compute_samples_per_second: float | None = None
    network_bytes_per_second: float | None = None
    nodes: int = 1

    def __post_init__(self) -> None:
        order = [SLOT_TIERS.index(slot.tier) for slot in self.slots]
        if not order or order != sorted(set(order)):
            raise ValueError(
                f"topology {self.name!r} needs slot tiers in the order {' > '.join(SLOT_TIERS)}, each once at most"
            )
        if self.static and self.log is not None:
            raise ValueError(f"topology {self.name!r}: rows of a log move; it cannot be static")
        for field in ("compute_samples_per_second", "network_bytes_per_second"):
            if getattr(self, field) is not None:
                _check(self, f"topology {self.name!r}", above_0=(field,))

    @property
    def tier_names(self) -> tuple[str, ...]:
        """Names of the slot tiers, fast to slow."""
        return tuple(slot.tier for slot in self.slots)

    @property
    def host_tier(self) -> int:
        """Number of the tier that holds directory and buffers: DRAM, or what there is in its place."""
        names = self.tier_names
        return names.index("dram") if "dram" in names else (1 if names[0] == "hbm" and len(names) > 1 else 0)

    def times(self, nodes: int) -> Topology:
        """Return so many of this machine as one."""

        rates = ("read_bytes_per_second", "write_bytes_per_second")
        memory = ("capacity_bytes", "price_usd", "watts", *rates)
        log, link, cpu = self.log, self.link, self.cpu
        return dataclasses.replace(
            scaled(self, nodes, "compute_samples_per_second", "network_bytes_per_second"),
            slots=tuple(scaled(slot, nodes, *memory) for slot in self.slots),
            log=log and scaled(log, nodes, *memory, "read_iops", "endurance_bytes_per_day"),
            link=link and scaled(link, nodes, "up_bytes_per_second", "down_bytes_per_second"),
            cpu=cpu and scaled(cpu, nodes, "cores"),
            nodes=self.nodes * nodes,
        )

    def with_capacity(self, tier: str, capacity_bytes: float) -> Topology:
        """Return the same machine with other bytes in a slot tier."""
        return dataclasses.replace(
            self,
            slots=tuple(
                dataclasses.replace(slot, capacity_bytes=capacity_bytes) if slot.tier == tier else slot
                for slot in self.slots
            ),
        )


def scaled(part: _Part, factor: float, *names: str) -> _Part:
    """Return the part with these figures, where they are known, times a factor."""
    known = {name: getattr(part, name) for name in names if getattr(part, name) is not None}
    changes: dict[str, Any] = {name: value * factor for name, value in known.items()}
    return dataclasses.replace(part, **changes)


def _check(part: object, what: str, *, above_0: tuple[str, ...] = (), at_least_0: tuple[str, ...] = ()) -> None:
    for name in (*above_0, *at_least_0):
        value = getattr(part, name)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"{what}: {name} must be a number, got {type(value).__name__}")
        if not math.isfinite(value) or value < 0 or (name in above_0 and value == 0):
            raise ValueError(f"{what}: {name} must be finite and {'> 0' if name in above_0 else '>= 0'}, got {value}")
