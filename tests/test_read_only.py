"""One process trains a store, others read it: leases, refresh, crashes of either side."""

import hashlib
import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch

import mtrains
from mtrains import StateError, Store, TableSpec, TieredEmbeddingBag, init
from mtrains.tiers import live, reader_session
from mtrains.tiers.inspect import inspect_store
from mtrains.tiers.verify import check_store, verify_store

ROWS, DIM = 3000, 8

# Runs the lines that it is sent and answers each with the value of `_`, as JSON.
WORKER = """
import json, os, sys
import numpy as np
import torch
from mtrains import Store, StateError, TableSpec, TieredEmbeddingBag, init, optim
from mtrains.tiers import fold

fold._FLOOR_BYTES = 0  # fold at every checkpoint

def train(steps, seed):
    random = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        items = torch.randint(store.rows, (128,), generator=random)
        optimizer.zero_grad()
        bag(items, torch.arange(0, 128, 4)).square().sum().backward()
        optimizer.step()

def rewrite(seed):
    random = torch.Generator().manual_seed(seed)
    bag.write_rows(torch.arange(store.rows), torch.rand(store.rows, bag.embedding_dim, generator=random))

def open_trainer(path, rows, dim, **more):
    global store, bag, optimizer
    store = Store(path, dram="64KiB", seed=1, **more)
    store.rows = rows
    bag = TieredEmbeddingBag(rows, dim, mode="sum", store=store, name="a", init=init.uniform(-1, 1))
    optimizer = optim.RowWiseAdagrad(bag.parameters(), lr=0.1)

def checkpoint(tag, steps=3):
    train(steps, hash(tag))
    digest = store.digest()
    store.checkpoint(tag, extra=digest.encode())
    return digest

for line in sys.stdin:
    _ = None
    exec(json.loads(line))
    print(json.dumps(_), flush=True)
"""


class Worker:
    """A process that runs what it is told."""

    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, code):
        self.send(code)
        return self.answer()

    def send(self, code):
        self.process.stdin.write(json.dumps(code) + "\n")
        self.process.stdin.flush()

    def answer(self):
        line = self.process.stdout.readline()
        assert line, "the worker died"
        return json.loads(line)

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate()


@pytest.fixture
def workers():
    started = []

    def start():
        started.append(Worker())
        return started[-1]

    yield start
    for worker in started:
        if worker.process.poll() is None:
            worker.kill()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "s"


@pytest.fixture
def trainer(workers, path):
    return start_trainer(workers, path)


def start_trainer(workers, path):
    worker = workers()
    worker.run(f"open_trainer({str(path)!r}, {ROWS}, {DIM})")
    return worker


def read(path, **more):
    return Store(path, read_only=True, dram="64KiB", **more)


def bag_of(store):
    return TieredEmbeddingBag(ROWS, DIM, mode="sum", store=store, name="a", init=init.uniform(-1, 1))


def assert_right(store):
    """What is served is what the trainer had when it made the checkpoint."""
    assert store.digest() == store.checkpoints()[-1].extra.decode()


def file_bytes(path):
    return {
        name: hashlib.sha256((path / name).read_bytes()).hexdigest()
        for name in ("catalog.lmdb/data.mdb", "rows.lmdb/data.mdb", "store.json", "lock")
    }


# --- serving


def test_another_process_serves_the_last_checkpoint_and_moves_on(trainer, path):
    trainer.run("checkpoint('one')")
    trainer.run("train(5, 99)")  # in no checkpoint
    with read(path) as store:
        assert store.read_only
        assert "read-only" in repr(store)
        assert [c.tag for c in store.checkpoints()] == ["one"]
        assert_right(store)
        assert store.refresh().tag == "one"
        assert store.generation == 0
        second = trainer.run("_ = checkpoint('two')")
        assert_right(store)
        assert store.refresh().tag == "two"
        assert (store.digest(), store.generation) == (second, 1)
        assert store.stats().tiers["ssd"]["rows_appended"] == 0
        assert store.stats().tiers["ssd"]["rows_read"] > 0


