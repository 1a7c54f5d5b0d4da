"""What the optimizers share: tables by a fused pass, other parameters by a torch optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, NamedTuple, TypeAlias

import torch

from mtrains._native import DeviceCompute, Update
from mtrains.device_calls import StepOnDevice, StepSource
from mtrains.eager import outside_graphs
from mtrains.errors import StateError
from mtrains.row_grad import RowGrad
from mtrains.store import OptimizerBinding, Store
from mtrains.weight import TieredWeight

__all__ = ["ParamsT", "TieredOptimizer", "check_hyper_parameters"]

ParamsT: TypeAlias = "Iterable[torch.Tensor] | Iterable[dict[str, Any]] | Iterable[tuple[str, torch.Tensor]]"
Group: TypeAlias = "dict[str, Any]"

_DECAYS = {"l2": 1, "decoupled": 2}


class _TableSteps(NamedTuple):
    """Updates of the tables of one store, what must live until they ran, the bindings they count in."""

    updates: list[Update]
    held: list[StepSource]
    bindings: list[OptimizerBinding]


class TieredOptimizer(torch.optim.Optimizer):
    """Base of mtrains.optim. Not to be used itself.

    A table's optimizer state lives with its rows in the store and is in checkpoints; state_dict() has only
    the table's `step`. Ordinary parameters are stepped by a torch optimizer inside, which shares `state`.
    `step()` reads gradients and does not clear them. Rows without a gradient do not move and do not decay.
    """

    kind: ClassVar[str]  # recorded in the store
    number: ClassVar[int]  # of mtrains._native.Update
    dense_class: ClassVar[type[torch.optim.Optimizer]]

    def __init__(self, params: ParamsT, defaults: dict[str, Any]) -> None:
        self._dense: torch.optim.Optimizer | None = None
        self._dense_keys: frozenset[str] = frozenset()
        self._expected_steps: dict[TieredWeight, int] = {}
        super().__init__(params, defaults)

    # --- what each optimizer defines

    def check_group(self, group: Group) -> None:
        """Raise ValueError or NotImplementedError for hyper-parameters out of range or not supported."""
        raise NotImplementedError

    def state_fields(self, dim: int) -> tuple[tuple[str, int], ...]:
        """Return the state of a row: names as in torch, and float32 values of each."""
        raise NotImplementedError

    def initial_state(self, group: Group) -> float:
        """Return the value of every state field of a row that was never updated."""
        return 0.0

    def scalars(self, group: Group, step: int) -> dict[str, float]:
        """Return lr, eps and the like of mtrains._native.Update for a table's `step`-th step, from 1 on."""
        raise NotImplementedError

    # --- torch.optim.Optimizer

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters; attaches to the tables among them, so that their rows get state before they train.

        Raises: StateError: a table has state of another kind of optimizer.
        """
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            self.check_group(group)
            for weight in _tables(group):
                if weight.requires_grad:
                    self._attach(weight, group)
        except BaseException:
            self.param_groups.pop()
            raise
        self._dense = None

    @outside_graphs
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # noqa: ANN401
        """Update tables and ordinary parameters from their gradients; returns what `closure` returns.

        Raises: StateError: a gradient was changed in place after backward(), or replaced; nothing has
            changed then.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for store, steps in self._table_steps().items():
            if steps.updates:
                device = DeviceCompute(StepOnDevice(steps.held)) if store.on_device else None
                store.engine.step(steps.updates, device)
            for binding in steps.bindings:
                binding.step += 1
        self._step_dense()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Return torch's state_dict; of a table it has `step` alone, its rows' state is in the store."""
        for group in self.param_groups:
            for weight in _tables(group):
                binding = weight.table.optimizer
                if binding is not None and binding.kind == self.kind:
                    self.state[weight] = {"step": torch.tensor(float(binding.step))}
        return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load hyper-parameters and the state of ordinary parameters.

        A table's rows and state come from its store, restored before or after this call; the next step()
        raises StateError if the store is not at the step that `state_dict` was saved at.
        """
        super().load_state_dict(state_dict)
        self._expected_steps = {}
        for group in self.param_groups:
            for weight in _tables(group):
                state = self.state.pop(weight, {})
                if state.keys() - {"step"}:
                    raise StateError(
                        f"table {weight.table.name!r}: state_dict has {sorted(state)} of all rows, as a "
                        "torch optimizer's; the state of a table's rows can only come from a checkpoint of "
                        "its store"
                    )
                if "step" in state:
                    self._expected_steps[weight] = int(state["step"])

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._dense = None

    # --- tables

    def _attach(self, weight: TieredWeight, group: Group) -> OptimizerBinding:
        table = weight.table
        binding = table.store.bind_optimizer(
            table, self.kind, self.state_fields(table.spec.embedding_dim), self.initial_state(group)
        )
        weight.graph.attach(self)
        return binding

    def _binding(self, weight: TieredWeight, group: Group) -> OptimizerBinding:
        graph = weight.graph
        binding = graph.table.optimizer
        if binding is None or graph.optimizer() is None:
            binding = self._attach(weight, group)
        if binding.kind != self.kind:
            raise StateError(
                f"table {weight.table.name!r} now has the state of optimizer {binding.kind!r}, this is "
                f"{self.kind!r}; one table has one optimizer at a time"
            )
        if self._expected_steps:
            expected = self._expected_steps.pop(weight, binding.step)
            if expected != binding.step:
                raise StateError(
                    f"table {weight.table.name!r}: load_state_dict() gave the optimizer step {expected}, the "
                    f"rows in the store are at step {binding.step}; restore the checkpoint that it was saved "
                    "with"
                )
        return binding

    def _table_steps(self) -> dict[Store, _TableSteps]:
        by_store: dict[Store, _TableSteps] = {}
        for group in self.param_groups:
            arguments: dict[
                int, dict[str, Any]
            ] = {}  # by step: the tables of a group are mostly at the same one
            for weight in group["params"]:
                if type(weight) is not TieredWeight or (grad := weight.grad) is None:
                    continue
                if type(grad) is not RowGrad:
                    raise StateError(
                        f"the gradient of table {weight.table.name!r} was replaced by a "
                        f"{type(grad).__name__}; only what backward() made can be stepped"
                    )
                binding = self._binding(weight, group)
                if binding.step not in arguments:
                    arguments[binding.step] = self._arguments(group, binding.step + 1)
                update = grad.update(arguments[binding.step])
                store = weight.graph.store
                steps = by_store.get(store)
                if steps is None:
                    _check_writable(store)
                    steps = by_store[store] = _TableSteps([], [], [])
                steps.bindings.append(binding)
                if update is not None:
                    steps.updates.append(update[0])
                    steps.held.append(update[1])
        return by_store

    def _arguments(self, group: Group, step: int) -> dict[str, Any]:
        return {
            "optimizer": self.number,
            "maximize": group["maximize"],
            **_decay(group),
            **self.scalars(group, step),
        }

    # --- ordinary parameters

    def _step_dense(self) -> None:
        dense = self._dense_optimizer()
        if dense is None:
            return
        for group, inner in zip(self.param_groups, dense.param_groups, strict=True):
            inner["params"] = [param for param in group["params"] if type(param) is not TieredWeight]
            for key in self._dense_keys:
                inner[key] = group[key]
            if group["weight_decay"] and group["weight_decay_mode"] == "decoupled":
                inner["weight_decay"] = 0
                _decay_dense(inner["params"], 1.0 - float(group["lr"]) * group["weight_decay"])
        dense.step()

    def _dense_optimizer(self) -> torch.optim.Optimizer | None:
        """Return the torch optimizer of the ordinary parameters; new after groups or state changed."""
        if self._dense is None:
            groups = [
                {"params": [param for param in group["params"] if type(param) is not TieredWeight]}
                for group in self.param_groups
            ]
            if not any(group["params"] for group in groups):
                return None
            make_dense: Callable[..., torch.optim.Optimizer] = self.dense_class
            dense = make_dense(
                [
                    group | {key: self.param_groups[number][key] for key in self.defaults}
                    for number, group in enumerate(groups)
                ]
            )
            self._dense_keys = frozenset(self.defaults) & frozenset(dense.defaults)
            for param, state in self.state.items():
                dense.state[param] = state
            self.state = dense.state
            self._dense = dense
        return self._dense


