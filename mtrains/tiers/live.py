"""Reading a store that may be trained meanwhile: its environments for a short while, and a checkpoint by lease."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import lmdb

from mtrains.errors import StateError
from mtrains.tiers.catalog import CATALOG_MAP_BYTES, Catalog
from mtrains.tiers.catalog_records import CheckpointRecord
from mtrains.tiers.container import UNCAPPED_MAP_BYTES, locate_segments
from mtrains.tiers.environment import DATA_FILE, environment_error, shared_environment
from mtrains.tiers.format_record import FORMAT_KEY, check_format
from mtrains.tiers.layout import StoreLayout
from mtrains.tiers.leases import Lease
from mtrains.tiers.readers import read_checkpoints

__all__ = ["Choice", "LiveStore", "newest_of", "reading"]

Choice = Callable[[Sequence[CheckpointRecord]], CheckpointRecord]


def newest_of(layout: StoreLayout) -> Choice:
    """Return the choice of the newest checkpoint. It raises: StateError if there is none."""

    def choose(records: Sequence[CheckpointRecord]) -> CheckpointRecord:
        if not records:
            raise StateError(
                f"the store {layout.folder} has no checkpoint yet, so there is nothing to read; try again after the "
                "first store.checkpoint() of the process that trains it"
            )
        return records[-1]

    return choose


@contextmanager
def reading(layout: StoreLayout, uuid: str) -> Iterator[LiveStore]:
    """Have both environments open to read beside a writer.

    Should be short: pages that are freed while a snapshot is open are not used again before its end.
    Raises: FormatError, TierIOError, also for errors of LMDB in the block.
    """
    try:
        with (
            shared_environment(layout.catalog, map_size=CATALOG_MAP_BYTES) as environment,
            shared_environment(layout.rows, map_size=UNCAPPED_MAP_BYTES) as rows,
        ):
            catalog = Catalog(layout.catalog, None, environment=environment)
            catalog.check_format(uuid)
            check_format(rows, FORMAT_KEY, "rows_format", uuid, layout.rows / DATA_FILE)
            yield LiveStore(layout=layout, catalog=catalog, rows=rows)
    except lmdb.Error as error:
        raise environment_error(error, f"reading {layout.folder}") from error


@dataclass(frozen=True, kw_only=True)
class LiveStore:
    """The environments of a store, open to read."""

    layout: StoreLayout
    catalog: Catalog
    rows: lmdb.Environment

    @contextmanager
    def leased(self, choose: Choice) -> Iterator[tuple[Lease, list[CheckpointRecord], CheckpointRecord]]:
        """Yield (lease, all checkpoints, the chosen one) within a snapshot of the catalog.

        The lease is the caller's, unless the block fails. The writer drops a checkpoint in a commit that holds its
        lease exclusively, so one that is there after its lease was taken stays. Else it was dropped in between,
        and there are newer ones to choose from. Raises: as `choose`; StateError, TierIOError.
        """
        before = os.stat(self.catalog.data_path)
        while True:
            with self.catalog.snapshot():
                chosen = choose(read_checkpoints(self.catalog))
            lease = Lease(self.layout.leases, chosen.number)
            try:
                if not os.path.samestat(before, os.stat(self.catalog.data_path)):
                    raise StateError(f"the catalog of {self.layout.folder} was rebuilt meanwhile; open it again")
                with self.catalog.snapshot():
                    records = read_checkpoints(self.catalog)
                    if any((c.number, c.epoch) == (chosen.number, chosen.epoch) for c in records):
                        yield lease, records, chosen
                        return
            except BaseException:
                lease.release()
                raise
            lease.release()

    def locate(self) -> dict[int, int]:
        """Return {segment id: file offset} of all segments; one stays in its place as long as it is there."""
        with self.rows.begin():  # no page of the tree is used again while it is walked
            located = locate_segments(self.layout.rows / DATA_FILE)
        return dict(zip(located[:, 0].tolist(), located[:, 1].tolist(), strict=True))
