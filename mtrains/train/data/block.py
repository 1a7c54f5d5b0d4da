"""Samples as arrays.

Shapes: B samples, N dense columns, F categorical features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["BadLine", "FeatureColumn", "ParsedBlock", "SampleBlock"]


@dataclass(frozen=True)
class BadLine:
    """A malformed record: where it is and what is wrong with it."""

    path: str
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path}, line {self.line}: {self.reason}"


@dataclass(frozen=True)
class FeatureColumn:
    """Rows of one feature. indices: int64[n]. lengths: int64[B] indices a sample, or None: one each."""

    indices: NDArray[np.int64]
    lengths: NDArray[np.int64] | None = None

    def slice(self, begin: int, end: int) -> FeatureColumn:
        """Return the samples [begin, end); views."""
        if self.lengths is None:
            return FeatureColumn(self.indices[begin:end])
        first = int(self.lengths[:begin].sum())
        lengths = self.lengths[begin:end]
        return FeatureColumn(self.indices[first : first + int(lengths.sum())], lengths)


@dataclass(frozen=True)
class SampleBlock:
    """B consecutive samples.

    labels: float32[B], 0 or 1. dense: float32[B, N]. features: F columns.
    records: int64[B], the place of each sample's record in the stream, ascending (gaps: malformed).
    """

    labels: NDArray[np.float32]
    dense: NDArray[np.float32]
    features: tuple[FeatureColumn, ...]
    records: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)

    def slice(self, begin: int, end: int) -> SampleBlock:
        """Return the samples [begin, end); views."""
        return SampleBlock(
            self.labels[begin:end],
            self.dense[begin:end],
            tuple(feature.slice(begin, end) for feature in self.features),
            self.records[begin:end],
        )

    @staticmethod
    def concat(blocks: Sequence[SampleBlock]) -> SampleBlock:
        """Return the samples of all blocks (at least one, of one schema), in order."""
        if len(blocks) == 1:
            return blocks[0]
        return SampleBlock(
            np.concatenate([block.labels for block in blocks]),
            np.concatenate([block.dense for block in blocks]),
            tuple(
                _concat_feature(parts) for parts in zip(*(block.features for block in blocks), strict=True)
            ),
            np.concatenate([block.records for block in blocks]),
        )

    def lookup_arguments(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (indices int64[n], offsets int64[F * B + 1]), feature-major: the layout of a collection."""
        ones = np.ones(len(self), np.int64)
        lengths = [ones if feature.lengths is None else feature.lengths for feature in self.features]
        offsets = np.zeros(len(self.features) * len(self) + 1, np.int64)
        np.cumsum(np.concatenate(lengths), out=offsets[1:])
        return np.concatenate([feature.indices for feature in self.features]), offsets


def _concat_feature(parts: Sequence[FeatureColumn]) -> FeatureColumn:
    indices = np.concatenate([part.indices for part in parts])
    lengths = [part.lengths for part in parts if part.lengths is not None]
    return FeatureColumn(indices, np.concatenate(lengths) if lengths else None)


@dataclass(frozen=True)
class ParsedBlock:
    """What a run of consecutive records held; `samples.records` and `num_records` are relative to the run."""

    samples: SampleBlock
    bad: tuple[BadLine, ...]
    num_records: int
