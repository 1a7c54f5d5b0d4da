import errno
import gc
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from mtrains import CapacityError, FormatError, StateError, Store, TableSpec, TierIOError, _native, init
from mtrains.tiers.inspect import inspect_store
from mtrains.tiers.records import Kind, key_of
from mtrains.tiers.verify import verify_store

DIM = 8
MIB = 1 << 20


def spec(name="a", rows=20_000, dim=DIM, **more):
    return TableSpec(name, rows, dim, **more)


def write(store, table, rows, seed):
    """Give rows values that tell row and seed apart."""
    rows = np.asarray(rows, np.int64)
    store.check_writable()
    store.engine.write_rows(table.number, rows, values(rows, seed, table.spec.embedding_dim))


def values(rows, seed, dim=DIM):
    random = np.random.default_rng(seed)
    return (np.asarray(rows)[:, None] + random.random((1, dim))).astype(np.float32)


def read(store, table, rows):
    rows = np.asarray(rows, np.int64)
    out = np.empty((len(rows), table.spec.embedding_dim), np.float32)
    store.engine.read_rows(table.number, rows, out)
    return out


def write_many(store, table, first, last, size):
    for i in range(first, last):
        write(store, table, range(i * size, (i + 1) * size), i)


# --- checkpoints


def test_rows_come_back_after_restore_and_reopen(tmp_path):
    path = tmp_path / "s"
    with Store(path, dram="64KiB", seed=3) as store:
        table = store.add_table(spec())
        write(store, table, range(0, 20_000, 3), 1)
        one = store.digest()
        store.checkpoint("one", step=11, extra=b"dense")
        write(store, table, range(0, 20_000, 2), 2)
        two = store.digest()
        store.checkpoint(2)
        write(store, table, range(100), 3)
        store.restore("one")
        assert store.generation == 1
        assert store.digest() == one
        assert [c.tag for c in store.checkpoints()] == ["one"]
        write(store, table, range(0, 20_000, 2), 2)
        assert store.digest() == two
        store.checkpoint("again", step=12)
    assert verify_store(path) == []
    with Store(path, dram="8MiB") as store:
        assert store.digest() == two
        first, last = store.checkpoints()
        assert (first.tag, first.step, first.extra) == ("one", 11, b"dense")
        assert (last.tag, last.step, last.extra) == ("again", 12, b"")
        assert first.epoch < last.epoch
        store.restore("one")
        assert store.digest() == one


def test_untouched_rows_read_as_their_initial_values_from_the_recorded_seed(tmp_path):
    torch.manual_seed(77)
    with Store(tmp_path / "s") as store:
        assert store.seed == 77
        table = store.add_table(spec(init=init.uniform(-1, 1)))
        before = read(store, table, range(50))
        store.checkpoint("x")
    with Store(tmp_path / "s", seed=77) as store:
        assert (read(store, store.add_table(spec(init=init.uniform(-1, 1))), range(50)) == before).all()
    with pytest.raises(StateError, match="seed 77, not 78"):
        Store(tmp_path / "s", seed=78)
    Store(tmp_path / "s").close()


def test_keep_bounds_the_checkpoints_and_a_tag_used_again_moves(tmp_path):
    with Store(tmp_path / "s", keep=3) as store:
        table = store.add_table(spec())
        for i in range(5):
            write(store, table, [i], i)
            store.checkpoint(i)
        assert [c.tag for c in store.checkpoints()] == [2, 3, 4]
        store.checkpoint(3)
        assert [c.tag for c in store.checkpoints()] == [2, 4, 3]
        store.checkpoint("3")  # not 3
        assert [c.tag for c in store.checkpoints()] == [4, 3, "3"]
        with pytest.raises(StateError, match=r"no checkpoint 9; the tags are: 4, 3, '3'"):
            store.restore(9)
        store.release(4)
        assert [c.tag for c in store.checkpoints()] == [3, "3"]
        store.release("3")  # the newest stays until there is a newer one
        assert [c.tag for c in store.checkpoints()] == [3, "3"]
        store.checkpoint("next")
        assert [c.tag for c in store.checkpoints()] == [3, "next"]


def test_held_epochs_stay_until_they_are_released(tmp_path):
    with Store(tmp_path / "s", keep=1) as store:
        table = store.add_table(spec())
        write(store, table, range(100), 1)
        epoch, held = store.hold_epoch(), store.digest()
        assert store.hold_epoch() == epoch
        for i in range(3):
            write(store, table, range(100), 2 + i)
            store.checkpoint(i)
        assert [(c.tag, c.pinned) for c in store.checkpoints()] == [(None, True), (2, False)]
        assert store.hold_epoch() == store.checkpoints()[-1].epoch
        store.restore(epoch)
        assert store.digest() == held
        write(store, table, [1], 9)
        store.checkpoint("later")
        store.release(epoch)
        assert [c.tag for c in store.checkpoints()] == ["later"]


