"""Slots in a torch tensor on a device, and moving their records to and from memory.

The native core decides which slots; it calls `reserve`, `load`, `store` and `resize` within its passes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray

from mtrains.tiers.hbm_kernels import gather_records, scatter_records

__all__ = ["HbmMemory", "HbmRecords", "to_indices"]


def to_indices(array: NDArray[np.unsignedinteger], device: torch.device) -> torch.Tensor:
    """Return the core's unsigned numbers as int64 on the device, a copy; its "none", all ones of 32 bits, is -1."""
    signed = array.view(np.int32 if array.itemsize == 4 else np.int64)
    return torch.from_numpy(signed.astype(np.int64)).to(device)


def _stream(device: torch.device) -> torch.cuda.Stream | None:
    return torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]


class HbmMemory:
    """Memory of one device. All work on it goes through one stream, which other streams wait for and it for them."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._compute = _stream(device)
        self._copies = _stream(device)

    def reserve(self, stride: int, max_slots: int) -> HbmRecords:
        """Return slots of `stride` bytes; none can be used before `resize`."""
        return HbmRecords(self, stride)

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Run torch operations in order with all others on this memory, and with the caller's stream."""
        if self._compute is None:
            with torch.inference_mode():
                yield
            return
        caller = torch.cuda.current_stream(self.device)
        self._compute.wait_stream(caller)
        try:
            with torch.inference_mode(), torch.cuda.device(self.device), torch.cuda.stream(self._compute):
                yield
        finally:  # whatever happened: the memory of the caller's tensors may be used again after this
            caller.wait_stream(self._compute)

    def upload(self, records: torch.Tensor) -> torch.Tensor:
        """Return bytes of memory on the device, copied beside the computation. REQUIRES: within `computing`."""
        if self._copies is None or self._compute is None:
            return records.clone()
        pinned = records.pin_memory()
        with torch.cuda.stream(self._copies):
            copied = pinned.to(self.device, non_blocking=True)
            done = self._copies.record_event()
        self._compute.wait_event(done)
        copied.record_stream(self._compute)
        done.synchronize()  # the pinned buffer may go
        return copied

    def download(self, records: torch.Tensor, out: torch.Tensor) -> None:
        """Copy bytes of the device to memory, and wait for them. REQUIRES: within `computing`."""
        if self._copies is None or self._compute is None:
            out.copy_(records)
            return
        ready = self._compute.record_event()
        self._copies.wait_event(ready)
        with torch.cuda.stream(self._copies):
            pinned = torch.empty(records.shape, dtype=records.dtype, pin_memory=True)
            pinned.copy_(records, non_blocking=True)
            records.record_stream(self._copies)
            self._copies.record_event().synchronize()
        out.copy_(pinned)


class HbmRecords:
    """Slots of one stride: `tensor` is uint8[capacity, stride] on the device of `memory`."""

    def __init__(self, memory: HbmMemory, stride: int) -> None:
        self.memory = memory
        self.tensor = torch.empty((0, stride), dtype=torch.uint8, device=memory.device)

    def resize(self, capacity: int) -> None:
        """Make room for `capacity` slots; what is in those that stay is kept. A copy: there are both for a moment."""
        with self.memory.computing():
            grown = torch.empty((capacity, self.tensor.shape[1]), dtype=torch.uint8, device=self.memory.device)
            kept = min(capacity, self.tensor.shape[0])
            grown[:kept] = self.tensor[:kept]
            self.tensor = grown

    def load(self, slots: NDArray[np.uint32], out: NDArray[np.uint8]) -> None:
        """Copy the records of n slots to out: uint8[n * stride]."""
        with self.memory.computing():
            records = gather_records(self.tensor, to_indices(slots, self.memory.device))
            self.memory.download(records, torch.from_numpy(out).view(records.shape))

    def store(self, slots: NDArray[np.uint32], records: NDArray[np.uint8]) -> None:
        """Overwrite the records of n distinct slots with records: uint8[n * stride]."""
        with self.memory.computing():
            rows = torch.from_numpy(records.copy()).view(len(slots), self.tensor.shape[1])
            scatter_records(self.tensor, to_indices(slots, self.memory.device), self.memory.upload(rows))
