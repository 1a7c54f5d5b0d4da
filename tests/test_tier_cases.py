"""What other systems got wrong with rows that move between tiers, told as tests: the trigger and what must hold."""

import errno

import pytest
import torch

import mtrains
from mtrains.tiers import scm
from mtrains.tiers.hbm import HbmRecords
from mtrains.tiers.scm_lmdb import LmdbArena

TIERS = {
    "dram": {"dram": "1100"},
    "hbm_dram": {"hbm": "600", "dram": "600"},
    "dram_scm": {"dram": "600", "scm": "12KiB"},
}


@pytest.fixture(params=TIERS)
def few_slots(request):
    """Memory for a handful of rows of 8 columns."""
    return TIERS[request.param]


def train(steps, between=lambda step: None, **memory):
    """Train on random bags and return the digest; between(step) runs after each backward."""
    random = torch.Generator().manual_seed(4)
    with mtrains.Store(seed=1, **memory) as store:
        bag = mtrains.TieredEmbeddingBag(200, 8, mode="sum", store=store, name="t")
        optimizer = mtrains.optim.Adagrad(bag.parameters(), lr=0.1)
        for _ in range(steps):
            optimizer.zero_grad()
            loss = bag(torch.randint(200, (6, 3), generator=random)).sum() ** 2
            loss.backward()
            between(bag)
            optimizer.step()
        return store.digest()


def test_a_second_batch_that_drives_out_the_rows_of_the_first_changes_nothing(few_slots):
    """Lookups between a batch's backward and its step, of more rows than there are slots."""

    def look_elsewhere(bag):
        with torch.no_grad():
            bag(torch.arange(0, 200, 3)[None])
            bag(torch.arange(1, 200, 3)[None])

    assert train(20, look_elsewhere, **few_slots) == train(20, dram="1MiB")


def test_a_row_in_two_batches_of_one_step_has_one_copy(few_slots):
    """Row 7 is looked up twice before the step, with other rows in between, and after it has the update of both."""
    rows = []
    for memory in (few_slots, {"dram": "1MiB"}):
        with mtrains.Store(seed=1, **memory) as store:
            table = mtrains.TieredEmbedding(200, 8, store=store, name="t")
            optimizer = mtrains.optim.SGD(table.parameters(), lr=0.5)
            first = table(torch.tensor([7]))
            with torch.no_grad():
                table(torch.arange(200))
            second = table(torch.tensor([7]))
            (first.sum() + 2 * second.sum()).backward()
            optimizer.step()
            with torch.no_grad():
                rows.append(table(torch.tensor([7])))
            assert torch.equal(rows[-1], first.detach() - 0.5 * 3)
    assert torch.equal(*rows)


def test_a_row_is_written_back_after_its_update(few_slots):
    """Every update is followed by lookups that drive the row out; what comes back is the row after the update."""
    with mtrains.Store(seed=1, **few_slots) as store:
        table = mtrains.TieredEmbedding(200, 8, store=store, name="t")
        optimizer = mtrains.optim.SGD(table.parameters(), lr=1.0)
        expected = table.read_rows(torch.arange(200))
        for step in range(60):
            row = torch.tensor([step % 5])
            optimizer.zero_grad()
            table(row).sum().backward()
            optimizer.step()
            expected[row] -= 1.0
            with torch.no_grad():
                table(torch.arange(100, 180))
            assert torch.equal(table.read_rows(row), expected[row])


def test_moving_or_converting_a_module_leaves_the_rows(few_slots):
    with mtrains.Store(seed=1, **few_slots) as store:
        model = torch.nn.Sequential(mtrains.TieredEmbedding(200, 8, store=store, name="t"), torch.nn.Linear(8, 2))
        rows = model[0].read_rows(torch.arange(200))
        model.half().to("cpu").double()
        assert model[1].weight.dtype is torch.float64
        assert model[0].weight.dtype is torch.float32
        assert torch.equal(model[0].read_rows(torch.arange(200)), rows)


def test_a_checkpoint_taken_while_training_has_weights_and_states_of_one_moment(tmp_path, few_slots):
    """Weights of Adagrad follow from the sums: after gradients of 1 alone, row and state give the number of updates."""
    with mtrains.Store(tmp_path / "store", seed=1, **few_slots) as store:
        init = mtrains.init.constant(0.0)
        table = mtrains.TieredEmbedding(200, 8, store=store, name="t", init=init)
        optimizer = mtrains.optim.SGD(table.parameters(), lr=1.0)
        for step in range(40):
            optimizer.zero_grad()
            table(torch.arange(200)).sum().backward()
            optimizer.step()
            if step % 8 == 5:
                store.checkpoint(step, wait=False)
        store.flush()
        assert set(table.read_rows(torch.arange(200)).flatten().tolist()) == {-40.0}
        newest = store.checkpoints()[-1].tag
    with mtrains.Store(tmp_path / "store") as store:
        table = mtrains.TieredEmbedding(200, 8, store=store, name="t", init=init)
        assert set(table.read_rows(torch.arange(200)).flatten().tolist()) == {-float(newest + 1)}
        assert table.table.optimizer.step == newest + 1


