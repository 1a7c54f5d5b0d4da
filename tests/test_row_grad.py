"""RowGrad: what torch does with gradients, on rows that are not there."""

from __future__ import annotations

import itertools
import pickle

import numpy as np
import pytest
import torch

import mtrains
from mtrains import TieredEmbeddingBag
from mtrains.errors import StateError
from mtrains.row_grad import RowGrad

N, D, B = 40, 5, 4


@pytest.fixture
def emb(store):
    emb = TieredEmbeddingBag(N, D, mode="sum", store=store, name="t")
    emb.optimizer = mtrains.optim.SGD(emb.parameters(), lr=0.5)
    return emb


def draw(seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, N, (B, 3), generator=generator), torch.randn(B, D, generator=generator)


def fold(*lookups):
    """Left fold of the occurrences in the order given, float32."""
    sums: dict[int, np.ndarray] = {}
    for indices, grad in lookups:
        for bag, row in ((b, int(i)) for b in range(B) for i in indices[b]):
            value = grad[bag].numpy()
            sums[row] = sums[row] + value if row in sums else np.float32(0) + value
    rows = sorted(sums)
    return np.array(rows), np.stack([sums[row] for row in rows])


def assert_sums(grad, rows, sums):
    assert type(grad) is RowGrad
    got_rows, got_sums = grad.row_sums()
    np.testing.assert_array_equal(got_rows, rows)
    np.testing.assert_array_equal(got_sums, sums)


def test_shape_and_repr(emb):
    indices, grad = draw(0)
    emb(indices).backward(grad)
    assert emb.weight.grad.shape == (N, D)
    assert emb.weight.grad.dtype is torch.float32
    assert not emb.weight.grad.is_sparse
    assert "RowGrad(table='t', lookups=1" in repr(emb.weight.grad)


def test_one_lookup(emb):
    lookup = draw(0)
    emb(lookup[0]).backward(lookup[1])
    assert_sums(emb.weight.grad, *fold(lookup))
    sparse = emb.weight.grad.to_sparse()
    assert sparse.is_coalesced()
    np.testing.assert_array_equal(sparse.values().numpy(), fold(lookup)[1])


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("retain", [False, True])
def test_sums_go_in_forward_order_whatever_the_order_of_backward(emb, order, retain):
    lookups = [draw(seed) for seed in range(3)]
    outs = [emb(indices) for indices, _ in lookups]
    for number in order:
        outs[number].backward(lookups[number][1], retain_graph=retain)
    assert_sums(emb.weight.grad, *fold(*lookups))


def test_one_backward_of_several_lookups(emb):
    lookups = [draw(seed) for seed in range(4)]
    outs = [emb(indices) for indices, _ in lookups]
    torch.autograd.backward(outs, [grad for _, grad in lookups])
    assert_sums(emb.weight.grad, *fold(*lookups))


def test_accumulation_holds_one_lookup_and_the_sums(emb):
    lookups = [draw(seed) for seed in range(6)]
    losses = []
    for indices, grad in lookups:
        out = emb(indices)
        out.backward(grad)
        losses.append(out)  # keeps graphs, not their plans
        assert len(emb.weight.grad.body.pieces) == 1
    assert_sums(emb.weight.grad, *fold(*lookups))


def test_retain_graph_twice(emb):
    lookup = draw(0)
    out = emb(lookup[0])
    out.backward(lookup[1], retain_graph=True)
    out.backward(lookup[1])
    assert_sums(emb.weight.grad, *fold(lookup, lookup))


def test_numbers_scale_the_sums(emb):
    lookup = draw(0)
    emb(lookup[0]).backward(lookup[1])
    rows, sums = fold(lookup)
    grad = emb.weight.grad
    assert_sums(grad * 0.5, rows, sums * np.float32(0.5))
    assert_sums(torch.tensor(2.0) * grad, rows, sums * 2)
    assert_sums(grad / 4, rows, sums / 4)
    grad.mul_(2).div_(torch.tensor(4.0))
    assert_sums(emb.weight.grad, rows, sums / 2)
    with pytest.raises(NotImplementedError, match="to_sparse"):
        grad * torch.ones(5)


def test_add(emb):
    first, second = draw(0), draw(1)
    emb(first[0]).backward(first[1])
    one = emb.weight.grad
    emb.weight.grad = None
    emb(second[0]).backward(second[1])
    two = emb.weight.grad
    assert_sums(one + two, *fold(first, second))
    rows, sums = (one * 2 + two).row_sums()
    dense = np.zeros((N, D), np.float32)
    dense[fold(first)[0]] = fold(first)[1] * 2
    dense[fold(second)[0]] += fold(second)[1]
    np.testing.assert_array_equal(sums, dense[rows])
    np.testing.assert_array_equal((two.clone().add_(one, alpha=2)).row_sums()[1], sums)
    assert_sums(one, *fold(first))
    for other in (torch.zeros(N, D), 1.0):
        with pytest.raises(NotImplementedError, match="does not support"):
            one + other


