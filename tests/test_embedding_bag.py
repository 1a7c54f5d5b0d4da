"""TieredEmbeddingBag and TieredEmbedding against nn.EmbeddingBag and nn.Embedding."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import mtrains
from mtrains import Store, TieredEmbedding, TieredEmbeddingBag
from mtrains.errors import StateError

CLOSE = {"rtol": 1e-5, "atol": 1e-6}
DIMS = st.one_of(st.sampled_from([1, 2, 3, 7, 15, 16, 17, 64, 130, 300]), st.integers(1, 300))


class Call(NamedTuple):
    """One forward of an embedding bag, and the module's arguments that it needs."""

    num_embeddings: int
    embedding_dim: int
    mode: str
    padding_idx: int | None
    include_last_offset: bool
    inputs: tuple[torch.Tensor, torch.Tensor | None]
    weights: torch.Tensor | None


@st.composite
def calls(draw, modes=("sum", "mean", "max")):
    num_embeddings = draw(st.integers(1, 40))
    mode = draw(st.sampled_from(modes))
    padding_idx = draw(st.none() | st.integers(-num_embeddings, num_embeddings - 1))
    ids = st.integers(0, num_embeddings - 1)
    index_dtype = draw(st.sampled_from([torch.int32, torch.int64]))
    layout = draw(st.sampled_from(["offsets", "last_offset", "2d"]))
    if layout == "2d":
        size = draw(st.integers(1, 6))
        rows = draw(st.lists(st.lists(ids, min_size=size, max_size=size), min_size=1, max_size=6))
        inputs = (torch.tensor(rows, dtype=index_dtype), None)
    else:
        bags = draw(st.lists(st.lists(ids, max_size=8), min_size=1, max_size=6))
        offsets = [0]
        for bag in bags:
            offsets.append(offsets[-1] + len(bag))
        offset_dtype = draw(st.sampled_from([torch.int32, torch.int64]))
        inputs = (
            torch.tensor([row for bag in bags for row in bag], dtype=index_dtype),
            torch.tensor(offsets if layout == "last_offset" else offsets[:-1], dtype=offset_dtype),
        )
    weights = None
    if mode == "sum" and draw(st.booleans()):
        weights = torch.randint(-16, 17, inputs[0].shape, generator=seeded(draw)).float() / 16
    return Call(num_embeddings, draw(DIMS), mode, padding_idx, layout == "last_offset", inputs, weights)


def positions(call):
    """Positions of each bag that are not padding."""
    indices, offsets = call.inputs
    padding = None if call.padding_idx is None else call.padding_idx % call.num_embeddings
    if offsets is None:
        return (
            (indices != padding).sum(1)
            if padding is not None
            else torch.full((len(indices),), indices.shape[1])
        )
    bounds = offsets.tolist() + [len(indices)] * (not call.include_last_offset)
    return torch.tensor([sum(row != padding for row in indices[a:b].tolist()) for a, b in pairwise(bounds)])


def seeded(draw):
    return torch.Generator().manual_seed(draw(st.integers(0, 1000)))


def modules(call, store, name):
    arguments = {"mode": call.mode, "include_last_offset": call.include_last_offset}
    arguments["padding_idx"] = call.padding_idx
    tiered = TieredEmbeddingBag(call.num_embeddings, call.embedding_dim, store=store, name=name, **arguments)
    dense = nn.EmbeddingBag(call.num_embeddings, call.embedding_dim, _weight=tiered.read_dense(), **arguments)
    return tiered, dense


def torch_inputs(call):
    """nn.EmbeddingBag wants one integer type where there are offsets and reads none from (B, 0)."""
    indices, offsets = call.inputs
    return indices.long(), None if offsets is None else offsets.long()


