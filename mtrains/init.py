"""Initial values of rows: what an untouched row of a table reads as.

A row that was never updated or written is a function of (seed, table name, row, column) from a counter-based
generator (Philox4x32-10), so it costs no storage and does not depend on the order of accesses.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["Init", "constant", "normal", "uniform", "zeros"]


@dataclass(frozen=True)
class Init:
    """Distribution of initial weights; made by `normal`, `uniform`, `constant` or `zeros`."""

    kind: str
    a: float
    b: float

    def __post_init__(self) -> None:
        if self.kind not in ("constant", "uniform", "normal"):
            raise ValueError(f"unknown kind of initial values {self.kind!r}")
        if not (math.isfinite(self.a) and math.isfinite(self.b)):
            raise ValueError(f"initial values need finite parameters, got {self.a} and {self.b}")


def normal(mean: float = 0.0, std: float = 1.0) -> Init:
    """Normal values with this mean and standard deviation (nn.EmbeddingBag's default is N(0, 1))."""
    if std < 0:
        raise ValueError(f"std must be >= 0, got {std}")
    return Init("normal", float(mean), float(std))


def uniform(low: float, high: float) -> Init:
    """Uniform values in [low, high)."""
    if not low <= high:
        raise ValueError(f"low must be <= high, got {low} and {high}")
    return Init("uniform", float(low), float(high))


def constant(value: float) -> Init:
    """The same value everywhere."""
    return Init("constant", float(value), 0.0)


def zeros() -> Init:
    """Zeros."""
    return constant(0.0)
