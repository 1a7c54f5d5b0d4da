"""This machine as a topology, measured."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch

from mtrains.placement.topology import Cpu, Link, LogTier, SlotTier, Topology
from mtrains.placement.topology_file import topology_to_dict
from mtrains.probe.disk import DiskRates, measure_disk
from mtrains.probe.engine import EngineRates, measure_engine
from mtrains.probe.memory import LinkRates, MemoryRates, measure_link, measure_memory

__all__ = ["ProbeOptions", "ProbedMachine", "probe"]

_RECORD_BYTES = 256  # of the rows whose rates are the topology's: a row of 64 columns
_WEIGHTS = {"hbm": 16.0, "dram": 4.0}  # as of the presets: a faster tier's byte is worth more


@dataclass(frozen=True, kw_only=True)
class ProbeOptions:
    """seconds: of each of the four measurements, about. usable: share of free memory and disk that rows may take.

    memory_bytes, file_bytes, num_rows: sizes of what is measured, in memory, on disk and in a store.
    """

    seconds: float = 3.0
    usable: float = 0.8
    memory_bytes: int = 512 << 20
    file_bytes: int = 256 << 20
    num_rows: int = 400_000

    def __post_init__(self) -> None:
        if not self.seconds > 0:
            raise ValueError(f"seconds must be > 0, got {self.seconds}")
        if not 0 < self.usable <= 1:
            raise ValueError(f"usable must be in (0, 1], got {self.usable}")


@dataclass(frozen=True, kw_only=True)
class ProbedMachine:
    """topology: what the planner takes. The rates that it is made of; accelerator and link None without one.

    notes: what was done, and what was not.
    """

    topology: Topology
    memory: MemoryRates
    disk: DiskRates
    engine: EngineRates
    accelerator: MemoryRates | None
    link: LinkRates | None
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the same as plain values for JSON; `topology` as its file has it."""
        return {**dataclasses.asdict(self), "topology": topology_to_dict(self.topology)}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the topology as a JSON file that load_topology() reads. Raises: OSError."""
        Path(path).write_text(json.dumps(topology_to_dict(self.topology), indent=2) + "\n")


def probe(
    folder: str | os.PathLike[str], options: ProbeOptions | None = None, began: Callable[[str], None] | None = None
) -> ProbedMachine:
    """Measure memory, the disk under `folder`, the engine of a store there, and an accelerator if torch sees one.

    Takes some four times `options.seconds`; leaves nothing behind. Other work on the machine lowers the figures.

    Args:
        began: told what is measured next.
    Raises: OSError (the folder), TierIOError, CapacityError.
    """
    options, place = options or ProbeOptions(), Path(folder)
    tell = began or _ignore
    free_memory, free_disk = _free_memory(), psutil.disk_usage(os.fspath(place)).free
    area = min(options.memory_bytes, free_memory // 4)
    tell(f"memory: copies, and rows of a {area >> 20} MiB area gathered and scattered")
    memory = measure_memory(torch.device("cpu"), area, options.seconds)
    tell(f"disk: 4 KiB reads of a {options.file_bytes >> 20} MiB file in {place}")
    disk = measure_disk(place, options.file_bytes, options.seconds)
    tell(f"engine: {options.num_rows:,} rows of a temporary store in {place}, written and trained")
    engine = measure_engine(place, options.num_rows, options.seconds, disk.cpu_seconds_per_read)
    accelerator = link = None
    if torch.cuda.is_available():
        tell("accelerator: its memory, and copies to and from it")
        device = torch.device("cuda", torch.cuda.current_device())
        accelerator = measure_memory(device, area, options.seconds / 2)
        link = measure_link(device, options.seconds / 2)
    return ProbedMachine(
        topology=_topology(options, place, (free_memory, free_disk), memory, disk, engine, accelerator, link),
        memory=memory,
        disk=disk,
        engine=engine,
        accelerator=accelerator,
        link=link,
        notes=_notes(options, place, disk, accelerator is not None),
    )


def _topology(
    options: ProbeOptions,
    folder: Path,
    free: tuple[float, float],
    memory: MemoryRates,
    disk: DiskRates,
    engine: EngineRates,
    accelerator: MemoryRates | None,
    link: LinkRates | None,
) -> Topology:
    slots = [_slots("dram", f"memory of {platform.machine()}", free[0] * options.usable, memory)]
    if accelerator is not None:
        free_there, _ = torch.cuda.mem_get_info()
        slots.insert(0, _slots("hbm", torch.cuda.get_device_name(), free_there * options.usable, accelerator))
    return Topology(
        name="probed",
        slots=tuple(slots),
        log=LogTier(
            device=f"disk of {folder}",
            capacity_bytes=free[1] * options.usable,
            read_iops=max(disk.reads_per_second.values()),
            read_bytes_per_second=disk.bytes_per_second,
            write_bytes_per_second=engine.write_bytes_per_second,
            read_latency_seconds=1 / disk.reads_per_second[1],
            source=f"mtrains plan --probe: {disk.io_engine}, {max(disk.reads_per_second)} reads in flight at most",
        ),
        link=Link(up_bytes_per_second=link.up, down_bytes_per_second=link.down, source="mtrains plan --probe: pinned")
        if link is not None
        else None,
        cpu=Cpu(
            cores=_cores(),
            seconds_per_hit=engine.cpu_seconds_per_hit,
            seconds_per_miss=engine.cpu_seconds_per_miss,
            seconds_per_read=disk.cpu_seconds_per_read,
            source="mtrains plan --probe: 64 columns, row-wise Adagrad; a miss with the eviction that it causes",
        ),
    )


def _slots(tier: str, device: str, capacity: float, rates: MemoryRates) -> SlotTier:
    return SlotTier(
        tier=tier,
        device=device,
        capacity_bytes=capacity,
        read_bytes_per_second=rates.gather[_RECORD_BYTES],
        write_bytes_per_second=rates.scatter[_RECORD_BYTES],
        cost_per_gib=_WEIGHTS[tier],
        source=f"mtrains plan --probe: rows of {_RECORD_BYTES} bytes gathered and scattered at random",
    )


def _notes(options: ProbeOptions, folder: Path, disk: DiskRates, has_accelerator: bool) -> tuple[str, ...]:
    notes = [
        f"each of {'four' if has_accelerator else 'three'} measurements took some {options.seconds:g} s; longer ones "
        "(--probe-seconds) see what caches of a disk hide",
        f"capacities are {100 * options.usable:.0f} % of the memory and of the disk of {folder} that are free now",
        "rated endurance of disks, watts and prices are not measured: add them to the file where they are known",
        "no byte-addressable SCM is looked for: add [[slots]] with tier scm, or a known device, where there is one",
    ]
    if not has_accelerator:
        notes.append("torch sees no accelerator")
    if not disk.past_page_cache:
        notes.append(f"reads in {folder} went through the page cache, so their figures may be those of memory")
    return tuple(notes)


def _free_memory() -> int:
    """Return the bytes that this process may still take: of the machine, and of its control group."""
    free = int(psutil.virtual_memory().available)
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        values = [Path(name).read_text().strip() for name in (limit, used) if Path(name).is_file()]
        if len(values) == 2 and all(value.isdecimal() for value in values):  # "max" is no limit
            free = min(free, max(0, int(values[0]) - int(values[1])))
    return free


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _ignore(_: str) -> None:
    """Nobody is told."""