@pytest.mark.parametrize("resident", [True, False])
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_forward_and_gradients_are_close_to_torch(resident, data):
    call = data.draw(calls())
    dram = "64MiB" if resident else 3 * (4 * call.embedding_dim + 24)  # some three rows
    with Store(dram=dram, seed=data.draw(st.integers(0, 3))) as store:
        tiered, dense = modules(call, store, "t")
        weights = [None if call.weights is None else call.weights.clone().requires_grad_() for _ in range(2)]
        out = tiered(*call.inputs, per_sample_weights=weights[0])
        expected = dense(*torch_inputs(call), per_sample_weights=weights[1])
        assert out.dtype is torch.float32
        torch.testing.assert_close(out, expected, **CLOSE)
        grad = torch.randint(-128, 129, out.shape, generator=torch.Generator().manual_seed(1)).float() / 16
        if call.mode == "mean":
            grad = grad * positions(call)[:, None]  # a lattice after the division too
        out.backward(grad)
        expected.backward(grad)
        torch.testing.assert_close(tiered.weight.grad.to_dense(), dense.weight.grad, **CLOSE)
        if call.weights is not None:
            torch.testing.assert_close(weights[0].grad, weights[1].grad, rtol=1e-5, atol=1e-4)
        with torch.no_grad():
            assert torch.equal(tiered(*call.inputs, per_sample_weights=call.weights), out)


@settings(max_examples=40, deadline=None)
@given(
    shape=st.lists(st.integers(0, 4), max_size=3),
    padding_idx=st.none() | st.integers(-9, 8),
    dim=DIMS,
    dtype=st.sampled_from([torch.int32, torch.int64]),
)
def test_embedding_is_close_to_torch(shape, padding_idx, dim, dtype):
    indices = torch.randint(0, 9, shape, dtype=dtype, generator=torch.Generator().manual_seed(0))
    tiered = TieredEmbedding(9, dim, padding_idx)
    dense = nn.Embedding(9, dim, padding_idx, _weight=tiered.read_dense())
    out, expected = tiered(indices), dense(indices)
    assert torch.equal(out, expected)
    grad = torch.randint(-128, 129, out.shape, generator=torch.Generator().manual_seed(1)).float() / 16
    out.backward(grad)
    expected.backward(grad)
    torch.testing.assert_close(tiered.weight.grad.to_dense(), dense.weight.grad, **CLOSE)
    tiered.store.close()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_16_bit_tables_sum_in_float32(dtype, mode, lattice):
    emb = TieredEmbeddingBag(50, 20, mode=mode, dtype=dtype)
    indices = torch.randint(0, 50, (6, 9), generator=torch.Generator().manual_seed(0))
    wide = nn.EmbeddingBag(50, 20, mode=mode, _weight=emb.read_dense().float())
    assert emb.read_dense().dtype is dtype
    with torch.autocast("cpu"):
        out = emb(indices)
    assert out.dtype is dtype
    torch.testing.assert_close(out, wide(indices).to(dtype))
    grad = lattice(6, 20).to(dtype)
    out.backward(grad)
    wide(indices).backward(grad.float())
    assert emb.weight.grad.dtype is dtype
    torch.testing.assert_close(
        torch.from_numpy(emb.weight.grad.row_sums()[1]), wide.weight.grad[emb.weight.grad.row_sums()[0]]
    )


# --- inputs


def test_the_first_of_equal_maxima_takes_the_gradient(store):
    emb = TieredEmbeddingBag(4, 2, mode="max", store=store, name="t", init=mtrains.init.constant(1.0))
    emb(torch.tensor([2, 1, 3]), torch.tensor([0, 3])).sum().backward()
    assert torch.equal(emb.weight.grad.to_dense()[:, 0], torch.tensor([0.0, 0.0, 1.0, 0.0]))


def test_padding_row_starts_as_zeros_and_never_moves(store):
    emb = TieredEmbeddingBag(5, 3, mode="sum", padding_idx=-2, store=store, name="t")
    assert emb.padding_idx == 3
    assert torch.equal(emb.read_rows(torch.tensor([3])), torch.zeros(1, 3))
    optimizer = mtrains.optim.SGD(emb.parameters(), lr=1.0)
    emb(torch.tensor([[3, 1, 3]])).sum().backward()
    optimizer.step()
    assert torch.equal(emb.read_rows(torch.tensor([3])), torch.zeros(1, 3))


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize(
    ("inputs", "num_bags"),
    [
        ((torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64)), 0),
        ((torch.empty(0, dtype=torch.int64), torch.tensor([0, 0, 0])), 3),
        ((torch.empty(4, 0, dtype=torch.int64), None), 4),
        ((torch.empty(0, 3, dtype=torch.int32), None), 0),
        ((torch.empty(0, 0, dtype=torch.int32), None), 0),
    ],
)
def test_empty_inputs_give_zero_rows(store, mode, inputs, num_bags):
    emb = TieredEmbeddingBag(5, 3, mode=mode, store=store, name="t")
    optimizer = mtrains.optim.RowWiseAdagrad(emb.parameters(), lr=0.1)
    before = emb.read_dense()
    out = emb(*inputs)
    assert torch.equal(out, torch.zeros(num_bags, 3))
    out.sum().backward()
    optimizer.step()
    assert torch.equal(emb.read_dense(), before)


