"""TieredEmbeddingBag and TieredEmbedding: nn.EmbeddingBag and nn.Embedding over a table of a store."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import nn

from mtrains.eager import outside_graphs
from mtrains.init import Init
from mtrains.lookup import Bags, PooledLookup
from mtrains.specs import TableSpec
from mtrains.store import Store
from mtrains.tiered_table import TieredTable
from mtrains.transfer.sources import Rows, open_source, table_dtype

__all__ = ["TieredEmbedding", "TieredEmbeddingBag"]


class _LookupModule(TieredTable):
    """A table and the PooledLookup of its weight."""

    # Accepted for nn.EmbeddingBag's signature. Gradients never have N rows, so `sparse` says nothing.
    max_norm: float | None
    norm_type: float
    scale_grad_by_freq: bool
    sparse: bool

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        mode: str,
        padding_idx: int | None,
        *,
        max_norm: float | None,
        norm_type: float,
        scale_grad_by_freq: bool,
        sparse: bool,
        weight: torch.Tensor | None,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
        store: Store | None,
        name: str | None,
        init: Init | None,
    ) -> None:
        store_device = torch.device("cpu") if store is None else store.device
        _check_supported(max_norm, scale_grad_by_freq, device, store_device, weight, init)
        _check_shape(weight, num_embeddings, embedding_dim)
        store = Store() if store is None else store
        spec = TableSpec(
            store.next_name() if name is None else name,
            num_embeddings,
            embedding_dim,
            mode=mode,
            init=init,
            dtype=_dtype(dtype, weight),
            padding_idx=padding_idx,
        )
        super().__init__(spec, store)
        self.max_norm = max_norm
        self.norm_type = norm_type
        self.scale_grad_by_freq = scale_grad_by_freq
        self.sparse = sparse
        self._device = store.device
        self._lookup: PooledLookup | None = None
        if weight is not None:
            self.write_dense(weight)

    def _look_up(self, bags: Bags) -> torch.Tensor:
        weight = self._parameters["weight"]  # as self.weight, 1 us faster
        lookup = self._lookup
        if lookup is None or lookup.weights[0] is not weight:
            lookup = self._new_lookup(weight)
        return lookup(bags)

    def _new_lookup(self, weight: object) -> PooledLookup:
        self._lookup = PooledLookup([self.checked_weight(weight)], [self._own_table.spec.mode])
        return self._lookup

    def _present_lookup(self) -> PooledLookup:
        """Return the lookup that the next forward will use."""
        weight, lookup = self._parameters["weight"], self._lookup
        return lookup if lookup is not None and lookup.weights[0] is weight else self._new_lookup(weight)


class TieredEmbeddingBag(_LookupModule):
    """nn.EmbeddingBag whose rows live in a store, across tiers; the same arguments, order and defaults.

    Different on purpose: an index out of range is an IndexError that changed nothing; a (B, 0) input gives B
    zero rows; with include_last_offset, offsets[-1] must be the number of indices; max works with
    sparse=True. `sparse` has no effect: gradients never have num_embeddings rows. max_norm,
    scale_grad_by_freq and devices other than the CPU are refused.

    Args:
        store: where the rows live; by default a private temporary Store of this module, deleted with it.
        name: the table's name in the store; required unless the store is temporary.
        init: initial values (mtrains.init), from the store's seed; by default normal(0, 1) as nn.EmbeddingBag.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        sparse: bool = False,
        _weight: torch.Tensor | None = None,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        store: Store | None = None,
        name: str | None = None,
        init: Init | None = None,
    ) -> None:
        super().__init__(
            num_embeddings,
            embedding_dim,
            mode,
            padding_idx,
            max_norm=max_norm,
            norm_type=norm_type,
            scale_grad_by_freq=scale_grad_by_freq,
            sparse=sparse,
            weight=_weight,
            device=device,
            dtype=dtype,
            store=store,
            name=name,
            init=init,
        )
        self.mode = mode
        self.include_last_offset = include_last_offset

    @classmethod
    def from_pretrained(
        cls,
        weight: Rows,
        freeze: bool = True,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        sparse: bool = False,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        *,
        store: Store | None = None,
        name: str | None = None,
        key: str | None = None,
        dtype: torch.dtype | None = None,
    ) -> TieredEmbeddingBag:
        """Return a module with these rows; frozen by default, as nn.EmbeddingBag's.

        Rows go to their tiers in chunks of some MiB, so a file may be many times larger than memory.

        Args:
            weight: float32, float16, bfloat16 or float64 of shape (num_embeddings, embedding_dim): a tensor, a
                numpy array (np.load(path, mmap_mode="r") too), or the path of a .npy or .safetensors file.
            key: name of the tensor in a .safetensors file; may be left out if it has one only.
            dtype: of the table; by default that of the rows, and float32 for float64.
        Raises:
            ValueError, TypeError: shape, dtype, key or suffix. FormatError: a file is damaged or cut short.
            ImportError: the optional safetensors package is missing. If the import fails half way, rows before
            the failure are written and the store is usable: call it again, or restore a checkpoint.
        """
        with open_source(weight, key) as source:
            module = cls(
                *source.shape,
                max_norm,
                norm_type,
                scale_grad_by_freq,
                mode,
                sparse,
                None,
                include_last_offset,
                padding_idx,
                dtype=source.dtype if dtype is None else dtype,
                store=store,
                name=name,
            )
            module._write_source(source)
        module.weight.requires_grad_(not freeze)
        return module

    def forward(
        self,
        input: torch.Tensor,
        offsets: torch.Tensor | None = None,
        per_sample_weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the pooled rows [B, D], of the table's dtype.

        Args:
            input: int32 or int64; [n] with offsets, or [B, n/B] without. Not kept.
            offsets: int32 or int64[B], where bags begin: from 0 on, not decreasing; with
                include_last_offset one more, the length of input.
            per_sample_weights: floating, shaped as input; mode "sum" only.
        Raises:
            IndexError: an index is out of range. ValueError: offsets or shapes do not fit. TypeError: dtypes.
        """
        if torch.compiler.is_compiling():
            return _forward_bag_outside_graphs(self, input, offsets, per_sample_weights)
        return self._look_up(self._bags(input, offsets, per_sample_weights))

    def _bags(
        self, input: torch.Tensor, offsets: torch.Tensor | None, per_sample_weights: torch.Tensor | None
    ) -> Bags:
        indices = check_indices(input, "input", self._device)
        num_bags = bag_size = 0
        if indices.ndim == 2:
            if offsets is not None:
                raise ValueError("if input is 2-D, offsets must be None, as each row of input is a bag")
            num_bags, bag_size = indices.shape
        elif indices.ndim == 1:
            if offsets is None:
                raise ValueError("if input is 1-D, offsets must be given")
            offsets = check_indices(offsets, "offsets", self._device)
            if offsets.ndim != 1:
                raise ValueError(f"offsets must be 1-D, got {offsets.ndim}-D")
            num_bags = len(offsets) - self.include_last_offset
            if num_bags < 0:
                raise ValueError("with include_last_offset, offsets must have at least one element, got none")
            if num_bags == 0 and len(indices):
                raise ValueError(f"offsets name no bag for the {len(indices)} indices from position 0 on")
        else:
            raise ValueError(f"input must be 1-D or 2-D, got {indices.ndim}-D")
        if per_sample_weights is not None:
            check_per_sample_weights(per_sample_weights, input, self.mode, self._device)
        return Bags(indices, offsets, self.include_last_offset, num_bags, bag_size, per_sample_weights)

    def lookups_of(
        self,
        input: torch.Tensor,
        offsets: torch.Tensor | None = None,
        per_sample_weights: torch.Tensor | None = None,
    ) -> list[tuple[PooledLookup, Bags]]:
        """Return the lookups that forward() makes of the same arguments, for prefetch. Raises: as forward()."""
        return [(self._present_lookup(), self._bags(input, offsets, per_sample_weights))]

    def to_dense(self) -> nn.EmbeddingBag:
        """Return an nn.EmbeddingBag with the same rows, all in memory."""
        return nn.EmbeddingBag(
            self.num_embeddings,
            self.embedding_dim,
            self.max_norm,
            self.norm_type,
            self.scale_grad_by_freq,
            self.mode,
            self.sparse,
            self.read_dense(),
            self.include_last_offset,
            self.padding_idx,
        )


class TieredEmbedding(_LookupModule):
    """nn.Embedding whose rows live in a store, across tiers; the same arguments, order and defaults.

    The row of padding_idx reads as zeros and stays so: writing another value into it is refused. Otherwise as
    TieredEmbeddingBag, which says what `store`, `name` and `init` are.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        _weight: torch.Tensor | None = None,
        _freeze: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        store: Store | None = None,
        name: str | None = None,
        init: Init | None = None,
    ) -> None:
        super().__init__(
            num_embeddings,
            embedding_dim,
            "sum",
            padding_idx,
            max_norm=max_norm,
            norm_type=norm_type,
            scale_grad_by_freq=scale_grad_by_freq,
            sparse=sparse,
            weight=_weight,
            device=device,
            dtype=dtype,
            store=store,
            name=name,
            init=init,
        )
        if _freeze:
            self.weight.requires_grad_(False)

    @classmethod
    def from_pretrained(
        cls,
        weight: Rows,
        freeze: bool = True,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        *,
        store: Store | None = None,
        name: str | None = None,
        key: str | None = None,
        dtype: torch.dtype | None = None,
    ) -> TieredEmbedding:
        """Return a module with these rows; frozen by default, as nn.Embedding's. Otherwise as
        TieredEmbeddingBag.from_pretrained, which says what the arguments are."""
        with open_source(weight, key) as source:
            module = cls(
                *source.shape,
                padding_idx,
                max_norm,
                norm_type,
                scale_grad_by_freq,
                sparse,
                None,
                freeze,
                dtype=source.dtype if dtype is None else dtype,
                store=store,
                name=name,
            )
            module._write_source(source)
        return module

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return the rows of `input` (int32 or int64, any shape): [*input.shape, D], of the table's dtype."""
        if torch.compiler.is_compiling():
            return _forward_outside_graphs(self, input)
        return self._forward(input)

    def _forward(self, input: torch.Tensor) -> torch.Tensor:
        rows = self._look_up(self._bags(input))
        return rows.view(*input.shape, rows.shape[1])

    def _bags(self, input: torch.Tensor) -> Bags:
        indices = check_indices(input, "input", self._device)
        return Bags(indices, None, False, indices.numel(), 1, None)

    def lookups_of(self, input: torch.Tensor) -> list[tuple[PooledLookup, Bags]]:
        """Return the lookup that forward() makes of the same input, for prefetch. Raises: as forward()."""
        return [(self._present_lookup(), self._bags(input))]

    def to_dense(self) -> nn.Embedding:
        """Return an nn.Embedding with the same rows, all in memory."""
        return nn.Embedding(
            self.num_embeddings,
            self.embedding_dim,
            self.padding_idx,
            self.max_norm,
            self.norm_type,
            self.scale_grad_by_freq,
            self.sparse,
            self.read_dense(),
        )

    def _check_padding_row(self, written: Iterable[torch.Tensor]) -> None:
        if self.padding_idx is None:
            return
        for rows in written:
            # Every bit but the sign: when subnormals are flushed, a comparison takes them for 0.
            values = rows.detach().to("cpu", torch.float32).contiguous().numpy()
            if (values.view(np.uint32) << 1).any():
                raise ValueError(
                    f"table {self.table.name!r}: the row of padding_idx={self.padding_idx} reads as zeros, other "
                    "values cannot be written to it"
                )


