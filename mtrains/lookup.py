"""The pooled lookup as autograd sees it: one native forward for one or many features, and its backward.

Legend: F features, B bags of a feature, D columns of a feature.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, NoReturn, Protocol, cast

import torch
from torch._ops import OpOverload

from mtrains import _native
from mtrains._native import DeviceCompute, Lookup, LookupSpec
from mtrains.device_calls import LookupOnDevice, WeightGradOnDevice
from mtrains.eager import outside_graphs
from mtrains.errors import StateError
from mtrains.row_grad import GradPiece, RowGrad
from mtrains.specs import MODES
from mtrains.store import Store
from mtrains.weight import TableGraph, TieredWeight

__all__ = ["Bags", "PooledLookup"]


class Bags(NamedTuple):
    """What is looked up, checked: bags of positions, feature after feature.

    indices: int32 or int64[n], contiguous, on the CPU. offsets: int32 or int64, contiguous, on the CPU, or None: then
    every bag has `bag_size` indices. num_bags: B, of each feature. per_sample_weights: floating[n], on the store's
    device, or None.
    """

    indices: torch.Tensor
    offsets: torch.Tensor | None
    include_last_offset: bool
    num_bags: int
    bag_size: int
    per_sample_weights: torch.Tensor | None


class _Plan:
    """What a backward needs of its forward. It lives in saved tensors, so it dies with the autograd graph."""

    __slots__ = ("argmax", "generation", "graphs", "lookup", "per_sample_weights", "sequences", "starts")

    def __init__(
        self,
        lookup: Lookup,
        generation: int,
        argmax: torch.Tensor | None,
        per_sample_weights: torch.Tensor | None,
        starts: Sequence[int],
        graphs: Sequence[TableGraph],
    ) -> None:
        self.lookup = lookup
        self.generation = generation
        self.argmax = argmax
        self.per_sample_weights = per_sample_weights
        self.starts = starts  # first position of each feature, given with per_sample_weights
        self.graphs = graphs
        self.sequences = [graph.open_next() for graph in graphs]

    def __del__(self) -> None:
        for graph, sequence in zip(self.graphs, self.sequences, strict=True):
            graph.open.discard(sequence)


class _SavedPlan(torch.Tensor):
    """A tensor without storage that carries a plan through save_for_backward and its hooks."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
    plan: _Plan

    @staticmethod
    def __new__(cls: type[_SavedPlan], plan: _Plan) -> _SavedPlan:
        saved = torch.Tensor._make_wrapper_subclass(cls, (0,), device=torch.device("cpu"))
        saved.plan = plan
        return saved

    def __init__(self, plan: _Plan) -> None:
        pass

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: OpOverload,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        if func in (torch.ops.aten.detach.default, torch.ops.aten.alias.default):
            return cls(args[0].plan)
        raise NotImplementedError(
            f"{func}: the plan of a tiered lookup stays in memory until its backward; exclude it from hooks "
            "of saved tensors that copy or convert (only detach is possible)"
        )

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(
            "the plan of a tiered lookup cannot be pickled; checkpoint the module instead of its graph"
        )


