"""Power loss: every disk that may be left, at any write of a run, opens at a checkpoint that was promised.

A run under crash_shim.c is recorded. A disk image is what was durable at some moment, plus any part of what was not:
of each 4 KiB page its writes up to some one of them, of names and folders the first few changes.
"""

import os
import shutil
import struct
from collections import defaultdict

import numpy as np
import pytest

WRITE, SYNC, DURABLE_WRITE, RENAME, FOLDER_SYNC, TRUNCATE, CREATE, ALLOCATE, FOLDER = range(1, 10)
PAGE = 4096
GO_ON_EVERY = 8  # images after which training goes on to the end


@pytest.fixture(scope="module")
def shim(compile_shim):
    return compile_shim("crash_shim")


def record_run(shim, fork_server, folder, mutation):
    """Return the records (kind, name, offset, data) of a run."""
    work, log = folder / "work", folder / "log"
    work.mkdir()
    recorder = type(fork_server)(shim, RECORD_FOLDER=str(work), RECORD_LOG=str(log))
    try:
        recorder.result("recorded", work, mutation=mutation)
    finally:
        recorder.close()
    records, at = [], 0
    data = log.read_bytes()
    while at < len(data):
        kind, name_bytes, offset, data_bytes = struct.unpack_from("<IIQQ", data, at)
        at += 24
        name = data[at : at + name_bytes].decode()
        at += name_bytes
        if name.split("/")[0] in (".", "s", "acknowledged"):
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
        self.acknowledged = []  # lines of the run's log

    def apply(self, kind, name, offset, data):
        if name == "acknowledged":
            if kind == WRITE:
                self.acknowledged += data.decode().splitlines()
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
            with open(folder / name, "wb") as file:
                if contents:
                    os.posix_fallocate(file.fileno(), 0, len(contents))
                for begin in range(0, len(contents), PAGE):
                    page = contents[begin : begin + PAGE]
                    if page.strip(b"\0"):
                        os.pwrite(file.fileno(), page, begin)


class Images:
    """Builds disks out of a run's records and has them checked."""

    def __init__(self, records, folder, fork_server, reference):
        self._records, self._folder = records, folder
        self._server, self._reference = fork_server, reference
        self.count = 0

    def bad_at(self, points, seed):
        """Yield what is wrong with the disks that power loss may leave at these moments, three each."""
        random = np.random.default_rng(seed)
        disk = Disk()
        for i, one in enumerate(self._records):
            disk.apply(*one)
            if i not in points:
                continue
            for variant in ("none", "all", "some"):
                write_image(self._folder, disk.image(random, variant))
                yield from ((i, variant, problem) for problem in self._problems(disk.acknowledged))

    def _problems(self, acknowledged):
        self.count += 1
        return self._server.result(
            "recovered",
            self._folder,
            digests=self._reference["digests"],
            final=self._reference["final"],
            possible=self._server.possible_newest(acknowledged),
            go_on=self.count % GO_ON_EVERY == 0,
        )

    def sample(self, num_points, seed):
        """Return moments, half of them just after the catalog became durable, where a wrong order shows."""
        random = np.random.default_rng(seed)
        commits = [
            i for i, r in enumerate(self._records) if r[0] in (SYNC, DURABLE_WRITE) and "catalog" in r[1]
        ]
        points = set(random.choice(commits, min(len(commits), num_points // 2), replace=False).tolist())
        others = random.choice(len(self._records), num_points - len(points), replace=False)
        return points | set(others.tolist())


@pytest.fixture(scope="module")
def right_run(shim, fork_server, tmp_path_factory):
    return record_run(shim, fork_server, tmp_path_factory.mktemp("run"), "none")


def test_every_image_of_the_protocol_opens_at_a_promised_checkpoint(
    right_run, fork_server, reference, full, memory_folder
):
    assert {kind for kind, *_ in right_run} >= {WRITE, SYNC, DURABLE_WRITE, RENAME, FOLDER_SYNC, CREATE, FOLDER}
    images = Images(right_run, memory_folder / "image", fork_server, reference)
    points = range(len(right_run)) if full else images.sample(16, seed=2)
    assert list(images.bad_at(set(points), seed=2)) == []
    print(f"{images.count} images of {len(right_run)} moments")


def test_creation_leaves_nothing_that_does_not_open(right_run, fork_server, reference, memory_folder):
    created = next(i for i, r in enumerate(right_run) if r[0] == RENAME)
    images = Images(right_run, memory_folder / "image", fork_server, reference)
    assert list(images.bad_at(set(range(created + 4)), seed=3)) == []


WRONG = {
    "no sync": "missing",
    "delete first": "missing",
    "no folder sync": "the newest checkpoint is ''",
    "no sync of store.json": "store.json is damaged",
}


@pytest.mark.parametrize("mutation", WRONG)
def test_a_wrong_order_is_found(shim, fork_server, reference, full, tmp_path, memory_folder, mutation):
    records = record_run(shim, fork_server, tmp_path, mutation)
    images = Images(records, memory_folder / "image", fork_server, reference)
    created = next(i for i, r in enumerate(records) if r[0] == RENAME)
    if mutation == "no sync of store.json":
        points = set(range(created, created + 4))
    else:
        points = images.sample(60 if full else 24, seed=4)
    if not full:
        assert any(WRONG[mutation] in problem for _, _, problem in images.bad_at(points, seed=4))
        return
    bad = {(i, variant) for i, variant, problem in images.bad_at(points, seed=4) if WRONG[mutation] in problem}
    print(f"{mutation}: {len(bad)} of {images.count} images are wrong")
    assert bad