def test_a_checkpoint_while_rows_change_is_the_moment_of_its_call(tmp_path, monkeypatch):
    with Store(tmp_path / "s", dram="2MiB", seed=0) as store:
        table = store.add_table(spec(dim=64))
        write_many(store, table, 0, 20, 1000)
        before = store.digest()
        monkeypatch.setattr(store._session, "_sweep_rows", lambda: 20)  # so that it takes long
        store.checkpoint("live", wait=False)
        assert not store._running.done
        for round_ in range(4):  # what the checkpoint needs is superseded, segment by segment
            for i in range(20):
                write(store, table, range(i * 1000, (i + 1) * 1000), 100 + round_)
        store.checkpoint("after")
        assert store.stats().tiers["ssd"]["segments_deleted"] > 0
        store.restore("live")
        assert store.digest() == before
    assert verify_store(tmp_path / "s") == []


def test_large_extra_and_wrong_arguments(tmp_path):
    extra = np.random.default_rng(0).bytes(3_000_000)
    with Store(tmp_path / "s") as store:
        store.checkpoint("big", extra=extra)
        assert store.checkpoints()[0].extra == extra
        for bad in (None, True, 1.5):
            with pytest.raises(TypeError, match="tag"):
                store.checkpoint(bad)
        with pytest.raises(TypeError, match="extra"):
            store.checkpoint("x", extra="text")
        with pytest.raises(TypeError, match="step"):
            store.checkpoint("x", step=1.0)


def test_flush_writes_dirty_rows_and_is_no_checkpoint(tmp_path, capsys):
    with Store(tmp_path / "s") as store:
        table = store.add_table(spec())
        write(store, table, range(5000), 1)
        store.flush()
        stats = store.stats()
        assert stats.tiers["dram"]["dirty_rows"] == 0
        assert stats.tiers["ssd"]["rows_appended"] == 5000
        assert stats.tiers["ssd"]["bytes_written"] > 0
        store.flush()
        assert store.stats().tiers["ssd"]["rows_appended"] == 5000
        assert store.checkpoints() == []
    assert "gone" in capsys.readouterr().err
    with Store(tmp_path / "s") as store:
        assert store.tables() == []


# --- tables and optimizers


def test_a_table_is_found_again_by_name_and_refused_if_it_differs(tmp_path):
    with Store(tmp_path / "s") as store:
        table = store.add_table(spec())
        assert store.add_table(spec()) is table
        with pytest.raises(StateError, match=r"'a' with mode sum, not mean"):
            store.add_table(spec(mode="mean"))
        store.checkpoint("x")
        store.add_table(spec("lost"))
    with Store(tmp_path / "s") as store:
        assert [t.name for t in store.tables()] == ["a"]
        for change, text in [
            ({"dim": 16}, "embedding_dim 8, not 16"),
            ({"rows": 5}, "num_embeddings 20000, not 5"),
            ({"dtype": torch.float16}, "dtype float32, not float16"),
            ({"init": init.zeros()}, "init"),
            ({"padding_idx": 0}, "padding_idx None, not 0"),
        ]:
            with pytest.raises(StateError, match=text):
                store.add_table(spec(**change))
        assert store.add_table(spec(mode="mean")).spec.mode == "mean"


def test_only_a_temporary_store_numbers_its_tables(tmp_path):
    with Store() as store:
        assert store.path is None
        first = store.add_table(spec(store.next_name()))
        assert store.next_name() != first.name
    with Store(tmp_path / "s") as store, pytest.raises(ValueError, match="needs a name"):
        store.next_name()


SUM = (("sum", DIM),)


def test_an_optimizer_keeps_its_state_and_another_kind_needs_a_reset(tmp_path):
    path = tmp_path / "s"
    with Store(path) as store:
        table = store.add_table(spec())
        binding = store.bind_optimizer(table, "adagrad", SUM, 0.5)
        binding.step = 4
        assert store.bind_optimizer(table, "adagrad", SUM, 0.5) is binding
        with pytest.raises(StateError, match=r"'adagrad'.*'sgd'"):
            store.bind_optimizer(table, "sgd", (), 0.0)
        write(store, table, range(10), 1)
        store.checkpoint("x")
        binding.step = 9
        store.restore("x")
        assert table.optimizer.step == 4
    with Store(path, on_optimizer_change="reset") as store:
        table = store.add_table(spec())
        assert (table.optimizer.kind, table.optimizer.step) == ("adagrad", 4)
        before = read(store, table, range(10))
        assert store.bind_optimizer(table, "sgd", (), 0.0).step == 0
        assert (read(store, table, range(10)) == before).all()
        write(store, table, range(5), 2)
        store.checkpoint("y")
        with_sgd = store.digest()
        store.restore("x")
        assert table.optimizer.kind == "adagrad"
    with Store(path, on_optimizer_change="reset") as store:
        table = store.add_table(spec())
        store.bind_optimizer(table, "sgd", (), 0.0)
        write(store, table, range(5), 2)
        assert store.digest() == with_sgd


