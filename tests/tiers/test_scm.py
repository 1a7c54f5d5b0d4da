import contextlib
import errno
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mtrains import _native
from mtrains.devices import DEVICES
from mtrains.errors import CapacityError, StateError, TierIOError
from mtrains.scm import Scm
from mtrains.tiers import scm as arenas
from mtrains.tiers import scm_lmdb, scm_memory, scm_places
from mtrains.tiers.disk_budget import DiskBudget
from mtrains.tiers.scm import bandwidth_limit, file_memory
from mtrains.tiers.scm_open import describe_scm, open_scm_arena
from mtrains.tiers.scm_places import Place

MIB = 1 << 20
PROVIDERS = ["lmdb in memory", "lmdb on a disk", "file", "anonymous", "anonymous on a node"]


@pytest.fixture
def memory():
    """A folder whose files are memory."""
    folder = Path("/dev/shm")
    if not folder.is_dir() or scm_places.place_of(folder).kind != "tmpfs":
        pytest.skip("/dev/shm is no tmpfs here")
    return folder


@pytest.fixture(params=PROVIDERS)
def config(request, tmp_path):
    """Makes an Scm of a capacity, for every provider."""
    name = request.param
    if name in ("lmdb in memory", "file"):
        path = request.getfixturevalue("memory")
        return lambda capacity: Scm(capacity, provider=name.split()[0], path=path)
    if name == "lmdb on a disk":
        if scm_places.place_of(tmp_path).kind:
            pytest.skip(f"{tmp_path} is memory")
        return lambda capacity: Scm(capacity, provider="lmdb", path=tmp_path)
    if name == "anonymous":
        return lambda capacity: Scm(capacity, provider="anonymous")
    if not Path("/sys/devices/system/node/node0").is_dir():
        pytest.skip("this kernel has no NUMA nodes")
    return lambda capacity: Scm(capacity, numa_node=0)


@contextlib.contextmanager
def opened(config, folder):
    arena = open_scm_arena(config, folder)
    try:
        yield arena
    finally:
        arena.close()


@pytest.fixture
def small_chunks(monkeypatch):
    """Arenas grow by 64 KiB."""
    for module in (arenas, scm_lmdb):
        monkeypatch.setattr(module, "CHUNK_BYTES", 64 << 10)


def test_a_tier_uses_all_of_its_capacity_and_no_more(config, tmp_path):
    with opened(config("70MiB"), tmp_path) as arena:  # two chunks
        memory = file_memory(arena)
        assert memory.budget_bytes == 70 * MIB
        first, second = memory.reserve(70 * MIB), memory.reserve(70 * MIB)
        assert arena.given_bytes == 0
        assert first.commit(1)
        assert arena.given_bytes == 64 * MIB
        first.view()[:] = 3
        assert second.commit(70 * MIB - memory.unit_bytes)
        assert not second.commit(70 * MIB)
        assert memory.bytes_in_use == 70 * MIB == arena.given_bytes
        second.view()[:] = 4
        assert np.all(first.view() == 3)
        assert arena.grow() is None


@pytest.mark.parametrize("capacity", [4096, 10_000, 3 * MIB + 17])
def test_small_tiers_are_whole_pages(config, tmp_path, capacity):
    with opened(config(capacity), tmp_path) as arena:
        memory = file_memory(arena)
        pages = capacity // 4096 * 4096
        assert memory.budget_bytes == pages
        slots = memory.reserve(capacity)
        assert slots.commit(pages)
        slots.view()[:] = 1
        other = memory.reserve(4096)
        assert not other.commit(1)
        slots.decommit(pages - 4096)
        assert other.commit(1)


def test_many_chunks_keep_their_contents_while_more_are_added(config, tmp_path, small_chunks):
    chunk, num_chunks = 64 << 10, 300
    with opened(config(num_chunks * chunk), tmp_path) as arena:
        memory = file_memory(arena)
        slots = memory.reserve(num_chunks * chunk)
        address = slots.view().ctypes.data if slots.commit(1) else 0
        for i in range(num_chunks):
            assert slots.commit((i + 1) * chunk)
            slots.view()[i * chunk :] = i % 251
        assert slots.view().ctypes.data == address
        seen = slots.view().reshape(num_chunks, chunk)
        assert np.array_equal(seen, np.broadcast_to(np.arange(num_chunks)[:, None] % 251, seen.shape))
        assert not memory.reserve(4096).commit(1)


