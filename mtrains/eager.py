"""Keeping our code out of the graphs of torch.compile."""

from __future__ import annotations

import torch

__all__ = ["outside_graphs"]

# torch.compiler.disable that imports torch._dynamo (2 s) at the first call, not at import. Traced into a
# graph, a lookup would be a constant: the model would train with its tables frozen.
outside_graphs = torch._disable_dynamo  # type: ignore[attr-defined]