class FailingOnce:
    """An engine whose use_layout finds no room the first time."""

    def __init__(self, engine):
        self._engine, self._failed = engine, False

    def __getattr__(self, name):
        return getattr(self._engine, name)

    def use_layout(self, table, layout):
        if not self._failed:
            self._failed = True
            raise TierIOError(errno.ENOSPC, "no room")
        self._engine.use_layout(table, layout)


def test_an_optimizer_whose_attaching_failed_attaches_at_the_next_try(tmp_path):
    with Store(tmp_path / "s", dram="64KiB", seed=1) as store:
        table = store.add_table(spec())
        write(store, table, range(5000), 1)
        store._session._engine = FailingOnce(store.engine)
        with pytest.raises(TierIOError, match="no room"):
            store.bind_optimizer(table, "adagrad", SUM, 0.25)
        assert table.optimizer is None
        store.checkpoint("without")
        store.bind_optimizer(table, "adagrad", SUM, 0.25)
        assert store.engine.table_info(0)["layout"] == 1
        write(store, table, range(2000), 2)
        store.checkpoint("with")
        digest = store.digest()
    assert verify_store(tmp_path / "s") == []
    with Store(tmp_path / "s") as store:
        assert store.digest() == digest
        store.restore("without")
        assert store.tables()[0].optimizer is None


def test_a_closed_store_gives_its_memory_back():
    store = Store(dram="8MiB")
    write(store, store.add_table(spec()), range(100), 1)
    store.checkpoint("x", wait=False)
    session = store._session
    store.close()
    assert session.closed
    with pytest.raises(StateError, match="closed"):
        session.engine  # noqa: B018 - nothing refers to it
    assert store._running is None


def test_many_tables_of_other_strides_and_a_record_longer_than_a_block(tmp_path):
    dims = [1, 2, 3, 7, 64, 130, 1500]
    with Store(tmp_path / "s", dram="256KiB", seed=1) as store:
        tables = [store.add_table(spec(f"t{d}", 300, d)) for d in dims]
        for round_ in range(3):
            for table in tables:
                write(store, table, range(round_, 300, 2), round_)
            store.checkpoint(round_)
        digest = store.digest()
    assert verify_store(tmp_path / "s") == []
    with Store(tmp_path / "s", dram="64MiB") as store:
        assert store.digest() == digest


def test_a_billion_rows_take_disk_only_for_what_is_touched(tmp_path):
    with Store(tmp_path / "s", seed=1) as store:
        table = store.add_table(spec("huge", 1_000_000_000, 64))
        rows = [0, 5, 999_999_999]
        write(store, table, rows, 1)
        store.checkpoint("x")
        digest = store.digest()
        assert store.stats().disk_bytes < 16 * MIB
    with Store(tmp_path / "s") as store:
        assert store.digest() == digest


# --- the environment


def test_a_closed_store_leaves_no_descriptor_open(tmp_path):
    def open_data_files():
        links = (os.path.join("/proc/self/fd", fd) for fd in os.listdir("/proc/self/fd"))
        return [os.readlink(link) for link in links if os.path.lexists(link) and "mdb" in os.readlink(link)]

    def use(path):
        with Store(path, dram="4KiB") as store:
            store.add_table(TableSpec("a", 100, 4))
            store.checkpoint("x")
            store.restore("x")

    gc.collect()  # stores that other tests left
    before = open_data_files()
    for number in range(3):
        use(tmp_path / str(number))
        use(None)
    assert open_data_files() == before


def test_options_of_later_versions_are_refused_by_name():
    with pytest.raises(NotImplementedError, match="distributed"):
        Store(distributed=1)
    for option in (
        {"io_engine": "aio"},
        {"eviction": "fifo"},
        {"keep": 0},
        {"read_only": True},
        {"dram": "much"},
        {"on_optimizer_change": "ask"},
    ):
        with pytest.raises(ValueError, match=r"."):
            Store(**option)


