"""The gradient of a table: the lookups that it comes from, without rows and without storage."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch._ops import OpOverload

from mtrains import _native
from mtrains._native import Lookup, Update
from mtrains.eager import outside_graphs
from mtrains.errors import StateError
from mtrains.weight import CPU, TableGraph

__all__ = ["GradPiece", "RowGrad", "RowSums"]

# (rows int64[U] ascending, sums float32[U, D])
RowSums: TypeAlias = "tuple[NDArray[np.int64], NDArray[np.float32]]"

_MIN_NORMAL = 2.0**-126  # of float32


class GradPiece:
    """The part of a gradient that came from one lookup of the table: its plan and grad_output, by reference.

    sequence: order of the forward. grad: float32[B, >= D], columns contiguous, kept alive; `version` is its
    version when backward gave it, `column` the first of this lookup's D columns and `grad_ptr` its address,
    `grad_stride` in floats. per_sample_weights: float32 of this lookup's positions, or None. argmax: int64[B,
    D] for mode "max", or None.
    """

    __slots__ = (
        "argmax", "column", "feature", "generation", "grad", "grad_ptr", "grad_stride", "lookup", "per_sample_weights",
        "sequence", "version",
    )  # fmt: skip

    def __init__(
        self,
        sequence: int,
        lookup: Lookup,
        feature: int,
        generation: int,
        grad: torch.Tensor,
        version: int,
        column: int,
        grad_ptr: int,
        grad_stride: int,
        per_sample_weights: torch.Tensor | None,
        argmax: torch.Tensor | None,
    ) -> None:
        self.sequence = sequence
        self.lookup = lookup
        self.feature = feature
        self.generation = generation
        self.grad = grad
        self.version = version
        self.column = column
        self.grad_ptr = grad_ptr
        self.grad_stride = grad_stride
        self.per_sample_weights = per_sample_weights
        self.argmax = argmax

    def check(self, graph: TableGraph) -> None:
        """Raise StateError if the gradient is not what backward() gave, or the store was restored since."""
        if self.grad._version != self.version:
            raise StateError(
                f"table {graph.table.name!r}: the gradient of a lookup's output was changed in place after "
                "backward(), and the table's gradient refers to it; change it before backward(), or change a "
                "copy"
            )
        if self.generation != graph.store.generation:
            raise StateError(
                f"table {graph.table.name!r}: its gradient is of a lookup made before the store was "
                "restored; call zero_grad() and look up again"
            )

    def in_memory(self) -> GradPiece:
        """Return the same with all tensors in memory: itself, unless they are on a device."""
        if self.grad.is_cpu:
            return self
        grad = self.grad.cpu()
        weights, argmax = self.per_sample_weights, self.argmax
        return GradPiece(
            self.sequence,
            self.lookup,
            self.feature,
            self.generation,
            grad,
            grad._version,
            self.column,
            grad.data_ptr() + 4 * self.column,
            grad.stride(0),
            None if weights is None else weights.cpu(),
            None if argmax is None else argmax.cpu(),
        )

    @property
    def weights_ptr(self) -> int:
        return 0 if self.per_sample_weights is None else self.per_sample_weights.data_ptr()

    @property
    def argmax_ptr(self) -> int:
        return 0 if self.argmax is None else self.argmax.data_ptr()


class _Body:
    """What aliases of one RowGrad share: (fold of `prefix` and then `pieces` in forward order) * scale."""

    __slots__ = ("graph", "pieces", "prefix", "scale")

    def __init__(
        self, graph: TableGraph, pieces: list[GradPiece], prefix: RowSums | None = None, scale: float = 1.0
    ) -> None:
        self.graph = graph
        self.pieces = pieces
        self.prefix = prefix
        self.scale = scale

    def copy(self) -> _Body:
        return _Body(self.graph, list(self.pieces), self.prefix, self.scale)

    def sums(self) -> RowSums:
        """Return the row sums without the scale; keeps them for the pieces if no earlier one can come."""
        prefix = self.prefix
        if self.pieces:
            engine = self.graph.store.engine
            for piece in self.pieces:
                piece.check(self.graph)
            for piece in map(GradPiece.in_memory, self.pieces):
                prior_rows, prior_sums = prefix if prefix is not None else (None, None)
                prefix = engine.row_sums(
                    piece.lookup,
                    piece.feature,
                    grad_ptr=piece.grad_ptr,
                    grad_stride=piece.grad_stride,
                    weights_ptr=piece.weights_ptr,
                    argmax_ptr=piece.argmax_ptr,
                    prior_rows=prior_rows,
                    prior_sums=prior_sums,
                )
            assert prefix is not None
            if not self.graph.has_open_before(self.pieces[-1].sequence):
                self.prefix, self.pieces = prefix, []
        if prefix is None:
            return np.empty(0, np.int64), np.empty((0, self.graph.table.spec.embedding_dim), np.float32)
        return prefix

    def scaled_sums(self) -> RowSums:
        rows, sums = self.sums()
        if self.scale == 1.0:
            return rows, sums
        return rows, _native.scale_sums(sums, self.scale)

    def replace(self, rows: NDArray[np.int64], sums: NDArray[np.float32]) -> None:
        self.prefix, self.pieces, self.scale = (rows, sums), [], 1.0

    def clear(self) -> None:
        self.prefix, self.pieces, self.scale = None, [], 1.0

    def add(self, other: _Body, alpha: float = 1.0) -> None:
        """Add `alpha` times `other`; the fold goes on in forward order where both have one scale."""
        scale = other.scale * alpha
        if not other.pieces and other.prefix is None:
            return
        if not self.pieces and self.prefix is None:
            self.pieces, self.prefix, self.scale = list(other.pieces), other.prefix, scale
            return
        if scale == self.scale and other.prefix is None:
            self._append(other.pieces)
        elif scale == self.scale and self.prefix is None:
            pieces, self.pieces, self.prefix = self.pieces, list(other.pieces), other.prefix
            self._append(pieces)
        else:
            self.replace(*_native.merge_sums(*self.sums(), self.scale, *other.sums(), scale))

    def _append(self, pieces: Sequence[GradPiece]) -> None:
        if self._fixed_before(pieces[0].sequence):
            self.sums()  # bounds what is held while gradients accumulate; no bit depends on when it happens
        self.pieces = sorted([*self.pieces, *pieces], key=_sequence_of)

    def _fixed_before(self, sequence: int) -> bool:
        """Whether all pieces precede `sequence` in forward order and no other can come between them."""
        if not self.pieces or self.pieces[-1].sequence >= sequence:
            return False
        return not self.graph.has_open_before(self.pieces[-1].sequence)


def _sequence_of(piece: GradPiece) -> int:
    return piece.sequence


class RowGrad(torch.Tensor):
    """The gradient of a TieredWeight: shape (num_embeddings, embedding_dim), no storage.

    Supports what torch does with gradients: add, mul and div by a number, zero_, clamp_, norms, their foreach
    forms, GradScaler's unscaling. Other operations raise NotImplementedError. `to_sparse()` gives the rows.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
    body: _Body

    @staticmethod
    def __new__(cls: type[RowGrad], body: _Body) -> RowGrad:
        graph = body.graph
        grad = torch.Tensor._make_wrapper_subclass(cls, graph.shape, dtype=graph.dtype, device=graph.device)
        grad.body = body
        return grad

    def __init__(self, body: _Body) -> None:
        pass

    @classmethod
    def of(cls, graph: TableGraph, pieces: list[GradPiece]) -> RowGrad:
        """Return the gradient that `pieces`, in forward order, give."""
        return cls(_Body(graph, pieces))

    def row_sums(self) -> RowSums:
        """Return (rows int64[U] ascending, float32[U, D]): the gradients of the rows that have one."""
        return self.body.scaled_sums()

    def update(self, arguments: dict[str, Any]) -> tuple[Update, GradPiece | RowSums] | None:
        """Return the engine's update with this gradient, and what must live until it ran; None without rows.

        arguments: optimizer and its scalars, as of mtrains._native.Update.
        """
        body = self.body
        # float32 arguments are converted in the mode of this thread, which may flush subnormals.
        tiny = 0.0 < abs(body.scale) < _MIN_NORMAL
        if body.prefix is None and len(body.pieces) == 1 and not tiny:
            piece = body.pieces[0]
            piece.check(body.graph)
            update = Update(
                table=body.graph.table.number,
                scale=body.scale,
                lookup=piece.lookup,
                feature=piece.feature,
                grad_ptr=piece.grad_ptr,
                grad_stride=piece.grad_stride,
                weights_ptr=piece.weights_ptr,
                argmax_ptr=piece.argmax_ptr,
                **arguments,
            )
            return update, piece
        rows, sums = body.scaled_sums() if tiny else body.sums()
        if len(rows) == 0:
            return None
        update = Update(
            table=body.graph.table.number,
            scale=1.0 if tiny else body.scale,
            rows_ptr=rows.ctypes.data,
            sums_ptr=sums.ctypes.data,
            num_rows=len(rows),
            **arguments,
        )
        return update, (rows, sums)

    def to_sparse(self) -> torch.Tensor:  # type: ignore[override]
        """Return a coalesced sparse tensor of the rows that have a gradient, dtype as the table's."""
        rows, sums = self.row_sums()
        return torch.sparse_coo_tensor(
            torch.from_numpy(rows.copy())[None],
            torch.from_numpy(sums.copy()).to(self.dtype),
            self.shape,
            is_coalesced=True,
            check_invariants=False,
        )

    def to_dense(self) -> torch.Tensor:  # type: ignore[override]
        """Return an ordinary tensor (N, D), which must fit in memory."""
        return self.to_sparse().to_dense()

    def __repr__(self) -> str:  # type: ignore[override]
        body = self.body
        held = 0 if body.prefix is None else len(body.prefix[0])
        return (
            f"RowGrad(table={body.graph.table.name!r}, lookups={len(body.pieces)}, summed_rows={held}, "
            f"scale={body.scale})"
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> RowGrad:
        return self.clone()  # type: ignore[return-value]

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(
            f"the gradient of table {self.body.graph.table.name!r} cannot be pickled; save its to_sparse()"
        )

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: OpOverload,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        if torch.compiler.is_compiling():
            return _dispatch_outside_graphs(func, args, kwargs)
        return _dispatch(func, args, kwargs)


def _refusal(func: OpOverload) -> NotImplementedError:
    return NotImplementedError(
        f"the gradient of a tiered table does not support {func} with these arguments: it has no storage. "
        "Take the rows with grad.to_sparse(), update the table with mtrains.optim; under "
        "torch.autograd.set_detect_anomaly pass check_nan=False"
    )


def _number(value: object, func: OpOverload) -> float:
    if isinstance(value, torch.Tensor):
        if value.ndim == 0 and type(value) is not RowGrad:
            return float(value) or _tiny_number(value)
    elif isinstance(value, (int, float)):
        return float(value)
    raise _refusal(func)


def _tiny_number(value: torch.Tensor) -> float:
    """Return what torch read as 0, which it does with subnormal numbers when it flushes them."""
    if value.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return float(value)
    return float(_native.widen(value.detach().to(CPU, torch.float32).reshape(1).numpy())[0])


def _detach(func: OpOverload, grad: RowGrad) -> RowGrad:
    return RowGrad(grad.body)


def _clone(func: OpOverload, grad: RowGrad, memory_format: object = None) -> RowGrad:
    return RowGrad(grad.body.copy())


def _is_same_size(func: OpOverload, first: torch.Tensor, second: torch.Tensor) -> bool:
    return first.shape == second.shape


def _add_(func: OpOverload, grad: object, other: object, alpha: float = 1.0) -> RowGrad:
    if type(grad) is not RowGrad or type(other) is not RowGrad or grad.body.graph is not other.body.graph:
        raise _refusal(func)
    grad.body.add(other.body, float(alpha))
    return grad


def _add(func: OpOverload, grad: object, other: object, alpha: float = 1.0) -> RowGrad:
    if type(grad) is not RowGrad:
        raise _refusal(func)
    return _add_(func, RowGrad(grad.body.copy()), other, alpha)


def _mul_(func: OpOverload, grad: object, factor: object) -> RowGrad:
    if type(grad) is not RowGrad:
        raise _refusal(func)
    grad.body.scale *= _number(factor, func)
    return grad


def _mul(func: OpOverload, grad: object, factor: object) -> RowGrad:
    if type(grad) is not RowGrad:
        grad, factor = factor, grad
    assert type(grad) is RowGrad
    return _mul_(func, RowGrad(grad.body.copy()), factor)


def _div_(func: OpOverload, grad: object, divisor: object) -> RowGrad:
    if type(grad) is not RowGrad:
        raise _refusal(func)
    grad.body.scale /= _number(divisor, func)
    return grad


def _div(func: OpOverload, grad: object, divisor: object) -> RowGrad:
    if type(grad) is not RowGrad:
        raise _refusal(func)
    return _div_(func, RowGrad(grad.body.copy()), divisor)


def _zero_(func: OpOverload, grad: RowGrad) -> RowGrad:
    grad.body.clear()
    return grad


def _clamp_(func: OpOverload, grad: RowGrad, min: object = None, max: object = None) -> RowGrad:
    low = -math.inf if min is None else _number(min, func)
    high = math.inf if max is None else _number(max, func)
    if not low <= 0.0 <= high:  # rows without a gradient would leave 0
        raise _refusal(func)
    rows, sums = grad.body.scaled_sums()
    grad.body.replace(rows, _native.clamp_sums(sums, low, high))
    return grad


def _clamp_min_(func: OpOverload, grad: RowGrad, low: object) -> RowGrad:
    return _clamp_(func, grad, min=low)


def _clamp_max_(func: OpOverload, grad: RowGrad, high: object) -> RowGrad:
    return _clamp_(func, grad, max=high)


def _vector_norm(
    func: OpOverload,
    grad: RowGrad,
    ord: float = 2,
    dim: object = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    order = float(ord)
    if order < 0 or dim is not None or keepdim:
        raise _refusal(func)
    norm = _native.norm_of_sums(grad.body.scaled_sums()[1], order)
    return torch.full((), norm, dtype=dtype or grad.dtype)


def _foreach_norm(
    func: OpOverload, tensors: Sequence[torch.Tensor], ord: float = 2, dtype: torch.dtype | None = None
) -> list[torch.Tensor]:
    return [torch.linalg.vector_norm(tensor, ord, dtype=dtype) for tensor in tensors]


def _foreach_in_place(method: str) -> Callable[..., None]:
    def apply(func: OpOverload, tensors: Sequence[torch.Tensor], *args: object) -> None:
        for tensor in tensors:
            getattr(tensor, method)(*args)

    return apply


def _unscale(
    func: OpOverload, tensors: Sequence[torch.Tensor], found_inf: torch.Tensor, inv_scale: torch.Tensor
) -> None:
    dense = [tensor for tensor in tensors if type(tensor) is not RowGrad]
    if dense:
        func(dense, found_inf, inv_scale)
    for grad in tensors:
        if type(grad) is RowGrad:
            if not np.isfinite(grad.body.scaled_sums()[1]).all():
                found_inf.fill_(1.0)
            grad.body.scale *= _number(inv_scale.reshape(()), func)


_aten = torch.ops.aten
_HANDLERS: dict[OpOverload, Callable[..., object]] = {
    _aten.detach.default: _detach,
    _aten.alias.default: _detach,
    _aten.clone.default: _clone,
    _aten.is_same_size.default: _is_same_size,
    _aten.add.Tensor: _add,
    _aten.add_.Tensor: _add_,
    _aten.mul.Tensor: _mul,
    _aten.mul_.Tensor: _mul_,
    _aten.div.Tensor: _div,
    _aten.div_.Tensor: _div_,
    _aten.zero_.default: _zero_,
    _aten.clamp_.default: _clamp_,
    _aten.clamp_min_.default: _clamp_min_,
    _aten.clamp_max_.default: _clamp_max_,
    _aten.linalg_vector_norm.default: _vector_norm,
    _aten._foreach_norm.Scalar: _foreach_norm,
    _aten._foreach_zero_.default: _foreach_in_place("zero_"),
    _aten._foreach_mul_.Tensor: _foreach_in_place("mul_"),
    _aten._foreach_mul_.Scalar: _foreach_in_place("mul_"),
    _aten._foreach_clamp_min_.Scalar: _foreach_in_place("clamp_min_"),
    _aten._foreach_clamp_max_.Scalar: _foreach_in_place("clamp_max_"),
    _aten._amp_foreach_non_finite_check_and_unscale_.default: _unscale,
}


def _dispatch(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> object:
    handler = _HANDLERS.get(func)
    if handler is None:
        raise _refusal(func)
    return handler(func, *args, **kwargs) if kwargs else handler(func, *args)


_dispatch_outside_graphs = outside_graphs(_dispatch)
