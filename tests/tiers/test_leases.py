import os
import subprocess
import sys
import threading

import pytest

from mtrains.errors import TierIOError
from mtrains.tiers.leases import Lease, LeaseFile, leased_numbers

HOLD = """
import sys
from pathlib import Path
from mtrains.tiers.leases import Lease
lease = Lease(Path(sys.argv[1]), int(sys.argv[2]))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def writer(tmp_path):
    file = LeaseFile(tmp_path / "leases")
    yield file
    file.close()


def hold_elsewhere(folder, number):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder), str(number)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "held\n"
    return process


def test_the_writer_gets_what_nobody_reads(tmp_path, writer):
    one, same, other = (Lease(tmp_path / "leases", number) for number in (3, 3, 5))
    with writer.unread([2, 3, 4, 5]) as unread:
        assert unread == {2, 4}
    one.release()
    one.release()
    assert leased_numbers(tmp_path / "leases", range(9)) == {3, 5}
    with writer.unread([3]) as unread:
        assert unread == set()
    same.release()
    with writer.unread([3, 5]) as unread:
        assert unread == {3}
    other.release()
    assert leased_numbers(tmp_path / "leases", range(9)) == set()
    assert leased_numbers(tmp_path / "none", range(9)) == set()
    assert not (tmp_path / "none").exists()


def test_a_lease_ends_with_its_process_whatever_happens_to_it(tmp_path, writer):
    process = hold_elsewhere(tmp_path / "leases", 7)
    with writer.unread([7]) as unread:
        assert unread == set()
    process.kill()
    process.communicate()
    with writer.unread([7]) as unread:
        assert unread == {7}


def test_copying_the_folder_drops_no_lease(tmp_path, writer):
    lease = Lease(tmp_path / "leases", 1)
    (tmp_path / "leases" / "checkpoints").read_bytes()
    with writer.unread([1]) as unread:
        assert unread == set()
    lease.release()


def test_a_reader_waits_while_a_commit_decides(tmp_path, writer):
    order = []

    def read():
        asking.set()
        lease = Lease(tmp_path / "leases", 1)
        order.append("leased")
        lease.release()

    asking = threading.Event()
    reader = threading.Thread(target=read)
    with writer.unread([1]) as unread:
        assert unread == {1}
        reader.start()
        asking.wait()
        with writer.unread([2]):  # another decision does not end this one
            pass
        order.append("committed")
    reader.join()
    assert order == ["committed", "leased"]


def test_all_of_them_are_taken_for_a_rebuild(tmp_path, writer):
    lease = Lease(tmp_path / "leases", 1 << 31)
    assert not writer.take_all()
    lease.release()
    assert writer.take_all()


def test_a_forked_child_holds_and_drops_nothing(tmp_path, writer):
    lease = Lease(tmp_path / "leases", 1)
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        lease.release()
        os.close(write_end)
        os.read(read_end, 1)  # until the parent ends this
        os._exit(0)
    with writer.unread([1]) as unread:
        assert unread == set()
    lease.release()
    with writer.unread([1]) as unread:  # though the child lives
        assert unread == {1}
    os.close(write_end)
    os.close(read_end)
    os.waitpid(pid, 0)


def test_a_folder_that_is_not_there_is_one_line(tmp_path):
    with pytest.raises(TierIOError, match=r"cannot open .*checkpoints"):
        LeaseFile(tmp_path / "none" / "leases")
