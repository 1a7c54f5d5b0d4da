"""The native core. Pointers are addresses from Tensor.data_ptr(); the caller keeps the memory alive and of the stated
type, shape and contiguity. Every method that takes long releases the GIL. Only `mtrains` itself calls this module."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

BUILD_TYPE: str
SEGMENT_BYTES: int  # 256 * 4096 - 16: the one size of every value in rows.lmdb
BASE_PAGE_BYTES: int  # 65,520
BASE_PAGE_ROWS: int  # 8,188 entries of 8 bytes after a header of 16: crc32c u32, table u32, page u64 (little-endian; the CRC covers the rest)
NO_ROW: int

def crc32c(data: bytes | memoryview | NDArray[Any], crc: int = 0) -> int: ...
def locate_values(path: str, min_key: int = 0, max_key: int = 0xFFFFFFFFFFFFFFFF) -> NDArray[np.uint64]:
    """uint64[n, 3]: (key, file offset, size) of the big values with min_key <= key <= max_key; see lmdb_walk.h."""

def isa() -> str: ...  # "portable", "avx2" or "avx512"
def set_isa(name: str) -> None: ...  # ValueError if this CPU lacks it

def scale_sums(sums: NDArray[np.float32], scale: float) -> NDArray[np.float32]: ...  # [U, D], a new array; row_sums.h
def clamp_sums(sums: NDArray[np.float32], low: float, high: float) -> NDArray[np.float32]: ...
def norm_of_sums(sums: NDArray[np.float32], order: float) -> float: ...
def merge_sums(
    first_rows: NDArray[np.int64], first_sums: NDArray[np.float32], first_scale: float,
    second_rows: NDArray[np.int64], second_sums: NDArray[np.float32], second_scale: float,
) -> tuple[NDArray[np.int64], NDArray[np.float32]]: ...  # of the union of rows; both ascending
def narrow(values: NDArray[np.float64]) -> NDArray[np.float32]: ...  # [n]
def widen(values: NDArray[np.float32]) -> NDArray[np.float64]: ...

MAX_SIMULATED_DEPTH: int

class AccessTrace:
    """A stream of accesses cut into batches of unique rows; access_trace.h. tables, rows, batches: [n]."""
    num_batches: int
    num_accesses: int
    num_unique: int  # summed over batches
    num_rows: int  # distinct
    largest_batch: int  # unique rows
    # Rows are numbered from 0 in order of first access. Copies:
    def accesses(self) -> NDArray[np.uint32]: ...  # [num_unique], rows of all batches
    def begins(self) -> NDArray[np.uint64]: ...  # [num_batches + 1], into accesses()
    def row_tables(self) -> NDArray[np.uint32]: ...  # [num_rows]
    def reuse_times(self) -> NDArray[np.uint32]: ...  # of each of accesses(); reuse.h
    def reuse_distances(self, weights: Sequence[int] = ()) -> NDArray[np.uint64]: ...
    def __init__(
        self, tables: NDArray[np.uint32], rows: NDArray[np.int64], batches: NDArray[np.uint32], num_batches: int
    ) -> None: ...

def simulate(
    trace: AccessTrace, *, capacity: int, policy: str, lookahead: int, depth: int, evict_after: bool, lfu_decay: int,
    lfu_remembered: int, max_pinned_ratio: float, weights: Sequence[int] = (), rows_per_block: int = 0,
) -> dict[str, Any]: ...
    # simulator.h; policy: lru, lfu or s3-fifo, of rows beyond the lookahead. weights: slots of a row, by table. hits, new_rows,
    # fetches: uint64[tables]; batches: uint32[num_batches, 3] of the same, times weights; evictions, batches_ahead,
    # split_batches, block_reads: int

class TrackedTable:
    """What a profile keeps of the lookups of one table, in bounded memory; tracked_table.h."""
    sampled: bool
    num_lookups: int
    num_accesses: int
    num_rows: int
    least_row: int
    largest_row: int  # -1 if there are no lookups
    samples_a_unit: int
    num_unique: list[int]  # by batch size
    num_page_accesses: int
    num_pages: int
    def __init__(
        self, *, max_rows: int, hot_rows: int, seed: int, batch_sizes: Sequence[int], rows_per_page: int,
        samples_a_unit: int = 1, sample_at_rows: int = 0,
    ) -> None: ...
    def add(self, rows: NDArray[np.int64], samples: NDArray[np.int64]) -> None: ...  # samples ascend, over all calls
    def add_bags(
        self, *, indices_ptr: int, num_indices: int, indices_int64: bool, offsets_ptr: int, num_offsets: int, num_bags: int,
        first_sample: int, padding_row: int,
    ) -> None: ...  # offsets int64, or num_offsets 0: bags of equal size; padding_row -1: none
    def sample(self) -> None: ...
    def coarsen(self) -> None: ...
    def tracked(self) -> dict[str, Any]: ...
    # rows: int64[R]; num_hot, weight: int; accesses, times, gaps: uint32[n]

class SlotRange:
    """Memory of slots that never moves; slot_memory.h."""
    max_bytes: int
    committed: int
    def commit(self, bytes: int) -> bool: ...
    def decommit(self, bytes: int) -> None: ...
    def view(self) -> NDArray[np.uint8]: ...  # [committed]; invalid where it is decommitted later

class SlotMemory:
    """The memory of one slot tier."""
    unit_bytes: int
    bytes_in_use: int
    def reserve(self, max_bytes: int, huge: bool = False) -> SlotRange: ...  # keeps this alive

class FileMemory(SlotMemory):
    """An arena: units of a file. grow() -> (offset, length) or None; it is called with the arena locked, so nothing that
    holds the GIL may wait for that lock. Its OSError, CapacityError and StateError come up as errors of mtrains."""
    budget_bytes: int  # in whole units
    def __init__(self, fd: int, budget_bytes: int, grow: Callable[[], tuple[int, int] | None]) -> None: ...
    @staticmethod
    def unit_for(budget_bytes: int) -> int: ...

class BandwidthLimit:
    """Waits as a slower device would; bandwidth_limit.h."""
    read_seconds_slept: float
    write_seconds_slept: float
    def __init__(
        self, *, read_bytes_per_second: float, write_bytes_per_second: float, read_latency_seconds: float,
        write_latency_seconds: float, granule_bytes: int,
    ) -> None: ...
    def charge_read(self, num_requests: int, bytes_each: int) -> None: ...  # waits
    def charge_write(self, num_requests: int, bytes_each: int) -> None: ...

def read_segment(path: str, offset: int) -> SegmentImage:
    """Parse and check one segment of the data file `path` at `offset` (verify, rebuild). CorruptionError -> FormatError."""

def check_segment(value: bytes | memoryview | NDArray[np.uint8]) -> SegmentImage:
    """The same from the bytes of a value."""

class BlockReader:
    engine: str
    refused: str
    def read(self, offsets: NDArray[np.uint64], out: NDArray[np.uint8]) -> None: ...  # out [n, 4096], page-aligned

def open_block_reader(path: str, engine: str, queue_depth: int) -> BlockReader: ...  # any file; block_reader.h

class SegmentImage:
    segment_id: int
    number: int
    epoch: int
    closes: bool  # the last segment of its epoch's checkpoint
    used_pages: int  # of 256; the rest is padding
    meta: bytes  # what seal() was given
    bad_blocks: list[int]  # blocks whose trailer or CRC is wrong
    tables: NDArray[np.uint32]  # [n] by row, in order of appending
    layouts: NDArray[np.uint16]  # [n]
    rows: NDArray[np.uint64]  # [n]
    locations: NDArray[np.uint64]  # [n] as in the directory
    def records(self, i: int) -> bytes: ...  # record of row i

class SealedSegment:
    """A full segment that waits for its commit; the buffer lives until Engine.publish."""

    number: int
    segment_id: int
    epoch: int
    closes: bool
    num_rows: int
    tables: list[int]
    def seal(self, meta: bytes) -> None: ...  # writes header, trailers and CRCs; call once, before value
    @property
    def value(self) -> NDArray[np.uint8]: ...  # uint8[SEGMENT_BYTES], contiguous, a view

class LookupSpec:
    """Which tables one forward looks up: one entry a feature. modes: 0 sum, 1 mean, 2 max."""
    def __init__(self, tables: Sequence[int], modes: Sequence[int], out_columns: Sequence[int]) -> None: ...
    # out_columns: first column of each feature in a row of `out`

class Lookup:
    """The plans of one forward, one a feature; kept for backward and update."""

class Update:
    """One table's part of a step: where its gradient comes from and what to do with it. The engine divides the gradient
    of a mean by the bag's count."""
    def __init__(
        self, *, table: int, optimizer: int, lr: float, eps: float = 0.0, weight_decay: float = 0.0, decay: int = 0,
        decay_factor: float = 1.0, one_minus_beta1: float = 0.0, one_minus_beta2: float = 0.0, maximize: bool = False,
        scale: float = 1.0,
        lookup: Lookup | None = None, feature: int = 0, grad_ptr: int = 0, grad_stride: int = 0, weights_ptr: int = 0, argmax_ptr: int = 0,
        rows_ptr: int = 0, sums_ptr: int = 0, num_rows: int = 0,
    ) -> None: ...
    # either lookup.. (grad float32, row b of this feature at grad_ptr + 4 * b * grad_stride; weights_ptr: float32 of this feature's
    # positions, or 0; argmax_ptr: int64[B, D] of the forward for max, or 0), or rows_ptr (int64[num_rows], unique, ascending) with sums_ptr
    # (float32[num_rows, D]). optimizer: 0 sgd, 1 adagrad, 2 rowwise_adagrad, 3 sparse_adam, 4 partial_rowwise_adam. decay: 0 none, 1 l2, 2 decoupled.

