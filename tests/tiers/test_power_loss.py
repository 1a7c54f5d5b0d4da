"""Power loss: every disk that may be left, at any write of a run, opens at a checkpoint that was promised.

A run under crash_shim.c is recorded. A disk image is what was durable at some moment, plus any part of what was not:
of each 4 KiB page its writes up to some one of them, of names and folders the first few changes.
"""

import os
import shutil
import struct
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from mtrains import FormatError, StateError, Store, TierIOError
from mtrains.tiers.verify import verify_store

WRITE, SYNC, DURABLE_WRITE, RENAME, FOLDER_SYNC, TRUNCATE, CREATE, ALLOCATE, FOLDER = range(1, 10)
PAGE = 4096

WORK = """
import sys
import numpy as np
from mtrains import Store, TableSpec
from mtrains.tiers.catalog_records import retained
from mtrains.tiers.session import Session

mutation = sys.argv[1]
commit = Session._commit
if mutation == "no sync":
    from mtrains.tiers.container import LmdbSegmentContainer
    LmdbSegmentContainer.sync = lambda self: None
elif mutation == "delete first":
    def early(self, draft):
        writer = self.writer
        kept = [c.epoch for c in retained([*self.checkpoints, draft.record], self.options.keep)]
        writer._needed_epochs = lambda: kept
        while writer._delete_due():
            pass
        del writer._needed_epochs
        return commit(self, draft)
    Session._commit = early

acknowledged = open("acknowledged", "ab", buffering=0)
random = np.random.default_rng(1)
number = 0
for session in range(3):
    store = Store("s", dram="16KiB", seed=1)
    table = store.add_table(TableSpec("a", 2000, 8))
    for _ in range(5):
        for _ in range(3):
            rows = np.unique(random.integers(0, 2000, 900))
            store.engine.write_rows(table.number, rows, random.random((len(rows), 8), np.float32))
        store.checkpoint(number, extra=store.digest().encode())
        acknowledged.write(b"%d\\n" % number)
        number += 1
        if number == 7:
            acknowledged.write(b"5\\n")  # from here on either may be found
            store.restore(5)
    store.engine.write_rows(table.number, rows, random.random((len(rows), 8), np.float32))
    store.flush()
    store.close()
"""


@pytest.fixture(scope="module")
def shim(tmp_path_factory):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("power loss is recorded by a C library, and there is no C compiler here")
    library = tmp_path_factory.mktemp("shim") / "crash_shim.so"
    source = Path(__file__).with_name("crash_shim.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", library, source, "-ldl"], check=True)
    return library


