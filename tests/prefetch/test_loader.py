"""mtrains.prefetch: the loader's own batches, their rows there when they come, and nothing left behind."""

import os
import signal
import threading
import time

import pytest
import torch

import mtrains

ROWS, DIM, SIZE = 2000, 8, 16


class Stateful:
    """A loader that knows len, batch_size, set_epoch and its state."""

    def __init__(self, batches):
        self.batches, self.batch_size, self.epoch, self.position = batches, SIZE, 0, 0

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        while self.position < len(self.batches):
            self.position += 1
            yield self.batches[self.position - 1]
        self.position = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


def make_batches(count=20, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(ROWS, (SIZE, 3), generator=generator) for _ in range(count)]


@pytest.fixture
def bag():
    # Room for some four batches.
    with mtrains.Store(dram=f"{4 * 3 * SIZE * (4 * (DIM + 1) + 16)}", seed=1) as store:
        yield mtrains.TieredEmbeddingBag(ROWS, DIM, mode="sum", store=store, name="rows")


@pytest.fixture(autouse=True)
def no_thread_is_left():
    before = set(threading.enumerate())
    yield
    left = [thread for thread in threading.enumerate() if thread not in before and "mtrains" in thread.name]
    assert [thread.name for thread in left if thread.name in ("mtrains-read", "mtrains-stage")] == []


def train(bag, loader, *, optimizer=None, look_up=True):
    optimizer = optimizer or mtrains.optim.RowWiseAdagrad(bag.parameters(), lr=0.1)
    for batch in loader:
        if look_up:
            optimizer.zero_grad()
            bag(batch).square().sum().backward()
            optimizer.step()
    return bag.store.digest()


def counters(bag):
    return bag.store.stats().prefetch


def expected_digest(batches):
    with mtrains.Store(dram="64MiB", seed=1) as store:
        return train(mtrains.TieredEmbeddingBag(ROWS, DIM, mode="sum", store=store, name="rows"), batches)


# --- the loader


@pytest.mark.parametrize(("lookahead", "depth"), [(0, 0), (1, 0), (0, 1), (64, 2), (3, 8), (1000, 30)])
def test_batches_come_as_they_are_in_order_in_every_epoch(bag, lookahead, depth):
    batches = make_batches()
    loader = mtrains.prefetch(batches, lambda batch: {bag: batch}, lookahead=lookahead, depth=depth)
    for _ in range(3):
        got = list(loader)
        assert len(got) == len(batches)
        assert all(mine is theirs for mine, theirs in zip(got, batches, strict=True))
        assert bag.store.engine.pinned_rows() == 0


def test_an_empty_loader_and_empty_batches(bag):
    assert list(mtrains.prefetch([], lambda batch: {bag: batch})) == []
    batches = [torch.empty((0, 3), dtype=torch.int64), torch.empty((3, 0), dtype=torch.int64)] * 3
    train(bag, mtrains.prefetch(batches, lambda batch: {bag: batch}))


def test_attributes_are_the_loaders(bag):
    inner = Stateful(make_batches())
    loader = mtrains.prefetch(inner, lambda batch: {bag: batch})
    loader.set_epoch(4)
    assert (len(loader), loader.batch_size, inner.epoch) == (20, SIZE, 4)
    with pytest.raises(AttributeError, match="sampler"):
        _ = loader.sampler
    with pytest.raises(TypeError):
        len(mtrains.prefetch(iter([]), lambda batch: {}))


def test_state_dict_is_of_the_batch_given_out_last_not_read_last(bag):
    batches = make_batches()
    loader = mtrains.prefetch(Stateful(batches), lambda batch: {bag: batch}, lookahead=6)
    iterator = iter(loader)
    for _ in range(5):
        next(iterator)
    time.sleep(0.05)  # it reads on
    state = loader.state_dict()
    iterator.close()
    resumed = mtrains.prefetch(Stateful(batches), lambda batch: {bag: batch})
    resumed.load_state_dict(state)
    assert [batch is expected for batch, expected in zip(resumed, batches[5:], strict=True)] == [True] * 15


