"""Imports: from tensors, arrays and files, in chunks, whole or with one clear error."""

import importlib
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from mtrains import (
    FormatError,
    MtrainsError,
    Store,
    TableSpec,
    TieredEmbedding,
    TieredEmbeddingBag,
    TieredEmbeddingBagCollection,
    TierIOError,
    optim,
)
from mtrains.tiered_table import TieredTable
from mtrains.transfer.sources import open_source

MIB = 1 << 20
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr("mtrains.tiered_table._CHUNK_BYTES", 1000)


def matrix(rows=500, dim=7, dtype=torch.float32):
    return torch.randn(rows, dim, generator=torch.Generator().manual_seed(0)).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", [TieredEmbeddingBag, TieredEmbedding])
def test_every_kind_of_source_gives_its_rows(store, tmp_path, kind, dtype):
    weight = matrix(dtype=dtype)
    save_file({"emb.weight": weight, "other": torch.zeros(2)}, tmp_path / "model.safetensors")
    save_file({"x": weight}, tmp_path / "one.safetensors")
    sources = [
        (weight, None),
        (str(tmp_path / "model.safetensors"), "emb.weight"),
        (tmp_path / "one.safetensors", None),
    ]
    if dtype is not torch.bfloat16:  # numpy has none
        np.save(tmp_path / "rows.npy", weight.numpy())
        np.save(tmp_path / "columns.npy", np.asfortranarray(weight.numpy()))
        np.save(tmp_path / "big_endian.npy", weight.numpy().astype(weight.numpy().dtype.newbyteorder(">")))
        sources += [(weight.numpy(), None), (weight.numpy()[::-1][::-1], None)]
        sources += [(tmp_path / f"{name}.npy", None) for name in ("rows", "columns", "big_endian")]
        sources += [(np.load(tmp_path / f"{name}.npy", mmap_mode="r"), None) for name in ("rows", "columns")]
    expected = weight.float() if dtype is torch.float64 else weight
    for number, (source, key) in enumerate(sources):
        emb = kind.from_pretrained(source, store=store, name=f"t{number}", key=key)
        assert emb.weight.dtype is expected.dtype
        assert torch.equal(emb.read_dense(), expected), source


def test_dtype_is_the_tables(store, tmp_path):
    weight = matrix()
    np.save(tmp_path / "rows.npy", weight.numpy())
    half = TieredEmbeddingBag.from_pretrained(tmp_path / "rows.npy", store=store, name="h", dtype=torch.float16)
    assert torch.equal(half.read_dense(), weight.half())
    brain = TieredEmbedding(500, 7, _weight=weight.double(), dtype=torch.bfloat16, store=store, name="b")
    assert torch.equal(brain.read_dense(), weight.bfloat16())


def test_a_table_of_a_collection_is_filled_from_a_file(store, tmp_path):
    weight = matrix(20, 3)
    np.save(tmp_path / "user.npy", weight.numpy())
    tables = TieredEmbeddingBagCollection([TableSpec("user", 20, 3)], store=store)
    tables.embedding_bags["user"].write_dense(tmp_path / "user.npy")
    assert torch.equal(tables.embedding_bags["user"].read_dense(), weight)
    np.save(tmp_path / "longer.npy", matrix(21, 3).numpy())
    with pytest.raises(ValueError, match=r"table 'user': expected a weight of shape \(20, 3\), got \(21, 3\)"):
        tables.embedding_bags["user"].write_dense(tmp_path / "longer.npy")


@pytest.mark.parametrize("shape", [(0, 3), (1, 1), (0, 0)])
def test_tables_of_no_row(store, tmp_path, shape):
    np.save(tmp_path / "rows.npy", np.ones(shape, np.float32))
    save_file({"weight": torch.ones(shape)}, tmp_path / "rows.safetensors")
    for name in ("rows.npy", "rows.safetensors"):
        if shape[1] == 0:
            with pytest.raises(ValueError, match="embedding_dim must be"):
                TieredEmbedding.from_pretrained(tmp_path / name, store=store, name=name)
        else:
            emb = TieredEmbedding.from_pretrained(tmp_path / name, store=store, name=name)
            assert torch.equal(emb.read_dense(), torch.ones(shape))


# --- what is refused


