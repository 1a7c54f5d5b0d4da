"""Exports: the bits of the store, in files that other libraries read."""

import errno
import json
import os

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

from mtrains import StateError, Store, TieredEmbedding, TieredEmbeddingBag, TierIOError, init, optim

MIB = 1 << 20
OPTIMIZERS = {
    "Adagrad": {"sum": 7},
    "RowWiseAdagrad": {"sum": 1},
    "SparseAdam": {"exp_avg": 7, "exp_avg_sq": 7},
    "PartialRowWiseAdam": {"exp_avg": 7, "exp_avg_sq": 1},
}


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr("mtrains.transfer.export._CHUNK_BYTES", 1000)


def train(emb, kind="RowWiseAdagrad", steps=3):
    optimizer = getattr(optim, kind)(emb.parameters(), lr=0.1)
    random = torch.Generator().manual_seed(0)
    for _ in range(steps):
        optimizer.zero_grad()
        indices = torch.randint(emb.num_embeddings, (20, 3), generator=random)
        emb(indices).float().square().sum().backward()
        optimizer.step()


def bag(store, name="t", rows=500, dim=7, **arguments):
    return TieredEmbeddingBag(rows, dim, mode="sum", store=store, name=name, **arguments)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_weight_and_state_of_every_optimizer(store, tmp_path, kind, dtype):
    emb = bag(store, dtype=dtype)
    train(emb, kind)
    emb.export(tmp_path / "t.safetensors", optimizer_state=True)
    loaded = load_file(tmp_path / "t.safetensors")
    assert loaded.keys() == {"weight", "step", *OPTIMIZERS[kind]}
    assert loaded["weight"].dtype is dtype
    assert torch.equal(loaded["weight"], emb.read_dense())
    assert torch.equal(loaded["step"], torch.tensor(3.0))
    for name, values in OPTIMIZERS[kind].items():
        assert loaded[name].dtype is torch.float32
        assert loaded[name].shape == (500, values)
        assert 20 < loaded[name].any(1).sum() <= 180  # the rows that trained


def test_state_is_torchs_own(tmp_path, lattice):
    grad, indices = lattice(20, 7), torch.arange(20)
    with Store(dram="1KiB", seed=1) as store:
        emb = TieredEmbedding(50, 7, store=store, name="t")
        dense = emb.to_dense()
        mine, theirs = optim.SparseAdam(emb.parameters()), torch.optim.SparseAdam(dense.parameters())
        dense.sparse = True
        for optimizer, module in ((mine, emb), (theirs, dense)):
            module(indices).backward(grad)
            optimizer.step()
        emb.export(tmp_path / "t.safetensors", optimizer_state=True)
    loaded = load_file(tmp_path / "t.safetensors")
    (state,) = theirs.state.values()
    assert state.keys() == loaded.keys() - {"weight"}
    for name in ("exp_avg", "exp_avg_sq"):
        torch.testing.assert_close(loaded[name], state[name], rtol=1e-5, atol=1e-6)
    assert float(loaded["step"]) == float(state["step"])


@settings(max_examples=30, deadline=None)
@given(
    rows=st.integers(0, 60),
    dim=st.integers(1, 40),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
    padding=st.booleans(),
)
def test_untouched_rows_have_their_initial_values(tmp_path_factory, rows, dim, dtype, padding):
    folder = tmp_path_factory.mktemp("export")
    padding_idx = rows // 2 if padding and rows else None
    with Store(dram="1KiB", seed=5) as store:
        emb = bag(store, rows=rows, dim=dim, dtype=dtype, padding_idx=padding_idx)
        emb.export(folder / "t.safetensors")
        emb.export(folder / "t.npy", dtype=torch.float32)
        expected = emb.read_dense()
        assert store.engine.table_info(0)["touched_rows"] == 0
    loaded = load_file(folder / "t.safetensors")["weight"]
    assert loaded.dtype is dtype
    assert torch.equal(loaded, expected)
    assert np.array_equal(np.load(folder / "t.npy"), expected.float().numpy())


def test_rows_written_before_an_optimizer_came_have_its_initial_state(tmp_path):
    with Store(tmp_path / "store", dram="600", seed=1) as store:
        emb = bag(store)
        emb.write_rows(torch.arange(200), torch.ones(200, 7))
        store.checkpoint("weights")
        optim.Adagrad(emb.parameters(), initial_accumulator_value=0.25)
        emb.export(tmp_path / "t.safetensors", optimizer_state=True)
        loaded = load_file(tmp_path / "t.safetensors")
        assert torch.equal(loaded["weight"], emb.read_dense())
        assert torch.equal(loaded["sum"], torch.full((500, 7), 0.25))
        assert loaded["step"] == 0