def test_state_dict_after_a_break_and_after_the_end(bag):
    loader = mtrains.prefetch(Stateful(make_batches()), lambda batch: {bag: batch}, lookahead=6)
    for number, _ in enumerate(loader):
        if number == 4:
            break
    assert loader.state_dict() == {"position": 5}
    loader.load_state_dict({"position": 0})
    assert len(list(loader)) == 20
    assert loader.state_dict() == {"position": 0}  # the loader's own: it begins anew


def test_a_state_that_the_loader_goes_on_changing(bag):
    inner = Stateful(make_batches())
    state = {"position": 0}

    def live_state():
        state["position"] = inner.position
        return state

    inner.state_dict = live_state
    loader = mtrains.prefetch(inner, lambda batch: {bag: batch}, lookahead=6)
    iterator = iter(loader)
    next(iterator)
    time.sleep(0.05)
    assert loader.state_dict() == {"position": 1}


def test_the_samplers_draws_from_torchs_generator_come_when_they_did(bag):
    def order(wrap):
        torch.manual_seed(5)
        loader = wrap(torch.utils.data.DataLoader(torch.arange(64), batch_size=4, shuffle=True))
        return [(batch.tolist(), torch.rand(()).item()) for batch in loader]

    assert order(lambda loader: mtrains.prefetch(loader, lambda batch: {bag: batch[:, None]})) == order(lambda x: x)


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_a_dataloader_with_workers(bag, context):
    ids = torch.cat(make_batches())
    inner = torch.utils.data.DataLoader(
        ids, batch_size=SIZE, num_workers=2, multiprocessing_context=context, persistent_workers=True
    )
    loader = mtrains.prefetch(inner, lambda batch: {bag: batch})
    optimizer = mtrains.optim.RowWiseAdagrad(bag.parameters(), lr=0.1)
    for _ in range(2):
        digest = train(bag, loader, optimizer=optimizer)
    assert digest == expected_digest([*inner, *inner])
    assert counters(bag)["used"] == 2 * len(inner)


# --- errors


def failing(batches, error, after):
    yield from batches[:after]
    raise error


@pytest.mark.parametrize("after", [0, 1, 7])
@pytest.mark.parametrize("error", [RuntimeError("no more"), KeyboardInterrupt()])
def test_an_error_of_the_loader_comes_after_the_batches_before_it(bag, error, after):
    got = []
    loader = mtrains.prefetch(failing(make_batches(), error, after), lambda batch: {bag: batch})
    with pytest.raises(type(error)) as raised:
        got.extend(loader)
    assert raised.value is error
    assert len(got) == after
    assert bag.store.engine.pinned_rows() == 0


def test_an_error_of_inputs_comes_with_its_batch(bag):
    batches = make_batches()

    def inputs(batch):
        if batch is batches[3]:
            raise KeyError("ids")
        return {bag: batch}

    got = []
    with pytest.raises(KeyError, match="ids"):
        got.extend(mtrains.prefetch(batches, inputs))
    assert len(got) == 3


@pytest.mark.parametrize(
    ("inputs", "error", "message"),
    [
        (lambda bag, batch: batch, TypeError, "mapping of modules"),
        (lambda bag, batch: {torch.nn.Linear(2, 2): batch}, TypeError, "Linear, which is no tiered module"),
        (lambda bag, batch: {bag: None}, TypeError, "not the arguments"),
        (lambda bag, batch: {bag: batch.float()}, TypeError, "int32 or int64"),
        (lambda bag, batch: {bag: batch.flatten()}, ValueError, "offsets must be given"),
    ],
)
def test_what_inputs_returns_is_checked(bag, inputs, error, message):
    with pytest.raises(error, match=message):
        next(iter(mtrains.prefetch(make_batches(), lambda batch: inputs(bag, batch))))