@pytest.mark.parametrize(
    ("weight", "error", "message"),
    [
        (torch.ones(3), ValueError, "shape"),
        (torch.ones(3, 2, 2), ValueError, "shape"),
        (torch.ones(3, 2, dtype=torch.int64), TypeError, "int64"),
        (torch.ones(3, 2, dtype=torch.complex64), TypeError, "complex64"),
        (torch.ones(3, 2, device="meta"), TypeError, "meta"),
        (torch.eye(3).to_sparse(), TypeError, "sparse"),
        (np.ones((3, 2), np.int32), TypeError, "int32"),
        (np.ones((3, 2), np.longdouble), TypeError, str(np.dtype(np.longdouble))),
        (np.ones(3, np.float32), ValueError, "shape"),
        ([[1.0]], TypeError, "list"),
        ("rows.pt", ValueError, r"torch\.load"),
        ("rows", ValueError, r"\.npy and \.safetensors"),
    ],
)
def test_what_is_no_weight_is_refused_and_makes_no_table(store, weight, error, message):
    with pytest.raises(error, match=message):
        TieredEmbeddingBag.from_pretrained(weight, store=store, name="t")
    assert store.tables() == []


def test_damaged_files_are_refused_and_make_no_table(store, tmp_path):
    np.save(tmp_path / "rows.npy", matrix().numpy())
    save_file({"weight": matrix()}, tmp_path / "rows.safetensors")
    np.save(tmp_path / "objects.npy", np.array([[None]]), allow_pickle=True)
    np.save(tmp_path / "numbers.npy", np.ones((2, 2), np.int16))
    for name in ("rows.npy", "rows.safetensors"):
        whole = (tmp_path / name).read_bytes()
        for cut in (0, 5, 30, len(whole) // 2, len(whole) - 1):
            (tmp_path / name).write_bytes(whole[:cut])
            with pytest.raises(FormatError, match=name):
                TieredEmbedding.from_pretrained(tmp_path / name, store=store, name="t")
    for name, what in (("objects.npy", "object"), ("numbers.npy", "int16")):
        with pytest.raises(TypeError, match=rf"{name} must be float32.*{what}"):
            TieredEmbedding.from_pretrained(tmp_path / name, store=store, name="t")
    for name in ("none.npy", "none.safetensors"):
        with pytest.raises(FileNotFoundError, match=name):
            TieredEmbedding.from_pretrained(tmp_path / name, store=store, name="t")
    assert store.tables() == []


def test_the_key_of_a_tensor(store, tmp_path):
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.ones(2, 2), "b": torch.ones(2), "c": torch.ones(2, 2, dtype=torch.int8)}, path)
    for key, error, message in (
        (None, ValueError, "holds 3 tensors: give key=, one of 'a', 'b', 'c'"),
        ("x", ValueError, "has no tensor 'x'; it holds 'a', 'b', 'c'"),
        ("b", ValueError, "shape"),
        ("c", TypeError, "I8"),
    ):
        with pytest.raises(error, match=message):
            TieredEmbedding.from_pretrained(path, store=store, name="t", key=key)
    with pytest.raises(ValueError, match=r"key='a' names a tensor of a \.safetensors file"):
        TieredEmbedding.from_pretrained(torch.ones(2, 2), store=store, name="t", key="a")
    save_file({f"t{i}": torch.ones(1) for i in range(20)}, path)
    with pytest.raises(ValueError, match="and 12 more"):
        TieredEmbedding.from_pretrained(path, store=store, name="t")


def test_without_the_package_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(ImportError, match=r"pip install 'mtrains\[safetensors\]'"):
        TieredEmbedding.from_pretrained(tmp_path / "rows.safetensors")
    assert importlib.import_module("mtrains.transfer.export")  # writing needs no package


def test_a_padding_row_is_looked_at_before_anything_is_written(store):
    weight = matrix()
    with pytest.raises(ValueError, match="padding_idx=400 reads as zeros"):
        TieredEmbedding.from_pretrained(weight, padding_idx=400, store=store, name="t")
    assert store.engine.table_info(0)["touched_rows"] == 0
    emb = TieredEmbedding(500, 7, padding_idx=400, store=store, name="t")
    with pytest.raises(ValueError, match="padding_idx=400"):
        emb.write_rows(torch.arange(500), weight)
    assert store.engine.table_info(0)["touched_rows"] == 0
    weight[400] = 0
    emb.write_rows(torch.arange(500), weight)
    assert torch.equal(emb.read_dense(), weight)


# --- half way


def test_a_file_that_is_cut_while_it_is_read_leaves_a_usable_store(store, tmp_path, monkeypatch):
    path = tmp_path / "rows.npy"
    np.save(path, matrix().numpy())
    other = TieredEmbedding.from_pretrained(matrix(50), store=store, name="other", freeze=False)
    write, calls = TieredTable._write, []

    def cut(self, numbers, rows):
        calls.append(len(numbers))
        if len(calls) == 3:
            os.truncate(path, 4000)
        write(self, numbers, rows)

    monkeypatch.setattr(TieredTable, "_write", cut)
    with pytest.raises(FormatError, match=r"rows\.npy ends at byte 4000, while it is read"):
        TieredEmbedding.from_pretrained(path, store=store, name="t")
    monkeypatch.undo()
    train_a_step(other)
    np.save(path, matrix().numpy())
    again = TieredEmbedding.from_pretrained(path, store=store, name="t")
    assert torch.equal(again.read_dense(), matrix())