class PooledLookup:
    """Looks up features of the tables of one store in one native pass.

    weights: one a feature; a weight may come several times. modes: "sum", "mean" or "max", one a feature;
    "max" only as a single feature. Reusable and cheap to call; made once for a module.
    """

    __slots__ = (
        "_columns", "_dims", "_features_of", "_needs_argmax", "_spec", "_store", "dtype", "modes",
        "num_columns", "weights",
    )  # fmt: skip

    def __init__(self, weights: Sequence[TieredWeight], modes: Sequence[str]) -> None:
        assert len(weights) == len(modes)
        assert "max" not in modes or len(modes) == 1
        self.modes = tuple(modes)
        self._dims = [weight.table.spec.embedding_dim for weight in weights]
        self._columns = [sum(self._dims[:feature]) for feature in range(len(weights))]
        self.num_columns = sum(self._dims)
        self._needs_argmax = "max" in modes
        self._store = weights[0].graph.store
        self.weights = tuple(dict.fromkeys(weights, None))
        self._features_of = [
            [feature for feature, other in enumerate(weights) if other is weight] for weight in self.weights
        ]
        self.dtype = weights[0].dtype
        self._spec = LookupSpec(
            [weight.table.number for weight in weights], [MODES.index(mode) for mode in modes], self._columns
        )

    @property
    def store(self) -> Store:
        """The store of the tables."""
        return self._store

    @property
    def spec(self) -> LookupSpec:
        """The features, as the engine knows them."""
        return self._spec

    def __call__(self, bags: Bags) -> torch.Tensor:
        """Return the pooled rows, [B, sum of D] of the tables' dtype.

        Raises: IndexError, ValueError: indices or offsets are wrong; nothing has changed then.
        """
        self._store.check_open()
        weights = bags.per_sample_weights
        if torch.is_grad_enabled() and (
            (weights is not None and weights.requires_grad)
            or any(weight.requires_grad for weight in self.weights)
        ):
            _check_single_process(self)
            out = _Function.apply(self, bags, weights, *self.weights)  # type: ignore[no-untyped-call]
            return cast(torch.Tensor, out)
        out, _ = self._run(bags, None)
        return out

    def _run(self, bags: Bags, graphs: Sequence[TableGraph] | None) -> tuple[torch.Tensor, _Plan | None]:
        """Return the pooled rows, and the plan for the backward if its `graphs` are given, one a weight."""
        keep = graphs is not None
        indices, offsets, include_last_offset, num_bags, bag_size, weights = bags
        store = self._store
        out = torch.empty((num_bags, self.num_columns), dtype=torch.float32, device=store.device)
        argmax = (
            torch.empty((num_bags, self.num_columns), dtype=torch.int64, device=store.device)
            if keep and self._needs_argmax
            else None
        )
        starts: Sequence[int] = ()
        if weights is not None:
            # A copy while the graph lives: the caller may change its weights after the forward.
            weights = _narrowed(weights.detach()).to(torch.float32, copy=keep).contiguous().view(-1)
            if keep or store.on_device:
                starts = self._starts(bags)
        device = None
        if store.on_device:
            device = DeviceCompute(LookupOnDevice(out, self._columns, weights, starts, argmax))
        lookup = store.engine.forward(
            self._spec,
            indices_ptr=indices.data_ptr(),
            num_indices=indices.numel(),
            indices_int64=indices.dtype is torch.int64,
            offsets_ptr=0 if offsets is None else offsets.data_ptr(),
            num_offsets=0 if offsets is None else offsets.numel(),
            offsets_int64=offsets is None or offsets.dtype is torch.int64,
            include_last_offset=include_last_offset,
            num_bags=num_bags,
            bag_size=bag_size,
            weights_ptr=0 if weights is None else weights.data_ptr(),
            out_ptr=out.data_ptr(),
            out_stride=self.num_columns,
            argmax_ptr=0 if argmax is None else argmax.data_ptr(),
            keep=keep,
            device=device,
        )
        plan = None
        if graphs is not None:
            assert lookup is not None
            plan = _Plan(lookup, store.generation, argmax, weights, starts, graphs)
        return (out if self.dtype is torch.float32 else out.to(self.dtype)), plan

    def _starts(self, bags: Bags) -> Sequence[int]:
        num_features = len(self.modes)
        if bags.offsets is None:
            return [feature * bags.num_bags * bags.bag_size for feature in range(num_features)]
        if bags.num_bags == 0:
            return [0] * num_features
        return cast("list[int]", bags.offsets[:: bags.num_bags].tolist()[:num_features])

    def _grad(self, grad: torch.Tensor) -> torch.Tensor:
        """Return the gradient of the sums: float32, columns contiguous; by reference where it can be."""
        if grad.dtype is not torch.float32:
            grad = grad.float()
        return grad if grad.stride(1) == 1 or self.num_columns == 1 else grad.contiguous()

    def _grads(self, grad: torch.Tensor, plan: _Plan, needed: Sequence[bool]) -> list[RowGrad | None]:
        """Return the gradients of the weights that need one, from the gradient of the sums."""
        version, address, stride = grad._version, grad.data_ptr(), grad.stride(0)
        lookup, generation, argmax, weights = (
            plan.lookup,
            plan.generation,
            plan.argmax,
            plan.per_sample_weights,
        )
        grads: list[RowGrad | None] = []
        for number, graph in enumerate(plan.graphs):
            if not needed[number]:
                grads.append(None)
                continue
            graph.check_trained()
            pieces = [
                GradPiece(
                    plan.sequences[number],
                    lookup,
                    feature,
                    generation,
                    grad,
                    version,
                    self._columns[feature],
                    address + 4 * self._columns[feature],
                    stride,
                    None if weights is None else weights[plan.starts[feature] :],
                    argmax,
                )
                for feature in self._features_of[number]
            ]
            grads.append(RowGrad.of(graph, pieces))
        return grads

    def _weights_grad(self, grad: torch.Tensor, plan: _Plan, like: torch.Tensor) -> torch.Tensor:
        """Return the gradient of per_sample_weights: the dot product of row and bag's gradient."""
        store = self._store
        if plan.generation != store.generation:
            raise StateError(
                "per_sample_weights' gradient reads the rows of the forward, and the store was restored "
                "since; call backward() before restore()"
            )
        result = torch.empty(like.numel(), dtype=torch.float32, device=store.device)
        for feature, start in enumerate(plan.starts):
            device = None
            if store.on_device:
                column = self._columns[feature]
                there = grad[:, column : column + self._dims[feature]]
                device = DeviceCompute(WeightGradOnDevice(there, result[start:]))
            store.engine.per_sample_weight_grad(
                plan.lookup,
                feature,
                grad_ptr=grad.data_ptr() + 4 * self._columns[feature],
                grad_stride=grad.stride(0),
                out_ptr=result.data_ptr() + 4 * start,
                device=device,
            )
        if like.dtype is torch.float64:
            result = torch.from_numpy(_native.widen(result.cpu().numpy())).to(store.device)
        return result.to(like.dtype).view(like.shape)