def test_an_scm_arena_that_cannot_grow_is_an_error_and_training_goes_on(monkeypatch):
    """Its file system is full for a while. Nothing is lost: the step, whose rows fit together, is repeated."""
    monkeypatch.setattr(scm, "CHUNK_BYTES", 16 << 10)
    allocate, full = LmdbArena._allocate, set()

    def allocate_if_there_is_room(self, length):
        if full:
            raise mtrains.TierIOError(errno.ENOSPC, "the arena's file system is full")
        return allocate(self, length)

    monkeypatch.setattr(LmdbArena, "_allocate", allocate_if_there_is_room)
    failures, random = 0, torch.Generator().manual_seed(4)
    with mtrains.Store(seed=1, dram="8KiB", scm="256KiB") as store, mtrains.Store(seed=1) as other:
        bags = [mtrains.TieredEmbeddingBag(3000, 8, mode="sum", store=s, name="t") for s in (store, other)]
        optimizers = [mtrains.optim.SparseAdam(bag.parameters(), lr=0.1) for bag in bags]
        for _ in range(60):
            rows = torch.randint(3000, (20, 2), generator=random)
            full.add("until a step has failed of it")
            while True:
                try:
                    for bag, optimizer in zip(bags, optimizers, strict=True):
                        optimizer.zero_grad()
                        bag(rows).sum().backward()
                        optimizer.step()
                    break
                except mtrains.TierIOError:
                    failures += 1
                    full.clear()
        assert failures > 3
        assert store.digest() == other.digest()
        assert store.stats().tiers["scm"]["rows_in"] > 0


@pytest.mark.parametrize("call", ["store", "load", "resize"])
def test_a_device_that_fails_while_rows_move_loses_none(call, monkeypatch):
    """Ctrl-C in the middle of a copy, or a device without memory: the rows are what they were."""
    original, countdown, failures = getattr(HbmRecords, call), [0], 0

    def fail_in_turn(self, *arguments):
        countdown[0] -= 1
        if countdown[0] == 0:
            raise KeyboardInterrupt
        return original(self, *arguments)

    monkeypatch.setattr(HbmRecords, call, fail_in_turn)
    random = torch.Generator().manual_seed(4)
    with mtrains.Store(seed=1, hbm="12KiB", dram="16KiB", scm="32KiB") as store:
        # Of two record lengths, so that slots are lent.
        tables = [mtrains.TieredEmbedding(400, dim, store=store, name=f"dim{dim}") for dim in (8, 24)]
        expected = [torch.randn(400, dim) for dim in (8, 24)]
        for table, rows in zip(tables, expected, strict=True):
            table.write_rows(torch.arange(400), rows)
        for step in range(120):
            which = step // 5 % 2
            rows = torch.randint(400, (60,), generator=random)
            countdown[0] = 1 + step % 3
            try:
                with torch.no_grad():
                    assert torch.equal(tables[which](rows), expected[which][rows])
            except KeyboardInterrupt:
                failures += 1
            countdown[0] = 0
            for table, all_rows in zip(tables, expected, strict=True):
                assert torch.equal(table.read_rows(torch.arange(400)), all_rows)
    assert failures > 2


def test_a_store_that_is_used_within_one_of_its_own_calls_says_so(monkeypatch):
    """As by a signal handler or a finalizer that Python runs while rows are copied to the device."""
    original, said = HbmRecords.store, []

    def store_and_look(self, slots, records):
        for use in (store.stats, lambda: table.read_rows(torch.tensor([1])), lambda: store.checkpoint("now")):
            with pytest.raises(mtrains.StateError, match="in the middle of another call") as error:
                use()
            said.append(error)
        original(self, slots, records)

    with mtrains.Store(seed=1, hbm="8KiB", dram="64KiB") as store:
        table = mtrains.TieredEmbedding(100, 8, store=store, name="t")
        expected = table.read_rows(torch.arange(100))
        with monkeypatch.context() as patch, torch.no_grad():
            patch.setattr(HbmRecords, "store", store_and_look)
            assert torch.equal(table(torch.arange(100)), expected)
        assert said
        store.checkpoint("afterwards")


def test_an_arena_that_others_have_filled_still_has_what_a_table_was_promised():
    """An arena is mapped in units, so a table may find no unit left of its own budget: it takes what is shared."""
    budgets = {"own": {"scm": "8KiB"}}
    for tiers in ({"dram": 0, "scm": "64KiB"}, {"dram": "4KiB", "scm": "64KiB"}):
        with mtrains.Store(seed=1, budgets=budgets, **tiers) as store:
            shared, own = (mtrains.TieredEmbedding(5000, 8, store=store, name=name) for name in ("shared", "own"))
            for table in (shared, own):
                table.write_rows(torch.arange(5000), torch.ones(5000, 8))
            with torch.no_grad():
                assert (own(torch.arange(100)) == 1).all()
                assert (shared(torch.arange(5000)) == 1).all()
            assert store.stats().tiers["scm"]["used_bytes"] <= 64 << 10


def test_a_device_is_named_as_its_tensors_name_it(monkeypatch):
    """torch.device("cuda") equals the device of no tensor, so every index tensor on it would be refused."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    named = {device: str(mtrains.Hbm(4096, device).torch_device) for device in (None, "cuda", "cuda:0", "cpu", "cpu:0")}
    assert named == {None: "cuda:1", "cuda": "cuda:1", "cuda:0": "cuda:0", "cpu": "cpu", "cpu:0": "cpu"}