def test_looking_up_changes_nothing_with_and_without_gradients(trainer, path):
    trainer.run("checkpoint('one'); store.close()")
    before = file_bytes(path)
    with read(path) as store:
        bag = bag_of(store)
        rows = bag.read_rows(torch.arange(ROWS))
        bags = torch.arange(ROWS).view(-1, 10)
        expected = rows.view(-1, 10, DIM)
        with torch.no_grad():
            pooled = bag(bags)
        trained = bag(bags)
        trained.sum().backward()
        assert torch.equal(pooled, trained)
        assert torch.allclose(pooled, expected.sum(1), atol=1e-5)
        assert torch.equal(bag.to_dense().weight, rows)
        bag.weight.requires_grad_(False)
        assert torch.equal(bag(bags), pooled)
        assert_right(store)
    assert file_bytes(path) == before
    assert verify_store(path) == []


def test_what_would_change_rows_is_refused_before_anything_happens(trainer, path):
    trainer.run("checkpoint('one')")
    with read(path) as store:
        bag = bag_of(store)
        calls = [
            lambda: store.checkpoint("x"),
            lambda: store.restore("one"),
            lambda: store.release("one"),
            store.flush,
            lambda: bag.write_rows(torch.tensor([1]), torch.zeros(1, DIM)),
            lambda: bag.write_dense(torch.zeros(ROWS, DIM)),
            lambda: TieredEmbeddingBag.from_pretrained(torch.zeros(ROWS, DIM), store=store, name="a"),
            lambda: mtrains.optim.SGD(bag.parameters(), lr=1.0),
            lambda: bag.load_state_dict({"weight": torch.zeros(ROWS, DIM)}),
        ]
        for call in calls:
            with pytest.raises(StateError):
                call()
        for call in calls[:6]:
            with pytest.raises(StateError, match=f"{path} is open read-only"):
                call()
        with pytest.raises(StateError, match=r"read-only and its checkpoint has no table 'b'; its tables are: 'a'"):
            store.add_table(TableSpec("b", 1, 1))
        with pytest.raises(StateError, match=r"embedding_dim 8, not 9"):
            store.add_table(TableSpec("a", ROWS, 9, init=init.uniform(-1, 1)))
        assert_right(store)
    assert trainer.run("_ = [c.tag for c in store.checkpoints()]") == ["one"]
    with pytest.raises(StateError, match=r"refresh\(\) is for a store that was opened with read_only=True"):
        Store().refresh()


def test_options_that_mean_nothing_are_refused(trainer, path):
    trainer.run("checkpoint('one')")
    for option in ({"ssd": "1GiB"}, {"keep": 3}, {"on_optimizer_change": "reset"}):
        with pytest.raises(ValueError, match=f"{next(iter(option))}= has no meaning"):
            read(path, **option)
    with pytest.raises(ValueError, match="has no scm tier"):
        read(path, scm="1MiB")
    with pytest.raises(ValueError, match="name its folder"):
        Store(read_only=True)
    with pytest.raises(StateError, match="has seed 1, not 2"):
        read(path, seed=2)
    assert read(path, seed=1).seed == 1


def test_state_dict_names_what_is_served_and_load_state_dict_goes_there(trainer, path):
    trainer.run("checkpoint('one')")
    with read(path) as store, read(path) as other:
        bag, digest = bag_of(store), store.digest()
        saved = bag.state_dict()
        trainer.run("checkpoint('two'); checkpoint('three'); checkpoint('four')")
        moved = bag_of(other)
        assert other.refresh().tag == "four"
        moved.load_state_dict(saved)
        assert other.checkpoints()[-1].tag == "one"
        assert other.digest() == digest
        assert torch.equal(moved.read_rows(torch.arange(ROWS)), bag.read_rows(torch.arange(ROWS)))
        store.refresh()
        other.refresh()
        trainer.run("checkpoint('five')")
        with pytest.raises(StateError, match="has no checkpoint of epoch"):
            moved.load_state_dict(saved)
        assert_right(other)


# --- what is kept