class DeviceCompute:
    """What one call computes where the compute tier is on a device (mtrains/device_calls.py): an object with pool(feature, records, ...),
    weight_grad(records, ...) or update(number, records, ...). Pointers to output, gradients, weights and sums mean nothing to the core then."""
    def __init__(self, compute: object) -> None: ...

class Ticket:
    """A lookup that is known before its forward; ticket.h."""
    ended: bool  # used by its forward, or given up

class Engine:
    """Tables, slots, directory and log of one open store. Thread-safe: one lock, passes run one after another."""

    def __init__(
        self, *, tiers: Sequence[tuple[int, int, int, SlotMemory | None, object, BandwidthLimit | None]], num_threads: int,
        incarnation: int, epoch: int, max_pending_segments: int = 32, eviction: int = 0,
    ) -> None: ...
    # eviction: of rows without a use in the window: 0 lru, 1 lfu, 2 s3-fifo
    # tiers: (kind, bytes, bytes set aside for tables with own budgets, memory, device, limit) from fast to slow; the first
    # computes. kind: 0 hbm, 1 dram, 2 scm. memory: None is anonymous memory. device: of hbm, an object with
    # reserve(stride, max_slots) -> an object with load(slots uint32[n], out uint8[n * stride]), store(slots, records),
    # resize(capacity); arrays are valid during the call.
    def set_num_threads(self, n: int) -> None: ...
    def close(self) -> None: ...  # blocked passes and waits raise StateError

    # --- tables. Table numbers are dense and in order of adding; they are the numbers in segment headers and in the catalog.
    def add_table(
        self, *, name: str, num_rows: int, dim: int, dtype: int, init_kind: int, init_a: float, init_b: float, key: int, padding_row: int = -1,
        budgets: Sequence[int | None] = (),
    ) -> int: ...  # dtype: 0 float32, 1 float16, 2 bfloat16; init_kind: 0 constant, 1 uniform, 2 normal; key: u64 of (seed, name)
    # budgets: by kind of tier, the table's own bytes out of what is set aside, 0 passes the tier over, None shares the rest; () is all None
    def add_layout(self, table: int, state_floats: int, initial_state: float) -> int: ...  # layout 0 (no state) exists from the start
    def use_layout(self, table: int, layout: int) -> None: ...  # rows in older layouts keep their weights and get initial state
    def table_version(self, table: int) -> int: ...  # counts step, write_rows
    def update_count(self, table: int) -> int: ...
    def set_update_count(self, table: int, count: int) -> None: ...
    def table_info(self, table: int) -> dict[str, Any]: ...  # resident: bool, stride, touched_rows, slots, dirty_rows, directory_bytes, layout

    # --- training
    def forward(
        self, spec: LookupSpec, *, indices_ptr: int, num_indices: int, indices_int64: bool, offsets_ptr: int, num_offsets: int, offsets_int64: bool,
        include_last_offset: bool, num_bags: int, bag_size: int, weights_ptr: int, out_ptr: int, out_stride: int, argmax_ptr: int, keep: bool,
        device: DeviceCompute | None = None,
    ) -> Lookup | None: ...
    # Features are laid one after another: feature f, bag b is bag f * num_bags + b. offsets_ptr 0: every bag has bag_size indices.
    # num_bags: a feature's. out: float32, all of it written. argmax: int64[B, D] absolute positions (single feature, max) or 0.
    # IndexError (table, position, value, size), ValueError (offsets: position); nothing has changed then.
    # --- lookups known before their forward; memory of the indices must stay until stage() returns
    def foresee(
        self, spec: LookupSpec, *, indices_ptr: int, num_indices: int, indices_int64: bool, offsets_ptr: int, num_offsets: int,
        offsets_int64: bool, include_last_offset: bool, num_bags: int, bag_size: int,
    ) -> Ticket: ...  # IndexError, ValueError as forward
    def stage(
        self, ticket: Ticket, share: float, spec: LookupSpec, *, indices_ptr: int, num_indices: int, indices_int64: bool, offsets_ptr: int,
        num_offsets: int, offsets_int64: bool, include_last_offset: bool, num_bags: int, bag_size: int,
    ) -> bool: ...  # rows brought and pinned; False: pins would take more than `share` of the slots, or a pass needed the room
    def end_ticket(self, ticket: Ticket) -> None: ...
    def begin_window(self) -> bool: ...  # False: another iterator has it
    def end_window(self) -> None: ...
    def enter_window(self, batch: Sequence[Ticket]) -> None: ...  # the rows of the next batch
    def leave_window(self) -> None: ...  # the oldest batch is done
    def pinned_rows(self) -> int: ...

    def per_sample_weight_grad(self, lookup: Lookup, feature: int, *, grad_ptr: int, grad_stride: int, out_ptr: int, device: DeviceCompute | None = None) -> None: ...
    # out float32[positions of the feature]; StateError if the table changed since the forward
    def row_sums(
        self, lookup: Lookup, feature: int, *, grad_ptr: int, grad_stride: int, weights_ptr: int, argmax_ptr: int,
        prior_rows: NDArray[np.int64] | None, prior_sums: NDArray[np.float32] | None,
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]: ...
    # (rows int64[U] ascending, sums float32[U, D]) of the occurrences of this lookup, continuing the left fold of the prior sums
    def step(self, updates: Sequence[Update], device: DeviceCompute | None = None) -> None: ...  # each table at most once

    # --- rows
    def read_rows(self, table: int, rows: NDArray[np.int64], out: NDArray[np.float32]) -> None: ...  # changes nothing, duplicates welcome
    def read_records(self, table: int, rows: NDArray[np.int64], out: NDArray[np.uint8]) -> None: ...  # [n, stride] in the present layout
    def write_rows(self, table: int, rows: NDArray[np.int64], values: NDArray[np.float32]) -> None: ...  # the last of duplicates wins; state stays
    def touched_rows(self, table: int, begin: int, limit: int) -> tuple[NDArray[np.int64], int]: ...  # ascending from row `begin`; next begin, or num_rows
    def table_counters(self) -> list[dict[str, int]]: ...  # by table: TIER_hits of each tier, new, fetches, rows_appended
    def stats(self) -> dict[str, dict[str, float]]: ...  # {"hbm" | "dram" | "scm": {...}, "ssd": {...}, "time": {...}} monotonic counters

    # --- log: reading
    def open_log(self, path: str, io_engine: str) -> str: ...  # data file of rows.lmdb; returns the effective engine
    def refused_engines(self) -> str: ...
    def open_base(self, path: str) -> None: ...  # data file of catalog.lmdb
    # --- log: loading at open, in this order: segments, base, deltas oldest first
    def load_segments(
        self, numbers: NDArray[np.uint32], ids: NDArray[np.uint64], epochs: NDArray[np.uint64], rows: NDArray[np.uint32],
        used_pages: NDArray[np.uint16], offsets: NDArray[np.uint64],
        superseded: NDArray[np.uint64],
    ) -> None: ...  # superseded: uint64[m, 3] of (number, epoch, count)
    def set_base(self, table: int, pages: NDArray[np.uint64], offsets: NDArray[np.uint64]) -> None: ...
    # replaces what is known of where the table's base pages lie (file offset of the value). A page is read when a row of it is first needed, and
    # fills only entries that nothing else has set. Call again after every commit that moved base pages.
    def load_locations(self, table: int, rows: NDArray[np.uint64], locations: NDArray[np.uint64]) -> None: ...
    # --- log: writing (the writer thread)
    # Fewer than at_least after the timeout, wake(), or when room is needed.
    def next_sealed(self, max_group: int, timeout_seconds: float, at_least: int = 1) -> list[SealedSegment]: ...
    def wake(self) -> None: ...
    def publish(self, numbers: Sequence[int], offsets: Sequence[int]) -> None: ...  # after their commit
    def requeue(self, segments: Sequence[SealedSegment]) -> None: ...  # their commit failed; they come again from next_sealed
    def fail(self, errno: int, message: str) -> None: ...  # passes that need the log raise TierIOError until recover()
    def recover(self) -> None: ...
    def pending_segments(self, epoch: int) -> int: ...  # segments of epochs <= epoch, filling ones too, that are not published
    def take_deletable(self, checkpoints: Sequence[int], limit: int) -> list[tuple[int, int]]: ...
    # (number, id) of published segments that no live row, no given checkpoint epoch and no read in flight needs; they are marked
    def deleted(self, numbers: Sequence[int]) -> None: ...  # after the commit that deleted them
    def undelete(self, numbers: Sequence[int]) -> None: ...  # that commit failed
    def segments(self) -> NDArray[Any]: ...  # structured: number u4, state u1 (0 filling, 1 sealed, 2 published, 3 deleting), id u8, epoch u8, rows u4, live u4, used_pages u2, offset u8
    def empty_garbage(
        self, checkpoints: Sequence[int], limit: int, *, target: float, young_target: float, old_share: float, slack: int, only_young: bool
    ) -> list[tuple[int, int, str]]: ...
    # chooses segments to empty (mtrains.tiers.gc.GcPolicy), the most worthwhile first, and appends their rows to the present epoch's
    # stream. For each: segment id; bytes of rows moved, or -1 if there was no room for them; what is damaged, or "": such a segment is
    # not chosen again. Passes go on while segments are read.
    def evacuate(self, number: int) -> int: ...  # the same of one segment; FormatError if it is damaged
    def log_use(self, checkpoints: Sequence[int]) -> tuple[float, float, float]: ...  # bytes of segments: live, held by these checkpoints alone, dead
    # --- checkpoints
    def epoch(self) -> int: ...
    def begin_checkpoint(self) -> int: ...  # C = E; E += 1; 0, nothing changed, within a step or write_rows; StateError while rows are owed
    def sweep(self, max_rows: int, timeout_seconds: float = 0.0) -> int: ...  # settles owed rows; how many remain
    def owed_rows(self) -> int: ...
    def flush(self, epoch: int, closes: bool, meta_bytes: int = 0) -> None: ...  # seals the filling segments of epochs <= epoch; the last one is marked `closes`
    def changes(self, epoch: int) -> dict[str, Any]: ...
    # since the last finish_checkpoint, epochs <= epoch: "deltas": [(table, rows uint64[n] ascending, locations uint64[n])], "segments": the records of
    # segments() that are new or changed, "superseded": uint64[m, 3] with epochs <= epoch for those, "removed": numbers deleted
    def finish_checkpoint(self, epoch: int, oldest_retained: int) -> None: ...  # after the catalog's commit
