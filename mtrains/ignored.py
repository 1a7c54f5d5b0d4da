"""Which parameters data-parallel wrappers must leave alone."""

from __future__ import annotations

from torch import nn

from mtrains.weight import TieredWeight

__all__ = ["ignored_parameters"]


def ignored_parameters(model: nn.Module) -> dict[str, TieredWeight]:
    """Return the weights of the tiered modules in `model` by their names, for DDP and FSDP to ignore.

    Their rows live in the store of each process. DistributedDataParallel takes names:
    `DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model,
    list(ignored_parameters(model)))`; FSDP takes parameters:
    `ignored_states=ignored_parameters(model).values()`.
    """
    return {name: param for name, param in model.named_parameters() if type(param) is TieredWeight}
