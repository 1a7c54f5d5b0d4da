"""TieredWeight: a parameter without storage; what it cannot do is refused."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import mtrains
from mtrains import TieredEmbeddingBag
from mtrains.errors import StateError
from mtrains.weight import TieredWeight


@pytest.fixture
def emb():
    return TieredEmbeddingBag(100, 4, mode="sum")


def test_is_a_parameter_with_the_table_s_shape(emb):
    weight = emb.weight
    assert isinstance(weight, nn.Parameter)
    assert type(weight) is TieredWeight
    assert weight.shape == (100, 4)
    assert weight.numel() == 400
    assert weight.dtype is torch.float32
    assert weight.is_leaf
    assert weight.requires_grad
    emb(torch.tensor([[1]]))
    assert [name for name, _ in emb.named_parameters(remove_duplicate=False)] == ["weight"]
    assert "num_embeddings=100" in repr(weight)


def test_a_table_of_1e12_rows_costs_nothing():
    emb = TieredEmbeddingBag(10**12, 128, mode="sum")
    assert emb.weight.numel() == 128 * 10**12
    assert emb(torch.tensor([0, 10**12 - 1]), torch.tensor([0])).isfinite().all()


@pytest.mark.parametrize(
    "operation",
    [
        lambda w: nn.init.normal_(w),
        lambda w: nn.init.uniform_(w),
        lambda w: nn.init.zeros_(w),
        lambda w: nn.init.xavier_uniform_(w),
        lambda w: w.data.uniform_(-1, 1),
        lambda w: w[torch.tensor([1, 2])],
        lambda w: w[0],
        lambda w: w.norm(),
        lambda w: w.sum(),
        lambda w: w + 1,
        lambda w: w.clone(),
        lambda w: torch.zeros_like(w),
        lambda w: w.detach().copy_(torch.zeros(100, 4)),
        lambda w: nn.functional.embedding_bag(torch.tensor([1]), w, torch.tensor([0])),
        lambda w: nn.functional.embedding(torch.tensor([1]), w),
        lambda w: nn.utils.parameters_to_vector([w]),
        lambda w: setattr(w, "data", torch.zeros(100, 4)),
        lambda w: torch.cat([w, w]),
        lambda w: torch._foreach_add_([torch.zeros(100, 4), w.detach()], 1.0),
        lambda w: w.to(torch.float64),
    ],
)
def test_operations_are_refused_with_the_remedy(emb, operation):
    before = emb.read_dense()
    with pytest.raises(NotImplementedError, match=r"read_rows.*write_rows.*init=.*mtrains\.optim.*to_dense"):
        operation(emb.weight)
    assert torch.equal(emb.read_dense(), before)


@pytest.mark.parametrize(
    "operation",
    [
        lambda m: copy.deepcopy(m),
        lambda m: copy.deepcopy(m.weight),
        lambda m: torch.optim.swa_utils.AveragedModel(m),
        lambda m: pickle.dumps(m.weight),
        lambda m: torch.save(m, io.BytesIO()),
    ],
)
def test_copies_and_pickles_are_refused(emb, operation):
    with pytest.raises(TypeError, match="refused, its rows live in the store"):
        operation(emb)


@pytest.mark.parametrize(
    "operation",
    [
        lambda m: nn.utils.parametrizations.weight_norm(m),
        lambda m: nn.utils.parametrizations.spectral_norm(m),
        lambda m: prune.l1_unstructured(m, "weight", 0.5),
        lambda m: prune.random_unstructured(m, "weight", 0.5),
    ],
)
def test_reparametrizations_are_refused(emb, operation):
    with pytest.raises(NotImplementedError, match="rows of table"):
        operation(emb)


def test_detach_and_data_are_aliases_without_gradient(emb):
    alias = emb.weight.detach()
    assert type(alias) is TieredWeight
    assert alias.table is emb.table
    assert not alias.requires_grad
    assert emb.weight.data.shape == (100, 4)


def test_modules_over_one_table_share_one_weight(store):
    first = TieredEmbeddingBag(10, 4, store=store, name="t")
    second = TieredEmbeddingBag(10, 4, store=store, name="t")
    assert first.weight is second.weight
    assert len(list(nn.ModuleList([first, second]).parameters())) == 1


def test_a_weight_dies_with_its_modules():
    import gc
    import weakref

    emb = TieredEmbeddingBag(10, 4)
    emb(torch.tensor([[1, 2]])).sum().backward()
    table = weakref.ref(emb.table)
    weight = weakref.ref(emb.weight)
    del emb
    gc.collect()
    assert weight() is None
    assert table() is None


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda p: torch.optim.SGD(p, lr=0.1),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.1),
        lambda p: torch.optim.SGD(p, lr=0.1, foreach=True),
        lambda p: torch.optim.Adagrad(p, lr=0.1),
        lambda p: torch.optim.Adam(p, lr=0.1),
        lambda p: torch.optim.AdamW(p, lr=0.1),
        lambda p: torch.optim.RMSprop(p, lr=0.1),
        lambda p: torch.optim.NAdam(p, lr=0.1),
        lambda p: torch.optim.LBFGS(p, lr=0.1),
    ],
)
def test_torch_optimizers_by_mistake_are_refused(emb, optimizer):
    before = emb.read_dense()

    def train():
        opt = optimizer(emb.parameters())

        def closure():
            opt.zero_grad()
            loss = emb(torch.tensor([[1, 2]])).sum()
            loss.backward()
            return loss

        opt.step(closure)

    with pytest.raises(NotImplementedError, match=r"mtrains\.optim"):
        train()
    assert torch.equal(emb.read_dense(), before)


def test_torch_sparse_adam_by_mistake_is_refused(emb):
    opt = torch.optim.SparseAdam(emb.parameters())
    emb(torch.tensor([[1, 2]])).sum().backward()
    with pytest.raises((RuntimeError, NotImplementedError)):
        opt.step()


def test_the_second_backward_without_an_optimizer_is_refused(emb):
    indices = torch.tensor([[1, 2]])
    (emb(indices) + emb(indices)).sum().backward()  # one pass, two lookups
    with pytest.raises(StateError, match=r"no mtrains optimizer has it.*mtrains\.optim.*requires_grad_"):
        emb(indices).sum().backward()
    optimizer = mtrains.optim.SGD(emb.parameters(), lr=0.1)
    for _ in range(3):
        emb(indices).sum().backward()
    del optimizer
    emb(indices).sum().backward()
    with pytest.raises(StateError, match="second backward pass"):
        emb(indices).sum().backward()


def test_a_dense_weight_in_its_place_is_refused(emb):
    with pytest.raises(TypeError, match="was replaced by a Tensor"):
        torch.func.functional_call(emb, {"weight": torch.zeros(100, 4)}, (torch.tensor([[1]]),))


def test_ignored_parameters():
    model = nn.Sequential(nn.Linear(2, 2), TieredEmbeddingBag(10, 4))
    ignored = mtrains.ignored_parameters(model)
    assert list(ignored) == ["1.weight"]
    assert ignored["1.weight"] is model[1].weight
