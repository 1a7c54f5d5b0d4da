"""The invariant: the same lookups and gradients give the same bits, whatever the budget, threads, instruction set,
floating-point state of the caller, or interruption. Extend it with every feature that could change a bit."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass
from random import Random

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


def replay(
    store, optimizer="rowwise_adagrad", dtype=torch.float32, between=lambda step: None, start=0, prefetch=None
):
    """Train on the recorded batches; return a hash of all outputs and the store's digest."""
    bags, update = open_model(store, optimizer, dtype)
    outputs = hashlib.sha256()
    loader = list(enumerate(BATCHES))[start:]
    if prefetch is not None:
        loader = mtrains.prefetch(loader, lambda item: {bags: (item[1].indices, item[1].offsets)}, **prefetch)
    for step, batch in loader:
        update.zero_grad()
        out = bags(batch.indices, batch.offsets)
        # Which NaN a sum of infinities gives is not defined (docs/exactness.md).
        shown = out.detach().masked_fill(out.detach().isnan(), torch.nan)
        outputs.update(shown.view(torch.uint8).numpy().tobytes())
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


@pytest.mark.parametrize("eviction", ["lru", "lfu", "s3-fifo"])
@pytest.mark.parametrize("prefetch", [None, {"lookahead": 0}, {"lookahead": 2, "depth": 1}])
def test_eviction_changes_no_bit(eviction, prefetch):
    expected = in_memory()
    with mtrains.Store(dram="24KiB", scm="48KiB", eviction=eviction, seed=3) as store:
        assert replay(store, prefetch=prefetch) == expected
        stats = store.stats()
        assert stats.eviction == eviction
        assert min(stats.tiers[tier]["evictions"] for tier in ("dram", "scm")) > 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sixteen_bit_weights_round_alike_in_any_budget(dtype):
    with mtrains.Store(dram="30KiB", seed=3) as store:
        assert replay(store, dtype=dtype) == in_memory(dtype=dtype)


@pytest.mark.parametrize("depth", [0, 1, 2, 8])
@pytest.mark.parametrize("lookahead", [0, 1, 8, 64])
@pytest.mark.parametrize("dram", ["24KiB", "60KiB", "3MiB"])
def test_prefetch_changes_no_bit(dram, lookahead, depth):
    with mtrains.Store(dram=dram, seed=3) as store:
        prefetch = {"lookahead": lookahead, "depth": depth}
        assert replay(store, prefetch=prefetch) == in_memory_once("rowwise_adagrad", torch.float32)
        assert store.engine.pinned_rows() == 0
        counters = store.stats().prefetch
        assert counters["staged"] > 0 or depth == 0 or dram == "24KiB"