def test_wrong_arguments_are_refused_at_once(bag):
    for loader, options, error in (
        (3, {}, TypeError),
        ([], {"lookahead": -1}, ValueError),
        ([], {"depth": -1}, ValueError),
        ([], {"depth": 31}, ValueError),
        ([], {"depth": 1.5}, TypeError),
    ):
        with pytest.raises(error):
            mtrains.prefetch(loader, lambda batch: {}, **options)
    with pytest.raises(TypeError, match="callable"):
        mtrains.prefetch([], None)


def test_an_index_out_of_range_is_the_forwards_error_and_the_rest_goes_on(bag):
    batches = make_batches()
    bad = batches[4].clone()
    bad[2, 1] = ROWS
    optimizer = mtrains.optim.RowWiseAdagrad(bag.parameters(), lr=0.1)
    for batch in mtrains.prefetch([*batches[:4], bad, *batches[4:]], lambda batch: {bag: batch}):
        if batch is bad:
            with pytest.raises(IndexError, match="position 7"):
                bag(batch)
            continue
        train(bag, [batch], optimizer=optimizer)
    assert bag.store.digest() == expected_digest(batches)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_in_the_loop_or_a_break_leaves_nothing(bag, error):
    def loop():
        for number, _ in enumerate(mtrains.prefetch(make_batches(), lambda batch: {bag: batch})):
            if number == 5:
                raise error

    with pytest.raises(error):
        loop()
    for number, _ in enumerate(mtrains.prefetch(make_batches(), lambda batch: {bag: batch})):
        if number == 5:
            break
    assert bag.store.engine.pinned_rows() == 0


def test_closing_twice_and_going_on_afterwards(bag):
    iterator = iter(mtrains.prefetch(make_batches(), lambda batch: {bag: batch}))
    next(iterator)
    iterator.close()
    iterator.close()
    with pytest.raises(StopIteration):
        next(iterator)
    assert bag.store.engine.pinned_rows() == 0


def test_ctrl_c_before_the_first_batch_may_be_survived(bag):
    batches = make_batches()
    interrupts = [KeyboardInterrupt()]

    class Loader:
        def __iter__(self):
            return self

        def __next__(self):
            if interrupts:
                raise interrupts.pop()
            return batches.pop()

    iterator = iter(mtrains.prefetch(Loader(), lambda batch: {bag: batch}))
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    assert next(iterator) is not None
    iterator.close()


def test_a_forked_child_cannot_go_on_with_the_iteration(bag):
    iterator = iter(mtrains.prefetch(make_batches(), lambda batch: {bag: batch}))
    next(iterator)
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        try:
            next(iterator)
        except mtrains.StateError:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert len(list(iterator)) == 19


def test_a_store_closed_in_the_middle(bag):
    iterator = iter(mtrains.prefetch(make_batches(), lambda batch: {bag: batch}, lookahead=2))
    next(iterator)
    bag.store.close()
    with pytest.raises(mtrains.StateError, match="closed"):
        list(iterator)


# --- tickets


def test_an_access_is_counted_once_whatever_the_depth(bag):
    batches = make_batches()
    train(bag, mtrains.prefetch(batches, lambda batch: {bag: batch}, depth=3))
    accesses = bag.store.stats().tables["rows"]
    assert accesses["dram_hits"] + accesses["new"] + accesses["fetches"] == sum(len(b.unique()) for b in batches)
    assert counters(bag)["used"] == len(batches)


def test_a_lookup_that_inputs_did_not_name_is_served_on_demand(bag):
    other = mtrains.TieredEmbedding(ROWS, DIM, store=bag.store, name="other")
    batches = make_batches()
    optimizer = mtrains.optim.SGD([*bag.parameters(), *other.parameters()], lr=0.1)
    for batch in mtrains.prefetch(batches, lambda batch: {bag: batch.flip(0)}):  # not what is looked up
        optimizer.zero_grad()
        (bag(batch).sum() + other(batch).square().sum()).backward()
        optimizer.step()
    assert counters(bag)["used"] + counters(bag)["used_unstaged"] == 0
    assert counters(bag)["expired"] > 0
    assert bag.store.engine.pinned_rows() == 0