@outside_graphs
def _forward_bag_outside_graphs(
    module: TieredEmbeddingBag,
    input: torch.Tensor,
    offsets: torch.Tensor | None,
    per_sample_weights: torch.Tensor | None,
) -> torch.Tensor:
    return module._look_up(module._bags(input, offsets, per_sample_weights))


@outside_graphs
def _forward_outside_graphs(module: TieredEmbedding, input: torch.Tensor) -> torch.Tensor:
    return module._forward(input)


def check_indices(indices: object, name: str, device: torch.device) -> torch.Tensor:
    """Return `indices` contiguous, on the CPU, where lookups are planned.

    Raises: TypeError unless it is int32 or int64, ValueError unless on the CPU or the store's device.
    """
    if not isinstance(indices, torch.Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(indices).__name__}")
    if indices.dtype is not torch.int64 and indices.dtype is not torch.int32:
        raise TypeError(f"{name} must be int32 or int64, got {indices.dtype}")
    if not indices.is_cpu:
        if indices.device != device:
            raise ValueError(f"{name} must be on the CPU or on the store's device, {device}, got {indices.device}")
        indices = indices.cpu()
    return indices.contiguous()


def check_per_sample_weights(
    weights: object, input: torch.Tensor, mode: str, device: torch.device
) -> None:
    """Raise unless `weights` may weight the positions of `input` under `mode`."""
    if mode != "sum":
        raise NotImplementedError(f"per_sample_weights is supported for mode='sum' only, got mode={mode!r}")
    if not isinstance(weights, torch.Tensor) or not weights.is_floating_point():
        kind = weights.dtype if isinstance(weights, torch.Tensor) else type(weights).__name__
        raise TypeError(f"per_sample_weights must be a floating-point tensor, got {kind}")
    if weights.shape != input.shape:
        raise ValueError(
            f"per_sample_weights must be shaped as input, {tuple(input.shape)}, got {tuple(weights.shape)}"
        )
    if weights.device != device:
        raise ValueError(f"per_sample_weights must be on the store's device, {device}, got {weights.device}")