@pytest.mark.parametrize("num_embeddings", [0, 1])
def test_tables_of_no_row_and_one_row(store, num_embeddings):
    emb = TieredEmbeddingBag(num_embeddings, 3, mode="sum", store=store, name="t")
    assert torch.equal(emb(torch.empty(2, 0, dtype=torch.int64)), torch.zeros(2, 3))
    assert emb.read_dense().shape == (num_embeddings, 3)
    with pytest.raises(IndexError):
        emb(torch.tensor([[num_embeddings]]))


@pytest.mark.parametrize("value", [10, -1, -7, 2**40])
@pytest.mark.parametrize("mode", ["sum", "max"])
def test_an_index_out_of_range_changes_nothing(store, value, mode):
    emb = TieredEmbeddingBag(10, 3, mode=mode, store=store, name="clicks")
    before = emb.read_dense()
    indices = torch.tensor([1, 2, value, 3])
    with pytest.raises(IndexError, match="clicks") as raised:
        emb(indices, torch.tensor([0, 2]))
    for part in (str(value), "2", "10"):
        assert part in str(raised.value)
    assert indices.tolist() == [1, 2, value, 3]
    assert torch.equal(emb.read_dense(), before)
    with pytest.raises(IndexError, match="clicks"):
        emb.read_rows(torch.tensor([value]))
    with pytest.raises(IndexError, match="clicks"):
        emb.write_rows(torch.tensor([1, value]), torch.zeros(2, 3))
    assert torch.equal(emb.read_dense(), before)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(
    ("include_last_offset", "offsets", "position"),  # or the value, where the last is wrong
    [
        (False, [1, 2], 0),
        (False, [0, 3, 2], 2),
        (False, [0, 9], 1),
        (False, [0, -1], 1),
        (True, [0, 3], 3),
        (True, [0, 9], 1),
        (True, [1, 4], 0),
        (True, [0], 0),
    ],
)
def test_bad_offsets_are_refused_with_their_position(store, dtype, include_last_offset, offsets, position):
    emb = TieredEmbeddingBag(
        10, 3, mode="sum", include_last_offset=include_last_offset, store=store, name="t"
    )
    with pytest.raises(ValueError, match=rf"offset.*{position}"):
        emb(torch.tensor([1, 2, 3, 4]), torch.tensor(offsets, dtype=dtype))


@pytest.mark.parametrize(
    ("inputs", "error"),
    [
        ((torch.tensor([1], dtype=torch.int16), torch.tensor([0])), TypeError),
        ((torch.tensor([1], dtype=torch.uint8), torch.tensor([0])), TypeError),
        ((torch.tensor([1.0]), torch.tensor([0])), TypeError),
        ((torch.tensor([True]), torch.tensor([0])), TypeError),
        (([1], torch.tensor([0])), TypeError),
        ((torch.tensor([1]), torch.tensor([0], dtype=torch.int16)), TypeError),
        ((torch.tensor([1]), [0]), TypeError),
        ((torch.tensor([1]), None), ValueError),
        ((torch.tensor([[1]]), torch.tensor([0])), ValueError),
        ((torch.tensor(1), None), ValueError),
        ((torch.tensor([[[1]]]), None), ValueError),
        ((torch.tensor([1]), torch.tensor([[0]])), ValueError),
        ((torch.tensor([1]), torch.empty(0, dtype=torch.int64)), ValueError),
        ((torch.tensor([[1]]), None, torch.ones(1)), ValueError),
        ((torch.tensor([[1]]), None, torch.ones(1, 1, dtype=torch.int64)), TypeError),
    ],
)
def test_bad_inputs_are_refused(store, inputs, error):
    emb = TieredEmbeddingBag(10, 3, mode="sum", store=store, name="t")
    with pytest.raises(error):
        emb(*inputs)


@pytest.mark.parametrize("mode", ["mean", "max"])
def test_per_sample_weights_need_sum(mode):
    emb = TieredEmbeddingBag(10, 3, mode=mode)
    with pytest.raises(NotImplementedError, match="mode='sum' only"):
        emb(torch.tensor([[1]]), per_sample_weights=torch.ones(1, 1))