def test_sums_of_different_scales_keep_inf_and_nan(emb):
    first, second = torch.zeros(B, D), torch.ones(B, D)
    first[0, 0], first[1, 1], second[0, 0], second[2, 2] = (float(x) for x in ("inf", "nan", "-inf", "3e38"))
    indices = torch.arange(B)[:, None]
    emb(indices).backward(first)
    emb.weight.grad.mul_(0.5)
    emb(indices + 1).backward(torch.zeros(B, D))
    emb.weight.grad.mul_(0.5)
    emb(indices).backward(second)
    emb.weight.grad.mul_(4.0)
    rows, sums = emb.weight.grad.row_sums()
    np.testing.assert_array_equal(rows, np.arange(B + 1))
    expected = np.full((B + 1, D), 4.0, np.float32)
    expected[B] = 0.0
    expected[0, 0] = expected[1, 1] = np.nan
    expected[2, 2] = np.inf
    np.testing.assert_array_equal(sums, expected)
    emb.weight.grad.clamp_(-1.0, 2.0)
    np.testing.assert_array_equal(emb.weight.grad.row_sums()[1], np.clip(expected, -1.0, 2.0))


def test_zero_and_aliases(emb):
    lookup = draw(0)
    emb(lookup[0]).backward(lookup[1])
    alias, copied = emb.weight.grad.detach(), emb.weight.grad.clone()
    emb.weight.grad.zero_()
    assert len(alias.row_sums()[0]) == 0
    assert_sums(copied, *fold(lookup))
    assert emb.weight.grad.to_sparse().values().shape == (0, D)


@pytest.mark.parametrize("order", [0, 1, 2, 3.5, float("inf")])
def test_norms(emb, order):
    lookup = draw(0)
    emb(lookup[0]).backward(lookup[1])
    expected = torch.linalg.vector_norm(emb.weight.grad.to_dense(), order)
    torch.testing.assert_close(torch.linalg.vector_norm(emb.weight.grad, order), expected)
    torch.testing.assert_close(torch._foreach_norm([emb.weight.grad, torch.ones(2)], order)[0], expected)
    emb.weight.grad.zero_()
    assert torch.linalg.vector_norm(emb.weight.grad, order) == 0


def test_clamp(emb):
    lookup = draw(0)
    emb(lookup[0]).backward(lookup[1])
    rows, sums = fold(lookup)
    torch.nn.utils.clip_grad_value_(emb.parameters(), 0.5)
    assert_sums(emb.weight.grad, rows, np.clip(sums, -0.5, 0.5))
    with pytest.raises(NotImplementedError):
        emb.weight.grad.clamp_(min=1.0)


def test_non_finite_check_and_unscale(emb):
    lookup = draw(0)
    for bad in (False, True):
        emb.weight.grad = None
        emb(lookup[0]).backward(lookup[1] * (float("inf") if bad else 1.0))
        other, found = torch.ones(3), torch.zeros(1)
        torch._amp_foreach_non_finite_check_and_unscale_([other, emb.weight.grad], found, torch.tensor(0.25))
        assert bool(found) is bad
        assert torch.equal(other, torch.full((3,), 0.25))
        if not bad:
            assert_sums(emb.weight.grad, fold(lookup)[0], fold(lookup)[1] / 4)


def test_a_gradient_changed_after_backward_is_refused(emb):
    indices, grad = draw(0)
    before = emb.read_dense()
    emb(indices).backward(grad)
    grad.zero_()
    with pytest.raises(StateError, match="changed in place after backward"):
        emb.optimizer.step()
    with pytest.raises(StateError, match="changed in place after backward"):
        emb.weight.grad.to_sparse()
    assert torch.equal(emb.read_dense(), before)


@pytest.mark.parametrize(
    "operation",
    [
        lambda g: g[0],
        lambda g: g.sum(),
        lambda g: g.isnan(),
        lambda g: g.view(-1),
        lambda g: g.to(torch.float64),
        lambda g: torch.zeros_like(g),
        lambda g: torch.zeros(N, D).add_(g),
        lambda g: torch.linalg.vector_norm(g, -1),
        lambda g: torch.linalg.vector_norm(g, 2, dim=1),
    ],
)
def test_other_operations_are_refused(emb, operation):
    indices, grad = draw(0)
    emb(indices).backward(grad)
    with pytest.raises(NotImplementedError, match="gradient of a tiered table does not support"):
        operation(emb.weight.grad)


def test_pickling_is_refused(emb):
    indices, grad = draw(0)
    emb(indices).backward(grad)
    with pytest.raises(TypeError, match="to_sparse"):
        pickle.dumps(emb.weight.grad)


@pytest.mark.parametrize("layout", ["expanded", "transposed", "row_stride", "one_row"])
def test_grad_outputs_of_any_layout(emb, layout):
    indices, _ = draw(0)
    grads = {
        "expanded": torch.ones(()).expand(B, D),
        "transposed": torch.randn(D, B).t(),
        "row_stride": torch.randn(B, 3 * D)[:, D : 2 * D],
        "one_row": torch.randn(1, D).expand(B, D),
    }
    emb(indices).backward(grads[layout])
    assert_sums(emb.weight.grad, *fold((indices, grads[layout].contiguous())))


def test_a_second_derivative_is_refused(emb):
    indices, _ = draw(0)
    scale = torch.ones(B, D, requires_grad=True)
    (grad,) = torch.autograd.grad((emb(indices) * scale).sum(), [emb.weight], create_graph=True)
    assert type(grad) is RowGrad
