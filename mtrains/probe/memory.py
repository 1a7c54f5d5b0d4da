"""Rates of memory on the CPU or an accelerator: long copies, and rows gathered and scattered at random."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

__all__ = ["RECORD_BYTES", "LinkRates", "MemoryRates", "measure_link", "measure_memory"]

RECORD_BYTES = (64, 256, 1024)  # of the rows that are gathered
_ROWS_A_CALL = 1 << 15
_LINK_BYTES = 64 << 20


@dataclass(frozen=True, kw_only=True)
class MemoryRates:
    """Bytes a second. copy: read and written, both counted. gather, scatter: of records by their size."""

    copy: float
    gather: dict[int, float]
    scatter: dict[int, float]


@dataclass(frozen=True, kw_only=True)
class LinkRates:
    """Bytes a second between pinned host memory and an accelerator."""

    up: float
    down: float


def measure_memory(device: torch.device, area_bytes: int, seconds: float) -> MemoryRates:
    """Measure a device's memory for about `seconds`, with torch's threads.

    area_bytes: of the area that rows are spread over; larger than caches, or they are measured.
    """
    each = seconds / (1 + 2 * len(RECORD_BYTES))
    area = torch.ones(area_bytes // 4, dtype=torch.float32, device=device)
    half = len(area) // 2
    copies = _calls_a_second(device, each, lambda: area[half : 2 * half].copy_(area[:half]))
    gather, scatter = {}, {}
    generator = torch.Generator(device="cpu").manual_seed(0)
    for record in RECORD_BYTES:
        rows = area[: len(area) // (record // 4) * (record // 4)].view(-1, record // 4)
        batches = [
            torch.randint(len(rows), (_ROWS_A_CALL,), generator=generator).to(device) for _ in range(4)
        ]
        out = torch.empty((_ROWS_A_CALL, record // 4), device=device)
        turn = _turns(batches)
        calls = _calls_a_second(device, each, lambda: torch.index_select(rows, 0, turn(), out=out))  # noqa: B023
        gather[record] = calls * _ROWS_A_CALL * record
        calls = _calls_a_second(device, each, lambda: rows.index_copy_(0, turn(), out))  # noqa: B023
        scatter[record] = calls * _ROWS_A_CALL * record
    return MemoryRates(copy=copies * 2 * half * 4, gather=gather, scatter=scatter)


def measure_link(device: torch.device, seconds: float) -> LinkRates:
    """Measure copies between host and device, each direction alone, for about `seconds`."""
    host = torch.zeros(_LINK_BYTES, dtype=torch.uint8, pin_memory=device.type == "cuda")
    there = torch.zeros(_LINK_BYTES, dtype=torch.uint8, device=device)
    up = _calls_a_second(device, seconds / 2, lambda: there.copy_(host, non_blocking=True))
    down = _calls_a_second(device, seconds / 2, lambda: host.copy_(there, non_blocking=True))
    return LinkRates(up=up * _LINK_BYTES, down=down * _LINK_BYTES)


def _turns(batches: list[torch.Tensor]) -> Callable[[], torch.Tensor]:
    number = 0

    def turn() -> torch.Tensor:
        nonlocal number
        number += 1
        return batches[number % len(batches)]

    return turn


def _calls_a_second(device: torch.device, seconds: float, call: Callable[[], object]) -> float:
    """Return the rate of the quickest call: in others threads wait for each other where something else has a core."""

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    call()  # touches the memory, and starts threads
    wait()
    begin = last = time.perf_counter()
    shortest = math.inf
    while last - begin < seconds:
        call()
        wait()
        now = time.perf_counter()
        shortest, last = min(shortest, now - last), now
    return 1 / shortest