def test_inputs_that_are_not_contiguous(store):
    emb = TieredEmbeddingBag(10, 3, mode="sum", store=store, name="t")
    indices = torch.arange(10).repeat_interleave(2)[::2]
    offsets = torch.tensor([0, 9, 4, 9])[::2]
    assert torch.equal(emb(indices, offsets), emb(indices.clone(), offsets.clone()))
    table = torch.arange(6).view(2, 3).t()
    assert torch.equal(emb(table), emb(table.contiguous()))
    weights = torch.arange(6.0).view(2, 3).t()
    assert torch.equal(
        emb(table, per_sample_weights=weights),
        emb(table.contiguous(), per_sample_weights=weights.contiguous()),
    )


def test_weights_changed_after_the_forward_do_not_matter(store):
    emb = TieredEmbeddingBag(10, 3, mode="sum", store=store, name="t")
    weights = torch.tensor([[2.0, 3.0]])
    out = emb(torch.tensor([[1, 2]]), per_sample_weights=weights)
    weights.zero_()
    out.sum().backward()
    assert torch.equal(emb.weight.grad.to_dense()[1:3, 0], torch.tensor([2.0, 3.0]))


def test_per_sample_weights_gradient_needs_the_rows_of_the_forward(store):
    emb = TieredEmbeddingBag(10, 3, mode="sum", store=store, name="t")
    weights = torch.ones(1, 2, requires_grad=True)
    out = emb(torch.tensor([[1, 2]]), per_sample_weights=weights)
    emb.write_rows(torch.tensor([5]), torch.ones(1, 3))
    with pytest.raises(StateError):
        out.sum().backward()


def test_a_frozen_table_passes_gradients_to_per_sample_weights(store):
    emb = TieredEmbeddingBag(10, 3, mode="sum", store=store, name="t").requires_grad_(False)
    weights = torch.ones(1, 2, requires_grad=True)
    emb(torch.tensor([[1, 2]]), per_sample_weights=weights).sum().backward()
    torch.testing.assert_close(weights.grad[0], emb.read_rows(torch.tensor([1, 2])).sum(1))
    assert emb.weight.grad is None


# --- rows


def test_read_and_write_rows(store):
    emb = TieredEmbeddingBag(10, 3, store=store, name="t")
    before = emb.read_dense()
    assert torch.equal(emb.read_rows(torch.tensor([[3, 3], [0, 9]])), before[[3, 3, 0, 9]])
    assert emb.read_rows(torch.empty(0, dtype=torch.int64)).shape == (0, 3)
    emb.write_rows(torch.tensor([4, 2, 4], dtype=torch.int32), torch.arange(9.0).view(3, 3))
    expected = before.clone()
    expected[2], expected[4] = torch.tensor([3.0, 4.0, 5.0]), torch.tensor([6.0, 7.0, 8.0])
    assert torch.equal(emb.read_dense(), expected)
    with pytest.raises(ValueError, match=r"shape \(2, 3\)"):
        emb.write_rows(torch.tensor([1, 2]), torch.zeros(2, 4))
    with pytest.raises(TypeError):
        emb.write_rows(torch.tensor([1]), torch.zeros(1, 3, dtype=torch.int64))
    with pytest.raises(TypeError):
        emb.read_rows(torch.tensor([1.0]))


@pytest.mark.parametrize("freeze", [True, False])
def test_from_pretrained_and_to_dense(store, freeze):
    weight = torch.randn(3000, 7)
    emb = TieredEmbeddingBag.from_pretrained(
        weight, freeze, mode="sum", padding_idx=2, store=store, name="t", include_last_offset=True
    )
    assert emb.weight.requires_grad is not freeze
    dense = emb.to_dense()
    assert torch.equal(dense.weight, weight)
    assert (dense.mode, dense.padding_idx, dense.include_last_offset) == ("sum", 2, True)
    other = TieredEmbedding.from_pretrained(weight, freeze, store=store, name="u").to_dense()
    assert torch.equal(other.weight, weight)


def test_the_padding_row_of_an_embedding_stays_zeros():
    weight = torch.ones(4, 2)
    with pytest.raises(ValueError, match="padding_idx=1 reads as zeros"):
        TieredEmbedding.from_pretrained(weight, padding_idx=1)
    weight[1] = 0
    emb = TieredEmbedding.from_pretrained(weight, padding_idx=1)
    assert torch.equal(emb(torch.tensor([0, 1])), weight[:2])