def test_extents_are_whole_pages_apart_from_one_another(config, tmp_path, small_chunks):
    with opened(config(20 * (64 << 10) + 4096), tmp_path) as arena:
        extents = sorted(iter(arena.grow, None))
        assert sum(length for _, length in extents) == arena.capacity_bytes
        assert all(offset % 4096 == length % 4096 == 0 for offset, length in extents)
        assert all(a + n <= b for (a, n), (b, _) in itertools.pairwise(extents))


def test_a_closed_arena_does_not_grow_but_its_memory_stays(config, tmp_path, small_chunks):
    arena = open_scm_arena(config(1 * MIB), tmp_path)
    memory = file_memory(arena)
    slots = memory.reserve(1 * MIB)
    assert slots.commit(5000)
    slots.view()[:] = 9
    arena.close()
    arena.close()
    assert np.all(slots.view() == 9)
    with pytest.raises(StateError, match="closed"):
        slots.commit(1 * MIB)


def test_a_forked_child_cannot_grow_it_and_harms_nothing(config, tmp_path, small_chunks):
    with opened(config(1 * MIB), tmp_path) as arena:
        arena.grow()
        pid = os.fork()
        if pid == 0:
            try:
                arena.close()
                arena.grow()
            except StateError as error:
                os._exit(0 if "forked" in str(error) else 1)
            os._exit(2)
        assert os.waitpid(pid, 0)[1] == 0
        assert arena.grow() is not None


# --- where it is, and what is said of it


def test_descriptions_say_who_provides_the_memory_and_where(memory, tmp_path):
    def describe(**given):
        config = Scm("1MiB", **given)
        with opened(config, tmp_path) as arena:
            return describe_scm(config, arena)

    assert describe(path=memory) == "lmdb on tmpfs (/dev/shm)"
    assert describe(path=memory, provider="file") == "file on tmpfs (/dev/shm)"
    assert describe(provider="anonymous") == "anonymous memory"
    emulated = describe(provider="anonymous", emulate="optane-pmem-100")
    assert emulated == "anonymous memory, emulated optane-pmem-100"
    if Path("/sys/devices/system/node/node0").is_dir():
        assert describe(numa_node=0) == "anonymous memory on NUMA node 0"


def test_on_a_disk_it_says_so_and_counts_there(tmp_path, monkeypatch):
    if scm_places.place_of(tmp_path).kind:
        pytest.skip(f"{tmp_path} is memory")
    monkeypatch.setattr(scm_places, "_dax_mounts", list)
    monkeypatch.setattr(scm_places, "_SHARED_MEMORY", tmp_path / "none")
    with opened(Scm("2MiB"), tmp_path) as arena:
        assert arena.description == "lmdb, written back to disk"
        arena.grow()
        budget = DiskBudget(None, arena.disk_files)
        assert 2 * MIB <= budget.allocated_bytes() <= 2 * MIB + (128 << 10)
    with pytest.raises(StateError, match="no dax file system and no tmpfs with 2097152 bytes free"):
        open_scm_arena(Scm("2MiB", provider="file"), tmp_path)
    with pytest.raises(StateError, match="is neither; use provider='lmdb'"):
        open_scm_arena(Scm("2MiB", provider="file", path=tmp_path), tmp_path)


def test_memory_comes_first_if_there_is_room(memory, tmp_path, monkeypatch):
    monkeypatch.setattr(scm_places, "_dax_mounts", list)
    with opened(Scm("2MiB"), tmp_path) as arena:
        assert arena.description == "lmdb on tmpfs (/dev/shm)"
        assert arena.disk_files == ()
    monkeypatch.setattr(scm_places, "available_memory", lambda: MIB)
    with opened(Scm("2MiB"), tmp_path) as arena:
        assert arena.description != "lmdb on tmpfs (/dev/shm)"


