"""Fixtures shared by the tests of the PyTorch side."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from mtrains import Store

# A budget that holds every table of a test, and one that holds a few rows: the bits must be the same.
RESIDENT, TINY = "64MiB", "600"
MEMORIES = {"resident": {"dram": RESIDENT}, "tiny": {"dram": TINY}, "hbm": {"dram": "2KiB", "hbm": TINY}}


def pytest_addoption(parser):
    parser.addoption("--full", action="store_true", help="every crash and fault of docs/reliability.md (an hour)")


@pytest.fixture(scope="session")
def full(request) -> bool:
    """Whether tests that sample crashes are to try them all."""
    return request.config.getoption("--full")


@pytest.fixture(params=[RESIDENT, TINY])
def dram(request) -> str:
    """Budget of the compute tier: all rows fit, or hardly any."""
    return request.param


@pytest.fixture(params=MEMORIES)
def store(request) -> Iterator[Store]:
    """A private temporary store: all rows resident, hardly any, or hardly any on a device over some in memory."""
    with Store(seed=1, **MEMORIES[request.param]) as store:
        yield store


@pytest.fixture
def lattice() -> Callable[..., torch.Tensor]:
    """Gradients that are multiples of 1/16 up to 8 in size: their float32 sums are exact in any order."""

    def make(*shape: int, seed: int = 0) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(-128, 129, shape, generator=generator).float() / 16

    return make
