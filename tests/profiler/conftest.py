"""Recorded streams whose answers are known (shared/data/README.md), and lookups as tracked."""

import lzma
from pathlib import Path

import numpy as np
import pytest

from mtrains.profiler.tracking import LookupTracker, TableLayout, TrackingSpec

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"


class Streams:
    """Rows and samples (int64[n] each) of the recorded streams, read once."""

    def __init__(self):
        self._read = {}

    def __call__(self, name):
        if name not in self._read:
            rows, samples = getattr(self, "_" + name.replace("-", "_"))()
            self._read[name] = np.asarray(rows, np.int64), np.asarray(samples, np.int64)
        return self._read[name]

    @staticmethod
    def _ids(path):
        rows = np.frombuffer(lzma.decompress((DATA / "cache2k" / path).read_bytes()), ">i4")
        return rows, np.arange(len(rows))

    def _orm_busy(self):
        return self._ids("orm-busy.trace.xz")

    def _web07(self):
        return self._ids("web07.trace.xz")

    def _retail(self):
        baskets = [line.split() for line in lzma.decompress((DATA / "retail.dat.xz").read_bytes()).splitlines()]
        return [int(item) for basket in baskets for item in basket], _numbered(baskets)

    def _nycflights13(self):
        lines = lzma.decompress((DATA / "nycflights13_ctr.tsv.xz").read_bytes()).decode().splitlines()
        column = lines[0].split("\t").index("tailnum")
        _, rows = np.unique([line.split("\t")[column] for line in lines[1:]], return_inverse=True)
        return rows, np.arange(len(rows))

    def _ctr_libsvm(self):
        lines = (DATA / "embedx" / "ctr_libsvm.txt").read_text().splitlines()
        keys = [[int(field.split(":")[0]) for field in line.split()[1:]] for line in lines]
        return [key for line in keys for key in line], _numbered(keys)


def _numbered(bags):
    return np.repeat(np.arange(len(bags)), [len(bag) for bag in bags])


@pytest.fixture(scope="session")
def streams():
    """The recorded streams by name; skips where they are not."""
    if not DATA.is_dir():
        pytest.skip(f"needs the data sets of {DATA}")
    return Streams()


def track_rows(rows, samples=None, *, num_embeddings=None, embedding_dim=16, **spec):
    rows = np.asarray(rows, np.int64)
    samples = np.arange(len(rows)) if samples is None else np.asarray(samples, np.int64)
    layout = TableLayout(name="t", num_embeddings=num_embeddings, embedding_dim=embedding_dim)
    tracker = LookupTracker([layout], TrackingSpec(**{"batch_size": 4, **spec}))
    tracker.add(0, rows, samples)
    tracker.end_samples(int(samples[-1]) + 1 if len(samples) else 0)
    return tracker


@pytest.fixture(scope="session")
def track():
    """A tracker of one table that has seen these rows; by default each is a sample."""
    return track_rows
