"""What a plan is for: batch, optimizer, windows, and how the log is used."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["INDEX_BYTES", "OPTIMIZER_STATES", "Workload"]

INDEX_BYTES = 16  # of a slot: kSlotIndexBytes (native/include/mtrains/slot_index.h)

# float32 values of state a row of D columns has: (constant, times D).
OPTIMIZER_STATES = {
    "none": (0, 0),
    "sgd": (0, 0),
    "rowwise_adagrad": (1, 0),
    "adagrad": (0, 1),
    "partial_rowwise_adam": (1, 1),
    "sparse_adam": (0, 2),
}


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What training asks for. Sizes are of all ranks together.

    batch_size: samples a step; None takes the profile's only or middle one. policy, lookahead, depth: the curves are
    chosen by them; at depth 0 a step waits for what it moves. compute_seconds: of a step that waits for no row;
    None takes the topology's compute limit, if it has one. write_amplification: bytes written over bytes of evicted
    blocks. live_ratio: of the log's bytes. keep: checkpoints kept. checkpoint_steps or checkpoint_seconds: between
    checkpoints; neither: checkpoints cost no write bandwidth, only room. pages_per_fetch: replaces the profile's.
    burst_ratio: mean of the slower of compute and IO over the slower mean, for uneven batches (1.03-1.27 was seen on
    recorded streams). latency_seconds: added to each step. all_rows_touched: the tables will be trained as a whole,
    whatever part the profile saw. network_bytes_per_sample: between machines. max_segments: of a table's curve.
    fewer segments never predict faster. writer_bytes: buffers of the log's writer. index_bytes: of a slot.
    """

    batch_size: int | None = None
    optimizer: str = "rowwise_adagrad"
    policy: str = "next_use"
    lookahead: int = 64
    depth: int = 2
    compute_seconds: float | None = None
    write_amplification: float = 1.5
    live_ratio: float = 0.7
    keep: int = 2
    checkpoint_steps: int | None = None
    checkpoint_seconds: float | None = None
    pages_per_fetch: float | None = None
    burst_ratio: float = 1.0
    latency_seconds: float = 0.0
    all_rows_touched: bool = False
    network_bytes_per_sample: float = 0.0
    max_segments: int = 8
    writer_bytes: int = 32 << 20
    index_bytes: int = INDEX_BYTES

    def __post_init__(self) -> None:
        if self.optimizer not in OPTIMIZER_STATES:
            raise ValueError(f"optimizer must be one of {', '.join(OPTIMIZER_STATES)}, got {self.optimizer!r}")
        positive = ("batch_size", "checkpoint_steps", "checkpoint_seconds", "pages_per_fetch", "max_segments")
        for name in (*positive, "compute_seconds", "latency_seconds", "network_bytes_per_sample", "lookahead", "depth",
                     "writer_bytes", "index_bytes"):
            value = getattr(self, name)
            if value is None:
                continue
            if not math.isfinite(value) or value < 0 or (name in positive and value == 0):
                raise ValueError(f"{name} must be finite and {'> 0' if name in positive else '>= 0'}, got {value}")
        for name in ("write_amplification", "burst_ratio"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) >= 1):
                raise ValueError(f"{name} must be finite and >= 1, got {getattr(self, name)}")
        if not 0 < self.live_ratio <= 1:
            raise ValueError(f"live_ratio must be in (0, 1], got {self.live_ratio}")
        if self.checkpoint_steps is not None and self.checkpoint_seconds is not None:
            raise ValueError("give checkpoint_steps or checkpoint_seconds, not both")
        if self.keep < 1:
            raise ValueError(f"keep must be >= 1, got {self.keep}")