def test_batches_that_are_skipped_unpin_their_rows(bag):
    train(bag, mtrains.prefetch(make_batches(100), lambda batch: {bag: batch}), look_up=False)
    assert bag.store.engine.pinned_rows() == 0


def test_a_framework_that_takes_one_batch_ahead(bag):
    batches = make_batches()
    iterator = iter(mtrains.prefetch(batches, lambda batch: {bag: batch}))
    optimizer = mtrains.optim.RowWiseAdagrad(bag.parameters(), lr=0.1)
    batch = next(iterator)
    for following in [*iterator, None]:
        train(bag, [batch], optimizer=optimizer)
        batch = following
    assert bag.store.digest() == expected_digest(batches)


def test_several_calls_of_a_module_and_several_modules_of_a_table(bag):
    embedding = mtrains.TieredEmbedding(ROWS, DIM, store=bag.store, name="rows2")
    collection = mtrains.TieredEmbeddingBagCollection(
        [mtrains.TableSpec("c", ROWS, DIM, features=("x", "y")), mtrains.TableSpec("d", 50, 3)], store=bag.store
    )
    offsets = torch.arange(0, 3 * 2 * SIZE + 1, 2)

    def arguments(batch):
        return torch.cat([batch[:, :2].flatten(), batch[:, 1:].flatten(), batch[:, :2].flatten() % 50]), offsets

    def inputs(batch):
        return {bag: [(batch,), (batch.flip(1),)], embedding: batch[:, 0], collection: arguments(batch)}

    parameters = [*bag.parameters(), *embedding.parameters(), *collection.parameters()]
    optimizer = mtrains.optim.SGD(parameters, lr=0.1)
    batches = make_batches()
    for batch in mtrains.prefetch(batches, inputs, depth=1):
        optimizer.zero_grad()
        loss = bag(batch).sum() + bag(batch.flip(1)).square().sum() + embedding(batch[:, 0]).sum()
        (loss + collection(*arguments(batch)).sum()).backward()
        optimizer.step()
    found = counters(bag)
    assert found["used"] + found["used_unstaged"] + found["expired"] == 4 * len(batches)
    assert bag.store.engine.pinned_rows() == 0


def test_evaluation_in_the_middle_of_training(bag):
    batches, held_out = make_batches(), make_batches(seed=9)
    optimizer = mtrains.optim.RowWiseAdagrad(bag.parameters(), lr=0.1)
    for number, batch in enumerate(mtrains.prefetch(batches, lambda batch: {bag: batch})):
        out = bag(batch)
        if number % 7 == 3:
            with torch.no_grad():
                for other in mtrains.prefetch(held_out, lambda batch: {bag: batch}):
                    bag(other)
        optimizer.zero_grad()
        out.square().sum().backward()
        optimizer.step()
    assert bag.store.digest() == expected_digest(batches)


def test_a_restore_in_the_middle(bag, tmp_path):
    batches = make_batches(30)
    with mtrains.Store(tmp_path / "rows", dram="8KiB", seed=1) as store:
        bag = mtrains.TieredEmbeddingBag(ROWS, DIM, mode="sum", store=store, name="rows")
        optimizer = mtrains.optim.RowWiseAdagrad(bag.parameters(), lr=0.1)
        for number, batch in enumerate(mtrains.prefetch(batches, lambda batch: {bag: batch}, lookahead=4)):
            if number == 10:
                store.checkpoint("ten")
            if number == 20:
                store.restore("ten")
            train(bag, [batch], optimizer=optimizer)
        assert store.digest() == expected_digest(batches[:10] + batches[20:])


