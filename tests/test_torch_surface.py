"""What people do with parameters and optimizers in torch: rows as under nn.EmbeddingBag, or one clear "
"error."""

from __future__ import annotations

import os

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import mtrains
from mtrains import Store, TieredEmbeddingBag
from mtrains.errors import StateError

# Warnings of torch about its own doings: sparse gradients, and graphs that go on after a break.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]

N, D = 40, 4
INDICES, OFFSETS = torch.tensor([1, 2, 3, 4, 2]), torch.tensor([0, 2])


class Net(nn.Module):
    def __init__(self, emb):
        super().__init__()
        torch.manual_seed(1)
        self.emb, self.lin = emb, nn.Linear(D, 1)

    def forward(self, indices, offsets):
        return self.lin(torch.tanh(self.emb(indices, offsets)))


class Setting:
    """A net, how it is called, and its optimizer."""

    def __init__(self, net, call, optimizer):
        self.net, self.optimizer = net, optimizer
        self._call = call(net)

    def loss(self, shift=0):
        return self._call(INDICES + shift, OFFSETS).square().sum()


# --- ways to call the net


def eager(net):
    return net


def compiled(net):
    return torch.compile(net, backend="eager")


def checkpointed(net):
    return lambda indices, offsets: checkpoint(net, indices, offsets, use_reentrant=False)


def checkpointed_reentrant(net):
    # A reentrant checkpoint differentiates only if an argument does.
    anchor = torch.zeros((), requires_grad=True)
    return lambda i, o: checkpoint(lambda a, *x: net(*x) + a, anchor, i, o, use_reentrant=True)


# --- uses: each takes a Setting and trains a little


def plain_step(s):
    s.loss().backward()
    s.optimizer.step()


def several_steps(s):
    for shift in range(4):
        s.optimizer.zero_grad()
        s.loss(shift).backward()
        s.optimizer.step()


def accumulation(s):
    for shift in range(3):
        s.loss(shift).backward()
    s.optimizer.step()


def two_lookups(s):
    (s.loss() * s.loss(3)).backward()
    s.optimizer.step()


def the_same_ids_twice(s):
    (s.loss() * s.loss()).backward()
    s.optimizer.step()


def retain_graph(s):
    loss = s.loss()
    loss.backward(retain_graph=True)
    loss.backward()
    s.optimizer.step()


def zero_grad_to_none(s):
    s.loss().backward()
    s.optimizer.zero_grad(set_to_none=True)
    s.loss(1).backward()
    s.optimizer.step()


def zero_grad_to_zero(s):
    s.loss().backward()
    s.optimizer.zero_grad(set_to_none=False)
    s.loss(1).backward()
    s.optimizer.step()


def module_zero_grad(s):
    s.loss().backward()
    s.net.zero_grad()
    s.loss(1).backward()
    s.optimizer.step()


def grad_none(s):
    s.loss().backward()
    for param in s.net.parameters():
        param.grad = None
    s.optimizer.step()


def forward_zero_grad_backward(s):
    for shift in range(3):
        loss = s.loss(shift)
        s.optimizer.zero_grad()
        loss.backward()
        s.optimizer.step()


def closure(s):
    for shift in range(3):

        def compute(shift=shift):
            loss = s.loss(shift)
            s.optimizer.zero_grad()
            loss.backward()
            return loss

        assert float(s.optimizer.step(compute).detach()) > 0


def scheduler(s):
    schedule = torch.optim.lr_scheduler.StepLR(s.optimizer, 1, 0.5)
    several_steps(s)
    schedule.step()
    several_steps(s)


def param_groups(s):
    s.optimizer.param_groups[0]["lr"] = 0.3
    several_steps(s)


def tensor_hook(s):
    s.net.emb.weight.register_hook(lambda grad: grad * 0.5)
    plain_step(s)


def hooks_are_called(s):
    calls = []
    s.net.emb.weight.register_post_accumulate_grad_hook(lambda param: calls.append("post"))
    s.net.emb.weight.register_hook(lambda grad: calls.append("tensor"))
    plain_step(s)
    assert calls == ["tensor", "post"]