# --- construction


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"max_norm": 1.0}, NotImplementedError),
        ({"scale_grad_by_freq": True}, NotImplementedError),
        ({"device": "cuda"}, NotImplementedError),
        ({"device": "meta"}, NotImplementedError),
        ({"mode": "median"}, ValueError),
        ({"dtype": torch.float64}, ValueError),
        ({"padding_idx": 10}, ValueError),
        ({"_weight": torch.zeros(9, 3)}, ValueError),
        ({"_weight": torch.zeros(10, 3), "init": mtrains.init.zeros()}, ValueError),
    ],
)
def test_what_is_not_supported_is_refused_at_construction(arguments, error):
    with pytest.raises(error):
        TieredEmbeddingBag(10, 3, **arguments)


def test_arguments_order_and_defaults_are_torch_s():
    import inspect

    for tiered, dense in ((TieredEmbeddingBag, nn.EmbeddingBag), (TieredEmbedding, nn.Embedding)):
        ours = list(inspect.signature(tiered).parameters.values())
        theirs = list(inspect.signature(dense).parameters.values())
        assert [(p.name, p.default) for p in ours[: len(theirs)]] == [(p.name, p.default) for p in theirs]
        assert [p.name for p in ours[len(theirs) :]] == ["store", "name", "init"]


def test_default_init_is_standard_normal():
    rows = TieredEmbeddingBag(2000, 16).read_dense()
    assert abs(float(rows.mean())) < 0.02
    assert abs(float(rows.std()) - 1) < 0.02


def test_a_store_at_a_path_needs_names(tmp_path):
    with Store(tmp_path / "store", seed=1) as store:
        with pytest.raises(ValueError, match="name"):
            TieredEmbeddingBag(10, 3, store=store)
        TieredEmbeddingBag(10, 3, store=store, name="t")


@pytest.mark.parametrize(
    "convert",
    [
        lambda m: m.half(),
        lambda m: m.double(),
        lambda m: m.to("cpu", torch.bfloat16),
        lambda m: m.to("meta"),
        lambda m: m.share_memory(),
    ],
)
def test_conversions_leave_the_table_alone(convert):
    model = nn.Sequential(nn.Linear(2, 2), TieredEmbeddingBag(10, 3))
    weight, before = model[1].weight, model[1].read_dense()
    convert(model)
    assert model[1].weight is weight
    assert weight.dtype is torch.float32
    assert torch.equal(model[1].read_dense(), before)


def test_tied_modules(store):
    first = TieredEmbeddingBag(10, 3, mode="sum", store=store, name="a")
    second = TieredEmbeddingBag(10, 3, mode="sum", store=store, name="b")
    second.weight = first.weight
    indices = torch.tensor([[1, 2]])
    assert torch.equal(first(indices), second(indices))
    (first(indices) + second(indices)).sum().backward()
    assert torch.equal(first.weight.grad.to_dense()[1], torch.full((3,), 2.0))
    assert second.table is first.table
    first.write_rows(torch.tensor([1]), torch.ones(1, 3))
    assert torch.equal(second.read_dense(), first.read_dense())
    both = nn.ModuleList([first, second])
    state, before = both.state_dict(), first.read_dense()
    second.write_rows(torch.tensor([1]), torch.zeros(1, 3))
    both.load_state_dict(state)
    assert torch.equal(first.read_dense(), before)
    third = TieredEmbeddingBag(10, 3, mode="sum", padding_idx=1, store=store, name="c")
    third.weight = first.weight
    with pytest.raises(ValueError, match="padding_idx"):
        third(indices)


def test_a_weight_keeps_its_store_open():
    first, second = (TieredEmbeddingBag(10, 3, mode="sum") for _ in range(2))
    second.weight = first.weight
    expected = first(torch.tensor([[1]]))
    del first
    assert torch.equal(second(torch.tensor([[1]])), expected)


# --- state_dict


