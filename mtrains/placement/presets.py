"""Machines by name: the reference machine of the benchmarks, and servers for the question how many are needed."""

from __future__ import annotations

import dataclasses

from mtrains.placement.device_presets import LOG_DEVICES, SLOT_DEVICES
from mtrains.placement.topology import Cpu, Link, LogTier, SlotTier, Topology, scaled

__all__ = ["SERVERS", "TOPOLOGIES", "log_of", "slots_of"]

_POOL_READ_SECONDS = 12.5e-6  # 12-13 us of a core for a 4 KiB read by a pool of 64 pread threads, bench/tiers
_HIT_SECONDS = 60e-9  # README, "Speed": 15.0 - 11.5 ms x 2 cores / 117,512 unique rows, 2026-11-30


_RATES = ("read_bytes_per_second", "write_bytes_per_second")
_SUMS = ("capacity_bytes", "price_usd", "watts", *_RATES)


def slots_of(device: str, count: float = 1, *, usable: float = 1.0, gigabytes: float | None = None) -> SlotTier:
    """Return a tier of `count` devices. usable: share of the bytes that rows may take. Raises: ValueError."""
    if device not in SLOT_DEVICES:
        raise ValueError(f"no memory {device!r}; known are {', '.join(SLOT_DEVICES)}")
    tier = scaled(SLOT_DEVICES[device], count, *_SUMS)
    capacity = tier.capacity_bytes if gigabytes is None else gigabytes * 1e9
    return dataclasses.replace(tier, device=_named(device, count), capacity_bytes=capacity * usable)


def log_of(device: str, count: float = 1) -> LogTier:
    """Return the log on `count` disks. Raises: ValueError."""
    if device not in LOG_DEVICES:
        raise ValueError(f"no disk {device!r}; known are {', '.join(LOG_DEVICES)}")
    log = scaled(LOG_DEVICES[device], count, *_SUMS, "read_iops", "endurance_bytes_per_day")
    return dataclasses.replace(log, device=_named(device, count))


def _named(device: str, count: float) -> str:
    return device if count == 1 else f"{count:g} x {device}"


# A ZionEX node: 8 x A100-40, 1.5 TB DDR, 4 host CPUs, 200 Gbit/s of RoCE a GPU (arXiv 2104.05158 and summaries).
# 80 % of HBM and 93 % of DDR for rows, and DDR4-3200 in each socket, are assumptions. 1.7M samples/s on 16 nodes.
_HBM = slots_of("a100-40", 8, usable=0.8)
_DDR = slots_of("ddr4-3200-x8", 4, gigabytes=1500, usable=0.93)
_PCIE4 = Link(up_bytes_per_second=8 * 26.2e9, down_bytes_per_second=8 * 26.2e9, source="8 x PCIe 4 x16, microway.com")
_ZIONEX_SAMPLES = 1.7e6 / 16
_ZIONEX_NETWORK = 8 * 25e9


def _server(name: str, scm: SlotTier | None = None, log: LogTier | None = None) -> Topology:
    return Topology(
        name=name,
        slots=(_HBM, _DDR) if scm is None else (_HBM, _DDR, scm),
        log=log,
        link=_PCIE4,
        static=scm is None and log is None,
        compute_samples_per_second=_ZIONEX_SAMPLES,
        network_bytes_per_second=_ZIONEX_NETWORK,
    )


SERVERS: dict[str, Topology] = {
    server.name: server
    for server in (
        _server("hbm+dram"),
        Topology(
            name="hbm",
            slots=(_HBM,),
            static=True,
            compute_samples_per_second=_ZIONEX_SAMPLES,
            network_bytes_per_second=_ZIONEX_NETWORK,
        ),
        _server("+pmem-12x256", slots_of("optane-pmem-100-256", 12)),
        _server("+pmem-12x512", slots_of("optane-pmem-100-512", 12)),
        _server("+pmem-24x512", slots_of("optane-pmem-100-512", 24)),
        _server("+cxl-8x512", slots_of("cxl-cmm-d-512", 8)),
        _server("+8xp5800x", log=log_of("p5800x-3200", 8)),
        _server("+8xpm9a3", log=log_of("pm9a3-7680", 8)),
        _server("+pmem-12x256+8xpm9a3", slots_of("optane-pmem-100-256", 12), log_of("pm9a3-7680", 8)),
    )
}

_REFERENCE = Topology(
    name="reference",
    slots=(
        SlotTier(
            tier="dram",
            device="24 GiB of a virtual machine",
            capacity_bytes=20 * 2.0**30,
            read_bytes_per_second=20e9,
            write_bytes_per_second=10e9,
            cost_per_gib=4.0,
            source="20 of 24 GiB for rows and rates of two cores: assumptions",
        ),
    ),
    log=LogTier(
        device="network SSD",
        capacity_bytes=100 * 2.0**30,
        read_iops=50_000,
        read_bytes_per_second=205e6,
        write_bytes_per_second=200e6,
        source="50-55 thousand 4 KiB reads/s at depth 32-128, 200-550 MB/s of segments (bench/tiers, bench/write)",
    ),
    cpu=Cpu(
        cores=2, seconds_per_hit=_HIT_SECONDS, seconds_per_read=_POOL_READ_SECONDS, source="README, bench/tiers"
    ),
)

TOPOLOGIES: dict[str, Topology] = {_REFERENCE.name: _REFERENCE, **SERVERS}
