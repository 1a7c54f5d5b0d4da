"""Float arithmetic that does not depend on the mode of the threads it runs in."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.nn import functional

__all__ = ["exact_floats"]

_SUBNORMAL = 2.0**-127  # for float32


@contextmanager
def exact_floats(device: torch.device) -> Iterator[None]:
    """Compute without autograd and with subnormals kept; the modes are as before afterwards.

    `torch.set_flush_denormal(True)` acts on the calling thread, and for good on the threads that torch starts
    from it afterwards. So while those flush, operations on the CPU run in the calling thread alone. On another
    device the calling thread matters too: it converts the scalars.
    """
    flushes = _caller_flushes()
    if flushes:
        torch.set_flush_denormal(False)
    num_threads = 1
    try:
        if device.type == "cpu" and _workers_flush(num_threads := torch.get_num_threads()):
            torch.set_num_threads(1)
        with torch.no_grad():
            yield
    finally:
        if num_threads > 1:
            torch.set_num_threads(num_threads)
        if flushes:
            torch.set_flush_denormal(True)


def _caller_flushes() -> bool:
    """Whether this thread takes subnormal results or operands for 0; torch has no getter."""
    smallest_normal = sys.float_info.min
    return smallest_normal * 0.5 * 2.0 != smallest_normal


def _workers_flush(num_threads: int) -> bool:
    """Whether one of the threads that share an operation flushes: each gets a bag of one subnormal number."""
    if num_threads == 1:
        return False
    numbers = torch.arange(num_threads)
    rows = torch.full((num_threads, 1), _SUBNORMAL)
    sums = functional.embedding_bag(numbers, rows, numbers, mode="sum")
    return not torch.equal(sums.view(torch.int32), rows.view(torch.int32))
