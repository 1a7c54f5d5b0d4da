"""The part of a run's state that is not rows, as bytes for `Store.checkpoint(extra=)`."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from mtrains.errors import StateError

__all__ = ["Position", "RunState", "check_same_run", "pack_state", "unpack_state"]

_VERSION = 1


@dataclass
class Position:
    """Where a run stands. record: within the epoch's records, all before it are trained.

    epoch_*: sums over the present epoch, in order, in float64; after the last epoch those of that epoch.
    """

    epoch: int = 0
    record: int = 0
    step: int = 0
    samples: int = 0
    epoch_samples: int = 0
    epoch_loss_sum: float = 0.0
    epoch_bad_lines: int = 0


@dataclass(frozen=True)
class RunState:
    """An unpacked checkpoint."""

    fingerprint: Mapping[str, Any]
    position: Position
    dense: Mapping[str, Any]
    optimizers: Sequence[dict[str, Any]]
    rng: torch.Tensor

    def load_into(self, modules: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Set dense weights, optimizer state and torch's generator."""
        modules.load_state_dict(dict(self.dense))
        for optimizer, state in zip(optimizers, self.optimizers, strict=True):
            optimizer.load_state_dict(state)
        torch.set_rng_state(self.rng)


def pack_state(
    fingerprint: Mapping[str, Any],
    position: Position,
    modules: nn.Module,
    optimizers: Sequence[torch.optim.Optimizer],
) -> bytes:
    """Return the state as bytes; `modules` are the dense parts of the model."""
    buffer = io.BytesIO()
    state = {
        "version": _VERSION,
        "fingerprint": json.dumps(fingerprint),
        "position": asdict(position),
        "dense": modules.state_dict(),
        "optimizers": [optimizer.state_dict() for optimizer in optimizers],
        "rng": torch.get_rng_state(),
    }
    torch.save(state, buffer)
    return buffer.getvalue()


def unpack_state(extra: bytes | None, source: str) -> RunState:
    """Return the state; `source` names the checkpoint in messages. Raises: StateError."""
    remedy = "it was not written by this version of `mtrains train`; name another folder with --store"
    if not extra:
        raise StateError(f"{source} holds no training state: {remedy}")
    try:
        state = torch.load(io.BytesIO(extra), weights_only=True)
    except Exception as error:  # torch.load raises many kinds for bytes that are not its own
        raise StateError(
            f"{source} holds no readable training state ({type(error).__name__}): {remedy}"
        ) from None
    if not isinstance(state, dict) or state.get("version") != _VERSION:
        raise StateError(f"{source} holds another kind of state: {remedy}")
    return RunState(
        fingerprint=json.loads(state["fingerprint"]),
        position=Position(**state["position"]),
        dense=state["dense"],
        optimizers=state["optimizers"],
        rng=state["rng"],
    )


def check_same_run(saved: Mapping[str, Any], present: Mapping[str, Any], source: str) -> None:
    """Refuse to continue a run with other arguments. Raises: StateError that names each difference."""
    present = json.loads(json.dumps(present))
    differences = [
        f"{name} was {saved.get(name)!r}, is {present.get(name)!r}"
        for name in sorted(saved.keys() | present.keys())
        if saved.get(name) != present.get(name)
    ]
    if differences:
        raise StateError(
            f"{source} cannot be continued with other arguments: {'; '.join(differences)}; "
            "give the same ones, or name another folder with --store"
        )