def _tables(group: Group) -> list[TieredWeight]:
    return [param for param in group["params"] if type(param) is TieredWeight]


def _decay(group: Group) -> dict[str, float]:
    weight_decay = group["weight_decay"]
    if not weight_decay:
        return {}
    mode = _DECAYS[group["weight_decay_mode"]]
    return {
        "decay": mode,
        "weight_decay": float(weight_decay),
        "decay_factor": 1.0 - float(group["lr"]) * weight_decay,
    }


def _decay_dense(params: Iterable[torch.Tensor], factor: float) -> None:
    with torch.no_grad():
        for param in params:
            if param.grad is not None:
                param.mul_(factor)


def _check_writable(store: Store) -> None:
    store.check_writable()
    if store.read_only:
        raise StateError(
            "the store is open read-only, its tables cannot be trained; open it without read_only"
        )
    store.check_named_tables()


def check_hyper_parameters(defaults: dict[str, Any]) -> None:
    """Raise ValueError for values out of range and NotImplementedError for what tables cannot do."""
    for name in ("lr", "eps", "weight_decay", "lr_decay", "initial_accumulator_value"):
        if name in defaults and not float(defaults[name]) >= 0.0:
            raise ValueError(f"{name} must be >= 0, got {defaults[name]}")
    for number, beta in enumerate(defaults.get("betas", ())):
        if not 0.0 <= beta < 1.0:
            raise ValueError(f"betas[{number}] must be in [0, 1), got {beta}")
    if defaults["weight_decay_mode"] not in _DECAYS:
        raise ValueError(
            f"weight_decay_mode must be 'l2' or 'decoupled', got {defaults['weight_decay_mode']!r}"
        )
    if defaults.get("differentiable"):
        raise NotImplementedError(
            "differentiable=True is not supported: rows are updated outside of autograd"
        )