def test_paths_that_cannot_be_a_store_are_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError, match="is a file"):
        Store(tmp_path / "file")
    with pytest.raises(StateError, match="does not exist"):
        Store(tmp_path / "none" / "s")
    for call in (inspect_store, verify_store):
        with pytest.raises(StateError, match="is not a store"):
            call(tmp_path / "none")


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "open", refuse)
    (tmp_path / "s").mkdir()
    with pytest.raises(TierIOError, match=r"cannot open .*lock") as caught:
        Store(tmp_path / "s")
    assert caught.value.errno == errno.EROFS


OPEN = """
import sys
from mtrains import Store
try:
    Store(sys.argv[1])
except Exception as error:
    print(type(error).__name__, error)
"""


def test_two_processes_and_two_openers_of_one_process(tmp_path):
    with Store(tmp_path / "s") as store:
        table = store.add_table(spec())
        other = subprocess.run(
            [sys.executable, "-c", OPEN, "s"], capture_output=True, text=True, check=True, cwd=tmp_path
        )
        assert other.stdout.startswith("StateError the store")
        with pytest.raises(StateError, match="open already"):
            Store(tmp_path / "s")
        with pytest.raises(StateError, match="open already"):
            verify_store(tmp_path / "s", rebuild=True)
        with pytest.raises(StateError, match="no checkpoint yet"):
            verify_store(tmp_path / "s")
        assert inspect_store(tmp_path / "s")["in_use"]
        write(store, table, [1], 1)
        store.checkpoint("x")
        assert verify_store(tmp_path / "s") == []
        assert [c["tag"] for c in inspect_store(tmp_path / "s")["checkpoints"]] == ["x"]
    Store(tmp_path / "s").close()


FORK = """
import os, sys
import numpy as np
from mtrains import StateError, Store, TableSpec
store = Store(sys.argv[1], dram="1MiB")
table = store.add_table(TableSpec("a", 1000, 8))
rows = np.arange(1000)
store.engine.write_rows(table.number, rows, np.ones((1000, 8), np.float32))
pid = os.fork()
if pid == 0:
    refused = 0
    for call in (store.check_open, store.checkpoints, store.flush, store.digest, store.stats,
    store.hold_epoch,
                 lambda: store.checkpoint("x"), lambda: store.engine, lambda: store.add_table(TableSpec("b",
                 1, 1))):
        try:
            call()
        except StateError as error:
            refused += "forked child" in str(error)
    store.close()
    del store, table
    import gc; gc.collect()
    sys.exit(40 + refused)
_, status = os.waitpid(pid, 0)
assert os.waitstatus_to_exitcode(status) == 49, status
store.checkpoint("parent")
out = np.empty((1000, 8), np.float32)
store.engine.read_rows(table.number, rows, out)
assert (out == 1).all()
store.close()
print("fine")
"""


def test_a_forked_child_is_refused_and_the_parent_is_unharmed(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", FORK, "s"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=tmp_path,
    )
    assert (done.stdout, done.returncode) == ("fine\n", 0), done.stderr
    assert verify_store(tmp_path / "s") == []


def test_close_says_once_what_is_lost_and_a_closed_store_refuses(tmp_path, capsys):
    store = Store(tmp_path / "s")
    table = store.add_table(spec())
    store.checkpoint("x")
    store.close()
    assert capsys.readouterr().err == ""
    store = Store(tmp_path / "s")
    table = store.add_table(spec())
    write(store, table, [1], 1)
    store.close()
    store.close()
    assert capsys.readouterr().err.count("gone") == 1
    for call in (store.check_open, store.checkpoints, store.digest, lambda: store.engine):
        with pytest.raises(StateError, match="closed"):
            call()
    with Store() as store:
        write(store, store.add_table(spec()), [1], 1)
    assert capsys.readouterr().err == ""


def test_a_temporary_store_is_gone_after_close_and_after_being_forgotten():
    store = Store()
    folder = store._session.layout.folder
    assert folder.is_dir()
    store.close()
    assert not folder.exists()
    store = Store()
    folder = store._session.layout.folder
    del store
    gc.collect()
    assert not folder.exists()


# --- faults


def flip(path, offset):
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 0x10]))


