"""The numbers of a placement problem, from profile, topology and workload: arrays over tables J and tiers K."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mtrains.placement.curves import PlacementCurve, placement_curve
from mtrains.placement.records import (
    WINDOW_ID_BYTES,
    directory_bytes,
    granule_bytes,
    log_bytes,
    record_bytes,
)
from mtrains.placement.topology import Topology
from mtrains.placement.workload import Workload

if TYPE_CHECKING:
    from mtrains.profiler.profile import LocalityCurve, LocalityProfile, TableProfile

__all__ = ["Array", "Problem", "choose_batch_size"]

Array = NDArray[np.float64]
_WEIGHT_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What is placed (J tables), on what, and for what. Rows and events are of one step.

    record, slot, log: bytes of a row as a record, in a slot with its index, in the log. moved[J, K]: bytes that tier k
    moves for a record. unique, new, rows: unique rows a batch, first touches a batch, rows touched ever. pages: page
    reads a batch if nothing is held. pinned_rows: of depth + 1 batches, which the compute tier
    holds of each table at once, one slot at least. fixed[K]: bytes of directory, windows
    and buffers by tier, of which `fixed_parts` tells by name.
    """

    profile: LocalityProfile
    topology: Topology
    workload: Workload
    batch_size: int
    curves: tuple[PlacementCurve, ...]
    record: Array
    slot: Array
    log: Array
    moved: Array
    unique: Array
    new: Array
    rows: Array
    pages: Array
    lookup_bytes: float
    pinned_rows: Array
    fixed: Array
    fixed_parts: dict[str, float]

    @property
    def num_tables(self) -> int:
        return len(self.curves)

    @property
    def num_tiers(self) -> int:
        return len(self.topology.slots)

    @functools.cached_property
    def capacity(self) -> Array:
        """Bytes of each tier for slots."""
        return np.array([slot.capacity_bytes for slot in self.topology.slots]) - self.fixed

    @property
    def log_fixed_bytes(self) -> float:
        """Bytes of the log at its live ratio: it is home to every touched row."""
        return float((self.log * self.rows).sum()) / self.workload.live_ratio

    @property
    def compute_seconds(self) -> float:
        """Of a step that waits for no row."""
        given, limit = self.workload.compute_seconds, self.topology.compute_samples_per_second
        if given is not None:
            return given
        return 0.0 if limit is None else self.batch_size / limit

    @property
    def cpu_base_seconds(self) -> float:
        """Core seconds of a step that the computation takes where the same cores move rows meanwhile."""
        cpu, computes = self.topology.cpu, self.topology.slots[0].tier == "dram"
        return self.compute_seconds * cpu.cores if cpu is not None and computes and self.workload.depth else 0.0

    def hits(self, cumulative: Array) -> Array:
        """Return the hits of each table with so many rows held: float[J] of float[J]."""
        pairs = zip(cumulative, self.curves, strict=True)
        return np.array([np.interp(rows, curve.rows, curve.hits) for rows, curve in pairs])

    def saved_pages(self, cumulative: Array) -> Array:
        """Return the page reads that each table is spared: float[J] of float[J]."""
        pairs = zip(cumulative, self.curves, strict=True)
        return np.array([np.interp(rows, curve.rows, curve.pages_saved) for rows, curve in pairs])

    @classmethod
    def build(cls, profile: LocalityProfile, topology: Topology, workload: Workload) -> Problem:
        """Return the problem. Raises: ValueError if the profile has no curves of this workload."""
        batch_size = choose_batch_size(profile, workload)
        curves = [_curve_of(table, workload, batch_size) for table in profile.tables]
        touched = np.array(
            [table.num_embeddings if workload.all_rows_touched else table.touched_rows for table in profile.tables],
            dtype=float,
        )
        # A table that nobody used was not seen to need more than a slot for the row that somebody will.
        touched = np.maximum(touched, [min(1, table.num_embeddings) for table in profile.tables])
        record = np.array(
            [
                record_bytes(table.embedding_dim, _WEIGHT_BYTES[table.dtype], workload.optimizer)
                for table in profile.tables
            ],
            dtype=float,
        )
        pages = [_pages(curve, workload.pages_per_fetch) for curve in curves]
        unique = np.array([curve.unique_rows for curve in curves])
        pinned = np.minimum(np.ceil(np.maximum([curve.pinned_rows for curve in curves], 1.0)), touched)
        parts = _fixed_parts(profile, topology, workload, record, unique, touched)
        fixed = np.zeros(len(topology.slots))
        fixed[topology.host_tier] = sum(parts.values())
        return cls(
            profile=profile,
            topology=topology,
            workload=workload,
            batch_size=batch_size,
            curves=tuple(
                placement_curve(
                    np.array(curve.capacity_rows),
                    np.array(curve.hits),
                    all_pages - held,
                    touched_rows=float(rows),
                    unique_rows=curve.unique_rows,
                    max_segments=workload.max_segments,
                    pinned_rows=float(least),
                )
                for curve, (all_pages, held), rows, least in zip(curves, pages, touched, pinned, strict=True)
            ),
            record=record,
            slot=record if topology.static else record + workload.index_bytes,
            log=np.array([log_bytes(int(size)) for size in record]),
            moved=np.array(
                [[granule_bytes(int(size), slot.granule_bytes) for slot in topology.slots] for size in record],
                dtype=float,
            ),
            unique=unique,
            new=np.array([curve.new_rows for curve in curves]),
            rows=touched,
            pages=np.array([all_pages for all_pages, _ in pages]),
            lookup_bytes=_lookup_bytes(profile, batch_size, record, unique),
            pinned_rows=pinned,
            fixed=fixed,
            fixed_parts=parts,
        )


