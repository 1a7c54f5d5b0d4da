import numpy as np
import pytest
import torch
from torch import nn

import mtrains
from mtrains.profiler.profile import LocalityProfile


def lookups(num, rows, seed=0):
    return torch.from_numpy(np.minimum(np.random.default_rng(seed).zipf(1.3, num), rows) - 1)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.users = nn.EmbeddingBag(500, 8, mode="sum")
        self.items = nn.Embedding(300, 4, padding_idx=0)

    def forward(self, users, offsets, items):
        return self.users(users, offsets).sum() + self.items(items).sum()


def unique_a_batch(batches):
    return np.mean([len(torch.unique(batch)) for batch in batches])


def test_lookups_of_modules_become_a_profile():
    model = Model()
    offsets = torch.arange(0, 192, 3)
    users = [lookups(192, 500, seed) for seed in range(20)]
    items = [lookups(64, 300, 100 + seed) for seed in range(20)]
    model(users[0], offsets, items[0])
    with mtrains.Recorder(batch_size=64).attach(model) as recorder:
        for user, item in zip(users, items, strict=True):
            model(user, offsets, item)
    model(users[0], offsets, items[0])
    assert (recorder.num_samples, recorder.full) == (1280, False)
    profile = recorder.profile(lookahead=8)
    user, item = profile.tables
    assert [(table.name, table.num_embeddings, table.embedding_dim) for table in profile.tables] == [
        ("users", 500, 8), ("items", 300, 4),
    ]  # fmt: skip
    assert (user.lookups_per_sample, user.touched_rows) == (3.0, len(torch.unique(torch.cat(users))))
    read = [batch[batch != 0] for batch in items]
    assert item.lookups_per_sample == sum(map(len, read)) / 1280
    for table, batches in ((user, users), (item, read)):
        curve = table.curve(policy="next_use", lookahead=8, depth=2, batch_size=64)
        assert curve.unique_rows == pytest.approx(unique_a_batch(batches))


def test_a_recording_is_what_the_same_lookups_tracked_are(track):
    """Bags and int32 in pieces of any size against rows and samples one by one."""
    rows = lookups(6000, 3000).to(torch.int32)
    recorder = mtrains.Recorder(batch_size=64)
    recorder.add_table("t", 3000, 16)
    for begin, end in ((0, 1), (1, 900), (900, 901), (901, 3000)):
        recorder.record("t", rows[2 * begin : 2 * end].view(-1, 2))
    samples = np.repeat(np.arange(3000), 2)
    tracker = track(rows.numpy(), samples, num_embeddings=3000, batch_size=64, count_unique=False)
    tracker.samples_a_unit = 16
    expected = tracker.tracked[0]
    for _ in range(4):
        expected.coarsen()
    for name, values in expected.tracked().items():
        np.testing.assert_array_equal(recorder._tracker.tracked[0].tracked()[name], values)


def test_modules_of_a_store_are_named_as_their_tables(tmp_path):
    specs = [
        mtrains.TableSpec("a", 100, 8, features=("x", "y")),
        mtrains.TableSpec("b", 50, 4, features=("z",)),
    ]
    with mtrains.Store(seed=0) as store:
        collection = mtrains.TieredEmbeddingBagCollection(specs, store=store)
        bag = mtrains.TieredEmbeddingBag(70, 4, store=store, name="c", include_last_offset=True)
        recorder = mtrains.Recorder(batch_size=8).attach(nn.ModuleList([collection, bag]))
        for seed in range(10):
            indices = lookups(48, 50, seed)
            collection(indices, torch.arange(0, 49, 2))
            bag(lookups(16, 70, seed), torch.arange(0, 17, 2))
        recorder.detach()
        collection(indices, torch.arange(0, 49, 2))
    profile = recorder.profile()
    a, b, c = profile.tables
    assert [table.name for table in profile.tables] == ["a", "b", "c"]
    assert [table.lookups_per_sample for table in profile.tables] == [4.0, 2.0, 2.0]
    batches = [lookups(48, 50, seed) for seed in range(10)]
    assert a.curves[2].unique_rows == pytest.approx(unique_a_batch([batch[:32] for batch in batches]))
    assert b.curves[2].unique_rows == pytest.approx(unique_a_batch([batch[32:] for batch in batches]))
    assert c.touched_rows == len(torch.unique(torch.cat([lookups(16, 70, seed) for seed in range(10)])))
    profile.save(tmp_path / "p.json")
    assert LocalityProfile.load(tmp_path / "p.json") == profile


