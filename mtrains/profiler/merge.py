"""Profiles of parts of a trace, or of other tables of the same model, as one."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mtrains.profiler.profile import LocalityCurve, LocalityProfile, TableProfile
from mtrains.profiler.table_statistics import Pairs, TableStatistics

__all__ = ["merge_profiles"]


def merge_profiles(first: LocalityProfile, second: LocalityProfile) -> LocalityProfile:
    """Return the profile of both: tables of one alone as they are, tables of both as means weighted by samples.

    Rows touched in both parts cannot be told apart any more, so touched_rows is the sum, at most the table: an
    upper bound. First touches of the second part count as in a trace of its own, also an upper bound.

    Raises: ValueError naming the table if its shape, or the settings of its curves, differ.
    """
    theirs = {table.name: table for table in second.tables}
    tables = [_merged(table, theirs.pop(table.name, None), first.samples, second.samples) for table in first.tables]
    tables += [table for table in second.tables if table.name in theirs]
    return LocalityProfile(
        tables=tuple(tables),
        samples=first.samples + second.samples,
        sampling_rate=min(first.sampling_rate, second.sampling_rate),
        seed=first.seed,
        source="; ".join(dict.fromkeys(part for part in (first.source, second.source) if part)),
        source_sha256=tuple(dict.fromkeys((*first.source_sha256, *second.source_sha256))),
    )


def _merged(one: TableProfile, other: TableProfile | None, samples: float, more: float) -> TableProfile:
    if other is None:
        return one
    for field in ("num_embeddings", "embedding_dim", "dtype"):
        if getattr(one, field) != getattr(other, field):
            raise ValueError(
                f"table {one.name!r} has {field} {getattr(one, field)} in one profile, {getattr(other, field)} in the "
                "other"
            )
    curves = {curve.setting: curve for curve in other.curves}
    if set(curves) != {curve.setting for curve in one.curves}:
        raise ValueError(f"the profiles of table {one.name!r} have curves of other batch sizes, lookaheads or depths")
    share = samples / (samples + more)
    mixed = [_mean_curve(curve, curves[curve.setting], share) for curve in one.curves]
    return dataclasses.replace(
        one,
        touched_rows=min(one.num_embeddings, one.touched_rows + other.touched_rows),
        lookups_per_sample=share * one.lookups_per_sample + (1 - share) * other.lookups_per_sample,
        footprint=_mean_footprint(one.footprint, other.footprint, share),
        curves=tuple(mixed),
        statistics=_merged_statistics(one, other, samples, more),
    )


def _merged_statistics(one: TableProfile, other: TableProfile, samples: float, more: float) -> TableStatistics | None:
    """Return the statistics of both parts, the second behind the first; of Zipf's law the mean and the larger error."""
    first, second = one.statistics, other.statistics
    if first is None or second is None or first.batch_size != second.batch_size:
        return None
    share = samples / (samples + more)

    def mean(name: str) -> float:
        return share * float(getattr(first, name)) + (1 - share) * float(getattr(second, name))

    most = float(one.num_embeddings)
    touched = [(samples + at, min(most, one.touched_rows + rows)) for at, rows in second.touched_by_sample]
    return TableStatistics(
        batch_size=first.batch_size,
        tracked_rows=first.tracked_rows + second.tracked_rows,
        row_weight=max(first.row_weight, second.row_weight),
        new_share=mean("new_share"),
        reuse_distance=_mean_bins(first.reuse_distance, second.reuse_distance, share),
        working_set=(*first.working_set, *((samples + at, rows) for at, rows in second.working_set)),
        touched_by_sample=(*first.touched_by_sample, *touched),
        top_shares=tuple(
            (top, share * accesses + (1 - share) * dict(second.top_shares)[top])
            for top, accesses in first.top_shares
            if top in dict(second.top_shares)
        ),
        zipf_exponent=mean("zipf_exponent"),
        zipf_error=max(first.zipf_error, second.zipf_error),
        pages_by_number=mean("pages_by_number"),
        hot_drift=mean("hot_drift"),
        hit_drift=mean("hit_drift"),
    )


def _mean_bins(one: Pairs, other: Pairs, share: float) -> Pairs:
    """Return the mean of histograms whose bins have the same edges, as far as the shorter one goes."""
    first, second = dict(one), dict(other)
    uppers = sorted({*first, *second})
    return tuple((upper, share * first.get(upper, 0.0) + (1 - share) * second.get(upper, 0.0)) for upper in uppers)


def _mean_footprint(
    one: Sequence[tuple[float, float]], other: Sequence[tuple[float, float]], share: float
) -> tuple[tuple[float, float], ...]:
    """Return the mean where both are known: up to the shorter one's end."""
    if not one or not other:
        return ()
    end = min(one[-1][0], other[-1][0])
    at = np.array(sorted({samples for samples, _ in (*one, *other) if samples <= end}))
    first, second = (np.array([(0.0, 0.0), *points]) for points in (one, other))
    rows = share * np.interp(at, first[:, 0], first[:, 1]) + (1 - share) * np.interp(at, second[:, 0], second[:, 1])
    return tuple(zip(at.tolist(), rows.tolist(), strict=True))


def _mean_curve(one: LocalityCurve, other: LocalityCurve, share: float) -> LocalityCurve:
    at = np.array(sorted({*one.capacity_rows, *other.capacity_rows}))

    def mean(a: float, b: float) -> float:
        return share * a + (1 - share) * b

    def column(curve: LocalityCurve, values: Sequence[float], start: float) -> NDArray[np.float64]:
        found: NDArray[np.float64] = np.interp(at, (0.0, *curve.capacity_rows), (start, *values))
        return found

    new = mean(one.new_rows, other.new_rows)
    unique = mean(one.unique_rows, other.unique_rows)
    hits = share * column(one, one.hits, 0.0) + (1 - share) * column(other, other.hits, 0.0)
    fetches = unique - new - hits
    pages_one, pages_other = (
        column(curve, np.multiply(curve.fetches, curve.pages_per_fetch).tolist(),
               (curve.unique_rows - curve.new_rows) * curve.pages_per_fetch[0])
        for curve in (one, other)
    )  # fmt: skip
    pages = share * pages_one + (1 - share) * pages_other
    return dataclasses.replace(
        one,
        unique_rows=unique,
        pinned_rows=max(one.pinned_rows, other.pinned_rows),
        new_rows=new,
        capacity_rows=tuple(at.tolist()),
        hits=tuple(hits.tolist()),
        fetches=tuple(np.maximum(fetches, 0.0).tolist()),
        pages_per_fetch=tuple(np.divide(pages, fetches, out=np.ones_like(pages), where=fetches > 0).tolist()),
        fetches_std=(),
    )
