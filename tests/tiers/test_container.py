import errno
import os

import numpy as np
import pytest

from mtrains import _native
from mtrains.errors import CapacityError, FormatError, TierIOError
from mtrains.tiers import disk_budget
from mtrains.tiers.container import LmdbSegmentContainer
from mtrains.tiers.disk_budget import DiskBudget
from mtrains.tiers.layout import StoreLayout

MIB = 1 << 20


@pytest.fixture
def layout(tmp_path):
    layout = StoreLayout(tmp_path)
    layout.create(seed=1)
    return layout


def open_container(layout, cap=None):
    return LmdbSegmentContainer(layout.rows, DiskBudget(cap, layout.data_files))


def segment(segment_id):
    value = np.full(_native.SEGMENT_BYTES, segment_id % 251, np.uint8)
    value[:8] = np.frombuffer(segment_id.to_bytes(8, "little"), np.uint8)
    return segment_id, value


def stored(container):
    """Return {id: whether the bytes at the located offset are its value}."""
    located = container.locate()
    with open(container.data_path, "rb") as file:
        found = {}
        for segment_id, offset in located.tolist():
            file.seek(offset)
            found[segment_id] = file.read(_native.SEGMENT_BYTES) == segment(segment_id)[1].tobytes()
    return found


def test_appended_segments_lie_where_they_are_located(layout):
    container = open_container(layout)
    container.append([segment(1), segment(2)], [], privileged=False)
    container.append([segment(5)], [], privileged=False)
    container.append([segment(4), segment(3)], [], privileged=False)  # a stream that filled longer
    assert stored(container) == dict.fromkeys([1, 2, 3, 4, 5], True)
    assert container.locate(3)[:, 0].tolist() == [3, 4, 5]
    container.drop_cache(container.locate()[:, 1].tolist())
    container.close()
    again = open_container(layout)
    assert stored(again) == dict.fromkeys([1, 2, 3, 4, 5], True)
    again.close()


def test_a_segment_is_never_overwritten(layout):
    container = open_container(layout)
    container.append([segment(1)], [], privileged=False)
    with pytest.raises(FormatError, match="segment 1 is in"):
        container.append([segment(2), segment(1)], [], privileged=False)
    assert stored(container) == {1: True}
    container.close()


def test_space_of_deleted_segments_is_used_again(layout):
    container = open_container(layout)
    for first in range(0, 160, 8):
        ids = range(first + 1, first + 9)
        gone = range(first - 15, first - 7) if first >= 16 else ()
        container.append([segment(i) for i in ids], list(gone), privileged=False)
    assert len(stored(container)) == 16
    assert os.stat(container.data_path).st_blocks * 512 < (24 + 3 * 8 + 8 + 34 + 8) * MIB
    container.close()


def test_a_cap_is_hard_and_deletes_make_room(layout):
    cap = 80 * MIB
    container = open_container(layout, cap)
    budget = DiskBudget(cap, layout.data_files)
    ids = []

    def fill():
        for i in range(1, 200):
            container.append([segment(i)], [], privileged=False)
            ids.append(i)

    with pytest.raises(CapacityError, match="raise ssd="):
        fill()
    assert 30 < len(ids) < 48
    assert budget.allocated_bytes() <= cap
    # The reserve lets deletes and the checkpoint's own segments through.
    container.append([segment(1000)], [], privileged=True)
    container.append([], ids[:10], privileged=True)
    container.age()
    assert container.free_segments() >= 7
    for i in range(1001, 1006):
        container.append([segment(i)], [], privileged=False)
    assert budget.allocated_bytes() <= cap
    assert all(stored(container).values())
    container.close()
    with pytest.raises(CapacityError, match="needs at least"):
        open_container(layout, 70 * MIB)


def test_a_full_disk_is_enospc_with_path_and_numbers_and_changes_nothing(layout, monkeypatch):
    container = open_container(layout)
    container.append([segment(1)], [], privileged=False)

    def refuse(descriptor, offset, size):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(disk_budget.os, "posix_fallocate", refuse)
    many = [segment(i) for i in range(2, 80)]
    with pytest.raises(TierIOError, match=r"rows\.lmdb/data\.mdb; \d+ bytes are free") as caught:
        container.append(many, [], privileged=False)
    assert caught.value.errno == errno.ENOSPC
    count = len(stored(container))
    monkeypatch.undo()
    container.append([segment(100)], [], privileged=False)
    assert len(stored(container)) == count + 1
    container.close()


def test_the_reserve_can_be_given_to_the_catalog(layout):
    container = open_container(layout)
    container.append([segment(1)], [], privileged=False)
    before = os.stat(container.data_path).st_blocks * 512
    container.shrink()
    assert os.stat(container.data_path).st_blocks * 512 <= before - 32 * MIB
    container.append([segment(2)], [], privileged=False)
    assert stored(container) == {1: True, 2: True}
    container.close()
