"""Parsing in the workers of a torch DataLoader, in order.

Every worker reads all the records and parses each N-th block. The loader takes one block from each worker in
turn, so the blocks come in the order of the file and the samples are those of parsing in one process.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import torch.utils.data as torch_data

from mtrains.train.data.block import ParsedBlock
from mtrains.train.data.errors import DataError

__all__ = ["parse_in_workers"]


class _Parseable(Protocol):
    def parse(self) -> ParsedBlock: ...


class _ParsedBlocks(torch_data.IterableDataset[ParsedBlock | DataError]):
    """The share of one worker. Errors are items: the loader would wrap an exception in a traceback."""

    def __init__(self, raw: Iterable[_Parseable]) -> None:
        self._raw = raw

    def __iter__(self) -> Iterator[ParsedBlock | DataError]:
        worker = torch_data.get_worker_info()
        assert worker is not None
        try:
            for number, block in enumerate(self._raw):
                if number % worker.num_workers == worker.id:
                    yield block.parse()
        except DataError as error:
            yield error


def _as_it_is(item: Any) -> Any:  # noqa: ANN401 (the loader's type of a collate_fn)
    return item


def parse_in_workers(raw: Iterable[_Parseable], num_workers: int) -> Iterator[ParsedBlock]:
    """Parse blocks in `num_workers` forked processes; each iterates its own copy of `raw`, not yet started.

    Raises: what parsing or reading raised in a worker; RuntimeError if a worker was killed.
    """
    loader = torch_data.DataLoader(
        _ParsedBlocks(raw),
        batch_size=None,
        num_workers=num_workers,
        collate_fn=_as_it_is,
        multiprocessing_context="fork",
    )
    # A worker must not collect what this process made: that copies its pages, and ends what is in use here.
    gc.freeze()
    try:
        items = iter(loader)  # forks
    finally:
        gc.unfreeze()
    for item in items:
        if isinstance(item, DataError):
            raise item
        yield item
