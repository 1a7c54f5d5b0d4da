"""The optimizers against torch.optim, and against float64 formulas where torch has none."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import mtrains
from mtrains import Store, TieredEmbeddingBag, optim, threads
from mtrains.errors import StateError

# torch.optim's sparse paths make sparse tensors without saying whether to check them.
pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled")

CLOSE = {"rtol": 1e-5, "atol": 1e-6}
N = 12
ALL = [optim.SGD, optim.Adagrad, optim.RowWiseAdagrad, optim.SparseAdam, optim.PartialRowWiseAdam]


class Formula:
    """One table in float64, by the formulas of the docstrings."""

    def __init__(self, kind, rows, **options):
        self.kind, self.rows, self.t = kind, rows.double(), 0
        self.lr, self.eps = options.get("lr", 0.1), options.get("eps", 1e-8)
        self.beta1, self.beta2 = options.get("betas", (0.9, 0.999))
        self.lr_decay, self.decay = options.get("lr_decay", 0.0), options.get("weight_decay", 0.0)
        self.mode, self.sign = options.get("weight_decay_mode", "l2"), -1 if options.get("maximize") else 1
        start = options.get("initial_accumulator_value", 0.0)
        self.sums = torch.full_like(self.rows, start)
        self.first, self.second = torch.zeros_like(self.rows), torch.zeros_like(self.rows)

    def step(self, lookups):
        """lookups: [(indices[B, L], grad[B, D])]."""
        gradient, seen = torch.zeros_like(self.rows), set()
        for indices, grad in lookups:
            for bag, row in itertools.product(range(len(indices)), range(indices.shape[1])):
                gradient[indices[bag, row]] += grad[bag].double()
                seen.add(int(indices[bag, row]))
        self.t += 1
        for row in seen:
            self.rows[row] = self.updated(row, self.sign * gradient[row])

    def updated(self, row, g):
        w = self.rows[row]
        if self.mode == "l2":
            g = g + self.decay * w
        else:
            w = w * (1 - self.lr * self.decay)
        if self.kind is optim.SGD:
            return w - self.lr * g
        square = g * g
        if self.kind in (optim.RowWiseAdagrad, optim.PartialRowWiseAdam):
            square = square.mean().expand_as(g)
        if self.kind in (optim.Adagrad, optim.RowWiseAdagrad):
            self.sums[row] += square
            lr = self.lr / (1 + (self.t - 1) * self.lr_decay)
            return w - lr * g / (self.sums[row].sqrt() + self.eps)
        self.first[row] += (g - self.first[row]) * (1 - self.beta1)
        self.second[row] += (square - self.second[row]) * (1 - self.beta2)
        lr = self.lr * math.sqrt(1 - self.beta2**self.t) / (1 - self.beta1**self.t)
        return w - lr * self.first[row] / (self.second[row].sqrt() + self.eps)


def budgets(dim):
    """All rows fit, or some three with the largest state."""
    return st.sampled_from(["64MiB", 3 * (3 * 4 * dim + 24)])


def lookups(draw_seed, dim, count):
    generator = torch.Generator().manual_seed(draw_seed)
    for _ in range(count):
        yield (
            torch.randint(0, N, (4, 3), generator=generator),
            torch.randint(-128, 129, (4, dim), generator=generator).float() / 16,
        )


@pytest.mark.parametrize("kind", ALL)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_steps_are_close_to_the_formula(kind, data):
    dim = data.draw(st.sampled_from([1, 2, 3, 7, 16, 17, 64, 130, 300]))
    options = {"lr": 0.1, "maximize": data.draw(st.booleans())}
    if data.draw(st.booleans()):
        options |= {
            "weight_decay": 0.05,
            "weight_decay_mode": data.draw(st.sampled_from(["l2", "decoupled"])),
        }
    if kind in (optim.Adagrad, optim.RowWiseAdagrad) and data.draw(st.booleans()):
        options |= {"lr_decay": 0.1, "initial_accumulator_value": 0.5}
    if kind in (optim.SparseAdam, optim.PartialRowWiseAdam) and data.draw(st.booleans()):
        options |= {"betas": (0.8, 0.99), "eps": 1e-3}
    with Store(dram=data.draw(budgets(dim)), seed=1) as store:
        emb = TieredEmbeddingBag(N, dim, mode="sum", store=store, name="t")
        formula = Formula(
            kind, emb.read_dense(), **({"eps": 1e-10} if kind is optim.Adagrad else {}) | options
        )
        optimizer = kind(emb.parameters(), **options)
        each = data.draw(st.integers(1, 3))
        for step in range(3):
            batch = list(lookups(10 * data.draw(st.integers(0, 99)) + step, dim, each))
            for indices, grad in batch:
                emb(indices).backward(grad)
            optimizer.step()
            optimizer.zero_grad()
            formula.step(batch)
        torch.testing.assert_close(emb.read_dense(), formula.rows.float(), rtol=1e-4, atol=1e-5)


TORCH = {
    "sgd": (optim.SGD, torch.optim.SGD, {"lr": 0.1}),
    "sgd maximize": (optim.SGD, torch.optim.SGD, {"lr": 0.1, "maximize": True}),
    "adagrad": (optim.Adagrad, torch.optim.Adagrad, {"lr": 0.1}),
    "adagrad options": (
        optim.Adagrad,
        torch.optim.Adagrad,
        {"lr": 0.1, "lr_decay": 0.01, "initial_accumulator_value": 0.25, "eps": 1e-6},
    ),
    "adam": (optim.SparseAdam, torch.optim.SparseAdam, {"lr": 0.01}),
    "adam options": (
        optim.SparseAdam,
        torch.optim.SparseAdam,
        {"lr": 0.01, "betas": (0.5, 0.9), "eps": 1e-4},
    ),
}


@pytest.mark.parametrize("name", TORCH)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_steps_are_close_to_torch(name, data):
    ours, theirs, options = TORCH[name]
    dim = data.draw(st.sampled_from([1, 2, 3, 7, 16, 17, 64, 130, 300]))
    mode = data.draw(st.sampled_from(["sum", "mean"]))
    padding_idx = data.draw(st.none() | st.integers(0, N - 1))
    with Store(dram=data.draw(budgets(dim)), seed=1) as store:
        emb = TieredEmbeddingBag(N, dim, mode=mode, padding_idx=padding_idx, store=store, name="t")
        dense = nn.EmbeddingBag(
            N, dim, mode=mode, padding_idx=padding_idx, _weight=emb.read_dense(), sparse=True
        )
        optimizers = [ours(emb.parameters(), **options), theirs(dense.parameters(), **options)]
        each = data.draw(st.integers(1, 2))
        for step in range(3):
            batch = list(lookups(10 * data.draw(st.integers(0, 99)) + step, dim, each))
            for indices, grad in batch:
                if mode == "mean":  # a lattice after the division too
                    grad = grad * (indices != (-1 if padding_idx is None else padding_idx)).sum(
                        1, keepdim=True
                    )
                emb(indices).backward(grad)
                dense(indices).backward(grad)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        torch.testing.assert_close(emb.read_dense(), dense.weight.detach(), **CLOSE)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", ALL)
def test_16_bit_rows_follow_the_formula_on_average(kind, dtype):
    # Stochastic rounding: a step smaller than half a unit in the last place moves rows on average.
    with Store(dram="64MiB", seed=1) as store:
        emb = TieredEmbeddingBag(
            N, 300, mode="sum", dtype=dtype, store=store, name="t", init=mtrains.init.constant(1.0)
        )
        optimizer = kind(emb.parameters(), lr=1e-4)
        for _ in range(20):
            emb(torch.arange(N)[:, None]).backward(torch.ones(N, 300, dtype=dtype))
            optimizer.step()
            optimizer.zero_grad()
        formula = Formula(kind, torch.ones(N, 300), lr=1e-4, eps=1e-10 if kind is optim.Adagrad else 1e-8)
        for _ in range(20):
            formula.step([(torch.arange(N)[:, None], torch.ones(N, 300))])
        mean = float(emb.read_dense().float().mean())
        assert mean == pytest.approx(float(formula.rows.mean()), abs=3e-4)


# --- composition with torch's optimizers


class Net(nn.Module):
    def __init__(self, emb):
        super().__init__()
        torch.manual_seed(1)
        self.emb, self.lin = emb, nn.Linear(4, 3)

    def forward(self, indices):
        return torch.tanh(self.lin(self.emb(indices))).square().mean()


PAIRS = [
    (optim.SGD, lambda tables, rest, **k: [torch.optim.SGD(tables, **k), torch.optim.SGD(rest, **k)]),
    (
        optim.Adagrad,
        lambda tables, rest, **k: [torch.optim.Adagrad(tables, **k), torch.optim.Adagrad(rest, **k)],
    ),
    (
        optim.SparseAdam,
        lambda tables, rest, **k: [torch.optim.SparseAdam(tables, **k), torch.optim.Adam(rest, **k)],
    ),
]


@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
@pytest.mark.parametrize("foreach", [None, True, False])
def test_ordinary_parameters_equal_torch_over_groups_schedulers_and_state_dicts(ours, theirs, foreach):
    emb = TieredEmbeddingBag(N, 4, mode="sum", store=Store(seed=1))
    tiered = Net(emb)
    dense = Net(nn.EmbeddingBag(N, 4, mode="sum", sparse=True, _weight=emb.read_dense()))

    def groups():
        return [{"params": tiered.emb.parameters(), "lr": 0.05}, {"params": tiered.lin.parameters()}]

    mine = ours(groups(), lr=0.1, foreach=foreach)
    others = theirs(dense.emb.parameters(), dense.lin.parameters(), lr=0.1)
    others[0].param_groups[0]["lr"] = 0.05
    schedulers = [torch.optim.lr_scheduler.StepLR(o, 2, 0.5) for o in [mine, *others]]
    for step, (indices, _) in enumerate(lookups(0, 4, 6)):
        for model, optimizers in ((tiered, [mine]), (dense, others)):
            for optimizer in optimizers:
                optimizer.zero_grad()
            model(indices).backward()
            for optimizer in optimizers:
                optimizer.step()
        for scheduler in schedulers:
            scheduler.step()
        if step == 3:
            state, mine = mine.state_dict(), ours(groups(), lr=7.0)
            mine.load_state_dict(state)
            scheduler_state, schedulers[0] = schedulers[0].state_dict(), None
            schedulers[0] = torch.optim.lr_scheduler.StepLR(mine, 2, 0.5)
            schedulers[0].load_state_dict(scheduler_state)
            mine.load_state_dict(state)
    # The rows differ by rounding (order of sums), so what they feed does.
    torch.testing.assert_close(emb.read_dense(), dense.emb.weight.detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(tiered.lin.weight, dense.lin.weight, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("ours", "theirs", "options"),
    [
        (optim.SGD, torch.optim.SGD, {"weight_decay": 0.1}),
        (optim.Adagrad, torch.optim.Adagrad, {"weight_decay": 0.1, "lr_decay": 0.1}),
        (optim.RowWiseAdagrad, torch.optim.Adagrad, {"eps": 1e-8}),
        (optim.SparseAdam, torch.optim.Adam, {"weight_decay": 0.1}),
        (optim.PartialRowWiseAdam, torch.optim.Adam, {"betas": (0.5, 0.9)}),
        (optim.SparseAdam, torch.optim.AdamW, {"weight_decay": 0.1, "weight_decay_mode": "decoupled"}),
    ],
)
def test_without_tables_it_is_torch_s_bit_for_bit(ours, theirs, options):
    models = []
    for kind in (ours, theirs):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 1))
        usable = {k: v for k, v in options.items() if kind is ours or k != "weight_decay_mode"}
        optimizer = kind(model.parameters(), lr=0.1, **usable)
        for step in range(5):
            optimizer.zero_grad()
            model(torch.full((3, 5), 0.1 * step)).square().sum().backward()
            optimizer.step()
            if step == 2:
                state = optimizer.state_dict()
                optimizer = kind(model.parameters(), lr=0.7, **usable)
                optimizer.load_state_dict(state)
        models.append(model)
    for mine, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(mine, other)


def test_state_names_are_torch_s(store):
    emb = TieredEmbeddingBag(N, 4, mode="sum", store=store, name="t")
    net = Net(emb)
    optimizer = optim.SparseAdam(net.parameters(), lr=0.1)
    for indices, _ in lookups(0, 4, 2):
        net(indices).backward()
        optimizer.step()
    state = optimizer.state_dict()
    assert set(state["state"][0]) == {"step"}
    assert float(state["state"][0]["step"]) == 2
    assert {"step", "exp_avg", "exp_avg_sq"} <= set(state["state"][1])
    assert [name for name, _ in emb.table.optimizer.fields] == ["exp_avg", "exp_avg_sq"]


def test_add_param_group(store):
    emb = TieredEmbeddingBag(N, 4, mode="sum", store=store, name="t")
    net = Net(emb)
    optimizer = optim.Adagrad(net.lin.parameters(), lr=0.1)
    indices, _ = next(lookups(0, 4, 1))
    before = emb.read_dense()
    net(indices).backward()
    optimizer.step()
    optimizer.zero_grad()
    emb.weight.grad = None
    assert torch.equal(emb.read_dense(), before)
    weight, sums = net.lin.weight.detach().clone(), optimizer.state[net.lin.weight]["sum"]
    optimizer.add_param_group({"params": emb.parameters(), "lr": 0.5})
    net(indices).backward()
    optimizer.step()
    assert not torch.equal(emb.read_dense(), before)
    assert not torch.equal(net.lin.weight, weight)
    assert optimizer.state[net.lin.weight]["sum"] is sums


# --- steps


@pytest.mark.parametrize("kind", ALL)
def test_no_gradient_no_step(kind, store):
    emb = TieredEmbeddingBag(N, 4, mode="sum", store=store, name="t")
    optimizer = kind(emb.parameters(), lr=0.1)
    before = emb.read_dense()
    optimizer.step()
    assert emb.table.optimizer.step == 0
    emb(torch.tensor([[1]])).sum().backward()
    optimizer.zero_grad(set_to_none=False)
    optimizer.step()
    assert torch.equal(emb.read_dense(), before)
    assert emb.table.optimizer.step == 1  # a gradient of no rows, as torch counts it


def test_step_reads_gradients_and_does_not_clear_them(store):
    emb = TieredEmbeddingBag(N, 4, mode="sum", store=store, name="t")
    optimizer = optim.SGD(emb.parameters(), lr=0.5)
    before = emb.read_dense()
    emb(torch.tensor([[1]])).sum().backward()
    optimizer.step()
    optimizer.step()
    assert torch.equal(emb.read_dense()[1], before[1] - 0.5 - 0.5)


def test_the_learning_rate_of_the_step_counts(store):
    emb = TieredEmbeddingBag(N, 4, mode="sum", store=store, name="t")
    optimizer = optim.SGD(emb.parameters(), lr=0.5)
    before = emb.read_dense()
    emb(torch.tensor([[1]])).sum().backward()
    optimizer.param_groups[0]["lr"] = torch.tensor(2.0)
    optimizer.step()
    assert torch.equal(emb.read_dense()[1], before[1] - 2)


def test_a_closure_runs_with_gradients(store):
    emb = TieredEmbeddingBag(N, 4, mode="sum", store=store, name="t")
    optimizer = optim.SGD(emb.parameters(), lr=0.5)
    before = emb.read_dense()

    def closure():
        loss = emb(torch.tensor([[1]])).sum()
        optimizer.zero_grad()
        loss.backward()
        return loss

    with torch.no_grad():
        assert float(optimizer.step(closure).detach()) == pytest.approx(float(before[1].sum()))
    assert torch.equal(emb.read_dense()[1], before[1] - 0.5)


def test_tables_of_several_stores():
    embs = [TieredEmbeddingBag(N, 4, mode="sum") for _ in range(3)]
    before = [emb.read_dense() for emb in embs]
    optimizer = optim.SGD(nn.ModuleList(embs).parameters(), lr=1.0)
    sum(emb(torch.tensor([[2]])).sum() for emb in embs).backward()
    optimizer.step()
    for emb, rows in zip(embs, before, strict=True):
        assert torch.equal(emb.read_dense()[2], rows[2] - 1)


def test_adam_counts_the_steps_of_each_table(store):
    first = TieredEmbeddingBag(N, 4, mode="sum", store=store, name="a")
    second = TieredEmbeddingBag(N, 4, mode="sum", store=store, name="b")
    optimizer = optim.SparseAdam([first.weight, second.weight], lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        first(torch.tensor([[1]])).sum().backward()
        if step == 2:
            second(torch.tensor([[1]])).sum().backward()
        optimizer.step()
    assert (first.table.optimizer.step, second.table.optimizer.step) == (3, 1)


def test_weights_change_only_where_there_is_a_gradient(store):
    for number, kind in enumerate(ALL):
        emb = TieredEmbeddingBag(N, 4, mode="sum", store=store, name=f"t{number}")
        optimizer = kind(emb.parameters(), lr=0.1, weight_decay=0.5)
        before = emb.read_dense()
        emb(torch.tensor([[3]])).sum().backward()
        optimizer.step()
        changed = (emb.read_dense() != before).any(1)
        assert changed.nonzero().flatten().tolist() == [3]


# --- refusals


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda p: optim.SGD(p, lr=0.1, momentum=0.9), NotImplementedError),
        (lambda p: optim.SGD(p, lr=0.1, nesterov=True), NotImplementedError),
        (lambda p: optim.SGD([{"params": p, "momentum": 0.9}], lr=0.1), NotImplementedError),
        (lambda p: optim.Adagrad(p, differentiable=True), NotImplementedError),
        (lambda p: optim.SGD(p, lr=-1), ValueError),
        (lambda p: optim.SGD(p, lr=float("nan")), ValueError),
        (lambda p: optim.Adagrad(p, eps=-1), ValueError),
        (lambda p: optim.Adagrad(p, lr_decay=-1), ValueError),
        (lambda p: optim.Adagrad(p, initial_accumulator_value=-1), ValueError),
        (lambda p: optim.SGD(p, weight_decay=-1), ValueError),
        (lambda p: optim.SGD(p, weight_decay_mode="L2"), ValueError),
        (lambda p: optim.SparseAdam(p, betas=(0.9, 1.0)), ValueError),
        (lambda p: optim.SparseAdam([]), ValueError),
    ],
)
def test_bad_arguments_are_refused_at_construction(make, error):
    emb = TieredEmbeddingBag(N, 4)
    with pytest.raises(error):
        make(list(emb.parameters()))


def test_another_kind_of_optimizer_is_refused(store):
    emb = TieredEmbeddingBag(N, 4, mode="sum", store=store, name="t")
    optimizer = optim.Adagrad(emb.parameters(), lr=0.1)
    with pytest.raises(StateError, match=r"adagrad.*sparse_adam|sparse_adam.*adagrad"):
        optim.SparseAdam(emb.parameters())
    emb(torch.tensor([[1]])).sum().backward()
    optimizer.step()


def test_on_optimizer_change_reset():
    with Store(dram="64MiB", seed=1, on_optimizer_change="reset") as store:
        emb = TieredEmbeddingBag(N, 4, mode="sum", store=store, name="t")
        first = optim.Adagrad(emb.parameters(), lr=0.1)
        emb(torch.tensor([[1]])).sum().backward()
        first.step()
        rows = emb.read_dense()
        second = optim.SparseAdam(emb.parameters(), lr=0.1)
        assert torch.equal(emb.read_dense(), rows)
        second.step()
        with pytest.raises(StateError, match="one table has one optimizer"):
            first.step()


def test_a_replaced_gradient_is_refused(store):
    emb = TieredEmbeddingBag(N, 4, mode="sum", store=store, name="t")
    optimizer = optim.SGD(emb.parameters(), lr=0.1)
    emb.weight.grad = torch.zeros(N, 4)
    with pytest.raises(StateError, match="was replaced by a Tensor"):
        optimizer.step()


def test_a_refused_gradient_changes_nothing(store):
    first = TieredEmbeddingBag(N, 4, mode="sum", store=store, name="a")
    second = TieredEmbeddingBag(N, 4, mode="sum", store=store, name="b")
    lin = nn.Linear(2, 1)
    optimizer = optim.SGD([first.weight, second.weight, *lin.parameters()], lr=0.1)
    before, weight = first.read_dense(), lin.weight.detach().clone()
    first(torch.tensor([[1]])).sum().backward()
    lin(torch.ones(2)).sum().backward()
    grad = torch.ones(1, 4)
    second(torch.tensor([[1]])).backward(grad)
    grad.zero_()
    with pytest.raises(StateError):
        optimizer.step()
    assert torch.equal(first.read_dense(), before)
    assert torch.equal(lin.weight, weight)
    assert first.table.optimizer.step == 0


def test_optimizer_state_of_another_step_is_refused(store):
    emb = TieredEmbeddingBag(N, 4, mode="sum", store=store, name="t")
    optimizer = optim.SparseAdam(emb.parameters(), lr=0.1)
    state = optimizer.state_dict()
    emb(torch.tensor([[1]])).sum().backward()
    optimizer.step()
    optimizer.load_state_dict(state)
    with pytest.raises(StateError, match=r"step 0.*at step 1"):
        optimizer.step()


def test_the_state_of_a_torch_optimizer_is_refused(store):
    emb = TieredEmbeddingBag(N, 4, mode="sum", store=store, name="t")
    dense = emb.to_dense()
    other = torch.optim.Adagrad(dense.parameters(), lr=0.1)
    with pytest.raises(StateError, match="checkpoint of its store"):
        optim.Adagrad(emb.parameters(), lr=0.1).load_state_dict(other.state_dict())


def test_set_num_threads():
    assert mtrains.get_num_threads() >= 1
    before = threads._NUM_THREADS.requested
    emb = TieredEmbeddingBag(N, 4, mode="sum")
    try:
        mtrains.set_num_threads(1)
        assert mtrains.get_num_threads() == 1
        emb(torch.tensor([[1]]))
        mtrains.set_num_threads(3)
        emb(torch.tensor([[1]]))
        for bad, error in ((0, ValueError), (-1, ValueError), (1.5, TypeError), (True, TypeError)):
            with pytest.raises(error):
                mtrains.set_num_threads(bad)
        assert mtrains.get_num_threads() == 3
    finally:
        threads._NUM_THREADS.requested = before