def test_a_flipped_byte_in_a_block_is_found_named_and_the_rest_is_readable(tmp_path):
    path = tmp_path / "s"
    with Store(path, dram="8MiB", seed=1) as store:
        table = store.add_table(spec())
        write(store, table, range(20_000), 1)
        store.checkpoint("x")
        (segment,) = [s for s in store.engine.segments() if s["rows"] > 0]
    data = path / "rows.lmdb" / "data.mdb"
    end = int(segment["offset"]) + 256 * 4096 - 16
    flip(data, end - 3 * 4096 + 100)  # block 2
    problems = verify_store(path)
    assert len(problems) == 1
    assert f"segment {segment['id']}" in problems[0]
    assert "block 2" in problems[0]
    with Store(path, dram="64KiB") as store:
        table = store.add_table(spec())
        with pytest.raises(FormatError, match=f"block 2 of segment {segment['id']}"):
            read(store, table, range(20_000))
        good = 0
        for row in range(0, 20_000, 50):
            try:
                good += (read(store, table, [row]) == values([row], 1)).all()
            except FormatError:
                continue
        assert good > 390
    assert len(problems) == 1


def test_gc_leaves_a_damaged_segment_alone_and_the_store_goes_on(tmp_path, capfd):
    random = np.random.default_rng(0)
    with Store(tmp_path / "s", dram="2MiB", seed=1) as store:
        table = store.add_table(spec("a", 40_000, 64))
        write(store, table, range(40_000), 0)
        store.checkpoint(0)
        segment = next(s for s in store.engine.segments() if s["rows"] > 3000)
        data, offset = tmp_path / "s" / "rows.lmdb" / "data.mdb", int(segment["offset"])
        image = _native.read_segment(str(data), offset)
        lost = image.rows[(image.locations >> np.uint64(10)) % 256 == 0]
        flip(data, offset + 256 * 4096 - 16 - 4096)  # in block 0
        for i in range(1, 100):
            write(store, table, np.setdiff1d(random.integers(0, 40_000, 4000), lost), i)
            if i % 10 == 0:
                store.checkpoint(i)
        stats = store.stats().tiers["ssd"]
        assert stats["segments_damaged"] == 1
        assert stats["segments_evacuated"] > 1
        assert capfd.readouterr().err.count(f"segment {segment['id']} of") == 1
        store.checkpoint("end")


@pytest.mark.parametrize("where", ["header", "catalog"])
def test_flipped_bytes_elsewhere_are_named(tmp_path, where):
    path = tmp_path / "s"
    with Store(path) as store:
        write(store, store.add_table(spec()), range(3000), 1)
        store.checkpoint("x", extra=b"e" * 5000)
        (segment,) = [s for s in store.engine.segments() if s["rows"] > 0]
    if where == "header":
        flip(path / "rows.lmdb" / "data.mdb", int(segment["offset"]) + 200)
        assert any(f"segment {segment['id']}" in problem for problem in verify_store(path))
    else:
        catalog = path / "catalog.lmdb" / "data.mdb"
        key = int.from_bytes(key_of(Kind.EXTRA), "big")
        ((_, offset, _),) = _native.locate_values(str(catalog), key, key | (1 << 56) - 1).tolist()
        flip(catalog, offset + 1000)
        assert any("EXTRA" in problem for problem in verify_store(path))
        assert verify_store(path, rebuild=True) == []


def test_a_missing_segment_is_named_at_opening(tmp_path):
    path = tmp_path / "s"
    with Store(path) as store:
        write(store, store.add_table(spec()), range(3000), 1)
        store.checkpoint("x")
        (segment,) = [s for s in store.engine.segments() if s["rows"] > 0]
        store._session.writer.stop()
        store._session.container.append([], [int(segment["id"])], privileged=True)
    with pytest.raises(FormatError, match=f"segment {segment['id']} .* is missing"):
        Store(path)
    assert any("is missing" in problem for problem in verify_store(path))


def test_a_lost_catalog_is_rebuilt_from_the_segments(tmp_path):
    path = tmp_path / "s"
    with Store(path, dram="64KiB", seed=4) as store:
        table, other = store.add_table(spec()), store.add_table(spec("b", 5000, 24))
        store.bind_optimizer(table, "adagrad", SUM, 0.25).step = 3
        for i in range(4):
            write(store, table, range(i, 20_000, 2 + i), i)
            write(store, other, range(0, 5000, 2 + i), i)
            store.checkpoint(f"c{i}", step=i)
        digest = store.digest()
        write(store, table, range(9000), 50)  # no checkpoint has these
        store.flush()
    for file in (path / "catalog.lmdb").iterdir():
        file.unlink()
    with pytest.raises(FormatError):
        Store(path)
    assert verify_store(path) != []
    assert verify_store(path, rebuild=True) == []
    with Store(path) as store:
        assert store.digest() == digest
        assert [(c.tag, c.step) for c in store.checkpoints()] == [("c3", 3)]
        assert store.tables()[0].optimizer.step == 3
        write(store, store.tables()[1], range(500), 7)
        store.checkpoint("on")
    assert verify_store(path) == []