class _Context(Protocol):
    """What is used of autograd's ctx."""

    pooled_lookup: PooledLookup
    weights_like: torch.Tensor | None
    saved_tensors: tuple[_SavedPlan]
    needs_input_grad: tuple[bool, ...]

    def save_for_backward(self, *tensors: torch.Tensor) -> None: ...


class _Function(torch.autograd.Function):
    """Autograd's node of a PooledLookup; gradients of the weights are RowGrads."""

    @staticmethod
    def forward(
        ctx: _Context,
        lookup: PooledLookup,
        bags: Bags,
        per_sample_weights: torch.Tensor | None,
        *weights: TieredWeight,
    ) -> torch.Tensor:
        out, plan = lookup._run(bags, [weight.graph for weight in weights])
        assert plan is not None
        ctx.pooled_lookup = lookup
        ctx.weights_like = None if per_sample_weights is None else per_sample_weights.to("meta")
        ctx.save_for_backward(_SavedPlan(plan))
        return out

    @staticmethod
    def backward(ctx: _Context, grad_out: torch.Tensor) -> tuple[Any, ...]:
        if torch.compiler.is_compiling():  # a compiled function that calls backward() traces this
            return _backward_outside_graphs(ctx, grad_out)
        # Grad mode is on only under create_graph=True; torch's check of a second derivative costs 4 us.
        return _backward_once(ctx, grad_out) if torch.is_grad_enabled() else _backward(ctx, grad_out)


def _backward(ctx: _Context, grad_out: torch.Tensor) -> tuple[Any, ...]:
    lookup = ctx.pooled_lookup
    plan = ctx.saved_tensors[0].plan
    grad = lookup._grad(grad_out)
    needed = ctx.needs_input_grad
    weights_grad = None
    if needed[2]:
        assert ctx.weights_like is not None
        weights_grad = lookup._weights_grad(grad, plan, ctx.weights_like)
    return (None, None, weights_grad, *lookup._grads(grad, plan, needed[3:]))


_backward_once = torch.autograd.function.once_differentiable(_backward)
_backward_outside_graphs = outside_graphs(_backward_once)


def _narrowed(values: torch.Tensor) -> torch.Tensor:
    """Return float64 as float32, other dtypes as they are.

    torch converts between float32 and float64 in the mode of its thread, which may flush subnormals; what it
    converts between float32 and 16 bits does not depend on that.
    """
    if values.dtype is not torch.float64:
        return values
    narrowed = torch.from_numpy(_native.narrow(values.cpu().reshape(-1).contiguous().numpy()))
    return narrowed.view(values.shape).to(values.device)


def _check_single_process(lookup: PooledLookup) -> None:
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()) or distributed.get_world_size() == 1:
        return
    if lookup._store.distributed != "local" and not lookup._store.read_only:
        raise StateError(
            f"training a table with torch.distributed of {distributed.get_world_size()} processes: each "
            "process would train its own copy of the rows and they would diverge; pass "
            "Store(distributed='local') if that is meant, or freeze the table with requires_grad_(False)"
        )