def test_other_libraries_take_the_file(store, tmp_path):
    emb = bag(store)
    train(emb)
    emb.export(str(tmp_path / "t.safetensors"))
    emb.export(tmp_path / "t.npy")
    expected = emb.read_dense()
    dense = nn.EmbeddingBag(500, 7)
    dense.load_state_dict(load_file(tmp_path / "t.safetensors"))
    assert torch.equal(dense.weight, expected)
    with safe_open(tmp_path / "t.safetensors", framework="numpy") as file:
        assert file.metadata() == {"format": "pt"}
        assert np.array_equal(file.get_slice("weight")[100:200], expected.numpy()[100:200])
    assert np.array_equal(np.load(tmp_path / "t.npy", mmap_mode="r"), expected.numpy())
    for number, name in enumerate(("t.safetensors", "t.npy")):
        back = TieredEmbeddingBag.from_pretrained(tmp_path / name, store=store, name=f"back{number}")
        assert torch.equal(back.read_dense(), expected)


def test_a_store_goes_to_one_file_or_to_a_folder(store, tmp_path):
    user, item = bag(store, "user"), bag(store, "item", rows=30, dim=4, dtype=torch.bfloat16)
    train(user, "SparseAdam")
    whole = tmp_path / "store.safetensors"
    store.export(whole, optimizer_state=True)
    loaded = load_file(whole)
    states = {"user.weight", "user.exp_avg", "user.exp_avg_sq", "user.step"}
    assert loaded.keys() == states | {"item.weight"}  # item has no optimizer
    assert torch.equal(loaded["user.weight"], user.read_dense())
    assert torch.equal(loaded["item.weight"], item.read_dense())
    store.export(whole, tables=["item"], dtype=torch.float32)
    assert load_file(whole).keys() == {"item.weight"}
    assert load_file(whole)["item.weight"].dtype is torch.float32
    store.export(tmp_path / "folder", optimizer_state=True)
    assert sorted(os.listdir(tmp_path / "folder")) == ["item.safetensors", "user.safetensors"]
    assert load_file(tmp_path / "folder/user.safetensors").keys() == {"weight", "exp_avg", "exp_avg_sq", "step"}
    store.export(tmp_path / "arrays", format="npy", dtype=torch.float16)
    assert np.array_equal(np.load(tmp_path / "arrays/user.npy"), user.read_dense().half().numpy())
    store.export(tmp_path / "user.npy", tables=["user", "user"])
    assert np.array_equal(np.load(tmp_path / "user.npy"), user.read_dense().numpy())
    assert sorted(os.listdir(tmp_path)) == ["arrays", "folder", "store.safetensors", "user.npy"]


def test_a_store_that_is_opened_again_needs_no_module(tmp_path):
    with Store(tmp_path / "store", dram="4KiB", seed=1) as store:
        emb = bag(store)
        train(emb, "Adagrad")
        store.checkpoint("x")
        expected = emb.read_dense()
    with Store(tmp_path / "store", dram="4KiB") as store:
        store.export(tmp_path / "all.safetensors", optimizer_state=True)
    loaded = load_file(tmp_path / "all.safetensors")
    assert torch.equal(loaded["t.weight"], expected)
    assert loaded["t.sum"].any()
    assert loaded["t.step"] == 3


# --- what is refused


def test_what_cannot_be_exported_is_one_error_and_leaves_nothing(store, tmp_path):
    with pytest.raises(StateError, match="the store has no table"):
        store.export(tmp_path / "x.safetensors")
    emb, odd = bag(store), bag(store, "a/b", dtype=torch.bfloat16)
    (tmp_path / "folder.npy").mkdir()
    before = sorted(os.listdir(tmp_path))
    for export, error, message in (
        (lambda: emb.export(tmp_path / "x.pt"), ValueError, r"\.safetensors or a \.npy"),
        (lambda: emb.export(tmp_path / "x"), ValueError, r"\.safetensors or a \.npy"),
        (lambda: emb.export(tmp_path / "x.npy", dtype=torch.float64), ValueError, "dtype must be float32"),
        (lambda: emb.export(tmp_path / "folder.npy"), StateError, "is a folder; name a file"),
        (lambda: emb.export(tmp_path / "none/x.npy"), TierIOError, "No such file or directory"),
        (lambda: emb.export(tmp_path / "x.safetensors", optimizer_state=True), StateError, "no optimizer state"),
        (lambda: odd.export(tmp_path / "x.npy"), ValueError, "numpy has no bfloat16"),
        (lambda: store.export(tmp_path / "x.npy"), ValueError, "holds one array, not 't.weight', 'a/b.weight'"),
        (lambda: store.export(tmp_path / "x"), ValueError, "'a/b' cannot name a file"),
        (lambda: store.export(tmp_path / "x", format="pt"), ValueError, "'safetensors' or 'npy'"),
        (lambda: store.export(tmp_path / "x", tables=["y"]), StateError, "no table 'y'; its tables are: 't', 'a/b'"),
    ):
        with pytest.raises(error, match=message):
            export()
    train(emb)
    with pytest.raises(ValueError, match="holds one array"):
        emb.export(tmp_path / "x.npy", optimizer_state=True)
    assert sorted(os.listdir(tmp_path)) == before