def test_a_failed_sync_makes_the_store_read_only_and_reopening_finds_the_last_checkpoint(
    tmp_path, monkeypatch
):
    path = tmp_path / "s"
    store = Store(path, seed=1)
    table = store.add_table(spec())
    write(store, table, range(100), 1)
    store.checkpoint("good")
    digest = store.digest()
    write(store, table, range(100), 2)

    def fail():
        raise TierIOError(errno.EIO, "syncing rows.lmdb")

    monkeypatch.setattr(store._session.container, "sync", fail)
    with pytest.raises(StateError, match=r"read-only until it is opened again.*syncing rows\.lmdb"):
        store.checkpoint("bad")
    monkeypatch.undo()
    for call in (
        lambda: store.checkpoint("again"),
        store.flush,
        store.check_writable,
        lambda: store.add_table(spec("b")),
        lambda: store.release("good"),
    ):
        with pytest.raises(StateError, match=r"syncing rows\.lmdb"):
            call()
    store.check_open()  # it can be read
    assert (read(store, table, range(100)) == values(range(100), 2)).all()
    assert store.digest() != digest
    store.close()
    with Store(path) as store:
        assert store.digest() == digest
        assert [c.tag for c in store.checkpoints()] == ["good"]


def test_the_cap_is_hard_names_the_remedy_loses_nothing_and_goes_on_after_room_was_made(tmp_path):
    path, cap = tmp_path / "s", 96 * MIB
    with Store(path, dram="1MiB", ssd=cap, seed=1, keep=2) as store:
        table = store.add_table(spec("a", 400_000, 64))
        for i in range(2):
            write(store, table, range(i * 40_000, (i + 1) * 40_000), i)
            store.checkpoint(i)
        digest = store.digest()
        with pytest.raises((TierIOError, CapacityError), match="ssd="):
            write_many(store, table, 8, 40, 10_000)
        assert store.stats().disk_bytes <= cap
        assert (read(store, table, range(40_000)) == values(range(40_000), 0, 64)).all()
        store.checkpoint("full")  # the reserve is for it
        assert store.stats().disk_bytes <= cap
        store.restore(1)
        assert store.digest() == digest
        for i in range(10):
            write(store, table, range(20_000), 100 + i)
            store.checkpoint(f"again {i}")
        assert store.stats().disk_bytes <= cap
    assert verify_store(path) == []
    with pytest.raises(CapacityError, match="needs at least"):
        Store(path, ssd="64MiB")


def test_scattered_updates_under_the_cap_go_on_while_much_of_the_log_is_dead(tmp_path):
    random = np.random.default_rng(0)
    with Store(tmp_path / "s", dram="2MiB", ssd=112 * MIB, seed=1, keep=1) as store:
        table = store.add_table(spec("a", 80_000, 64))  # 20 MiB
        for i in range(1, 161):
            write(store, table, np.unique(random.integers(0, 80_000, 4000)), i)
            if i % 8 == 0:
                store.checkpoint(i)
        stats = store.stats()
        assert stats.tiers["ssd"]["segments_evacuated"] > 0
        assert stats.disk_bytes <= 112 * MIB
        digest = store.digest()
        store.checkpoint("end")
    assert verify_store(tmp_path / "s") == []
    with Store(tmp_path / "s") as store:
        assert store.digest() == digest


def test_under_the_cap_without_checkpoints_what_is_dead_makes_room(tmp_path):
    random = np.random.default_rng(0)
    with Store(tmp_path / "s", dram="2MiB", ssd=96 * MIB, seed=1) as store:
        table = store.add_table(spec("a", 80_000, 64))
        for i in range(100):
            write(store, table, np.unique(random.integers(0, 80_000, 4000)), i)
        digest = store.digest()
        store.checkpoint("end")
        assert store.stats().disk_bytes <= 96 * MIB
        assert store.digest() == digest
    assert verify_store(tmp_path / "s") == []


def test_a_restore_for_which_there_is_no_room_changes_nothing(tmp_path, monkeypatch):
    with Store(tmp_path / "s", seed=1) as store:
        table = store.add_table(spec())
        for i in range(2):
            write(store, table, range(100), i)
            store.checkpoint(i)
        write(store, table, range(100), 7)

        def fail(*args, **kwargs):
            raise CapacityError("no room for the catalog")

        monkeypatch.setattr(store._session.catalog, "_allocate", fail)
        with pytest.raises(CapacityError, match="no room"):
            store.restore(0)
        monkeypatch.undo()
        assert [c.tag for c in store.checkpoints()] == [0, 1]
        assert (read(store, table, range(100)) == values(range(100), 7)).all()
        store.restore(0)
        assert (read(store, table, range(100)) == values(range(100), 0)).all()
    assert verify_store(tmp_path / "s") == []


