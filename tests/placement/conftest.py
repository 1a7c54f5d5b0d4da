"""Small profiles and machines."""

import numpy as np
import pytest

from mtrains.placement.topology import LogTier, SlotTier, Topology
from mtrains.profiler.profile import LocalityCurve, LocalityProfile, TableProfile

BATCH = 1000


def make_table(name, *, rows=10_000, dim=16, unique=800.0, new=0.0, power=0.5, points=12, pages=0.5, dtype="float32"):
    """A table whose hits grow as a power of the rows held; concave up to a power of 1."""
    x = np.unique(np.geomspace(max(1, rows / 500), rows, points))
    hits = (unique - new) * (x / rows) ** power
    curve = LocalityCurve(
        policy="next_use",
        lookahead=64,
        depth=2,
        batch_size=BATCH,
        unique_rows=unique,
        pinned_rows=min(rows, 2.5 * unique),
        new_rows=new,
        capacity_rows=tuple(x),
        hits=tuple(hits),
        fetches=tuple(np.maximum(0.0, unique - new - hits)),
        pages_per_fetch=(pages,) * len(x),
    )
    return TableProfile(
        name=name,
        num_embeddings=rows,
        embedding_dim=dim,
        dtype=dtype,
        touched_rows=rows,
        lookups_per_sample=2 * unique / BATCH,
        footprint=((BATCH, unique), (3 * BATCH, min(rows, 2.5 * unique))),
        curves=(curve,),
    )


def make_profile(tables):
    return LocalityProfile(tables=tuple(tables), samples=1e6, source="made up")


def make_machine(dram=1e6, scm=None, hbm=None, *, scm_rate=1e9, iops=20_000.0, writes=1e8, log=1e9, endurance=None):
    slots = []
    for tier, size in (("hbm", hbm), ("dram", dram), ("scm", scm)):
        if size is not None:
            rate = scm_rate if tier == "scm" else 1e11
            slots.append(
                SlotTier(
                    tier=tier,
                    device=f"some {tier}",
                    capacity_bytes=size,
                    read_bytes_per_second=rate,
                    write_bytes_per_second=rate / 3,
                    one_medium=tier == "scm",
                    granule_bytes=256 if tier == "scm" else 64,
                    cost_per_gib={"hbm": 16.0, "dram": 4.0, "scm": 2.0}[tier],
                )
            )
    disk = LogTier(
        device="some disk",
        capacity_bytes=log or 0.0,
        read_iops=iops,
        read_bytes_per_second=iops * 4096,
        write_bytes_per_second=writes,
        endurance_bytes_per_day=endurance,
    )
    return Topology(name="made up", slots=tuple(slots), log=disk if log else None)


@pytest.fixture(scope="session")
def cases():
    """The three builders, by name."""
    from types import SimpleNamespace

    return SimpleNamespace(table=make_table, profile=make_profile, machine=make_machine, batch=BATCH)