@pytest.mark.parametrize("tiers", [{"hbm": "16KiB", "dram": 0}, {"hbm": "16KiB", "dram": "32KiB"}, {"dram": "8MiB"}])
def test_its_tiers_are_its_own(trainer, path, tiers):
    trainer.run("checkpoint('one')")
    with Store(path, read_only=True, **tiers) as store:
        bag = bag_of(store)
        for tag in ("two", "three"):
            pooled = bag(torch.arange(ROWS).view(-1, 1)).detach()
            assert torch.equal(pooled.cpu(), bag.read_rows(torch.arange(ROWS)))
            assert_right(store)
            trainer.run(f"checkpoint({tag!r})")
            assert store.refresh().tag == tag


@pytest.mark.parametrize("ends", ["close", "kill"])
def test_a_leased_checkpoint_outlives_20_others_and_goes_with_its_reader(trainer, workers, path, ends):
    trainer.run("checkpoint('kept')")
    reader = workers()
    kept = reader.run(f"store = Store({str(path)!r}, read_only=True, dram='64KiB'); _ = store.digest()")
    for tag in range(20):
        trainer.run(f"rewrite({tag}); checkpoint({tag})")
        if tag % 5 == 0:
            assert reader.run("_ = store.digest()") == kept
    epochs = trainer.run("_ = len(store._session.needed_epochs())")
    assert trainer.run("_ = store.stats().tiers['ssd']['segments_deleted']") > 20
    assert trainer.run("_ = [c.tag for c in store.checkpoints()]") == ["kept", 18, 19]
    held = trainer.run("_ = store.stats().held_bytes")
    assert [c["leased"] for c in inspect_store(path)["checkpoints"]] == [True, False, False]
    assert reader.run("_ = store.digest()") == kept
    if ends == "close":
        reader.run("store.close()")
    else:
        reader.kill()
    trainer.run("rewrite(98); checkpoint('after'); rewrite(99); checkpoint('later')")
    assert trainer.run("_ = [c.tag for c in store.checkpoints()]") == ["after", "later"]
    assert trainer.run("_ = store.stats().held_bytes") < held
    assert trainer.run("_ = len(store._session.needed_epochs())") < epochs
    trainer.run("store.close()")
    assert verify_store(path) == []


def test_a_lease_that_ends_is_noticed_without_another_checkpoint(path):
    with Store(path, keep=1) as trainer:
        trainer.add_table(TableSpec("a", 10, 1))
        trainer.checkpoint("one")
        reader = read(path)
        trainer.checkpoint("two")
        assert [c.tag for c in trainer.checkpoints()] == ["one", "two"]
        reader.close()
        writer = trainer._session.writer
        while len(trainer.checkpoints()) > 1:
            writer.poke()
        assert [c.tag for c in trainer.checkpoints()] == ["two"]


def test_a_checkpoint_that_is_dropped_before_its_lease_is_not_served(path, monkeypatch):
    with Store(path, keep=1) as trainer:
        trainer.add_table(TableSpec("a", 10, 1))
        trainer.checkpoint("one")
        lease, asked = live.Lease, []

        def late(folder, number):
            if len(asked) < 3:
                trainer.checkpoint(f"later {len(asked)}", extra=trainer.digest().encode())
            asked.append(number)
            return lease(folder, number)

        monkeypatch.setattr(live, "Lease", late)
        with read(path) as reader:
            assert [c.tag for c in reader.checkpoints()] == ["later 2"]
            assert len(asked) == 4
            assert_right(reader)
        trainer.checkpoint("last")
        assert [c.tag for c in trainer.checkpoints()] == ["last"]  # no lease is left


def test_a_load_that_fails_leaves_no_lease_and_what_was_served(path, monkeypatch):
    with Store(path, keep=1) as trainer:
        trainer.add_table(TableSpec("a", 10, 1))
        trainer.checkpoint("one", extra=trainer.digest().encode())
        reader = read(path)
        trainer.checkpoint("two")

        def fail(*args):
            raise StateError("no")

        monkeypatch.setattr(reader_session, "load_checkpoint", fail)
        with pytest.raises(StateError, match="no"):
            reader.refresh()
        assert_right(reader)
        trainer.checkpoint("three")
        assert [c.tag for c in trainer.checkpoints()] == ["one", "three"]
        reader.close()


