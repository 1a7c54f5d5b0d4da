"""exact_floats() in every mode that torch's threads can be in."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from mtrains.tiers.float_mode import exact_floats

CPU = torch.device("cpu")
SUBNORMAL = 2.0**-127

# torch's threads start flushing, for good, if they start while their starter does.
FLUSHING_WORKERS = """
import torch
torch.set_num_threads(4)
torch.set_flush_denormal(True)
torch.ones(1 << 20).mul(2.0)
torch.set_flush_denormal({flush})
from mtrains.tiers.float_mode import exact_floats
with exact_floats(torch.device("cpu")):
    numbers = torch.full((1 << 20,), 2.0 ** -127)
    kept = int((numbers * 1.0).view(torch.int32).count_nonzero())
ones = torch.ones(1 << 20, dtype=torch.int32).view(torch.float32)
left = int((ones * 1.0).view(torch.int32).count_nonzero())
print(kept, left < 1 << 20, torch.get_num_threads())
"""


@pytest.fixture(autouse=True)
def restore_mode():
    yield
    torch.set_flush_denormal(False)



@pytest.mark.parametrize("flush", [False, True])
def test_mode_is_exact_inside_and_as_before_outside(flush):
    torch.set_flush_denormal(flush)
    inside = []

    def fail_inside():
        with exact_floats(CPU):
            inside.append(torch.is_grad_enabled())
            inside.append(sys.float_info.min * 0.5)
            inside.append(int(torch.full((1,), SUBNORMAL).mul(1.0).view(torch.int32)))
            raise KeyError

    with pytest.raises(KeyError):
        fail_inside()
    outside = sys.float_info.min * 0.5
    torch.set_flush_denormal(False)
    assert inside == [False, 2.0**-1023, 1 << 22]
    assert (outside == 0.0) is flush
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("flush", [False, True])
def test_threads_that_flush_are_left_out(flush):
    ran = subprocess.run(
        [sys.executable, "-c", FLUSHING_WORKERS.format(flush=flush)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert ran.stdout.split() == [str(1 << 20), "True", "4"]