def test_a_table_larger_than_the_disk_is_refused_with_both_numbers(store, tmp_path):
    emb = bag(store, rows=10**12, dim=64)
    message = rf"would take {10**12 * 256 + 128} bytes \(232\.8 TiB\), and \d+ \(.*\) are free there"
    with pytest.raises(TierIOError, match=message) as caught:
        emb.export(tmp_path / "t.safetensors")
    assert caught.value.errno == errno.ENOSPC
    store.export(tmp_path / "none.safetensors", tables=[bag(store, "small").table.name])
    with pytest.raises(TierIOError, match="would take"):
        store.export(tmp_path / "folder")
    assert os.listdir(tmp_path) == ["none.safetensors"]


@pytest.mark.parametrize("target", ["t.safetensors", "t.npy", "folder"])
def test_a_disk_that_fills_half_way_leaves_the_old_file_and_no_other(store, tmp_path, monkeypatch, target):
    emb = bag(store)
    if target != "folder":
        emb.export(tmp_path / target)
    before = {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)}
    write, calls = os.pwrite, []

    def fail(*arguments):
        calls.append(None)
        if len(calls) > 4:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(*arguments)

    train(emb)
    monkeypatch.setattr(os, "pwrite", fail)
    with pytest.raises(TierIOError, match=r"cannot write .*t.*nothing of it is left") as caught:
        emb.export(tmp_path / target) if target != "folder" else store.export(tmp_path / target)
    assert caught.value.errno == errno.ENOSPC
    assert {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)} == before
    monkeypatch.undo()
    train(emb)


def test_rows_that_change_meanwhile_are_noticed(store, tmp_path):
    emb = bag(store)

    def change(done, total):
        if done == total:
            emb.write_rows(torch.tensor([0]), torch.zeros(1, 7))

    with pytest.raises(StateError, match=r"rows changed while .* was written"):
        emb.export(tmp_path / "t.npy", progress=change)
    assert os.listdir(tmp_path) == []


def test_progress_counts_all_bytes(store, tmp_path):
    emb, seen = bag(store), []
    train(emb)
    emb.export(tmp_path / "t.safetensors", optimizer_state=True, progress=lambda *counts: seen.append(counts))
    total = 500 * 8 * 4 + 4
    assert seen[-1] == (total, total)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert len(seen) > 10


def test_memory_is_bounded(tmp_path, monkeypatch, anonymous_bytes):
    monkeypatch.undo()
    with Store(dram="4MiB", seed=1) as store:
        emb = TieredEmbedding(500_000, 64, store=store, name="t", init=init.uniform(-1, 1))
        before, peak = anonymous_bytes(), [0]
        emb.export(tmp_path / "t.safetensors", progress=lambda *_: peak.append(anonymous_bytes()))
        assert (tmp_path / "t.safetensors").stat().st_size > 122 * MIB
        assert max(peak) - before < 24 * MIB
        some = torch.arange(0, 500_000, 7919)
        with safe_open(tmp_path / "t.safetensors", framework="pt") as file:
            rows = torch.stack([file.get_slice("weight")[int(row)] for row in some])
        assert torch.equal(rows, emb.read_rows(some))


def test_a_link_is_followed(store, tmp_path):
    (tmp_path / "link.npy").symlink_to(tmp_path / "real.npy")
    bag(store).export(tmp_path / "link.npy")
    assert (tmp_path / "link.npy").is_symlink()
    assert np.load(tmp_path / "real.npy").shape == (500, 7)


def test_the_header_is_json_that_any_reader_takes(store, tmp_path):
    bag(store, "größe").export(tmp_path / "t.safetensors")
    store.export(tmp_path / "all.safetensors")
    data = (tmp_path / "all.safetensors").read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    assert header["größe.weight"] == {"dtype": "F32", "shape": [500, 7], "data_offsets": [0, 14000]}