def step_in_a_hook(s):
    def step(param):
        s.optimizer.step()
        s.optimizer.zero_grad()

    s.net.emb.weight.register_post_accumulate_grad_hook(step)
    s.net.lin.requires_grad_(False)
    s.loss().backward()


def autograd_grad(s):
    loss = s.loss()
    (grad,) = torch.autograd.grad(loss, [s.net.emb.weight], retain_graph=True)
    assert grad.shape == (N, D)
    loss.backward()
    s.optimizer.step()


def frozen(s):
    s.net.emb.requires_grad_(False)
    plain_step(s)


def frozen_and_back(s):
    s.net.emb.requires_grad_(False)
    several_steps(s)
    s.net.emb.requires_grad_(True)
    several_steps(s)


def no_grad(s):
    with torch.no_grad():
        s.loss(2)
    plain_step(s)


def inference_mode(s):
    with torch.inference_mode():
        assert s.loss(2).is_inference()
    plain_step(s)


def clip_grad_norm(s):
    (s.loss() * 1000).backward()
    s.norm = nn.utils.clip_grad_norm_(s.net.parameters(), 1.0)
    s.optimizer.step()


def clip_grad_norm_one_by_one(s):
    (s.loss() * 1000).backward()
    s.norm = nn.utils.clip_grad_norm_(s.net.parameters(), 1.0, norm_type=float("inf"), foreach=False)
    s.optimizer.step()


def clip_grad_value(s):
    (s.loss() * 1000).backward()
    nn.utils.clip_grad_value_(s.net.parameters(), 0.1)
    s.optimizer.step()


def grad_scaler(s):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    for shift in range(3):
        s.optimizer.zero_grad()
        scaler.scale(s.loss(shift)).backward()
        scaler.step(s.optimizer)
        scaler.update()


def grad_scaler_skips(s):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    scaler.scale(s.loss() * float("inf")).backward()
    scaler.step(s.optimizer)
    scaler.update()
    assert scaler.get_scale() == 2.0**15


def grad_scaler_unscale_and_clip(s):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    scaler.scale(s.loss() * 1000).backward()
    scaler.unscale_(s.optimizer)
    s.norm = nn.utils.clip_grad_norm_(s.net.parameters(), 1.0)
    scaler.step(s.optimizer)
    scaler.update()


def grad_divided_by_hand(s):
    accumulation_of_three = [s.loss(shift) for shift in range(3)]
    for loss in accumulation_of_three:
        loss.backward()
    for param in s.net.parameters():
        param.grad.div_(3)
        param.grad *= 2
    s.optimizer.step()


def tied(s):
    other = type(s.net.emb)(N, D, mode="sum")
    other.weight = s.net.emb.weight
    (s.loss() + other(INDICES, OFFSETS).sum()).backward()
    s.optimizer.step()


def functional_call(s):
    params = dict(s.net.named_parameters())
    torch.func.functional_call(s.net, params, (INDICES, OFFSETS)).sum().backward()
    s.optimizer.step()


def losses_kept(s):
    losses = []
    for shift in range(3):
        s.optimizer.zero_grad()
        losses.append(s.loss(shift))
        losses[-1].backward()
        s.optimizer.step()


def one_of_two_losses(s):
    losses = [s.loss(), s.loss(1)]
    losses[1].backward()
    s.optimizer.step()


def optimizer_state_dict(s):
    several_steps(s)
    s.optimizer.load_state_dict(s.optimizer.state_dict())
    several_steps(s)


def autocast(s):
    with torch.autocast("cpu", enabled=False):
        plain_step(s)


def saved_tensor_hooks(s):
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach(), lambda t: t):
        loss = s.loss()
    loss.backward()
    s.optimizer.step()


def exception_between(s):
    with pytest.raises(ZeroDivisionError):
        s.loss(3).backward() if 1 / 0 else None
    plain_step(s)


