import mmap

import numpy as np
import pytest

import mtrains


def aligned(num_blocks):
    return np.frombuffer(mmap.mmap(-1, num_blocks * 4096), np.uint8).reshape(num_blocks, 4096)


@pytest.fixture
def path(tmp_path):
    blocks = np.repeat(np.arange(16, dtype=np.uint8), 4096)
    (tmp_path / "file").write_bytes(blocks.tobytes())
    return tmp_path / "file"


@pytest.mark.parametrize("io_engine", ["auto", "mmap"])
def test_it_reads_the_blocks_that_were_asked_for(path, io_engine):
    reader = mtrains.BlockReader(path, io_engine=io_engine, queue_depth=4)
    order, out = np.random.default_rng(1).permutation(16), aligned(16)
    reader.read(order.astype(np.uint64) * 4096, out)
    assert (out == order[:, None]).all()
    assert reader.engine in ("uring", "pread", "mmap")


def test_it_refuses_what_it_cannot_read(path, tmp_path):
    reader = mtrains.BlockReader(path)
    with pytest.raises(ValueError, match="offset 1 at position 0"):
        reader.read(np.array([1], np.uint64), aligned(1))
    with pytest.raises(ValueError, match="a row of 4096 bytes for each of the 2 offsets"):
        reader.read(np.array([0, 4096], np.uint64), aligned(1))
    with pytest.raises(ValueError, match="must begin at a multiple of 4096"):
        reader.read(np.array([0], np.uint64), np.zeros(2 * 4096 + 1, np.uint8)[1:4097].reshape(1, 4096))
    with pytest.raises(mtrains.TierIOError):
        reader.read(np.array([16 * 4096], np.uint64), aligned(1))
    with pytest.raises(ValueError, match="queue_depth"):
        mtrains.BlockReader(path, queue_depth=0)
    with pytest.raises(mtrains.TierIOError):
        mtrains.BlockReader(tmp_path / "missing")