def record_run(shim, folder, mutation):
    """Return the records (kind, name, offset, data) of a run."""
    work, log = folder / "work", folder / "log"
    work.mkdir()
    environment = {**os.environ, "LD_PRELOAD": str(shim), "RECORD_FOLDER": str(work), "RECORD_LOG": str(log)}
    run = [sys.executable, "-c", WORK, mutation]
    done = subprocess.run(run, cwd=work, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    records, at = [], 0
    data = log.read_bytes()
    while at < len(data):
        kind, name_bytes, offset, data_bytes = struct.unpack_from("<IIQQ", data, at)
        at += 24
        name = data[at : at + name_bytes].decode()
        at += name_bytes
        records.append((kind, name, offset, data[at : at + data_bytes]))
        at += data_bytes
    return records


class Disk:
    """What is durable, and what waits."""

    def __init__(self):
        self.contents = defaultdict(bytearray)  # durable bytes, by file identity
        self.waiting = defaultdict(list)  # (offset, data), by file identity
        self.identity = {}  # present name -> file identity
        self.names = {}  # durable name -> file identity, or None for a folder
        self.changes = []  # (folder, [(name, identity or None, whether it is removed)]) that wait
        self.acknowledged = []

    def apply(self, kind, name, offset, data):
        if name == "acknowledged":
            if kind == WRITE:
                self.acknowledged.append(int(data))
        elif kind in (CREATE, FOLDER):
            if name not in self.identity:
                self.identity[name] = (
                    None if kind == FOLDER else (name, len(self.identity), len(self.changes))
                )
                self.changes.append((os.path.dirname(name), [(name, self.identity[name], False)]))
        elif kind == RENAME:
            new = data.decode()
            identity = self.identity.pop(name)
            self.identity[new] = identity
            self.changes.append((os.path.dirname(new), [(name, None, True), (new, identity, False)]))
        elif kind == FOLDER_SYNC:
            folder = "" if name == "." else name
            for change in [change for change in self.changes if change[0] == folder]:
                self.changes.remove(change)
                rename_in(self.names, change[1])
        elif self.identity.get(name) is not None:
            file = self.identity[name]
            if kind == WRITE:
                self.waiting[file].append((offset, data))
            elif kind == DURABLE_WRITE:
                put(self.contents[file], offset, data)
            elif kind == SYNC:
                for part in self.waiting.pop(file, []):
                    put(self.contents[file], *part)
            elif kind == ALLOCATE:
                put(self.contents[file], max(offset, len(self.contents[file])), b"")

    def image(self, random, variant):
        """Return {name: bytes, or None for a folder}: one disk that power loss may leave now."""
        names = dict(self.names)
        count = {"none": 0, "all": len(self.changes)}.get(variant, random.integers(0, len(self.changes) + 1))
        for _, change in self.changes[:count]:
            rename_in(names, change)
        present = {}
        for name, file in names.items():
            parent = os.path.dirname(name)
            if parent and parent not in names:
                continue
            present[name] = None if file is None else self._bytes(file, random, variant)
        return present

    def _bytes(self, file, random, variant):
        contents = bytearray(self.contents[file])
        pages = defaultdict(list)
        for offset, data in self.waiting[file]:
            for begin in range(offset // PAGE * PAGE, offset + len(data), PAGE):
                low, high = max(begin, offset), min(begin + PAGE, offset + len(data))
                pages[begin].append((low, data[low - offset : high - offset]))
        for parts in pages.values():
            kept = {"none": 0, "all": len(parts)}.get(variant, random.integers(0, len(parts) + 1))
            for part in parts[:kept]:
                put(contents, *part)
        return bytes(contents)


def put(contents, offset, data):
    if len(contents) < offset + len(data):
        contents.extend(bytes(offset + len(data) - len(contents)))
    contents[offset : offset + len(data)] = data


def rename_in(names, change):
    for name, identity, removed in change:
        if removed:
            names.pop(name, None)
        else:
            names[name] = identity


def write_image(folder, image):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, contents in sorted(image.items()):
        if contents is None:
            (folder / name).mkdir()
        elif not name.endswith(("lock", "lock.mdb")):
            (folder / name).write_bytes(contents)


def problem_of(folder, acknowledged):
    """Return what is wrong with an image, or None."""
    path = folder / "s"
    try:
        created = (path / "store.json").exists()
        if created and (problems := verify_store(path)):
            return problems[0]
        with Store(path) as store:
            done = store.checkpoints()
            if acknowledged and (not done or done[-1].tag < acknowledged[-1]):
                return f"checkpoint {acknowledged[-1]} was promised, here is {done}"
            for checkpoint in reversed(done):
                store.restore(checkpoint.tag)
                if store.digest() != checkpoint.extra.decode():
                    return f"checkpoint {checkpoint.tag} is not what it was"
    except (FormatError, StateError, TierIOError) as error:
        return str(error)
    return None


def bad_images(records, folder, num_points, seed):
    """Return what is wrong with images at `num_points` moments, three disks each."""
    random = np.random.default_rng(seed)
    # Half of the moments are just after the catalog became durable, where a wrong order shows.
    commits = [i for i, r in enumerate(records) if r[0] in (SYNC, DURABLE_WRITE) and "catalog" in r[1]]
    points = set(random.choice(commits, min(len(commits), num_points // 2), replace=False).tolist())
    points |= set(random.choice(len(records), num_points - len(points), replace=False).tolist())
    disk, found = Disk(), []
    for i, one in enumerate(records):
        disk.apply(*one)
        if i not in points:
            continue
        for variant in ("none", "all", "some"):
            write_image(folder, disk.image(random, variant))
            problem = problem_of(folder, disk.acknowledged)
            if problem is not None:
                found.append((i, variant, problem))
    return found


@pytest.fixture(scope="module")
def right_run(shim, tmp_path_factory):
    return record_run(shim, tmp_path_factory.mktemp("run"), "none")


def test_every_image_of_the_protocol_opens_at_a_promised_checkpoint(right_run, tmp_path):
    assert {kind for kind, *_ in right_run} >= {
        WRITE,
        SYNC,
        DURABLE_WRITE,
        RENAME,
        FOLDER_SYNC,
        CREATE,
        FOLDER,
    }
    assert bad_images(right_run, tmp_path / "image", 36, seed=2) == []


def test_creation_leaves_nothing_that_does_not_open(right_run, tmp_path):
    created = next(i for i, r in enumerate(right_run) if r[0] == RENAME)
    assert bad_images(right_run[: created + 4], tmp_path / "image", created + 4, seed=3) == []


@pytest.mark.parametrize("mutation", ["no sync", "delete first"])
def test_a_wrong_order_is_found(shim, tmp_path, mutation):
    records = record_run(shim, tmp_path, mutation)
    found = bad_images(records, tmp_path / "image", 24, seed=4)
    assert any("missing" in problem for _, _, problem in found), found