ALIKE = [
    plain_step, several_steps, accumulation, two_lookups, the_same_ids_twice, retain_graph, zero_grad_to_none,
    zero_grad_to_zero, module_zero_grad, grad_none, forward_zero_grad_backward, closure, scheduler, param_groups,
    tensor_hook, hooks_are_called, step_in_a_hook, autograd_grad, frozen, frozen_and_back, no_grad, inference_mode,
    clip_grad_norm, clip_grad_norm_one_by_one, clip_grad_value, grad_scaler, grad_scaler_skips,
    grad_scaler_unscale_and_clip, grad_divided_by_hand, tied, functional_call, losses_kept, one_of_two_losses,
    optimizer_state_dict, autocast, saved_tensor_hooks, exception_between,
]  # fmt: skip
# nn.EmbeddingBag's sparse gradients do not know these; its dense ones give the same rows under SGD and
# Adagrad.
DENSE = {
    grad_scaler_unscale_and_clip,
    clip_grad_norm,
    clip_grad_norm_one_by_one,
    clip_grad_value,
    tied,
    retain_graph,
}
# A reentrant checkpoint supports no autograd.grad, and no second backward; torch says so.
NOT_REENTRANT = {autograd_grad, retain_graph, hooks_are_called, saved_tensor_hooks}


def reference(use, optimizer, rows):
    sparse = use not in DENSE
    emb = nn.EmbeddingBag(N, D, mode="sum", sparse=sparse, _weight=rows.clone())
    net = Net(emb)
    kinds = {"SGD": torch.optim.SGD, "Adagrad": torch.optim.Adagrad}
    setting = Setting(net, eager, kinds[optimizer](net.parameters(), lr=0.1))
    use(setting)
    return setting


@pytest.fixture
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


# The optimizer does not see how the net is called: one of them will do for the ways to call it.
CASES = [
    (use, call, optimizer)
    for use in ALIKE
    for call, optimizer in [
        (eager, "SGD"),
        (eager, "Adagrad"),
        (compiled, "SGD"),
        (checkpointed, "SGD"),
        (checkpointed_reentrant, "SGD"),
    ]
    if call is not checkpointed_reentrant or use not in NOT_REENTRANT
]