def test_batches_of_a_loader_pass_unchanged():
    recorder = mtrains.Recorder(batch_size=4)
    module = nn.EmbeddingBag(10, 4, mode="sum")
    recorder.add_table("t", 10, 4)
    batches = [torch.tensor([[1, 2], [3, 3], [1, 1], [9, 0]])] * 3
    offsets = torch.arange(0, 8, 2)
    inputs = recorder.wrap(batches, lambda batch: {"t": (batch, None), module: (batch.view(-1), offsets)})
    seen = list(inputs)
    assert all(one is other for one, other in zip(seen, batches, strict=True))
    for table in recorder.profile().tables:
        assert (table.lookups_per_sample, table.touched_rows, table.curves[2].unique_rows) == (2.0, 5, 5.0)


def test_large_tables_are_sampled_and_memory_is_bounded():
    recorder = mtrains.Recorder(batch_size=1000, max_rows=500)
    recorder.add_table("t", 1 << 40, 16)
    random = np.random.default_rng(0)
    for _ in range(100):
        recorder.record("t", torch.from_numpy(random.integers(0, 200_000, 2000)))
    (table,) = recorder.profile().tables
    assert table.statistics.tracked_rows <= 500
    assert table.touched_rows == pytest.approx(200_000 * (1 - np.exp(-1)), rel=0.2)
    assert table.curves[2].unique_rows == pytest.approx(1000, rel=0.2)
    recorder = mtrains.Recorder(batch_size=4, max_rows=100, max_accesses=200)
    recorder.add_table("t", 1000, 16)
    for _ in range(500):
        recorder.record("t", torch.arange(16))
    assert recorder.full
    assert recorder.num_samples < 500 * 16
    assert recorder.profile().samples == recorder.num_samples


def test_tables_without_lookups_are_in_the_profile():
    recorder = mtrains.Recorder(batch_size=4)
    recorder.add_table("used", 10, 4)
    recorder.add_table("idle", 10, 4)
    with pytest.raises(ValueError, match="no lookups"):
        recorder.profile()
    recorder.record("used", torch.tensor([1, 2, 3, 4]))
    recorder.record("used", torch.zeros(0, dtype=torch.int64))
    used, idle = recorder.profile().tables
    assert (used.touched_rows, idle.touched_rows, idle.curves[0].unique_rows) == (4, 0, 0)


def test_what_cannot_be_recorded_is_refused():
    recorder = mtrains.Recorder(batch_size=4)
    recorder.add_table("t", 10, 4)
    recorder.add_table("t", 10, 4)
    with pytest.raises(ValueError, match="two tables are named 't'"):
        recorder.add_table("t", 11, 4)
    with pytest.raises(KeyError, match="no table 'u'"):
        recorder.record("u", torch.tensor([1]))
    with pytest.raises(IndexError, match=r"table 't': rows 1 to 10 are not all in \[0, 10\)"):
        recorder.record("t", torch.tensor([1, 10]))
    with pytest.raises(TypeError, match=r"int32 or int64, got torch.float32"):
        recorder.record("t", torch.tensor([1.0]))
    with pytest.raises(ValueError, match="not at position 1"):
        recorder.record("t", torch.tensor([1, 2]), torch.tensor([1, 0]))
    with pytest.raises(ValueError, match="no embedding in this Linear"):
        recorder.attach(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="at least one sample"):
        mtrains.Recorder(batch_size=0)
    module = nn.Embedding(10, 4)
    recorder.attach(module)
    with pytest.raises(ValueError, match="recorded already"):
        recorder.attach(module)
    with pytest.raises(IndexError):
        module(torch.tensor([10]))
    assert recorder.num_samples == 0