def choose_batch_size(profile: LocalityProfile, workload: Workload) -> int:
    """Return the workload's batch size, or the middle one that the profile has curves of.

    Raises: ValueError telling what the profile has and how to profile again.
    """
    wanted = (workload.policy, workload.lookahead, workload.depth)
    sizes = sorted({setting[3] for setting in profile.settings if setting[:3] == wanted})
    size = workload.batch_size
    if size is None and sizes:
        return sizes[(len(sizes) - 1) // 2]
    if size not in sizes:
        known = sorted({(setting[0], setting[1], setting[2], setting[3]) for setting in profile.settings})
        has = "; ".join(f"{p}, lookahead {w}, depth {d}, batch {b}" for p, w, d, b in known) or "none of all tables"
        raise ValueError(
            f"the profile has no curves for {wanted[0]}, lookahead {wanted[1]}, depth {wanted[2]}, batch "
            f"{'of any size' if size is None else size}; a curve of another setting would mislead. It has: {has}. "
            f"Ask for one of these, or make the profile with batch size {size or 'N'}, lookahead {wanted[1]}, depth "
            f"{wanted[2]}"
        )
    assert size is not None
    return size


def _curve_of(table: TableProfile, workload: Workload, batch_size: int) -> LocalityCurve:
    curve = table.curve(
        policy=workload.policy, lookahead=workload.lookahead, depth=workload.depth, batch_size=batch_size
    )
    assert curve is not None
    return curve


def _pages(curve: LocalityCurve, replaced: float | None) -> tuple[float, Array]:
    """Return the page reads a batch with nothing held, and at each capacity."""
    ratio = np.array(curve.pages_per_fetch) if replaced is None else np.full(len(curve.fetches), replaced)
    return float((curve.unique_rows - curve.new_rows) * ratio[0]), np.array(curve.fetches) * ratio


def _fixed_parts(
    profile: LocalityProfile, topology: Topology, workload: Workload, record: Array, unique: Array, touched: Array
) -> dict[str, float]:
    """Return the bytes of host memory that no budget of rows counts, by what they are for."""
    if topology.static:
        return {}
    tables = zip(profile.tables, touched, strict=True)
    parts = {
        "directory": sum(directory_bytes(table.num_embeddings, float(rows)) for table, rows in tables),
        "window": workload.lookahead * WINDOW_ID_BYTES * float(unique.sum()),
    }
    if topology.slots[0].tier == "hbm":
        parts["staging"] = workload.depth * float((record * unique).sum())
    if topology.log is not None:
        parts["writer"] = float(workload.writer_bytes * topology.nodes)
    return parts


def _lookup_bytes(profile: LocalityProfile, batch_size: int, record: Array, unique: Array) -> float:
    """Return the bytes that the compute tier reads and writes in a step: a row a lookup, a record a unique row."""
    read = sum(
        table.lookups_per_sample * batch_size * table.embedding_dim * _WEIGHT_BYTES[table.dtype]
        for table in profile.tables
    )
    return read + 2 * float((record * unique).sum())
