"""The HBM tier as a store's creator asks for it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mtrains.units import parse_bytes

__all__ = ["Hbm"]


@dataclass(frozen=True)
class Hbm:
    """Memory of an accelerator for rows, which are looked up and updated there: `Store(hbm=Hbm("8GiB"))`.

    capacity: bytes, as a number or "8GiB". device: "cuda", "cuda:1", ...; "cpu" emulates an accelerator, for tests and
    on machines without one. None: the current CUDA device, else emulated.
    """

    capacity: int | str
    device: str | None = None

    def __post_init__(self) -> None:
        parse_bytes(self.capacity)
        kind = self._kind
        if kind not in ("cuda", "cpu"):
            raise ValueError(f"an hbm tier is on a CUDA device or emulated on the CPU, got device={self.device!r}")
        if kind == "cuda" and not torch.cuda.is_available():
            raise ValueError(
                f"device={self.device!r}: torch sees no CUDA device here; leave device out to emulate the tier on "
                "the CPU"
            )

    @property
    def capacity_bytes(self) -> int:
        """Bytes of the tier."""
        return parse_bytes(self.capacity)

    @property
    def torch_device(self) -> torch.device:
        """The device that computes, as tensors on it name theirs: with its number if it is a CUDA device."""
        if self._kind == "cpu":
            return torch.device("cpu")
        number = None if self.device is None else torch.device(self.device).index
        return torch.device("cuda", torch.cuda.current_device() if number is None else number)

    @property
    def emulated(self) -> bool:
        """Whether the CPU stands in for an accelerator."""
        return self._kind == "cpu"

    @property
    def _kind(self) -> str:
        if self.device is not None:
            return torch.device(self.device).type
        return "cuda" if torch.cuda.is_available() else "cpu"