def test_more_than_there_is_room_for_is_refused_at_once(memory, tmp_path):
    with pytest.raises(CapacityError, match=r"needs \d+ bytes .*in /dev/shm, where \d+ .*are free"):
        open_scm_arena(Scm("100TiB", path=memory), tmp_path)
    with pytest.raises(CapacityError, match=r"needs \d+ bytes of memory, which has \d+"):
        open_scm_arena(Scm("100TiB", provider="anonymous"), tmp_path)
    with pytest.raises(StateError, match="is not a folder; create it first"):
        open_scm_arena(Scm("1MiB", path=tmp_path / "none"), tmp_path)
    with pytest.raises(ValueError, match="this machine has no NUMA node 4000"):
        open_scm_arena(Scm("1MiB", numa_node=4000), tmp_path)


def test_memory_that_runs_out_is_an_error_before_the_kernel_ends_processes(memory, tmp_path, monkeypatch):
    for config in (Scm("2MiB", path=memory), Scm("2MiB", provider="anonymous")):
        with opened(config, tmp_path) as arena, monkeypatch.context() as patch:
            for module in (scm_places, scm_memory):
                patch.setattr(module, "available_memory", lambda: 1000)
            with pytest.raises(CapacityError, match=r"needs \d+ bytes of memory, of which 1000 are free"):
                arena.grow()
            patch.undo()
            assert arena.grow() is not None


def test_dax_is_asked_of_the_file(memory, tmp_path, monkeypatch):
    with open(os.devnull, "rb") as file:
        assert not scm_places._is_dax(file.fileno())
    monkeypatch.setattr(scm_places, "_is_dax", lambda descriptor: True)
    folder = tmp_path
    if scm_places.file_system_magic(folder) in scm_places._IN_MEMORY:
        pytest.skip(f"{folder} is memory")
    with opened(Scm("1MiB", path=folder, provider="file"), folder) as arena:
        assert arena.description == f"file on dax ({folder})"
        assert arena.disk_files == ()


# --- full file systems, and kills

FILL = """
import os, sys
import numpy as np
from pathlib import Path
from mtrains.errors import TierIOError
from mtrains.scm import Scm
from mtrains.tiers.scm import file_memory
from mtrains.tiers.scm_open import open_scm_arena

folder, provider = Path(sys.argv[1]), sys.argv[2]
arena = open_scm_arena(Scm("150MiB", provider=provider, path=folder), folder)
memory = file_memory(arena)
slots = memory.reserve(150 << 20)
assert slots.commit(1)
other = os.open(folder / "other", os.O_RDWR | os.O_CREAT)  # someone else's file takes all the room but 30 MiB
status = os.fstatvfs(other)
os.posix_fallocate(other, 0, status.f_bavail * status.f_frsize - (30 << 20))
try:
    slots.commit(150 << 20)
except TierIOError as error:
    print(error.errno, error)
assert slots.commit(64 << 20)
slots.view()[:] = 1
os.unlink(folder / "other")
os.close(other)
assert slots.commit(150 << 20)
slots.view()[:] = 2
print("written", int(slots.view().sum()))
"""


@pytest.fixture(params=["tmpfs", "ext4"])
def small_file_system(request, tmp_path):
    """A file system of 256 MiB of its own."""
    folder, kind = tmp_path / "mounted", request.param
    folder.mkdir()
    options = ["-t", "tmpfs", "-o", "size=256m", "tmpfs"]
    if kind == "ext4":
        image = tmp_path / "image"
        with open(image, "wb") as file:
            file.truncate(256 * MIB)
        if shutil.which("mkfs.ext4") is None:
            pytest.skip("mkfs.ext4 is not installed")
        subprocess.run(["mkfs.ext4", "-q", "-m", "0", str(image)], check=True, capture_output=True)
        options = ["-o", "loop", str(image)]
    command = ["mount", *options, str(folder)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"cannot mount a {kind} here: {done.stderr.strip()}")
    yield kind, folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("provider", ["lmdb", "file"])
