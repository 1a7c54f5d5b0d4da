"""Click logs as lookups, for profiles of the tables that a training run would have."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mtrains.profiler.lookups import Stretch
from mtrains.train.data.block import FeatureColumn, SampleBlock
from mtrains.train.data.stream import ReadLog, SampleStream

__all__ = ["ClickLog"]


class ClickLog:
    """The categorical columns of a stream of samples, one table each; a LookupSource.

    log: is told of malformed records.
    """

    def __init__(self, stream: SampleStream, log: ReadLog | None = None) -> None:
        self._stream = stream
        self._log = log

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(feature.name for feature in self._stream.spec.schema.features)

    def read(self) -> Iterator[Stretch]:
        """Yield the samples in blocks. Raises: DataError."""
        done = 0
        for block in self._stream.read(log=self._log):
            yield Stretch([_lookups(block, table, done) for table in range(len(block.features))], done + len(block))
            done += len(block)


def _lookups(block: SampleBlock, table: int, done: int) -> tuple[int, np.ndarray, np.ndarray]:
    column: FeatureColumn = block.features[table]
    samples = np.arange(done, done + len(block))
    return table, column.indices, samples if column.lengths is None else np.repeat(samples, column.lengths)