def random_chain(random):
    """Return sizes of tiers, any subset of them, and budgets of tables, from barely one row to everything."""
    tiers = random.sample(["hbm", "dram", "scm"], random.randint(1, 3))
    sizes = {"dram": 0} | {tier: int(4096 * 2 ** random.uniform(2.5, 9)) for tier in tiers}
    budgets = {}
    for name, _, _, _ in SPECS:
        if random.random() < 0.4:
            tier = random.choice(tiers)
            fastest = min(tiers, key=["hbm", "dram", "scm"].index)
            passed_over = tier != fastest and random.random() < 0.4
            budgets[name] = {tier: 0 if passed_over else sizes[tier] // random.randint(4, 8)}
    return {**sizes, "budgets": budgets}


def random_prefetch(random):
    if random.random() < 0.3:
        return None
    return {"lookahead": random.choice([0, 1, 8, 64]), "depth": random.choice([0, 1, 2, 8])}


@functools.cache
def in_memory_once(optimizer, dtype):
    return in_memory(optimizer=optimizer, dtype=dtype)


@pytest.mark.parametrize("seed", range(30))
def test_no_chain_of_tiers_changes_a_bit(seed, tmp_path, restore_settings):
    """Any subset of the tiers, checkpoints beside training, a restore and another chain after it."""
    random = Random(seed)
    optimizer = list(OPTIMIZERS)[seed % len(OPTIMIZERS)]
    dtype = random.choice([torch.float32, torch.float16, torch.bfloat16])
    mtrains.set_num_threads(random.randint(1, 4))
    expected = in_memory_once(optimizer, dtype)
    with mtrains.Store(tmp_path / "store", seed=3, **random_chain(random)) as store:

        def checkpoint(step):
            if step % 3 == 1:
                store.checkpoint(step, wait=random.random() < 0.5)

        assert replay(store, optimizer, dtype, between=checkpoint, prefetch=random_prefetch(random)) == expected
        store.restore(7)
    with mtrains.Store(tmp_path / "store", **random_chain(random)) as store:
        assert replay(store, optimizer, dtype, start=8, prefetch=random_prefetch(random))[1] == expected[1]


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


# What a training loop does to a gradient that backward() gave. `grads` are the gradients of three lookups, their
# values and sums subnormal for float32 but for one column.


def scale_and_accumulate(train, grads):
    for grad, factor in zip(grads, (0.5, 0.25, 3.0), strict=True):
        train.backward(grad)
        train.bags.weight.grad.mul_(factor)
    train.update.step()


def add_a_multiple(train, grads):
    train.backward(grads[0])
    other = train.bags.weight.grad.clone()
    train.update.zero_grad()
    train.backward(grads[1])
    train.bags.weight.grad.div_(3.0).add_(other, alpha=0.3)
    train.update.step()


def scale_by_subnormal_factors(train, grads):
    train.backward(grads[0] * 0 + 0.75)
    train.bags.weight.grad.mul_(3e-39)
    train.update.step()
    train.update.zero_grad()
    train.backward(grads[1] * 0 + 0.75)
    train.bags.weight.grad.mul_(SUBNORMAL_FACTOR)
    train.update.step()


def clip_norm(norm_type, max_norm):
    def apply(train, grads):
        for grad in grads:
            train.update.zero_grad()
            train.backward(grad)
            train.record(torch.linalg.vector_norm(train.bags.weight.grad, norm_type))
            torch.nn.utils.clip_grad_norm_(train.bags.parameters(), max_norm, norm_type)
            train.update.step()

    return apply


def clip_value(train, grads):
    for grad in grads:
        train.update.zero_grad()
        train.backward(grad)
        torch.nn.utils.clip_grad_value_(train.bags.parameters(), 2e-39)
        train.update.step()


def grad_scaler(train, grads):
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    scaler.scale(torch.ones(()))
    for grad in grads:
        train.update.zero_grad()
        train.backward(grad)
        scaler.unscale_(train.update)
        torch.nn.utils.clip_grad_value_(train.bags.parameters(), 1.0)
        scaler.step(train.update)
        scaler.update()


def per_sample_weights(dtype):
    def apply(train, grads):
        weights = SUBNORMAL_WEIGHTS[dtype].clone().requires_grad_()
        for grad in grads:
            train.update.zero_grad()
            weights.grad = None
            train.backward(grad * 0 + 0.75, weights)
            train.record(weights.grad)
            train.update.step()
            train.update.zero_grad()
            weights.grad = None
            train.backward(grad, weights)  # of the rows that are subnormal now
            train.record(weights.grad)

    return apply


def sparse_gradient(train, grads):
    train.backward(grads[0])
    train.bags.weight.grad.mul_(0.5)
    train.record(train.bags.weight.grad.to_sparse().values())
    train.update.step()


TREATMENTS = {
    "scale_and_accumulate": scale_and_accumulate,
    "add_a_multiple": add_a_multiple,
    "scale_by_subnormal_factors": scale_by_subnormal_factors,
    "clip_norm": clip_norm(2.0, 0.5),
    "clip_norm_count": clip_norm(0.0, 3.0),
    "clip_norm_largest": clip_norm(float("inf"), 0.5),
    "clip_value": clip_value,
    "grad_scaler": grad_scaler,
    "float32_weights": per_sample_weights(torch.float32),
    "float64_weights": per_sample_weights(torch.float64),
    "bfloat16_weights": per_sample_weights(torch.bfloat16),
    "sparse_gradient": sparse_gradient,
}
SUBNORMAL_FACTOR = torch.tensor(3e-39)
SUBNORMAL_WEIGHTS = {
    dtype: torch.tensor([3e-39, -5e-40, 1.0, 2e-39, 7e-41, 0.5], dtype=torch.float64).to(dtype)
    for dtype in (torch.float32, torch.float64, torch.bfloat16)
}
FLUSH_BAGS = torch.tensor([1, 2, 3, 1, 4, 2]), torch.tensor([0, 2, 3])


class FlushedTraining:
    """A table of zeros, so that subnormal updates show, and a hash of what its lookups gave."""

    def __init__(self, store, dtype):
        init = mtrains.init.constant(0.0)
        self.bags = mtrains.TieredEmbeddingBag(
            9, 5, mode="sum", store=store, name="t", dtype=dtype, init=init
        )
        self.update = mtrains.optim.SGD(self.bags.parameters(), lr=0.5)
        self.outputs = hashlib.sha256()

    def backward(self, grad, weights=None):
        out = self.bags(*FLUSH_BAGS, per_sample_weights=weights)
        self.record(out)
        out.backward(grad)

    def record(self, values):
        self.outputs.update(values.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())


def train_with(treatment, dtype, flush):
    """Return the hash of outputs, the digest and the rows after `treatment` with subnormals flushed or not."""
    random = torch.Generator().manual_seed(5)
    grads = [torch.randn(3, 5, generator=random) * 4e-39 for _ in range(3)]
    for grad in grads:
        grad[:, 4] = 1.0
    grads = [grad.to(dtype) for grad in grads]
    with mtrains.Store(dram="1MiB", seed=3) as store:
        train = FlushedTraining(store, dtype)
        torch.set_flush_denormal(flush)
        TREATMENTS[treatment](train, grads)
        digest = store.digest()
        torch.set_flush_denormal(False)
        return train.outputs.hexdigest(), digest, train.bags.read_dense()


@pytest.mark.parametrize("treatment", TREATMENTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_flush_denormal_changes_no_bit_of_treated_gradients(treatment, dtype, restore_settings):
    outputs, digest, rows = train_with(treatment, dtype, flush=False)
    assert ((rows != 0) & (rows.abs() < 2.0**-126)).any()
    assert train_with(treatment, dtype, flush=True)[:2] == (outputs, digest)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_flush_denormal_changes_no_bit_of_sixteen_bit_weights(dtype, restore_settings):
    """Outputs and gradients that are converted from and to 16 bits, among them float16's own subnormals."""
    seen = set()
    for flush in (False, True):
        with mtrains.Store(dram="100KiB", seed=3) as store:
            bags, update = open_model(store, "sgd", dtype)
            hashed = hashlib.sha256()
            for batch in BATCHES[:4]:
                grad = (batch.grad * (1e-6 if dtype is torch.float16 else 1e-38)).to(dtype)
                torch.set_flush_denormal(flush)
                update.zero_grad()
                out = bags(batch.indices, batch.offsets)
                out.backward(grad)
                for weight in bags.parameters():
                    values = weight.grad.to_sparse().values()
                    hashed.update(values.view(torch.uint8).numpy().tobytes())
                hashed.update(out.detach().view(torch.uint8).numpy().tobytes())
                update.step()
                torch.set_flush_denormal(False)
            seen.add((hashed.hexdigest(), store.digest()))
    assert len(seen) == 1


def test_flush_denormal_lets_no_subnormal_into_the_row_of_padding(restore_settings):
    with mtrains.Store(dram="1MiB", seed=3) as store:
        rows = mtrains.TieredEmbedding(4, 2, padding_idx=1, store=store, name="t")
        values = torch.tensor([[3e-39, 0.0]])
        torch.set_flush_denormal(True)
        with pytest.raises(ValueError, match="reads as zeros"):
            rows.write_rows(torch.tensor([1]), values)
        rows.write_rows(torch.tensor([1]), torch.tensor([[0.0, -0.0]]))


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
