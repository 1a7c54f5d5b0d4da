"""Recorder: a LocalityProfile of what a program looks up, while it trains."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Protocol, TypeVar

import torch
from torch import nn

from mtrains.profiler.measure import profile_of
from mtrains.profiler.mini_simulation import CurveSpec
from mtrains.profiler.profile import LocalityProfile
from mtrains.profiler.tracking import LookupTracker, TableLayout, TrackingSpec, batch_sizes

__all__ = ["Recorder"]

_CALLS_A_CHECK = 64  # between looks at the memory that accesses take
Batch = TypeVar("Batch")


class Removable(Protocol):
    """A hook that can be taken off."""

    def remove(self) -> None: ...


class Recorder:
    """Records the lookups of modules or of a loader's batches, in bounded memory.

    Of a table of more rows than it tracks it follows a uniform sample by hash, so its cost hardly grows with the table.
    What the modules compute does not change. Each call of a module is its next num_bags samples:
    one that is called several times a step counts as so many more samples. Not thread-safe.

        with mtrains.Recorder(batch_size=2048).attach(model) as recorder:
            train(model)
        recorder.profile().save("profile.json")

    Args:
        batch_size: samples of all ranks; curves are made at a quarter, a half, once, twice and four times of it.
        max_rows: tracked rows a table; smaller tables are recorded exactly.
        max_accesses: that are kept of all tables, 12 bytes each; once they are too many, nothing more is recorded
            (`full`).
        seed: of the sample of rows.
    """

    def __init__(
        self, *, batch_size: int, max_rows: int = 16_384, max_accesses: int = 1 << 25, seed: int = 0
    ) -> None:
        self._tracker = LookupTracker(
            (),
            TrackingSpec(
                batch_size=batch_size,
                max_rows=max_rows,
                hot_rows=0,
                max_accesses=max_accesses,
                seed=seed,
                count_unique=False,
                samples_a_unit=batch_sizes(batch_size)[0] if batch_size >= 1 else 1,
                sample_at_rows=max_rows,
            ),
        )
        self._numbers: dict[str, int] = {}
        self._samples: dict[object, int] = {}  # of each module, or name
        self._hooks: list[Removable] = []
        self._hooked: set[nn.Module] = set()
        self._calls = 0

    # --- what is recorded

    def attach(self, module: nn.Module) -> Recorder:
        """Record every lookup of the embeddings inside `module`, itself included, from now on; returns self.

        Found are mtrains' modules and nn.Embedding and nn.EmbeddingBag. Tables are named as in their store, torch's
        modules by their place in `module`. Raises: ValueError if there is none, one is recorded already, or two tables
        of one name differ.
        """
        inside: set[nn.Module] = set()
        found = 0
        for path, part in module.named_modules():
            if part in inside:
                continue
            if _is_collection(part):
                inside.update(part.embedding_bags.modules())
                self._hook(part, self._collection_recorder(part))
            elif _is_table(part):
                self._hook(part, self._table_recorder(part, path))
            else:
                continue
            found += 1
        if not found:
            raise ValueError(f"there is no embedding in this {type(module).__name__} to record lookups of")
        return self

    def detach(self) -> None:
        """Record no more lookups of modules. What was recorded stays."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._hooked.clear()

    def add_table(self, name: str, num_embeddings: int, embedding_dim: int, *, dtype: str = "float32") -> None:
        """Declare a table for record() and wrap(). Raises: ValueError if one of this name is another."""
        layout = TableLayout(name=name, num_embeddings=num_embeddings, embedding_dim=embedding_dim, dtype=dtype)
        number = self._numbers.get(name)
        if number is None:
            self._numbers[name] = self._tracker.add_table(layout)
        elif self._tracker.tables[number] != layout:
            raise ValueError(f"two tables are named {name!r}: {self._tracker.tables[number]} and {layout}")

    def record(
        self,
        table: str | nn.Module,
        indices: torch.Tensor,
        offsets: torch.Tensor | None = None,
        *,
        include_last_offset: bool = False,
    ) -> None:
        """Record one batch of lookups.

        Args:
            table: a name that add_table() was given, or a module with one table.
            indices: int32 or int64; [n] with offsets, else [B, ...]: a bag of equal size for each sample.
            offsets: int32 or int64[B], where bags begin, as nn.EmbeddingBag takes them.
            include_last_offset: offsets have one more, the length of indices; of a module its own setting counts.
        Raises: KeyError for an unknown name, IndexError for a row outside the table, TypeError, ValueError.
        """
        if isinstance(table, nn.Module):
            name = _declare(self, table, type(table).__name__)
            include_last_offset = bool(getattr(table, "include_last_offset", False))
        else:
            name = table
        if name not in self._numbers:
            raise KeyError(f"no table {name!r} was declared; add_table() does")
        indices = _integers(indices, "indices")
        size = self._tracker.tables[self._numbers[name]].num_embeddings
        if size is not None and indices.numel() and not 0 <= int(indices.min()) <= int(indices.max()) < size:
            rows = f"rows {int(indices.min())} to {int(indices.max())}"
            raise IndexError(f"table {name!r}: {rows} are not all in [0, {size})")
        begins = None if offsets is None else _integers(offsets, "offsets").long()
        self._add(table, name, indices, begins, include_last_offset, getattr(table, "padding_idx", None))

    def wrap(
        self, loader: Iterable[Batch], inputs: Callable[[Batch], Mapping[Any, tuple[torch.Tensor, torch.Tensor | None]]]
    ) -> Iterator[Batch]:
        """Yield the loader's batches unchanged and record them.

        inputs(batch): {module or name: (indices, offsets or None)}, as record() takes them.
        """
        for batch in loader:
            for table, (indices, offsets) in inputs(batch).items():
                self.record(table, indices, offsets)
            yield batch

    # --- what came of it

    @property
    def num_samples(self) -> int:
        """Samples recorded, of the table with the most."""
        return self._tracker.num_samples

    @property
    def full(self) -> bool:
        """Whether recording ended because max_accesses were kept."""
        return self._tracker.full

    def profile(self, *, lookahead: int = 64, depth: int = 2, source: str = "recorded") -> LocalityProfile:
        """Return the profile of what was recorded so far; recording may go on.

        Unique rows a batch of a sampled table are estimates (within some 4 % at 16,384 rows).
        Raises: ValueError if nothing was recorded.
        """
        return profile_of(self._tracker, CurveSpec(lookahead=lookahead, depth=depth), source=source)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.detach()

    # --- hooks: after a forward that went well, so that its arguments are known to be lookups

    def _hook(self, module: nn.Module, record: Callable[[tuple[Any, ...], dict[str, Any]], None]) -> None:
        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], __: object) -> None:
            if not self._tracker.full:
                record(args, kwargs)

        if module in self._hooked:
            raise ValueError(f"lookups of this {type(module).__name__} are recorded already")
        self._hooked.add(module)
        self._hooks.append(module.register_forward_hook(hook, with_kwargs=True))

    def _table_recorder(
        self, module: nn.Module, path: str
    ) -> Callable[[tuple[Any, ...], dict[str, Any]], None]:
        name = _declare(self, module, path or type(module).__name__)
        padding = getattr(module, "padding_idx", None)

        def record(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            indices = args[0] if args else kwargs["input"]
            offsets = args[1] if len(args) > 1 else kwargs.get("offsets")
            begins = None if offsets is None else offsets.long()
            self._add(module, name, indices, begins, bool(getattr(module, "include_last_offset", False)), padding)

        return record

    def _collection_recorder(self, module: Any) -> Callable[[tuple[Any, ...], dict[str, Any]], None]:  # noqa: ANN401
        names = [
            (_declare(self, bag, name), bag.padding_idx)
            for name, bag in module.embedding_bags.items()
            for _ in bag.table.spec.features
        ]

        def record(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            indices = args[0] if args else kwargs["indices"]
            offsets = args[1] if len(args) > 1 else kwargs.get("offsets")
            if offsets is None:  # a jagged tensor
                indices, offsets = indices.values(), indices.offsets()
            indices, offsets = indices.cpu(), offsets.cpu().long()
            num_bags = (len(offsets) - 1) // len(names)
            ends = offsets[:: max(1, num_bags)].tolist() if num_bags else []
            for feature, (name, padding) in enumerate(names[: len(ends)]):
                begin, end = ends[feature], ends[feature + 1]
                bags = offsets[feature * num_bags : (feature + 1) * num_bags] - begin
                self._add((module, feature), name, indices[begin:end], bags, False, padding)

        return record

    def _add(
        self,
        caller: object,
        name: str,
        indices: torch.Tensor,
        offsets: torch.Tensor | None,
        includes_end: bool,
        padding: int | None,
    ) -> None:
        tracker = self._tracker
        if tracker.full:
            return
        num_bags = (indices.shape[0] if indices.ndim else 1) if offsets is None else len(offsets) - includes_end
        first = self._samples.get(caller, 0)
        indices = indices.cpu().contiguous()
        begins = None if offsets is None else offsets.cpu().contiguous()
        tracker.tracked[self._numbers[name]].add_bags(
            indices_ptr=indices.data_ptr(),
            num_indices=indices.numel(),
            indices_int64=indices.dtype is torch.int64,
            offsets_ptr=0 if begins is None else begins.data_ptr(),
            num_offsets=0 if begins is None else len(begins),
            num_bags=num_bags,
            first_sample=first,
            padding_row=-1 if padding is None else padding,
        )
        self._samples[caller] = first + num_bags
        tracker.num_samples = max(tracker.num_samples, first + num_bags)
        self._calls += 1
        if self._calls % _CALLS_A_CHECK == 0:
            tracker.end_samples(tracker.num_samples)


def _is_collection(module: nn.Module) -> bool:
    return hasattr(module, "embedding_bags") and hasattr(module, "features")


def _is_table(module: nn.Module) -> bool:
    tables = (nn.Embedding, nn.EmbeddingBag)
    return isinstance(module, tables) or (hasattr(module, "table") and hasattr(module, "num_embeddings"))


def _declare(recorder: Recorder, module: Any, name: str) -> str:  # noqa: ANN401 (torch's modules and mtrains')
    """Declare the table of a module; returns its name."""
    if hasattr(module, "table"):
        name = module.table.spec.name
    dtype = str(module.weight.dtype).removeprefix("torch.")
    recorder.add_table(name, module.num_embeddings, module.embedding_dim, dtype=dtype)
    return name


def _integers(values: object, name: str) -> torch.Tensor:
    if not isinstance(values, torch.Tensor) or values.dtype not in (torch.int32, torch.int64):
        found = values.dtype if isinstance(values, torch.Tensor) else type(values).__name__
        raise TypeError(f"{name} must be a tensor of int32 or int64, got {found}")
    return values