def test_a_disk_that_fails_is_an_error_with_path_and_byte(tmp_path, monkeypatch):
    np.save(tmp_path / "rows.npy", matrix().numpy())

    def fail(*_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "preadv", fail)
    with pytest.raises(TierIOError, match=r"cannot read .*rows\.npy at byte 128") as caught:
        TieredEmbedding.from_pretrained(tmp_path / "rows.npy")
    assert caught.value.errno == 5


def test_a_full_store_keeps_what_a_checkpoint_had_and_trains_on(tmp_path, monkeypatch):
    monkeypatch.undo()  # chunks of the real size
    np.save(tmp_path / "rows.npy", np.ones((200_000, 128), np.float32))  # 98 MiB
    with Store(tmp_path / "store", dram="2MiB", ssd="64MiB", seed=1) as store:
        other = TieredEmbedding.from_pretrained(matrix(50), store=store, name="other", freeze=False)
        store.checkpoint("before")
        with pytest.raises(MtrainsError, match=r"ssd=|room|free"):
            TieredEmbedding.from_pretrained(tmp_path / "rows.npy", store=store, name="big")
        assert torch.equal(other.read_dense(), matrix(50))
        store.restore("before")
        assert torch.equal(other.read_dense(), matrix(50))
        assert store.engine.table_info(store.tables(["big"])[0].number)["touched_rows"] == 0
        train_a_step(other)
        store.checkpoint("after")
        after = store.digest()
    with Store(tmp_path / "store") as store:
        assert store.digest() == after


def train_a_step(emb):
    optimizer = optim.SGD(emb.parameters(), lr=0.1)
    before = emb.read_rows(torch.tensor([3]))
    emb.weight.requires_grad_(True)
    emb(torch.tensor([3])).sum().backward()
    optimizer.step()
    assert not torch.equal(emb.read_rows(torch.tensor([3])), before)


# --- memory


@pytest.mark.parametrize("suffix", ["npy", "memmap", "safetensors"])
def test_a_table_larger_than_memory_goes_to_its_tier_in_chunks(tmp_path, monkeypatch, suffix, anonymous_bytes):
    monkeypatch.undo()
    path = tmp_path / ("rows.safetensors" if suffix == "safetensors" else "rows.npy")
    rows, dim = 600_000, 64  # 146 MiB: 18 times dram
    mapped = _large_file(path, rows, dim)
    source = mapped if suffix == "memmap" else path
    peak, write = [0], TieredTable._write

    def measured(self, numbers, values):
        write(self, numbers, values)
        peak[0] = max(peak[0], anonymous_bytes())

    monkeypatch.setattr(TieredTable, "_write", measured)
    with Store(dram="8MiB", seed=1) as store:
        before = anonymous_bytes()
        emb = TieredEmbeddingBag.from_pretrained(source, store=store, name="t", mode="sum")
        # The budget, a chunk in two forms, buffers on their way to the log; a row's place in the directory and in
        # the list of changes that the next checkpoint writes, which grows by doubling.
        assert peak[0] - before < (8 + 8 + 32) * MIB + (8 + 32) * rows
        some = torch.arange(0, rows, 7919)
        assert torch.equal(emb.read_rows(some), torch.from_numpy(np.array(mapped[some.numpy()])))


def _large_file(path: Path, rows, dim):
    """Write rows whose first value is their number; return them mapped."""
    if path.suffix == ".npy":
        mapped = np.lib.format.open_memmap(path, "w+", np.float32, (rows, dim))
    else:
        from mtrains.transfer.file_layout import Array, safetensors_layout

        layout = safetensors_layout([Array(name="weight", dtype="float32", shape=(rows, dim))])
        with open(path, "wb") as file:
            file.write(layout.head)
            file.truncate(layout.num_bytes)
        mapped = np.memmap(path, np.float32, "r+", layout.offsets[0], (rows, dim))
    mapped[:, 0] = np.arange(rows)
    mapped.flush()
    return mapped


def test_open_source_reads_no_more_than_is_asked_for(tmp_path):
    path = tmp_path / "rows.npy"
    with open(path, "wb") as file:  # 1 TiB of zeros that nobody has written
        np.lib.format.write_array_header_1_0(
            file, {"descr": "<f4", "fortran_order": False, "shape": (1 << 32, 64)}
        )
        try:
            file.truncate(file.tell() + (1 << 32) * 64 * 4)
        except OSError:
            pytest.skip("the file system has no files of this size")
    with open_source(path) as source:
        assert source.shape == (1 << 32, 64)
        assert torch.equal(source.read((1 << 32) - 2, 1 << 32), torch.zeros(2, 64))
