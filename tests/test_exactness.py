"""The invariant: the same lookups and gradients give the same bits, whatever the budget, threads, instruction set,
floating-point state of the caller, or interruption. Extend it with every feature that could change a bit."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import pytest
import torch

import mtrains
from mtrains import _native

SPECS = (("a", 3000, 16, "sum"), ("b", 50, 7, "mean"), ("c", 100_000, 33, "sum"))
STEPS = 12
BATCH = 48
OPTIMIZERS = {
    "sgd": mtrains.optim.SGD,
    "adagrad": mtrains.optim.Adagrad,
    "rowwise_adagrad": mtrains.optim.RowWiseAdagrad,
    "sparse_adam": mtrains.optim.SparseAdam,
    "partial_rowwise_adam": mtrains.optim.PartialRowWiseAdam,
}
NUM_COLUMNS = sum(dim for _, _, dim, _ in SPECS)


@dataclass(frozen=True)
class Batch:
    """Feature-major indices and offsets, and the gradient that came back when it was recorded."""

    indices: torch.Tensor
    offsets: torch.Tensor
    grad: torch.Tensor


def recorded_batches(steps=STEPS):
    """Batches with duplicates, empty bags, subnormal and huge gradients."""
    random = torch.Generator().manual_seed(11)
    batches = []
    for _ in range(steps):
        lengths = torch.randint(0, 5, (len(SPECS) * BATCH,), generator=random)
        indices = []
        for number, (_, rows, _, _) in enumerate(SPECS):
            count = int(lengths[number * BATCH : (number + 1) * BATCH].sum())
            skewed = torch.rand(count, generator=random) ** 4
            indices.append((skewed * rows).long().clamp_(max=rows - 1))
        grad = torch.randn(BATCH, NUM_COLUMNS, generator=random)
        grad[torch.rand(grad.shape, generator=random) < 0.05] *= 1e-38
        grad[torch.rand(grad.shape, generator=random) < 0.01] *= 1e6
        batches.append(Batch(torch.cat(indices), torch.cat([torch.zeros(1), lengths.cumsum(0)]).long(), grad))
    return batches


BATCHES = recorded_batches()


def open_model(store, optimizer, dtype):
    tables = [mtrains.TableSpec(name, rows, dim, mode=mode, dtype=dtype) for name, rows, dim, mode in SPECS]
    bags = mtrains.TieredEmbeddingBagCollection(tables, store=store)
    return bags, OPTIMIZERS[optimizer](bags.parameters(), lr=0.05)


def replay(store, optimizer="rowwise_adagrad", dtype=torch.float32, between=lambda step: None, start=0):
    """Train on the recorded batches; return a hash of all outputs and the store's digest."""
    bags, update = open_model(store, optimizer, dtype)
    outputs = hashlib.sha256()
    for step, batch in enumerate(BATCHES):
        if step < start:
            continue
        update.zero_grad()
        out = bags(batch.indices, batch.offsets)
        outputs.update(out.detach().view(torch.uint8).numpy().tobytes())
        out.backward(batch.grad.to(dtype))
        update.step()
        between(step)
    return outputs.hexdigest(), store.digest()


def in_memory(**options):
    with mtrains.Store(dram="1GiB", seed=3) as store:
        return replay(store, **options)


@pytest.fixture
def restore_settings():
    yield
    _native.set_isa(_best_isa())
    mtrains.set_num_threads(torch.get_num_threads())
    torch.set_flush_denormal(False)


def _best_isa():
    for name in ("avx512", "avx2", "portable"):
        try:
            _native.set_isa(name)
        except ValueError:
            continue
        return name
    raise AssertionError


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("dram", ["24KiB", "200KiB", "3MiB"])
def test_budget_changes_no_bit(optimizer, dram):
    expected = in_memory(optimizer=optimizer)
    with mtrains.Store(dram=dram, seed=3) as store:
        assert replay(store, optimizer) == expected
        counters = store.stats().to_dict()["tiers"]["dram"]
        assert counters["evictions"] > 0 or dram != "24KiB"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sixteen_bit_weights_round_alike_in_any_budget(dtype):
    with mtrains.Store(dram="30KiB", seed=3) as store:
        assert replay(store, dtype=dtype) == in_memory(dtype=dtype)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_threads_instruction_set_and_flush_denormal_change_no_bit(optimizer, restore_settings):
    digests = {}
    for isa in ("portable", "avx2", "avx512"):
        try:
            _native.set_isa(isa)
        except ValueError:
            continue
        for threads in (1, 2, 3, 4):
            mtrains.set_num_threads(threads)
            for flush in (False, True):
                torch.set_flush_denormal(flush)
                with mtrains.Store(dram="100KiB", seed=3) as store:
                    digests[isa, threads, flush] = replay(store, optimizer)
                torch.set_flush_denormal(False)
    assert len(digests) >= 8
    assert set(digests.values()) == {in_memory(optimizer=optimizer)}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_interruption_changes_no_bit(optimizer, tmp_path):
    """Train, checkpoint, go on (lost), reopen there, go on: as without interruption, state and counts too."""
    expected = in_memory(optimizer=optimizer)[1]
    with mtrains.Store(tmp_path / "store", dram="40KiB", seed=3) as store:

        def save(step):
            if step == 4:
                store.checkpoint("half")

        replay(store, optimizer, between=save)
        digest = store.digest()
        store.restore("half")
        assert store.digest() != digest
    for dram in ("1GiB", "24KiB"):
        with mtrains.Store(tmp_path / "store", dram=dram) as store:
            assert replay(store, optimizer, start=5)[1] == expected


def test_checkpoints_and_flushes_beside_training_change_no_bit(tmp_path):
    with mtrains.Store(tmp_path / "store", dram="60KiB", seed=3, keep=3) as store:

        def disturb(step):
            if step % 3 == 0:
                store.checkpoint(step, wait=False)
            if step % 3 == 1:
                store.flush()

        assert replay(store, between=disturb) == in_memory()


def test_another_seed_or_name_gives_other_rows():
    with mtrains.Store(dram="1MiB", seed=4) as store:
        assert replay(store) != in_memory()


def test_accumulating_two_batches_equals_one_fold_in_forward_order():
    """Two lookups before a step, and their backward in either order, give the same bits in any budget."""
    digests = set()
    for dram in ("1GiB", "24KiB"):
        for backward_order in ((0, 1), (1, 0)):
            with mtrains.Store(dram=dram, seed=3) as store:
                bags, update = open_model(store, "rowwise_adagrad", torch.float32)
                for step in range(0, STEPS, 2):
                    pair = BATCHES[step : step + 2]
                    update.zero_grad()
                    outputs = [bags(batch.indices, batch.offsets) for batch in pair]
                    for number in backward_order:
                        outputs[number].backward(pair[number].grad)
                    update.step()
                digests.add(store.digest())
    assert len(digests) == 1