def test_a_restore_that_fails_half_way_leaves_a_closed_store(tmp_path, monkeypatch):
    store = Store(tmp_path / "s", seed=1)
    write(store, store.add_table(spec()), range(100), 0)
    store.checkpoint(0)
    monkeypatch.setattr(store._session, "_start", lambda: (_ for _ in ()).throw(MemoryError("none")))
    with pytest.raises(MemoryError), store:
        store.restore(0)
    store.close()
    with Store(tmp_path / "s") as store:
        assert [c.tag for c in store.checkpoints()] == [0]


def test_a_full_disk_is_named_and_training_goes_on_after_room_was_made(tmp_path, monkeypatch):
    with Store(tmp_path / "s", dram="1MiB", seed=1) as store:
        table = store.add_table(spec("a", 400_000, 64))
        write(store, table, range(10_000), 0)
        store.checkpoint("good")

        def refuse(descriptor, offset, size):
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "posix_fallocate", refuse)
        with pytest.raises(TierIOError, match="make room") as caught:
            write_many(store, table, 0, 100, 4000)
        assert caught.value.errno == errno.ENOSPC
        with pytest.raises(TierIOError, match="make room"):
            store.checkpoint("bad")
        assert [c.tag for c in store.checkpoints()] == ["good"]
        monkeypatch.undo()
        store.flush()
        write(store, table, range(10_000), 5)
        store.checkpoint("fine")
        assert (read(store, table, range(10_000)) == values(range(10_000), 5, 64)).all()
    assert verify_store(tmp_path / "s") == []


def test_errors_of_a_checkpoint_that_was_not_waited_for_come_up_next(tmp_path, monkeypatch):
    with Store(tmp_path / "s") as store:
        write(store, store.add_table(spec()), range(10), 1)

        def fail(*args, **kwargs):
            raise CapacityError("no room for the catalog")

        monkeypatch.setattr(store._session.catalog, "_allocate", fail)
        store.checkpoint("x", wait=False)
        with pytest.raises(CapacityError, match="no room"):
            store.flush()
        monkeypatch.undo()
        store.checkpoint("y")
        assert [c.tag for c in store.checkpoints()] == ["y"]


def test_updating_the_same_rows_for_long_takes_bounded_disk(tmp_path):
    with Store(tmp_path / "s", dram="64KiB", seed=1) as store:
        table = store.add_table(spec("a", 1000, 64))
        for i in range(400):
            write(store, table, range(1000), i)
            if i % 40 == 39:
                store.checkpoint(i)
        stats = store.stats()
        assert stats.tiers["ssd"]["bytes_written"] > 90 * MIB
        assert stats.disk_bytes < 128 * MIB
    assert verify_store(tmp_path / "s") == []


def test_gc_keeps_disk_near_what_is_live_when_updates_are_scattered(tmp_path):
    random = np.random.default_rng(0)
    with Store(tmp_path / "s", dram="2MiB", seed=1) as store:
        table = store.add_table(spec("a", 100_000, 64))
        write(store, table, range(100_000), 0)
        for i in range(60):
            write(store, table, np.unique(random.integers(0, 100_000, 4000)), i)
            if i % 10 == 9:
                store.checkpoint(i)
        stats = store.stats()
        assert stats.tiers["ssd"]["gc_rows"] > 0
        assert stats.disk_bytes < 1.5 * (stats.live_bytes + stats.held_bytes) + 128 * MIB
        digest = store.digest()
        store.checkpoint("end")
    assert verify_store(tmp_path / "s") == []
    with Store(tmp_path / "s") as store:
        assert store.digest() == digest


KILLED = """
import sys
import numpy as np
from mtrains import Store, TableSpec
path, seed = sys.argv[1], int(sys.argv[2])
random = np.random.default_rng(seed)
store = Store(path, dram="64KiB", seed=1)
done = store.checkpoints()
if done:
    assert store.digest() == done[-1].extra.decode(), "the last checkpoint is not what it was"
table = store.add_table(TableSpec("a", 5000, 16))
number = done[-1].step + 1 if done else 0
print("ready", flush=True)
while True:
    for _ in range(5):
        rows = np.unique(random.integers(0, 5000, 800))
        store.engine.write_rows(table.number, rows, random.random((len(rows), 16), np.float32))
    store.checkpoint("last", step=number, extra=store.digest().encode(), wait=bool(number % 3))
    if number % 3:
        print(number, flush=True)
    number += 1
    if number % 7 == 0:
        store.restore("last")
"""


