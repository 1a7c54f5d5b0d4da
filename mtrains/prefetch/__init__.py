"""Prefetch: batches of a loader are read ahead, and the rows that they need are brought before their forward.

The package is callable: mtrains.prefetch(loader, inputs) is mtrains.prefetch.loader.prefetch(loader, inputs).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from mtrains.prefetch.foresight import Inputs
    from mtrains.prefetch.loader import PrefetchedLoader

__all__: list[str] = []

_Batch = TypeVar("_Batch")


class _Callable(ModuleType):
    """The folder is called prefetch, and so is the function."""

    def __call__(
        self, loader: Iterable[_Batch], inputs: Inputs[_Batch], *, lookahead: int = 64, depth: int = 2
    ) -> PrefetchedLoader[_Batch]:
        from mtrains.prefetch.loader import prefetch

        return prefetch(loader, inputs, lookahead=lookahead, depth=depth)


sys.modules[__name__].__class__ = _Callable
