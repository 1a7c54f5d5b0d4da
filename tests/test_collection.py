"""TieredEmbeddingBagCollection: one pass gives the bits of one module a feature."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import mtrains
from mtrains import Store, TableSpec, TieredEmbeddingBag, TieredEmbeddingBagCollection
from mtrains.errors import StateError


class Jagged:
    """What is used of torchrec's KeyedJaggedTensor."""

    def __init__(self, keys, values, offsets, weights=None):
        self._keys, self._values, self._offsets, self._weights = keys, values, offsets, weights

    def keys(self):
        return list(self._keys)

    def values(self):
        return self._values

    def offsets(self):
        return self._offsets

    def weights_or_none(self):
        return self._weights


def draw_batch(specs, num_bags, seed, longest=5):
    """Return (indices, offsets) of all features, and the bags of each feature on their own."""
    generator = torch.Generator().manual_seed(seed)
    lengths, indices = [], []
    for spec in specs:
        for _ in spec.features:
            lengths.append(torch.randint(0, longest + 1, (num_bags,), generator=generator))
            indices.append(
                torch.randint(0, spec.num_embeddings, (int(lengths[-1].sum()),), generator=generator)
            )
    zero = torch.zeros(1, dtype=torch.int64)
    each = [
        (rows, torch.cat([zero, counts.cumsum(0)])) for rows, counts in zip(indices, lengths, strict=True)
    ]
    return torch.cat(indices), torch.cat([zero, torch.cat(lengths).cumsum(0)]), each


def separate(specs, store):
    return [
        TieredEmbeddingBag(
            spec.num_embeddings,
            spec.embedding_dim,
            mode=spec.mode,
            padding_idx=spec.padding_idx,
            include_last_offset=True,
            store=store,
            name=spec.name,
        )
        for spec in specs
        for _ in spec.features[:1]
    ]


SPECS = [
    TableSpec("a", 20, 4, mode="sum"),
    TableSpec("b", 30, 7, features=("b1", "b2"), mode="mean"),
    TableSpec("c", 5, 1, mode="sum", padding_idx=2),
]


@settings(max_examples=30, deadline=None)
@given(
    num_bags=st.integers(0, 6),
    seed=st.integers(0, 100),
    modes=st.lists(st.sampled_from(["sum", "mean", "max"]), min_size=3, max_size=3),
    dtypes=st.tuples(
        st.sampled_from([torch.int32, torch.int64]), st.sampled_from([torch.int32, torch.int64])
    ),
    dram=st.sampled_from(["64MiB", "600"]),
)
def test_bits_are_those_of_separate_modules(num_bags, seed, modes, dtypes, dram):
    specs = [
        TableSpec(
            s.name,
            s.num_embeddings,
            s.embedding_dim,
            features=s.features,
            mode=mode,
            padding_idx=s.padding_idx,
        )
        for s, mode in zip(SPECS, modes, strict=True)
    ]
    with Store(dram=dram, seed=1) as one, Store(dram="64MiB", seed=1) as other:
        collection = TieredEmbeddingBagCollection(specs, store=one)
        modules = separate(specs, other)
        optimizers = [
            mtrains.optim.Adagrad(collection.parameters(), lr=0.1),
            mtrains.optim.Adagrad([module.weight for module in modules], lr=0.1),
        ]
        by_feature = [m for m, spec in zip(modules, specs, strict=True) for _ in spec.features]
        for step in range(2):
            indices, offsets, each = draw_batch(specs, num_bags, 10 * seed + step)
            out = collection(indices.to(dtypes[0]), offsets.to(dtypes[1]))
            parts = [module(*inputs) for module, inputs in zip(by_feature, each, strict=True)]
            assert torch.equal(out, torch.cat(parts, 1))
            grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(seed))
            out.backward(grad)
            torch.autograd.backward(parts, list(grad.split([part.shape[1] for part in parts], 1)))
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        for name, module in zip("abc", modules, strict=True):
            assert torch.equal(collection.embedding_bags[name].read_dense(), module.read_dense())


def test_features_columns_and_names(store):
    collection = TieredEmbeddingBagCollection(SPECS, store=store)
    assert collection.features == ("a", "b1", "b2", "c")
    assert [name for name, _ in collection.named_parameters()] == [
        f"embedding_bags.{name}.weight" for name in "abc"
    ]
    indices, offsets, _ = draw_batch(SPECS, 3, 0)
    assert collection(indices, offsets).shape == (3, 4 + 7 + 7 + 1)


def test_a_table_s_lookups_are_summed_in_feature_order(store):
    spec = TableSpec("t", 6, 3, features=("x", "y"))
    collection = TieredEmbeddingBagCollection([spec], store=store)
    indices, offsets, each = draw_batch([spec], 4, 1)
    out = collection(indices, offsets)
    grad = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    out.backward(grad)
    sums = torch.zeros(6, 3)
    for (rows, ends), part in zip(each, grad.split(3, 1), strict=True):
        for bag in range(4):
            for row in rows[ends[bag] : ends[bag + 1]]:
                sums[row] += part[bag]
    assert torch.equal(collection.embedding_bags["t"].weight.grad.to_dense(), sums)