def test_what_else_a_module_holds_is_torch_s():
    class Scaled(TieredEmbeddingBag):
        def __init__(self):
            super().__init__(10, 3, mode="sum")
            self.scale = nn.Parameter(torch.ones(3))
            self.register_buffer("seen", torch.zeros(1, dtype=torch.int64))

    emb = Scaled()
    seen = []
    emb.register_load_state_dict_pre_hook(lambda module, state, *rest: seen.append(sorted(state)))
    assert [name for name, _ in emb.half().named_parameters()] == ["weight", "scale"]
    assert emb.scale.dtype is torch.float16
    assert emb.weight.dtype is torch.float32
    state = emb.state_dict()
    assert sorted(state) == ["scale", "seen", "weight"]
    with torch.no_grad():
        emb.scale.zero_()
    emb.load_state_dict(state | {"scale": torch.full((3,), 2.0), "seen": torch.tensor([5])})
    assert emb.scale.tolist() == [2, 2, 2]
    assert emb.seen.tolist() == [5]
    assert seen == [["scale", "seen", "weight"]]


def test_state_dict_is_a_small_reference(store, tmp_path):
    model = nn.Sequential(TieredEmbeddingBag(1000, 64, mode="sum", store=store, name="t"), nn.Linear(64, 1))
    optimizer = mtrains.optim.Adagrad(model.parameters(), lr=0.1)

    def train():
        optimizer.zero_grad()
        model(torch.tensor([[1, 2, 3]])).sum().backward()
        optimizer.step()

    train()
    state = model.state_dict()
    assert set(state) == {"0.weight", "1.weight", "1.bias"}
    assert state["0.weight"].dtype is torch.uint8
    assert state["0.weight"].numel() < 1000
    torch.save(state, tmp_path / "state.pt")
    optimizer_state = optimizer.state_dict()
    rows = model[0].read_dense()
    train()
    after = model[0].read_dense()
    assert not torch.equal(after, rows)
    model.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    optimizer.load_state_dict(optimizer_state)
    assert torch.equal(model[0].read_dense(), rows)
    train()
    assert torch.equal(model[0].read_dense(), after)


def test_state_dict_of_several_tables_goes_back_as_a_whole(store):
    first = TieredEmbeddingBag(10, 3, store=store, name="a")
    second = TieredEmbeddingBag(10, 3, store=store, name="b")
    both = nn.ModuleList([first, second])
    first.write_rows(torch.tensor([1]), torch.ones(1, 3))
    state = both.state_dict()
    before = first.read_dense()
    first.write_rows(torch.tensor([1]), torch.zeros(1, 3))
    later = both.state_dict()
    with pytest.raises(RuntimeError, match=r"not for its tables \['b'\]"):
        first.load_state_dict({"weight": state["0.weight"]})
    assert not torch.equal(first.read_dense(), before)
    with pytest.raises(StateError, match="epoch"):
        both.load_state_dict({"0.weight": state["0.weight"], "1.weight": later["1.weight"]})
    assert not torch.equal(first.read_dense(), before)
    both.load_state_dict(state)
    assert torch.equal(first.read_dense(), before)


def test_a_reference_to_another_store_is_refused():
    first, second = TieredEmbeddingBag(10, 3), TieredEmbeddingBag(10, 3)
    with pytest.raises(StateError, match="store"):
        first.load_state_dict(second.state_dict())


def test_an_ordinary_weight_is_a_warm_start(store):
    weight = torch.randn(3000, 7)
    emb = TieredEmbeddingBag(3000, 7, store=store, name="t")
    emb.load_state_dict(nn.EmbeddingBag(3000, 7, _weight=weight).state_dict())
    assert torch.equal(emb.read_dense(), weight)
    for state, message in [
        ({"weight": torch.zeros(3, 7)}, "size mismatch"),
        ({}, "Missing key"),
        ({"weight": weight, "bias": weight}, "Unexpected key"),
    ]:
        with pytest.raises(RuntimeError, match=message):
            emb.load_state_dict(state)
    with pytest.raises(StateError, match="neither a reference"):
        emb.load_state_dict({"weight": torch.zeros(3, dtype=torch.uint8)})


def test_a_lookup_from_before_a_restore_is_refused(store):
    emb = TieredEmbeddingBag(10, 3, mode="sum", store=store, name="t")
    optimizer = mtrains.optim.SGD(emb.parameters(), lr=1.0)
    state = emb.state_dict()
    emb(torch.tensor([[1]])).sum().backward()
    emb.load_state_dict(state)
    with pytest.raises(StateError, match="before the store was restored"):
        optimizer.step()


def test_initial_values_are_of_mtrains_init(store):
    with pytest.raises(TypeError, match="from_pretrained"):
        TieredEmbeddingBag(10, 4, store=store, name="t", init=torch.zeros(10, 4))
