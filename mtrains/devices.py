"""Byte-addressable devices as their makers and others measured them, for tiers that emulate one."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["DEVICES", "EmulatedDevice"]


@dataclass(frozen=True, kw_only=True)
class EmulatedDevice:
    """What an emulated device can do. Whatever is reported of it is called emulated.

    Bytes per second in the long run, reads and writes apart; seconds that one batch of requests waits beside
    its transfer; bytes of the granule that each request is rounded up to. source: where the figures are from.
    """

    name: str
    read_bytes_per_second: float
    write_bytes_per_second: float
    read_latency_seconds: float = 0.0
    write_latency_seconds: float = 0.0
    granule_bytes: int = 1
    source: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ValueError(f"an emulated device needs a name, got {self.name!r}")
        for field in ("read_bytes_per_second", "write_bytes_per_second"):
            self._check(field, positive=True)
        for field in ("read_latency_seconds", "write_latency_seconds"):
            self._check(field, positive=False)
        granule = self.granule_bytes
        if isinstance(granule, bool) or not isinstance(granule, int) or not 1 <= granule <= 1 << 20:
            raise ValueError(
                f"device {self.name!r}: granule_bytes must be an int in [1, 2**20], got {granule!r}"
            )

    def _check(self, field: str, *, positive: bool) -> None:
        value = getattr(self, field)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"device {self.name!r}: {field} must be a number, got {type(value).__name__}")
        if not math.isfinite(value) or value < 0 or (positive and value == 0):
            limit = "> 0" if positive else ">= 0"
            raise ValueError(f"device {self.name!r}: {field} must be finite and {limit}, got {value}")


_PMEM_100 = "Izraelevitz et al. 2019 (paperium.net, grayxu.cn/wiki/PM)"
_CXL_MIX = "36 GB/s of reads and writes at 2:1 together, split 2:1; latency 3.5 x DRAM's 100 ns of the published 2-5 x"

# Writes have no latency of their own here: the sources give none, and stores are posted.
DEVICES: dict[str, EmulatedDevice] = {
    device.name: device
    for device in (
        EmulatedDevice(
            name="optane-pmem-100",
            read_bytes_per_second=39.4e9,
            write_bytes_per_second=13.9e9,
            read_latency_seconds=305e-9,
            granule_bytes=256,
            source=f"{_PMEM_100}: one socket of 6 modules, random reads",
        ),
        EmulatedDevice(
            name="optane-pmem-100-dimm",
            read_bytes_per_second=6.6e9,
            write_bytes_per_second=2.3e9,
            read_latency_seconds=305e-9,
            granule_bytes=256,
            source=f"{_PMEM_100}: one module, random reads",
        ),
        EmulatedDevice(
            name="optane-pmem-200",
            read_bytes_per_second=8 * 6.6e9 * 1.15,
            write_bytes_per_second=8 * 2.3e9 * 1.15,
            read_latency_seconds=305e-9,
            granule_bytes=256,
            source="8 modules of the 100 series + 15 % (computerbase.de 2020-03, before release); latency as the "
            "100 series, none published",
        ),
        EmulatedDevice(
            name="cxl-cz120",
            read_bytes_per_second=24e9,
            write_bytes_per_second=12e9,
            read_latency_seconds=350e-9,
            granule_bytes=64,
            source=f"Micron CZ120 (tomshardware via vuink.com; arXiv 2405.14209): {_CXL_MIX}",
        ),
        EmulatedDevice(
            name="cxl-cmm-d",
            read_bytes_per_second=24e9,
            write_bytes_per_second=12e9,
            read_latency_seconds=350e-9,
            granule_bytes=64,
            source=f"Samsung CMM-D (memoryxref.com): {_CXL_MIX}",
        ),
    )
}
