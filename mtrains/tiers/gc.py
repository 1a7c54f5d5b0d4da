"""Which segments to empty: the policy of garbage collection. The engine moves the rows, the log writer
deletes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtrains import _native
from mtrains.tiers.container import SEGMENT_PAGES

__all__ = [
    "DEFAULT_POLICY",
    "SLACK_SEGMENTS",
    "TARGET_LIVE_RATIO",
    "DiskUse",
    "GcPolicy",
    "choose_victims",
    "disk_use",
    "packed_share",
    "policy_for",
]

# Source: models of disk over live bytes; at 0.7 disk stays at 1.4 x (live + held) and write amplification
# near 2.
TARGET_LIVE_RATIO = 0.7
_FULL_RATIO = 0.9  # emptying fuller segments gains too little
_PUBLISHED = 2

# So many segments' worth of dead bytes are left alone: checkpoints of few rows would else copy all live rows each time.
SLACK_SEGMENTS = 32
# With room for fewer segments than this, less and less is left alone.
_SCARCE_SEGMENTS = 64
_BUFFER_PAGES = (17, SEGMENT_PAGES)  # least and most that a segment has when it is full


@dataclass(frozen=True, kw_only=True)
class GcPolicy:
    """target: share of their segments that live rows should take. slack: segments that may be dead all the same."""

    target: float = TARGET_LIVE_RATIO
    slack: int = SLACK_SEGMENTS


DEFAULT_POLICY = GcPolicy()


def policy_for(room: int) -> GcPolicy:
    """Return what to aim at with room on the disk for so many more segments: the less, the fuller they get."""
    share = min(max(0, room), _SCARCE_SEGMENTS) / _SCARCE_SEGMENTS
    return GcPolicy(
        target=_FULL_RATIO - (_FULL_RATIO - TARGET_LIVE_RATIO) * share, slack=round(SLACK_SEGMENTS * share)
    )


def packed_share(slot_bytes: int) -> float:
    """Return the share of its pages that a full segment has: its buffer is no larger than the budget."""
    least, most = _BUFFER_PAGES
    return min(max(slot_bytes // 4096 + 1, least), most) / SEGMENT_PAGES


def choose_victims(
    segments: NDArray[Any],
    limit: int,
    emptied: Collection[int] = (),
    policy: GcPolicy = DEFAULT_POLICY,
    packed: float = 1.0,
) -> list[int]:
    """Return numbers of at most `limit` segments to evacuate, the emptiest first; none while enough is live.

    segments: `Engine.segments()`. emptied: ids of segments that were evacuated; what is live there is dirty in slots,
    and leaves when these are written. packed: see `packed_share`; evacuated rows fill segments so far.

    Only segments with live rows count: those without are dead, or held by
    checkpoints until they are dropped, and evacuating cannot free either. So held bytes never cause writes,
    and live ones stay within 1 / `target` of their disk, or `slack` segments.
    """
    active = segments[(segments["state"] == _PUBLISHED) & (segments["live"] > 0)]
    if emptied:
        active = active[~np.isin(active["id"], np.fromiter(emptied, np.uint64))]
    if len(active) == 0:
        return []
    ratios = np.minimum(live_ratios(active) / packed, 1.0)
    candidates = np.flatnonzero(ratios < _FULL_RATIO)
    order = candidates[np.argsort(ratios[candidates], kind="stable")][:limit]
    victims: list[int] = []
    live, count = float(ratios.sum()), float(len(active))
    for index in order:
        if live / count >= policy.target or count - live <= policy.slack:
            break
        victims.append(int(active["number"][index]))
        # Its rows go to a new segment, packed; so many segments hold the same live rows.
        count += float(ratios[index]) - 1.0
    return victims


def live_ratios(segments: NDArray[Any]) -> NDArray[np.float64]:
    """Return the share of each segment that live rows take; what a checkpoint left empty is not live."""
    used = segments["used_pages"] / SEGMENT_PAGES
    return np.asarray(segments["live"] / np.maximum(segments["rows"], 1) * used, dtype=np.float64)


@dataclass(frozen=True, kw_only=True)
class DiskUse:
    """Bytes of segments by what needs their rows: the present state, checkpoints alone, nothing."""

    live_bytes: int
    held_bytes: int
    dead_bytes: int


def disk_use(segments: NDArray[Any], held_rows: Mapping[int, int]) -> DiskUse:
    """Share each published segment's bytes among live, held and dead rows; padding is dead.

    held_rows: segment id -> rows that some checkpoint needs (live ones among them).
    """
    live = held = total = 0.0
    for segment in segments[segments["state"] >= _PUBLISHED]:
        rows = int(segment["rows"])
        total += _native.SEGMENT_BYTES
        if rows == 0:
            held += _native.SEGMENT_BYTES if int(segment["id"]) in held_rows else 0
            continue
        used = int(segment["used_pages"]) / SEGMENT_PAGES * _native.SEGMENT_BYTES
        live_share = int(segment["live"]) / rows
        needed_share = max(live_share, held_rows.get(int(segment["id"]), 0) / rows)
        live += live_share * used
        held += (needed_share - live_share) * used
    return DiskUse(live_bytes=round(live), held_bytes=round(held), dead_bytes=round(total - live - held))
