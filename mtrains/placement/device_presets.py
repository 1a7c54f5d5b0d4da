"""Memories and disks as published, one device each. Gigabytes are 10**9 bytes."""

from __future__ import annotations

from mtrains.placement.topology import LogTier, SlotTier

__all__ = ["LOG_DEVICES", "SLOT_DEVICES"]

# Weights among placements that are equally fast: a faster tier's byte is worth more. An assumption, not prices.
_WEIGHTS = {"hbm": 16.0, "dram": 4.0, "scm": 2.0}


def _memory(
    tier: str, device: str, gigabytes: float, read: float, write: float, source: str, *,
    one_medium: bool = False, granule: int = 64, price: float | None = None, watts: float | None = None,
) -> SlotTier:  # fmt: skip
    return SlotTier(
        tier=tier,
        device=device,
        capacity_bytes=gigabytes * 1e9,
        read_bytes_per_second=read * 1e9,
        write_bytes_per_second=write * 1e9,
        one_medium=one_medium,
        granule_bytes=granule,
        cost_per_gib=_WEIGHTS[tier],
        price_usd=price,
        watts=watts,
        source=source,
    )


_MICROWAY = "microway.com transports page, per socket, typical rates; capacity: an assumption"
_IZRAELEVITZ = "one module: Izraelevitz et al. (paperium.net, grayxu.cn/wiki/PM); 15-18 W (pcper.com)"
_CXL = "36 GB/s of reads and writes at 2:1 together (MLC), split 2:1"

SLOT_DEVICES: dict[str, SlotTier] = {
    slot.device: slot
    for slot in (
        _memory("hbm", "v100-32", 32, 897, 897, "torchrec constants.py; 300 W: maosong.website", watts=300),
        _memory("hbm", "a100-40", 40, 1555, 1555, "jarvislabs.ai; cyfuture.com", watts=400),
        _memory("hbm", "a100-80", 80, 2039, 2039, "jarvislabs.ai; acecloud.ai", watts=400),
        _memory("hbm", "h100-80", 80, 3350, 3350, "archive-lib.hpctech.co.jp", watts=700),
        _memory("hbm", "h200-141", 141, 4800, 4800, "jarvislabs.ai; acecloud.ai", watts=700),
        _memory("hbm", "b200-180", 180, 8000, 8000, "acecloud.ai (DGX over 8)"),
        _memory("dram", "ddr4-2666-x6", 192, 90, 90, _MICROWAY),
        _memory("dram", "ddr4-2933-x6", 192, 98, 98, _MICROWAY),
        _memory("dram", "ddr4-3200-x8", 256, 171.5, 171.5, _MICROWAY),
        _memory(
            "dram", "ddr5-4800-x8", 512, 245.8, 245.8, "307.2 GB/s (meterpreter.org) x 0.8, an assumption, as is the "
            "capacity",
        ),
        _memory(
            "dram", "ddr5-4800-x12", 768, 368.6, 368.6, "460.8 GB/s (meterpreter.org) x 0.8, an assumption, as is the "
            "capacity",
        ),
        *(
            _memory("scm", f"optane-pmem-100-{size}", size, 6.6, 2.3, _IZRAELEVITZ + note, one_medium=True,
                    granule=256, price=price, watts=18)
            for size, price, note in (
                (128, 577.0, "; $577 list"),
                (256, 2700.0, "; $2,700 market"),
                (512, 8000.0, "; $8,000 market"),
            )
        ),
        _memory(
            "scm", "optane-pmem-200-512", 512, 7.59, 2.645, "the 100 series + 15 % (computerbase.de 2020-03, before "
            "release)", one_medium=True, granule=256, watts=15,
        ),
        _memory("scm", "cxl-cz120-256", 256, 24, 12, f"Micron CZ120 (tomshardware, arXiv 2405.14209): {_CXL}"),
        _memory("scm", "cxl-cmm-d-512", 512, 24, 12, f"Samsung CMM-D (memoryxref.com): {_CXL}"),
    )
}


def _disk(
    device: str, terabytes: float, thousand_iops: float, read: float, write: float, writes_per_day: float,
    source: str, *, price: float | None = None, watts: float | None = None,
) -> LogTier:  # fmt: skip
    return LogTier(
        device=device,
        capacity_bytes=terabytes * 1e12,
        read_iops=thousand_iops * 1e3,
        read_bytes_per_second=read * 1e9,
        write_bytes_per_second=write * 1e9,
        endurance_bytes_per_day=writes_per_day * terabytes * 1e12,
        price_usd=price,
        watts=watts,
        source=source,
    )


LOG_DEVICES: dict[str, LogTier] = {
    log.device: log
    for log in (
        _disk("p4800x-375", 0.375, 550, 2.4, 2.0, 30, "AnandTech: $1,520, 8-15 W", price=1520, watts=15),
        _disk("p4800x-750", 0.75, 550, 2.4, 2.0, 30, "AnandTech: 8-15 W", watts=15),
        _disk(
            "p5800x-1600", 1.6, 1500, 7.2, 6.2, 100, "100 drive writes a day: i-server.ru, 18 W: blog.zuthof; rates "
            "and IOPS without a source: check the data sheet", watts=18,
        ),
        _disk(
            "p5800x-3200", 3.2, 1500, 7.2, 6.2, 100, "100 drive writes a day: i-server.ru, 18 W: blog.zuthof; rates "
            "and IOPS without a source: check the data sheet", watts=18,
        ),
        _disk("pm9a3-7680", 7.68, 900, 6.5, 3.5, 1.3, "heise.de (1.3 drive writes a day), computerbase.de"),
        _disk("pm9d3a-7680", 7.68, 2000, 12, 6.8, 1.0, "syspartsdirect (14,016 TBW, 1 drive write a day)"),
    )
}