# --- crashes


def test_the_trainer_is_killed_and_another_one_respects_the_lease(trainer, workers, path):
    trainer.run("checkpoint('kept')")
    with read(path) as store:
        trainer.send("checkpoint('lost', steps=200)")
        trainer.kill()
        assert_right(store)
        assert store.refresh().tag in ("kept", "lost")
        tag = store.checkpoints()[-1].tag
        second = start_trainer(workers, path)
        for other in range(6):
            second.run(f"checkpoint({other})")
            assert_right(store)
        assert second.run("_ = [c.tag for c in store.checkpoints()]") == [tag, 4, 5]
        assert store.refresh().tag == 5
        assert_right(store)


def test_a_reader_killed_in_its_snapshot_does_not_keep_pages(trainer, workers, path):
    trainer.run("checkpoint('one')")
    reader = workers()
    reader.run(
        "import lmdb\n"
        f"environments = [lmdb.open({str(path)!r} + name, readonly=True, map_size=1 << 30, lib_version=0)"
        " for name in ('/catalog.lmdb', '/rows.lmdb')]\n"
        "transactions = [environment.begin() for environment in environments]"
    )
    trainer.run("checkpoint('two')")
    assert str(reader.process.pid) in trainer.run("_ = store._session.container._open().readers()")
    reader.kill()
    trainer.run("checkpoint('three')")
    for name in ("catalog.open_environment", "container._open()"):
        listed = trainer.run(f"_ = store._session.{name}.readers()")
        assert str(reader.process.pid) not in listed


# --- restoring


def test_a_restore_that_would_drop_what_is_read_is_refused(trainer, path):
    trainer.run("checkpoint('one')")
    second = trainer.run("_ = checkpoint('two')")
    attempt = (
        "try:\n store.restore('one'); _ = 'restored'\n"
        "except StateError as error:\n _ = str(error)"
    )
    with read(path) as store:
        assert "serves it; close that one first, nothing was restored" in trainer.run(attempt)
        assert trainer.run("_ = store.digest()") == second
        assert_right(store)
    assert trainer.run(attempt) == "restored"
    with read(path) as store:
        assert store.checkpoints()[-1].tag == "one"
        assert trainer.run(attempt) == "restored"  # what is read stays
        assert_right(store)
        trainer.run("checkpoint('other')")
        assert_right(store)
        assert store.refresh().tag == "other"
        assert_right(store)


# --- paths, processes


def test_what_is_no_store_or_not_yet_one_is_one_line_and_left_alone(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "creating" / "catalog.lmdb").mkdir(parents=True)
    for name, text in (("none", "does not exist"), ("file", "is a file"), ("creating", "has no store.json")):
        with pytest.raises(StateError, match=f"is not a store: it {text}"):
            read(tmp_path / name)
    assert sorted(os.listdir(tmp_path)) == ["creating", "file"]
    assert os.listdir(tmp_path / "creating") == ["catalog.lmdb"]
    with Store(tmp_path / "new"), pytest.raises(StateError, match="no checkpoint yet"):
        read(tmp_path / "new")


def test_another_store_at_the_path_is_not_taken_for_the_first(tmp_path, path):
    with Store(path) as trainer:
        trainer.add_table(TableSpec("a", 10, 1))
        trainer.checkpoint("one", extra=trainer.digest().encode())
    with read(path) as reader:
        path.rename(tmp_path / "moved")
        with pytest.raises(StateError, match="does not exist"):
            reader.refresh()
        with Store(path) as trainer:
            trainer.checkpoint("two")
        with pytest.raises(StateError, match="is another store by now"):
            reader.refresh()
        assert [c.tag for c in reader.checkpoints()] == ["one"]
        reader.digest()