def test_a_batch_larger_than_the_tier_runs_in_pieces(bag):
    generator = torch.Generator().manual_seed(2)
    batches = [torch.randint(ROWS, (size, 3), generator=generator) for size in (8, 400, 8, 300, 16, 16)]
    assert train(bag, mtrains.prefetch(batches, lambda batch: {bag: batch})) == expected_digest(batches)
    assert bag.store.stats().tiers["dram"]["pieces"] > 0


def test_demand_beats_staging_and_depth_recovers(bag):
    batches = make_batches(40)
    wide = torch.arange(ROWS)[: 4 * 3 * SIZE - 8].view(-1, 1)  # nearly all slots
    optimizer = mtrains.optim.RowWiseAdagrad(bag.parameters(), lr=0.1)
    for number, batch in enumerate(mtrains.prefetch(batches, lambda batch: {bag: batch}, depth=1)):
        if number == 20:
            time.sleep(0.05)  # the next batch is staged by now
            train(bag, [wide], optimizer=optimizer)
        train(bag, [batch], optimizer=optimizer)
    assert bag.store.digest() == expected_digest([*batches[:20], wide, *batches[20:]])
    found = counters(bag)
    assert found["cancelled"] >= 1
    assert found["used"] >= 30
    assert bag.store.engine.pinned_rows() == 0


# --- torch's ways to train


def micro_batches(bag, batches, prefetch):
    loader = mtrains.prefetch(batches, lambda batch: {bag: batch}, depth=prefetch) if prefetch else batches
    optimizer = mtrains.optim.RowWiseAdagrad(bag.parameters(), lr=0.1)
    for number, batch in enumerate(loader):
        bag(batch).square().sum().backward()
        if number % 8 == 7:
            optimizer.step()
            optimizer.zero_grad()


def scaled(bag, batches, prefetch):
    loader = mtrains.prefetch(batches, lambda batch: {bag: batch}, depth=prefetch) if prefetch else batches
    optimizer = mtrains.optim.RowWiseAdagrad(bag.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for number, batch in enumerate(loader):
        loss = bag(batch).square().sum()
        optimizer.zero_grad()
        scaler.scale(loss * torch.inf if number == 3 else loss).backward()
        scaler.step(optimizer)
        scaler.update()


def recomputed(bag, batches, prefetch):
    loader = mtrains.prefetch(batches, lambda batch: {bag: batch}, depth=prefetch) if prefetch else batches
    optimizer = mtrains.optim.RowWiseAdagrad(bag.parameters(), lr=0.1)
    for batch in loader:
        out = torch.utils.checkpoint.checkpoint(bag, batch, use_reentrant=False)
        optimizer.zero_grad()
        out.square().sum().backward()
        optimizer.step()


def forgetful(bag, batches, prefetch):
    loader = mtrains.prefetch(batches, lambda batch: {bag: batch}, depth=prefetch) if prefetch else batches
    optimizer = mtrains.optim.RowWiseAdagrad(bag.parameters(), lr=0.1)
    for number, batch in enumerate(loader):
        out = bag(batch)
        with torch.no_grad():
            bag(batch.flip(0))  # evaluation between forward and backward
        if number % 3 == 1:
            optimizer.zero_grad()  # no step
            continue
        out.square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("loop", [micro_batches, scaled, recomputed, forgetful])
@pytest.mark.parametrize("slots", [3 * SIZE, 400])
@pytest.mark.parametrize("depth", [1, 3])
def test_training_loops_give_the_same_bits(loop, slots, depth):
    batches = make_batches(24)

    def digest(dram, prefetch):
        with mtrains.Store(dram=dram, seed=1) as store:
            bag = mtrains.TieredEmbeddingBag(ROWS, DIM, mode="sum", store=store, name="rows")
            loop(bag, batches, prefetch)
            assert store.engine.pinned_rows() == 0
            return store.digest()

    assert digest(f"{slots * (4 * (DIM + 1) + 16)}", depth) == digest("64MiB", None)