def _check_supported(
    max_norm: float | None,
    scale_grad_by_freq: bool,
    device: torch.device | str | None,
    store_device: torch.device,
    weight: torch.Tensor | None,
    init: Init | None,
) -> None:
    if max_norm is not None:
        raise NotImplementedError(
            "max_norm would renormalise rows in the forward; clip gradients or rows instead"
        )
    if scale_grad_by_freq:
        raise NotImplementedError(
            "scale_grad_by_freq is not supported; scale the loss or the learning rate instead"
        )
    if device is not None and torch.device(device).type != store_device.type:
        raise NotImplementedError(
            f"device={str(device)!r}: the rows are where the store computes, on {store_device}; leave device out, "
            "or give the store an hbm tier there"
        )
    if weight is not None and init is not None:
        raise ValueError("_weight and init both give the rows; pass one of them")


def _check_shape(weight: torch.Tensor | None, num_embeddings: int, embedding_dim: int) -> None:
    if weight is not None and tuple(weight.shape) != (num_embeddings, embedding_dim):
        raise ValueError(
            f"_weight must have shape ({num_embeddings}, {embedding_dim}), got {tuple(weight.shape)}"
        )


def _dtype(dtype: torch.dtype | None, weight: torch.Tensor | None) -> torch.dtype:
    if dtype is not None:
        return dtype
    return torch.get_default_dtype() if weight is None else table_dtype(weight)