def test_a_full_file_system_is_enospc_and_never_sigbus(small_file_system, provider):
    kind, folder = small_file_system
    if provider == "file" and kind == "ext4":
        pytest.skip("the file provider is for file systems in memory")
    process = subprocess.run(
        [sys.executable, "-c", FILL, str(folder), provider], capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    failed, written = process.stdout.splitlines()
    code, need, free = re.fullmatch(
        rf"(\d+) growing the SCM arena needs (\d+) more bytes in {folder}, where (\d+) are free; make room, or "
        r"lower the capacity of the SCM tier \(No space left on device\)",
        failed,
    ).groups()
    assert int(code) == errno.ENOSPC
    assert int(need) >= 64 * MIB > int(free)
    assert written == f"written {300 * MIB}"


def test_a_limit_on_file_sizes_is_an_error_that_says_what_was_needed(tmp_path):
    code = (
        "import resource, sys; from pathlib import Path; from mtrains.scm import Scm\n"
        "from mtrains.tiers.scm_open import open_scm_arena\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))\n"
        "open_scm_arena(Scm('8MiB', path=sys.argv[1]), Path(sys.argv[1]))\n"
    )
    process = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert process.returncode == 1
    expected = rf"TierIOError: opening the SCM arena in {tmp_path} \(\d+ bytes\): .*File too large"
    assert re.search(expected, process.stderr)


HOLD = """
import sys
from pathlib import Path
from mtrains.scm import Scm
from mtrains.tiers.scm import file_memory
from mtrains.tiers.scm_open import open_scm_arena

folder = Path(sys.argv[1])
kept = []
for path in (folder, "/dev/shm"):
    arena = open_scm_arena(Scm("8MiB", path=path), folder)
    slots = file_memory(arena).reserve(8 << 20)
    slots.commit(8 << 20)
    slots.view()[:] = 1
    kept += [arena, slots]
print("held", flush=True)
sys.stdin.read()
"""


def test_a_kill_leaves_nothing_behind(memory, tmp_path):
    before = set(os.listdir(memory))
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "held\n"
    inodes = [os.stat(fd).st_ino for fd in Path(f"/proc/{process.pid}/fd").iterdir() if "#" in os.readlink(fd)]
    assert len(inodes) >= 2  # files that have no names
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert os.listdir(tmp_path) == []
    assert not [name for name in set(os.listdir(memory)) - before if "mtrains" in name]


def test_a_file_system_without_nameless_files_leaves_no_name_either(tmp_path, monkeypatch):
    monkeypatch.setattr(scm_places.tempfile, "_O_TMPFILE_WORKS", False)
    with opened(Scm("1MiB", path=tmp_path), tmp_path) as arena:
        assert os.listdir(tmp_path) == []
        assert arena.grow() is not None


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path):
    with pytest.raises(TierIOError, match=f"cannot create the SCM arena in {tmp_path / 'none'}"):
        scm_lmdb.LmdbArena(MIB, Place(tmp_path / "none", ""))


# --- the native side


@pytest.mark.parametrize(
    ("raised", "error", "text"),
    [
        (TierIOError(errno.ENOSPC, "no room"), TierIOError, r"no room \(No space left on device\)$"),
        (OSError(errno.EIO, "broken"), TierIOError, "broken"),
        (CapacityError("no memory"), CapacityError, "no memory"),
        (StateError("closed"), StateError, "closed"),
        (KeyError("odd"), KeyError, "odd"),
    ],
)
def test_errors_of_growing_come_up_and_the_call_may_be_repeated(raised, error, text):
    fd = os.memfd_create("test")
    os.ftruncate(fd, MIB)
    answers = [raised, (0, MIB)]

    def grow():
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    memory = _native.FileMemory(fd, MIB, grow)
    os.close(fd)
    slots = memory.reserve(MIB)
    with pytest.raises(error, match=text) as caught:
        slots.commit(MIB)
    if isinstance(raised, OSError):
        assert caught.value.errno == raised.errno
    assert slots.committed == 0
    assert slots.commit(MIB)
    slots.view()[:] = 1


def test_growing_by_parts_of_pages_is_refused():
    fd = os.memfd_create("test")
    memory = _native.FileMemory(fd, MIB, lambda: (16, 4096))
    os.close(fd)
    with pytest.raises(ValueError, match="whole pages"):
        memory.reserve(MIB).commit(1)


def test_an_emulated_device_waits():
    for device in DEVICES.values():
        limit = bandwidth_limit(device)
        limit.charge_read(1000, 260)
        limit.charge_write(1, 0)
        assert limit.write_seconds_slept == 0.0
    limit = bandwidth_limit(DEVICES["optane-pmem-100-dimm"])
    limit.charge_read(20_000, 260)  # two granules each: 1.55 ms
    assert limit.read_seconds_slept > 0.001
