"""What a store did and what it holds, in numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from mtrains import _native
from mtrains.slot_tiers import SLOT_TIERS
from mtrains.tiers.reader_session import ReaderSession
from mtrains.tiers.session import Session

__all__ = ["StoreStats", "collect_stats"]


@dataclass(frozen=True, kw_only=True)
class StoreStats:
    """Counters since the store was opened, and present sizes. Rates are differences of two.

    tiers: "hbm", "dram", "scm" (those that the store has; the first computes) and "ssd", each with its counters.
    Of a slot tier: hits (accesses that found their row there), evictions, dirty_evictions, rows_in (from the tier
    above), rows_out (to the one that computes); of the first also new (first touches), fetches (from the log),
    refetches. Of the log: rows_read, block_reads, bytes_read, rows_appended, bytes_appended, gc_rows,
    gc_bytes_appended, bytes_written, segments_deleted, segments_damaged (that garbage collection could not read), ...
    tables: of each table dram_hits (and so on, by tier), new, fetches, and rows_appended (to the log, by training).
    prefetch: tickets staged, used (by their forward), used_unstaged (planned ahead only), cancelled (a pass needed
    their slots), expired (no forward came); staged_rows, staged_fetches: rows brought ahead, and those of them out of
    the log; demand_fetches: rows out of the log that a pass brought itself; pinned_rows: now.
    seconds: where time went: compute, io_wait (passes that wait for reads of the log), write_back (passes that wait for
    room in it), staging (bringing rows ahead, beside all of these), staging_io and staging_stall (of it, the same two),
    writing (the writer thread's commits), ... io_engine: the effective one; refused_engines: which others
    were refused, and why. providers: what each slot tier is made of. eviction: of rows without a known next use.
    emulated: tiers that stand in for a device that is not there. write_amplification: bytes of segments written
    over bytes of rows that training appended (headers, checksums, what checkpoints left empty and garbage
    collection are the rest); gc_write_ratio: bytes of rows that garbage collection appended over the same.
    live_bytes: of segments' rows that are current; held_bytes: that only checkpoints need, retained or running;
    dead_bytes: of neither; the three by share of rows. disk_bytes: allocated for all files.
    """

    tiers: Mapping[str, Mapping[str, float]]
    tables: Mapping[str, Mapping[str, float]]
    prefetch: Mapping[str, float]
    seconds: Mapping[str, float]
    io_engine: str
    refused_engines: str
    emulated: tuple[str, ...]
    providers: Mapping[str, str]
    eviction: str
    checkpoints: int
    folded_pages: int
    write_amplification: float
    gc_write_ratio: float
    live_bytes: int
    held_bytes: int
    dead_bytes: int
    disk_bytes: int

    def to_dict(self) -> dict[str, Any]:
        """Return the same as plain values for JSON."""
        return asdict(self)


def collect_stats(session: Session | ReaderSession) -> StoreStats:
    """Return the statistics of an open session."""
    engine, writer = session.engine, session.writer_counters()
    counters = session.engine_counters.groups(engine)
    written = writer.segments_written * _native.SEGMENT_BYTES
    ssd: dict[str, float] = {
        **counters["ssd"],
        "segments_written": writer.segments_written,
        "segments_deleted": writer.segments_deleted,
        "segments_evacuated": writer.segments_evacuated,
        "segments_damaged": writer.segments_damaged,
        "commits": writer.commits,
        "bytes_written": written,
    }
    user_bytes = ssd["bytes_appended"] - ssd["gc_bytes_appended"]
    live_bytes, held_bytes, dead_bytes = engine.log_use(session.needed_epochs())
    return StoreStats(
        tiers={**{tier: counters[tier] for tier in SLOT_TIERS if tier in counters}, "ssd": ssd},
        tables=session.engine_counters.tables(engine, session.tables),
        prefetch=counters["prefetch"],
        seconds={**counters["time"], "writing": writer.write_seconds},
        io_engine=session.io_engine,
        refused_engines=engine.refused_engines(),
        emulated=session.chain.emulated,
        providers=session.chain.providers,
        eviction=session.options.eviction,
        checkpoints=session.checkpoint_count,
        folded_pages=session.folded_pages,
        write_amplification=written / user_bytes if user_bytes else 0.0,
        gc_write_ratio=ssd["gc_bytes_appended"] / user_bytes if user_bytes else 0.0,
        live_bytes=round(live_bytes),
        held_bytes=round(held_bytes),
        dead_bytes=round(dead_bytes),
        disk_bytes=session.budget.allocated_bytes(),
    )