@pytest.mark.parametrize(("use", "call", "optimizer"), CASES)
def test_rows_are_as_under_torch(use, call, optimizer, fresh_dynamo):
    with Store(dram="500", seed=1) as store:
        emb = TieredEmbeddingBag(N, D, mode="sum", store=store, name="t")
        rows = emb.read_dense()
        net = Net(emb)
        setting = Setting(net, call, getattr(mtrains.optim, optimizer)(net.parameters(), lr=0.1))
        use(setting)
        expected = reference(use, optimizer, rows)
        torch.testing.assert_close(emb.read_dense(), expected.net.emb.weight.detach(), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(net.lin.weight, expected.net.lin.weight, rtol=1e-4, atol=1e-5)
        assert float(getattr(setting, "norm", 0.0)) == pytest.approx(
            float(getattr(expected, "norm", 0.0)), rel=1e-4
        )
        moved = use not in (grad_none, frozen, grad_scaler_skips)
        assert torch.equal(emb.read_dense(), rows) is not moved


@pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated:DeprecationWarning")
def test_inductor_leaves_the_lookup_outside_its_graphs(fresh_dynamo):
    def train(compile):
        torch.manual_seed(0)
        emb = TieredEmbeddingBag(N, D, mode="sum", init=mtrains.init.constant(0.5))
        net = Net(emb)
        call = torch.compile(net) if compile else net
        optimizer = mtrains.optim.SGD(net.parameters(), lr=0.1)
        for shift in range(3):
            optimizer.zero_grad()
            call(INDICES + shift, OFFSETS).square().sum().backward()
            optimizer.step()
        return emb.read_dense()

    rows = train(compile=False)
    torch.testing.assert_close(train(compile=True), rows)
    assert (rows != 0.5).any()


def test_a_compiled_training_step(fresh_dynamo):
    emb = TieredEmbeddingBag(N, D, mode="sum")
    before = emb.read_dense()
    net = Net(emb)
    optimizer = mtrains.optim.SGD(net.parameters(), lr=0.1)

    @torch.compile(backend="eager")
    def step(indices, offsets):
        optimizer.zero_grad()
        net(indices, offsets).square().sum().backward()
        optimizer.step()

    for _ in range(3):
        step(INDICES, OFFSETS)
    dense = Net(nn.EmbeddingBag(N, D, mode="sum", _weight=before))
    other = torch.optim.SGD(dense.parameters(), lr=0.1)
    for _ in range(3):
        other.zero_grad()
        dense(INDICES, OFFSETS).square().sum().backward()
        other.step()
    torch.testing.assert_close(emb.read_dense(), dense.emb.weight.detach(), rtol=1e-4, atol=1e-5)


def test_a_compiled_collection(fresh_dynamo):
    collection = mtrains.TieredEmbeddingBagCollection([mtrains.TableSpec("a", N, D)])
    inputs = torch.tensor([1, 2, 3]), torch.tensor([0, 1, 3])
    optimizer = mtrains.optim.SGD(collection.parameters(), lr=1.0)
    out = torch.compile(collection, backend="eager")(*inputs)
    assert torch.equal(out, collection(*inputs))
    out.sum().backward()
    before = collection.embedding_bags["a"].read_dense()
    optimizer.step()
    changed = (collection.embedding_bags["a"].read_dense() != before).any(1)
    assert changed.nonzero().flatten().tolist() == [1, 2, 3]


# --- loud


@pytest.mark.filterwarnings("ignore:Error detected in")
def test_anomaly_mode_is_refused_with_the_remedy():
    emb = TieredEmbeddingBag(N, D, mode="sum")
    refused = pytest.raises((NotImplementedError, RuntimeError), match="check_nan=False")
    with pytest.warns(UserWarning, match="Anomaly Detection"), torch.autograd.detect_anomaly(), refused:
        emb(INDICES, OFFSETS).sum().backward()
    emb = TieredEmbeddingBag(N, D, mode="sum")
    with pytest.warns(UserWarning, match="Anomaly Detection"), torch.autograd.detect_anomaly(check_nan=False):
        emb(INDICES, OFFSETS).sum().backward()


def test_functorch_transforms_are_refused():
    emb = TieredEmbeddingBag(N, D, mode="sum")

    def loss(params):
        return torch.func.functional_call(emb, params, (INDICES, OFFSETS)).sum()

    with pytest.raises((RuntimeError, NotImplementedError, TypeError)):
        torch.func.grad(loss)({"weight": emb.weight})


def test_a_second_derivative_is_refused():
    emb = TieredEmbeddingBag(N, D, mode="sum")
    weights = torch.ones(5, requires_grad=True)
    out = emb(INDICES, OFFSETS, weights).square().sum()
    (grad,) = torch.autograd.grad(out, [weights], create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        grad.sum().backward()


@pytest.fixture
def process_group(tmp_path):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'rendezvous'}", rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without torch.distributed")
def test_ddp_is_refused_unless_it_ignores_the_table(process_group):
    net = Net(TieredEmbeddingBag(N, D, mode="sum"))
    with pytest.raises((NotImplementedError, RuntimeError)):
        nn.parallel.DistributedDataParallel(net)
    ignored = mtrains.ignored_parameters(net)
    nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(net, list(ignored))
    parallel = nn.parallel.DistributedDataParallel(net)
    optimizer = mtrains.optim.SGD(net.parameters(), lr=0.1)
    before = net.emb.read_dense()
    parallel(INDICES, OFFSETS).sum().backward()
    optimizer.step()
    assert not torch.equal(net.emb.read_dense(), before)


def test_several_processes_are_refused_unless_local(monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    emb = TieredEmbeddingBag(N, D, mode="sum")
    with pytest.raises(StateError, match=r"2 processes.*distributed='local'"):
        emb(INDICES, OFFSETS)
    with torch.no_grad():
        emb(INDICES, OFFSETS)
    emb.requires_grad_(False)(INDICES, OFFSETS)
    with Store(distributed="local") as store:
        TieredEmbeddingBag(N, D, mode="sum", store=store)(INDICES, OFFSETS)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_a_forked_child_is_refused_and_the_parent_unharmed():
    emb = TieredEmbeddingBag(N, D, mode="sum")
    expected = emb(INDICES, OFFSETS)
    child = os.fork()
    if child == 0:
        try:
            emb(INDICES, OFFSETS)
        except StateError:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert torch.equal(emb(INDICES, OFFSETS), expected)
