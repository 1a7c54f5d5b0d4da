"""Forward in a slot tensor: rows gathered by slot and pooled by bag, and the gradient of per-sample weights.

Legend: B bags, D columns, K positions that take part.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
from torch.nn import functional

from mtrains.specs import MODES
from mtrains.tiers.float_mode import exact_floats
from mtrains.tiers.hbm_records import RecordLayout, load_rows
from mtrains.tiers.hbm_sums import lane_sum, left_fold

__all__ = ["per_sample_weight_grad", "pool"]

_MEAN: Final = MODES.index("mean")
_MAX: Final = MODES.index("max")
_NOTHING: Final = -(1 << 63)  # below the code of every value


def pool(
    records: torch.Tensor,
    layout: RecordLayout,
    *,
    slot_of_position: torch.Tensor,
    offsets: torch.Tensor,
    bag_begin: int,
    bag_end: int,
    position_begin: int,
    position_end: int,
    first_piece: bool,
    last_piece: bool,
    mode: int,
    per_sample_weights: torch.Tensor | None,
    out: torch.Tensor,
    argmax: torch.Tensor | None,
    counts: torch.Tensor | None,
) -> None:
    """Pool bags [bag_begin, bag_end), of which positions [position_begin, position_end) take part.

    The bits of native pool(), for any split into pieces: out, argmax and counts carry over between the pieces
    of a bag, which come in order. A first piece finds nothing in them, a last one finishes the result.

    Args:
        slot_of_position: int64, indexed by absolute position; -1: skipped.
        offsets: int64[B + 1], absolute positions. mode: index in MODES.
        per_sample_weights: float32[positions] or None; of a sum only.
        out: float32[B, D], rows at any stride. argmax: int64[B, D] or None: of a max, the absolute position
            of the first maximum, -1 for an empty bag.
        counts: float32[B], positions that were not skipped; may be None for a sum.
    """
    if bag_begin >= bag_end:
        return
    with exact_floats(records.device):
        taken = _take_part(slot_of_position, offsets, bag_begin, bag_end, position_begin, position_end)
        rows = load_rows(records, layout, slot_of_position.index_select(0, taken.positions))
        bags = slice(bag_begin, bag_end)
        counted = taken.bounds.diff().to(torch.float32)
        if counts is not None and not first_piece:
            counted += counts[bags]
        if mode == _MAX:
            assert counts is not None
            before = None if first_piece else counts[bags]
            _carry_maxima(rows, taken, before, out[bags], None if argmax is None else argmax[bags])
        else:
            if per_sample_weights is not None:
                rows *= per_sample_weights.index_select(0, taken.positions)[:, None]
            sums = left_fold(rows, taken.bounds, None if first_piece else out[bags])
            if mode == _MEAN and last_piece:
                sums = torch.where((counted > 0)[:, None], sums / counted[:, None], sums)
            out[bags] = sums
        if counts is not None:
            counts[bags] = counted


def per_sample_weight_grad(
    records: torch.Tensor,
    layout: RecordLayout,
    *,
    slot_of_position: torch.Tensor,
    offsets: torch.Tensor,
    bag_begin: int,
    bag_end: int,
    position_begin: int,
    position_end: int,
    grad: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """Set out[p] = sum over d of row(p)[d] * grad[bag(p)][d] for the positions that take part; 0 if skipped.

    Arguments as in pool(). grad: float32[B, D]. out: float32[positions].
    """
    if bag_begin >= bag_end:
        return
    with exact_floats(records.device):
        taken = _take_part(slot_of_position, offsets, bag_begin, bag_end, position_begin, position_end)
        out[taken.first : taken.last] = 0.0
        products = load_rows(records, layout, slot_of_position.index_select(0, taken.positions))
        products *= grad.index_select(0, _bags_of(taken) + bag_begin)
        out[taken.positions] = lane_sum(products)


class _TakePart(NamedTuple):
    """Positions [first, last) without the skipped ones: int64[K], those of bag b at bounds[b : b + 2]."""

    first: int
    last: int
    positions: torch.Tensor
    bounds: torch.Tensor


def _take_part(
    slot_of_position: torch.Tensor,
    offsets: torch.Tensor,
    bag_begin: int,
    bag_end: int,
    position_begin: int,
    position_end: int,
) -> _TakePart:
    first = max(int(offsets[bag_begin]), position_begin)
    last = max(min(int(offsets[bag_end]), position_end), first)
    kept = slot_of_position[first:last] >= 0
    before = functional.pad(kept.cumsum(0), (1, 0))
    bounds = before.index_select(0, offsets[bag_begin : bag_end + 1].clamp(first, last) - first)
    return _TakePart(first, last, kept.nonzero().squeeze(1) + first, bounds)


def _bags_of(taken: _TakePart) -> torch.Tensor:
    """Return the bag of each position, counted from the first bag."""
    numbers = torch.arange(taken.positions.shape[0], device=taken.bounds.device)
    return torch.searchsorted(taken.bounds[1:], numbers, right=True)


def _carry_maxima(
    rows: torch.Tensor,
    taken: _TakePart,
    counts_before: torch.Tensor | None,
    out: torch.Tensor,
    argmax: torch.Tensor | None,
) -> None:
    """Take rows into the maxima so far: the first NaN if there is one, else the first of the largest values.

    A code orders values first and earlier ranks before later ones after that, so the largest code of a bag is
    its winner, in whatever order they are compared. Rank 0 is what the bag held before.
    """
    num_rows, dim = rows.shape
    ranks = torch.arange(num_rows + 1, device=rows.device)
    codes = _codes(rows, ranks[1:, None])
    if counts_before is None:
        best = torch.full_like(out, _NOTHING, dtype=torch.int64)
    else:
        best = torch.where((counts_before > 0)[:, None], _codes(out, ranks[:1, None]), _NOTHING)
    best.scatter_reduce_(0, _bags_of(taken)[:, None].expand(-1, dim), codes, "amax")
    empty = best == _NOTHING
    rank = 0xFFFFFFFF - (best & 0xFFFFFFFF)
    wins = (rank > 0) & ~empty
    if num_rows > 0:
        winner = torch.where(wins, rank - 1, 0)
        out.copy_(torch.where(wins, rows.gather(0, winner), out))
        if argmax is not None:
            argmax.copy_(torch.where(wins, taken.positions[winner], argmax))
    out.masked_fill_(empty, 0.0)
    if argmax is not None:
        argmax.masked_fill_(empty, -1)


def _codes(values: torch.Tensor, ranks: torch.Tensor) -> torch.Tensor:
    """Return int64 codes of float32 values: NaN above infinity, -0 as +0; among equals the lowest rank wins."""
    bits = values.contiguous().view(torch.int32).to(torch.int64)
    magnitude = bits & 0x7FFFFFFF
    order = torch.where(bits < 0, -magnitude, magnitude)
    order = torch.where(magnitude > 0x7F800000, 0x7FFFFFFF, order)
    return (order << 32) | (0xFFFFFFFF - ranks)