def test_kill_9_at_random_moments_leaves_the_last_checkpoint(tmp_path):
    path = tmp_path / "s"
    random = np.random.default_rng(5)
    steps = []
    for round_ in range(6):
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED, "s", str(round_)],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        ready = process.stdout.readline()
        committed = process.stdout.readline() if ready else ""
        if committed:
            time.sleep(random.uniform(0.0, 0.6))
        process.send_signal(signal.SIGKILL)
        _, error = process.communicate()
        assert ready == "ready\n", error
        assert verify_store(path) == []
        with Store(path) as store:
            done = store.checkpoints()
            assert store.digest() == done[-1].extra.decode()
            assert done[-1].step >= int(committed)
            steps.append(done[-1].step)
    assert steps == sorted(steps)


def test_inspect_tells_what_the_store_told(tmp_path):
    path = tmp_path / "s"
    with Store(path, dram="64KiB", seed=9) as store:
        table = store.add_table(spec())
        store.bind_optimizer(table, "adagrad", SUM, 0.0)
        write(store, table, range(0, 20_000, 4), 1)
        store.checkpoint("x", step=3, extra=b"12345")
        stats = store.stats()
    found = inspect_store(path)
    json.dumps(found)
    assert found["tables"] == [
        {
            "name": "a",
            "num_embeddings": 20_000,
            "embedding_dim": DIM,
            "dtype": "float32",
            "optimizer": "adagrad",
            "touched_rows": 5000,
            "row_bytes": 64,
            "touched_bytes": 320_000,
        }
    ]
    assert [(c["tag"], c["step"], c["extra_bytes"]) for c in found["checkpoints"]] == [("x", 3, 5)]
    assert found["seed"] == 9
    assert found["live_bytes"] == stats.live_bytes
    assert found["held_bytes"] + found["dead_bytes"] == stats.held_bytes + stats.dead_bytes
    assert found["disk_bytes"]["total"] == sum(
        os.stat(path / folder / "data.mdb").st_blocks * 512 for folder in ("rows.lmdb", "catalog.lmdb")
    )


def test_a_damaged_page_of_the_catalog_is_one_clear_error(tmp_path):
    path = tmp_path / "s"
    with Store(path) as store:
        write(store, store.add_table(spec()), range(300), 1)
        store.checkpoint("x")
        digest = store.digest()
    data = path / "catalog.lmdb" / "data.mdb"
    image = bytearray(data.read_bytes())
    for begin in range(2 * 4096, len(image), 4096):
        if image[begin + 10] & 3:  # a branch or leaf page
            image[begin + 10] = 0xA5
    data.write_bytes(image)
    with pytest.raises(FormatError, match=r"catalog|reading"):
        Store(path)
    verify_store(path, rebuild=True)
    with Store(path) as store:
        assert store.digest() == digest


def test_a_write_that_failed_in_the_background_comes_up_at_close(tmp_path, monkeypatch):
    def fail():
        raise TierIOError(errno.EIO, "folding")

    def broken_store(path):
        store = Store(tmp_path / path, seed=1)
        write(store, store.add_table(spec()), range(100), 1)
        store.checkpoint("good")
        monkeypatch.setattr(store._session, "_fold_step", fail)
        store._session.writer._context = replace(store._session.writer._context, background=fail)
        store._session.writer.poke()
        store._session.writer._thread.join()
        return store

    store = broken_store("a")
    with pytest.raises(StateError, match=r"a write failed: folding"):
        store.close()
    store.close()
    with pytest.raises(KeyError), broken_store("b"):
        raise KeyError
    with pytest.raises(StateError, match=r"a write failed: folding"), broken_store("c") as store:
        store.check_writable()  # raises it, so close() does not


def test_a_write_that_fails_while_a_restore_stops_the_writer_is_final(tmp_path, monkeypatch):
    store = Store(tmp_path / "s", seed=1)
    write(store, store.add_table(spec()), range(100), 1)
    store.checkpoint("good")
    digest = store.digest()
    writer = store._session.writer
    stop = writer.stop

    def fail_and_stop():
        writer.error = TierIOError(errno.EIO, "committing the last group")
        stop()

    monkeypatch.setattr(writer, "stop", fail_and_stop)
    with pytest.raises(StateError, match="committing the last group"):
        store.restore("good")
    with pytest.raises(StateError, match="restore"):
        store.digest()
    store.close()
    with Store(tmp_path / "s") as store:
        assert store.digest() == digest