def test_a_forked_child_is_refused_and_ends_no_lease(trainer, path):
    trainer.run("checkpoint('one')")
    with read(path) as store:
        bag = bag_of(store)
        pid = os.fork()
        if pid == 0:
            refused = 0
            for call in (store.refresh, store.digest, lambda: bag(torch.zeros(1, 1, dtype=torch.int64))):
                try:
                    call()
                except StateError:
                    refused += 1
            store.close()
            os._exit(0 if refused == 3 else 1)
        assert os.waitpid(pid, 0)[1] == 0
        for tag in range(3):
            trainer.run(f"checkpoint({tag})")
        assert_right(store)
        assert "one" in trainer.run("_ = [c.tag for c in store.checkpoints()]")


def test_several_read_only_stores_of_a_process_beside_its_trainer(path):
    with Store(path, dram="64KiB", keep=1) as trainer:
        table = trainer.add_table(TableSpec("a", ROWS, DIM))
        readers = []
        for number in range(4):
            rows = np.arange(number, ROWS, 3)
            trainer.engine.write_rows(0, rows, np.full((len(rows), DIM), number, np.float32))
            trainer.checkpoint(number, extra=trainer.digest().encode())
            readers.append(read(path))
        assert [c.tag for c in trainer.checkpoints()] == [0, 1, 2, 3]
        for number, reader in enumerate(readers):
            assert reader.checkpoints()[-1].tag == number
            assert_right(reader)
        readers.pop(1).close()
        trainer.checkpoint(4)
        assert [c.tag for c in trainer.checkpoints()] == [0, 2, 3, 4]
        assert table.store is trainer
        for reader in readers:
            assert_right(reader)
            reader.close()


# --- looking at a store that is being trained


def test_inspect_and_verify_beside_the_trainer(trainer, path):
    trainer.run("checkpoint('one'); checkpoint('two'); train(5, 4)")
    contents = inspect_store(path)
    assert contents["in_use"]
    assert [c["tag"] for c in contents["checkpoints"]] == ["one", "two"]
    assert contents["tables"][0]["touched_rows"] > 0
    verdict = check_store(path)
    assert verdict.problems == []
    assert verdict.served.tag == "two"
    trainer.run("checkpoint('three')")
    assert trainer.run("_ = [c.tag for c in store.checkpoints()]") == ["two", "three"]
    with (path / "rows.lmdb" / "data.mdb").open("r+b") as file:
        content = bytearray(file.read())
        at = content.rindex(b"MTRSEG01") + (1 << 20) - 4096  # in the last block of a segment
        file.seek(at)
        file.write(bytes([content[at] ^ 1]))
    assert any("is not what was written" in problem for problem in check_store(path).problems)


def test_a_catalog_is_not_rebuilt_under_a_reader(trainer, path):
    trainer.run("checkpoint('one'); store.close()")
    with read(path), pytest.raises(StateError, match="is open in a read-only store"):
        verify_store(path, rebuild=True)
    assert verify_store(path, rebuild=True) == []
    with read(path) as store:
        assert store.checkpoints()[-1].tag == "one"


# --- all at once


def test_thousands_of_reads_beside_training_and_garbage_collection(trainer, path):
    trainer.run("checkpoint('first')")
    trainer.send(
        "for tag in range(100):\n"
        "    checkpoint(tag)\n"
        "stats = store.stats()\n"
        "_ = [stats.tiers['ssd']['segments_deleted'], stats.folded_pages, stats.tiers['ssd']['gc_rows']]"
    )
    rows_read, seen, reopened = 0, set(), 0
    store = read(path)
    bag = bag_of(store)
    while store.checkpoints()[-1].tag != 99:
        store.refresh()
        assert_right(store)
        seen.add(store.checkpoints()[-1].tag)
        pooled = bag(torch.arange(ROWS).view(-1, 1)).detach()
        assert torch.equal(pooled, bag.read_rows(torch.arange(ROWS)))
        rows_read += 3 * ROWS
        if len(seen) % 7 == 0:
            store.close()
            store = read(path)
            bag = bag_of(store)
            reopened += 1
    deleted, folded, moved = trainer.answer()
    assert deleted > 20
    assert folded > 0
    assert moved >= 0
    assert len(seen) > 5
    assert rows_read > 10_000
    store.close()
    trainer.run("store.close()")
    assert verify_store(path) == []
