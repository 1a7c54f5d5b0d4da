"""TieredEmbeddingBagCollection: many features over many tables of one store, looked up in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import nn

from mtrains.eager import outside_graphs
from mtrains.embedding_bag import check_indices, check_per_sample_weights
from mtrains.lookup import Bags, PooledLookup
from mtrains.specs import TableSpec
from mtrains.store import Store
from mtrains.tiered_table import TieredTable
from mtrains.weight import TieredWeight

__all__ = ["TieredEmbeddingBagCollection"]


class JaggedTensor(Protocol):
    """What is used of an object like torchrec's KeyedJaggedTensor."""

    def keys(self) -> Sequence[str]: ...
    def values(self) -> torch.Tensor: ...
    def offsets(self) -> torch.Tensor: ...
    def weights_or_none(self) -> torch.Tensor | None: ...


class TieredEmbeddingBagCollection(nn.Module):
    """Tables of one store and the features that look them up, in one native pass a forward.

    `features` lists the features in their order, table after table; the output has their columns in that
    order. `embedding_bags[table]` is each table's module: its `weight`, read_rows(), write_rows().

    Args:
        tables: specs with distinct names and features and one dtype; a name must not contain ".".
        store: where the rows live; by default a private temporary Store of this collection.
    """

    def __init__(self, tables: Sequence[TableSpec], *, store: Store | None = None) -> None:
        super().__init__()
        tables = list(tables)
        _check_specs(tables)
        self.store = Store() if store is None else store
        self.embedding_bags = nn.ModuleDict()
        for spec in tables:
            try:
                self.embedding_bags[spec.name] = TieredTable(spec, self.store)
            except KeyError as error:
                raise ValueError(
                    f"table name {spec.name!r} is not usable in a collection: {error}"
                ) from error
        self.features: tuple[str, ...] = tuple(feature for spec in tables for feature in spec.features)
        self._modes = [spec.mode for spec in tables for _ in spec.features]
        self._table_of_feature = [number for number, spec in enumerate(tables) for _ in spec.features]
        self._modules_in_order = tuple(self.embedding_bags.values())
        self._weights: tuple[object, ...] = ()
        self._device = self.store.device
        self._lookups: list[PooledLookup] = []

    def forward(
        self,
        indices: torch.Tensor | JaggedTensor,
        offsets: torch.Tensor | None = None,
        per_sample_weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the pooled rows [B, sum of D over features], of the tables' dtype.

        Args:
            indices: int32 or int64[n], feature after feature; or an object with values(), offsets(),
                weights_or_none() and keys(), as torchrec's KeyedJaggedTensor, alone.
            offsets: int32 or int64[F * B + 1], the first is 0, the last n.
            per_sample_weights: floating[n], for mode "sum" of all tables.
        Raises:
            IndexError: an index is out of range. ValueError: offsets or shapes do not fit. TypeError: other
            dtypes.
        """
        if torch.compiler.is_compiling():
            return _forward_outside_graphs(self, indices, offsets, per_sample_weights)
        return self._forward(indices, offsets, per_sample_weights)

    def _forward(
        self,
        indices: torch.Tensor | JaggedTensor,
        offsets: torch.Tensor | None,
        per_sample_weights: torch.Tensor | None,
    ) -> torch.Tensor:
        if not isinstance(indices, torch.Tensor):
            indices, offsets, per_sample_weights = self._unpacked(indices, offsets, per_sample_weights)
        bags = self._bags(indices, offsets, per_sample_weights)
        lookups = self._present_lookups()
        if len(lookups) == 1:
            return lookups[0](bags)
        return torch.cat(self._look_up_each(bags), dim=1)

    def lookups_of(
        self,
        indices: torch.Tensor | JaggedTensor,
        offsets: torch.Tensor | None = None,
        per_sample_weights: torch.Tensor | None = None,
    ) -> list[tuple[PooledLookup, Bags]]:
        """Return the lookups that forward() makes of the same arguments, for prefetch. Raises: as forward()."""
        if not isinstance(indices, torch.Tensor):
            indices, offsets, per_sample_weights = self._unpacked(indices, offsets, per_sample_weights)
        bags = self._bags(indices, offsets, per_sample_weights)
        lookups = self._present_lookups()
        if len(lookups) == 1:
            return [(lookups[0], bags)]
        return [(lookup, _feature_bags(bags, feature)) for feature, lookup in enumerate(lookups)]

    def _present_lookups(self) -> list[PooledLookup]:
        weights = tuple([module._parameters["weight"] for module in self._modules_in_order])
        if not _same_objects(weights, self._weights):
            self._lookups = self._make_lookups(weights)
            self._weights = weights
        return self._lookups

    def _look_up_each(self, bags: Bags) -> list[torch.Tensor]:
        assert bags.offsets is not None
        first, last, count = int(bags.offsets[0]), int(bags.offsets[-1]), len(bags.indices)
        if first != 0 or last != count:
            raise ValueError(
                f"offsets must go from 0 to {count}, the number of indices; got {first} at position 0 and "
                f"{last} at position {len(bags.offsets) - 1}"
            )
        out = []
        for feature, lookup in enumerate(self._lookups):
            try:
                out.append(lookup(_feature_bags(bags, feature)))
            except (IndexError, ValueError) as error:
                begin = int(bags.offsets[feature * bags.num_bags])
                raise type(error)(
                    f"feature {self.features[feature]!r}, positions counted from {begin}: {error}"
                ) from error
        return out

    def _unpacked(
        self, jagged: JaggedTensor, offsets: object, per_sample_weights: object
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        if not hasattr(jagged, "weights_or_none"):
            raise TypeError(f"indices must be a tensor or a jagged tensor, got {type(jagged).__name__}")
        if offsets is not None or per_sample_weights is not None:
            raise ValueError("offsets and weights come from the jagged tensor itself; pass it alone")
        keys = tuple(jagged.keys())
        if keys != self.features:
            raise ValueError(
                f"the jagged tensor has features {keys}, this collection {self.features}, in this order"
            )
        return jagged.values(), jagged.offsets(), jagged.weights_or_none()

    def _bags(self, indices: object, offsets: object, per_sample_weights: torch.Tensor | None) -> Bags:
        indices = check_indices(indices, "indices", self._device)
        offsets = check_indices(offsets, "offsets", self._device)
        if indices.ndim != 1 or offsets.ndim != 1:
            raise ValueError(f"indices and offsets must be 1-D, got {indices.ndim}-D and {offsets.ndim}-D")
        num_bags, rest = divmod(len(offsets) - 1, len(self.features))
        if rest or num_bags < 0:
            raise ValueError(
                f"offsets must have F * B + 1 elements for {len(self.features)} features, got {len(offsets)}"
            )
        if per_sample_weights is not None:
            for mode in self._modes:
                check_per_sample_weights(per_sample_weights, indices, mode, self._device)
        return Bags(indices, offsets, True, num_bags, 0, per_sample_weights)

    def _make_lookups(self, weights: Sequence[object]) -> list[PooledLookup]:
        by_feature: list[TieredWeight] = []
        for number in self._table_of_feature:
            weight, module = weights[number], self._modules_in_order[number]
            assert isinstance(module, TieredTable)
            by_feature.append(module.checked_weight(weight))
        if "max" in self._modes:
            # The first maximum of each column is recorded for one feature at a time.
            return [
                PooledLookup([weight], [mode]) for weight, mode in zip(by_feature, self._modes, strict=True)
            ]
        return [PooledLookup(by_feature, self._modes)]


def _feature_bags(bags: Bags, feature: int) -> Bags:
    """Return the bags of one feature as a lookup of their own."""
    assert bags.offsets is not None
    begin, num_bags = feature * bags.num_bags, bags.num_bags
    offsets = bags.offsets[begin : begin + num_bags + 1]
    first, last = int(offsets[0]), int(offsets[-1])
    if not 0 <= first <= last <= len(bags.indices):
        raise ValueError(
            f"offsets must not decrease, got {first} at position {begin} and {last} at position "
            f"{begin + num_bags}"
        )
    weights = bags.per_sample_weights
    return Bags(
        bags.indices[first:last],
        offsets - first,
        True,
        num_bags,
        0,
        None if weights is None else weights[first:last],
    )


def _same_objects(first: tuple[object, ...], second: tuple[object, ...]) -> bool:
    return len(first) == len(second) and all(map(lambda a, b: a is b, first, second))


@outside_graphs
def _forward_outside_graphs(
    module: TieredEmbeddingBagCollection,
    indices: torch.Tensor | JaggedTensor,
    offsets: torch.Tensor | None,
    per_sample_weights: torch.Tensor | None,
) -> torch.Tensor:
    return module._forward(indices, offsets, per_sample_weights)


def _check_specs(tables: Sequence[TableSpec]) -> None:
    if not tables:
        raise ValueError("a collection needs at least one table")
    for what, names in (
        ("table", [spec.name for spec in tables]),
        ("feature", [feature for spec in tables for feature in spec.features]),
    ):
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"{what} names must be distinct, got {twice} more than once")
    dtypes = {spec.dtype for spec in tables}
    if len(dtypes) > 1:
        raise ValueError(f"the tables of a collection must have one dtype, got {sorted(map(str, dtypes))}")
