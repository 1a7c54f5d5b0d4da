import io

import pytest
import torch
from torch import nn

from mtrains.errors import StateError
from mtrains.train.checkpoint import Position, check_same_run, pack_state, unpack_state


def small_run():
    modules = nn.ModuleDict({"top": nn.Linear(3, 1)})
    optimizer = torch.optim.Adagrad(modules.parameters(), lr=0.1)
    modules["top"](torch.ones(3)).sum().backward()
    optimizer.step()
    return modules, optimizer


def test_state_comes_back_to_the_bit():
    modules, optimizer = small_run()
    position = Position(epoch=2, record=77, step=9, samples=70, epoch_samples=5, epoch_loss_sum=0.1 + 0.2)
    torch.manual_seed(5)
    extra = pack_state({"seed": 1}, position, modules, (optimizer,))
    expected_random = torch.rand(4)

    state = unpack_state(extra, "checkpoint 'x'")
    assert state.position == position
    assert state.fingerprint == {"seed": 1}
    other, other_optimizer = small_run()
    torch.manual_seed(6)
    state.load_into(other, (other_optimizer,))
    assert torch.equal(torch.rand(4), expected_random)
    assert torch.equal(other["top"].weight, modules["top"].weight)
    assert torch.equal(
        other_optimizer.state_dict()["state"][0]["sum"], optimizer.state_dict()["state"][0]["sum"]
    )


@pytest.mark.parametrize("extra", [None, b"", b"not torch", b"PK\x03\x04", "other", "version"])
def test_other_bytes_are_refused_with_the_remedy(extra):
    if extra in ("other", "version"):
        buffer = io.BytesIO()
        torch.save([1] if extra == "other" else {"version": 99}, buffer)
        extra = buffer.getvalue()
    with pytest.raises(
        StateError, match=r"checkpoint 'x' holds .*name another folder with --store"
    ) as raised:
        unpack_state(extra, "checkpoint 'x'")
    assert "\n" not in str(raised.value)


def test_other_arguments_are_refused_by_name():
    check_same_run({"seed": 1, "widths": [1, 2]}, {"seed": 1, "widths": (1, 2)}, "checkpoint 'x'")
    with pytest.raises(StateError, match=r"optimizer was 'sgd', is 'adagrad'; seed was 1, is None;"):
        check_same_run({"seed": 1, "optimizer": "sgd"}, {"optimizer": "adagrad"}, "checkpoint 'x'")
