"""The question of `mtrains plan --nodes`, and its answer as data."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

from mtrains.placement.nodes import NODE_SEGMENTS, nodes_of_servers
from mtrains.placement.presets import SERVERS
from mtrains.placement.topology import Topology
from mtrains.placement.topology_file import load_topology
from mtrains.placement.workload import Workload
from mtrains.profiler.models import MODELS, ModelShape, model_profile
from mtrains.profiler.profile import DTYPE_BYTES, LocalityProfile

__all__ = ["answer_nodes", "choose_model"]

_CHECKPOINT_SECONDS = 4 * 3600.0


def choose_model(
    name: str, *, lookups: float | None, distinct_share: float | None, dtype: str | None
) -> ModelShape | None:
    """Return the model with the given parts replaced; None if `name` is a file. Raises: ValueError."""
    model = MODELS.get(name)
    replaced = [option for option in (lookups, distinct_share, dtype) if option is not None]
    if model is None:
        if not os.path.exists(name):
            raise ValueError(f"no model {name!r}: give the file of a profile, or {', '.join(MODELS)}")
        if replaced:
            raise ValueError("--lookups, --distinct-share and --dtype replace figures of a named model")
        return None
    if dtype is not None and dtype not in DTYPE_BYTES:
        raise ValueError(f"--dtype must be one of {', '.join(DTYPE_BYTES)}, got {dtype!r}")
    if lookups is not None:
        if len(model.groups) > 1:
            raise ValueError(f"--lookups is for models of one table; {name} has {len(model.groups)} kinds of tables")
        model = dataclasses.replace(model, groups=(dataclasses.replace(model.groups[0], features=(lookups,)),))
    return dataclasses.replace(
        model,
        distinct_share=model.distinct_share if distinct_share is None else distinct_share,
        dtype=dtype or model.dtype,
    )


def answer_nodes(
    name: str,
    model: ModelShape | None,
    servers: Sequence[str],
    target_samples_per_second: float,
    workload: Workload,
    compute_limit: float | None,
) -> dict[str, Any]:
    """Return the nodes of each kind of server, every assumption and the sources of the devices."""
    workload = dataclasses.replace(
        workload,
        max_segments=NODE_SEGMENTS,
        checkpoint_seconds=workload.checkpoint_seconds or _CHECKPOINT_SECONDS,
    )
    if model is None:
        profile = LocalityProfile.load(name)
    else:
        if workload.batch_size is not None:
            model = dataclasses.replace(model, batch_size=workload.batch_size)
        profile = model_profile(model, lookahead=workload.lookahead, depth=workload.depth)
        network = model.network_values_per_sample * DTYPE_BYTES[model.dtype]
        workload = dataclasses.replace(workload, network_bytes_per_sample=network, batch_size=model.batch_size)
    machines = [load_topology(server) for server in servers] or list(SERVERS.values())
    if compute_limit is not None:
        machines = [dataclasses.replace(one, compute_samples_per_second=compute_limit) for one in machines]
    counts = nodes_of_servers(profile, machines, workload, target_samples_per_second)
    return {
        "model": name,
        "target_samples_per_second": target_samples_per_second,
        "servers": [dataclasses.asdict(count) for count in counts],
        "assumptions": _assumptions(profile, model, machines, workload),
        "sources": _sources(machines),
    }


def _assumptions(
    profile: LocalityProfile, model: ModelShape | None, machines: Sequence[Topology], workload: Workload
) -> dict[str, Any]:
    lookups = sum(table.lookups_per_sample for table in profile.tables)
    curves = [table.curve(policy=workload.policy, lookahead=workload.lookahead, depth=workload.depth,
                          batch_size=workload.batch_size or 0) for table in profile.tables]  # fmt: skip
    unique = sum(curve.unique_rows for curve in curves if curve is not None)
    batch = workload.batch_size
    limits = sorted({one.compute_samples_per_second for one in machines if one.compute_samples_per_second})
    return {
        "rows": sum(table.num_embeddings for table in profile.tables),
        "source": profile.source,
        "dtype": ", ".join(dict.fromkeys(table.dtype for table in profile.tables)),
        "optimizer": workload.optimizer,
        "batch_size": batch,
        "lookups_per_sample": float(lookups),
        "distinct_share": unique / (lookups * batch) if batch and unique else None,
        "popularity": f"Zipf {model.exponent:g}, independent draws" if model is not None else "of the profile",
        "policy": f"{workload.policy}, lookahead {workload.lookahead}, depth {workload.depth}",
        "all_rows_touched": model is not None or workload.all_rows_touched,
        "compute_samples_per_second_a_node": ", ".join(f"{limit:,.0f}" for limit in limits) or "no limit known",
        "network_bytes_per_sample": workload.network_bytes_per_sample,
        "index_bytes_a_slot": workload.index_bytes,
        "directory_bytes_a_row": 8,
        "static_servers": ", ".join(one.name for one in machines if one.static) + " have no index and no directory",
        "log_live_ratio": workload.live_ratio,
        "checkpoints_kept": workload.keep,
        "checkpoint_seconds": workload.checkpoint_seconds,
        "write_amplification": workload.write_amplification,
        "pages_per_fetch": workload.pages_per_fetch or (1.0 if model is not None else "of the profile"),
    }


def _sources(machines: Sequence[Topology]) -> list[str]:
    found: dict[str, None] = {}
    for machine in machines:
        for slot in machine.slots:
            found[f"{slot.device}: {slot.source}"] = None
        if machine.log is not None:
            found[f"{machine.log.device}: {machine.log.source}"] = None
        if machine.link is not None:
            found[f"link: {machine.link.source}"] = None
    return list(found)