def test_a_jagged_tensor_is_accepted(store):
    specs = [TableSpec("a", 20, 4), TableSpec("b", 30, 7, features=("b1", "b2"))]
    collection = TieredEmbeddingBagCollection(specs, store=store)
    indices, offsets, _ = draw_batch(specs, 3, 0)
    weights = torch.rand(len(indices))
    for some in (None, weights):
        jagged = Jagged(("a", "b1", "b2"), indices, offsets, some)
        assert torch.equal(collection(jagged), collection(indices, offsets, some))
    with pytest.raises(ValueError, match="in this order"):
        collection(Jagged(("b1", "a", "b2"), indices, offsets))
    with pytest.raises(ValueError, match="pass it alone"):
        collection(Jagged(("a", "b1", "b2"), indices, offsets), offsets)


@pytest.mark.parametrize("reference", ["sum", "with max"])
def test_per_sample_weights_and_their_gradient(store, reference):
    specs = [TableSpec("a", 20, 4), TableSpec("b", 30, 7, features=("b1", "b2"))]
    if reference == "with max":
        specs.append(TableSpec("m", 5, 2, mode="max"))
    collection = TieredEmbeddingBagCollection(specs, store=store)
    indices, offsets, each = draw_batch(specs, 3, 0)
    weights = torch.rand(len(indices), requires_grad=True)
    if reference == "with max":
        with pytest.raises(NotImplementedError, match="mode='sum' only"):
            collection(indices, offsets, weights)
        return
    out = collection(indices, offsets, weights)
    grad = torch.randn(out.shape)
    out.backward(grad)
    split = weights.detach().split([len(rows) for rows, _ in each])
    for number, (name, part) in enumerate(zip(["a", "b", "b"], grad.split([4, 7, 7], 1), strict=True)):
        dense = nn.EmbeddingBag(
            *collection.embedding_bags[name].weight.shape,
            mode="sum",
            include_last_offset=True,
            _weight=collection.embedding_bags[name].read_dense(),
        )
        mine = split[number].clone().requires_grad_()
        dense(each[number][0], each[number][1], mine).backward(part)
        begin = sum(len(rows) for rows, _ in each[:number])
        torch.testing.assert_close(weights.grad[begin : begin + len(mine)], mine.grad)


@pytest.mark.parametrize(
    ("indices", "offsets", "error"),
    [
        ([1, 2], [0, 1], ValueError),
        ([1, 2], [], ValueError),
        ([1, 2], [0, 1, 1], ValueError),
        ([1, 2], [1, 1, 2], ValueError),
        ([1, 2], [0, 2, 1, 2, 2], ValueError),
        ([1, 9], [0, 1, 2], IndexError),
        ([-1, 1], [0, 1, 2], IndexError),
    ],
)
@pytest.mark.parametrize("mode", ["sum", "max"])
def test_bad_inputs_are_refused(store, indices, offsets, error, mode):
    specs = [TableSpec("a", 9, 2, mode=mode), TableSpec("b", 9, 3)]
    collection = TieredEmbeddingBagCollection(specs, store=store)
    indices, offsets = torch.tensor(indices), torch.tensor(offsets, dtype=torch.int64)
    with pytest.raises(error):
        collection(indices, offsets)


@pytest.mark.parametrize(
    ("specs", "message"),
    [
        ([], "at least one table"),
        ([TableSpec("a", 9, 2), TableSpec("a", 9, 2)], "table names must be distinct"),
        ([TableSpec("a", 9, 2, features=("x",)), TableSpec("b", 9, 2, features=("x",))], "feature names"),
        ([TableSpec("a", 9, 2), TableSpec("b", 9, 2, dtype=torch.float16)], "one dtype"),
        ([TableSpec("a.b", 9, 2)], "not usable in a collection"),
    ],
)
def test_bad_specs_are_refused(specs, message):
    with pytest.raises(ValueError, match=message):
        TieredEmbeddingBagCollection(specs)


def test_some_tables_frozen(store):
    collection = TieredEmbeddingBagCollection(SPECS, store=store)
    collection.embedding_bags["b"].requires_grad_(False)
    indices, offsets, _ = draw_batch(SPECS, 3, 0)
    collection(indices, offsets).sum().backward()
    assert collection.embedding_bags["b"].weight.grad is None
    assert collection.embedding_bags["a"].weight.grad is not None


def test_state_dict_round_trip(store):
    collection = TieredEmbeddingBagCollection(SPECS, store=store)
    optimizer = mtrains.optim.RowWiseAdagrad(collection.parameters(), lr=0.1)
    state = collection.state_dict()
    assert list(state) == [f"embedding_bags.{name}.weight" for name in "abc"]
    before = collection.embedding_bags["b"].read_dense()
    indices, offsets, _ = draw_batch(SPECS, 3, 0)
    collection(indices, offsets).sum().backward()
    optimizer.step()
    assert not torch.equal(collection.embedding_bags["b"].read_dense(), before)
    collection.load_state_dict(state)
    assert torch.equal(collection.embedding_bags["b"].read_dense(), before)
    del state["embedding_bags.b.weight"]
    with pytest.raises((RuntimeError, StateError)):
        collection.load_state_dict(state)
