from dataclasses import replace

import numpy as np
import pytest

from mtrains import _native
from mtrains.errors import CapacityError, FormatError
from mtrains.tiers.catalog import Catalog
from mtrains.tiers.deltas import delete_delta, delta_heads, delta_pieces, read_runs
from mtrains.tiers.disk_budget import DiskBudget
from mtrains.tiers.fold import Fold, foldable
from mtrains.tiers.layout import StoreLayout
from mtrains.tiers.readers import read_state
from mtrains.tiers.records import VALUE_BYTES, Kind, key_of, piece_key


@pytest.fixture
def catalog(tmp_path):
    layout = StoreLayout(tmp_path)
    layout.create(seed=1)
    catalog = Catalog(layout.catalog, DiskBudget(None, layout.data_files))
    yield catalog
    catalog.close()


def test_puts_are_seen_after_the_commit_and_not_after_an_error(catalog):
    with catalog.write() as transaction:
        transaction.put(key_of(Kind.TABLE, 1), b"one")

    def fail():
        with catalog.write() as transaction:
            transaction.put(key_of(Kind.TABLE, 2), b"two")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert catalog.get(key_of(Kind.TABLE, 1)) == b"one"
    assert catalog.get(key_of(Kind.TABLE, 2)) is None
    assert [key for key, _ in catalog.scan(Kind.TABLE)] == [key_of(Kind.TABLE, 1)]


def test_scan_crosses_batches_and_stays_in_its_kind(catalog):
    with catalog.write() as transaction:
        for i in range(1000):
            transaction.put(key_of(Kind.SEGMENT, i), b"%d" % i)
        transaction.put(key_of(Kind.CHECKPOINT, 0), b"no")
    assert [payload for _, payload in catalog.scan(Kind.SEGMENT)] == [b"%d" % i for i in range(1000)]
    assert len(list(catalog.scan(Kind.SEGMENT, 10, 19))) == 10
    assert len(catalog.keys(Kind.SEGMENT)) == 1000


@pytest.mark.parametrize("size", [0, 10, 65_000, 300_000])
def test_pieces_replace_older_ones(catalog, size):
    with catalog.write() as transaction:
        transaction.put_pieces(Kind.EXTRA, 4, b"x" * 500_000)
        transaction.put_pieces(Kind.EXTRA, 5, b"other")
    with catalog.write() as transaction:
        transaction.put_pieces(Kind.EXTRA, 4, b"y" * size)
    assert catalog.read_pieces(Kind.EXTRA, 4) == b"y" * size
    assert catalog.read_pieces(Kind.EXTRA, 5) == b"other"
    with catalog.write() as transaction:
        transaction.delete_pieces(Kind.EXTRA, 4)
    with pytest.raises(FormatError, match="EXTRA 4"):
        catalog.read_pieces(Kind.EXTRA, 4)
    assert catalog.read_pieces(Kind.EXTRA, 5) == b"other"


def put_delta(catalog, number, epoch, runs):
    head, pieces = delta_pieces(number, epoch, runs)
    state = replace(read_state(catalog), next_checkpoint=number + 1)
    with catalog.write() as transaction:
        transaction.put(key_of(Kind.STATE), state.to_bytes())
        transaction.put(piece_key(Kind.DELTA, number, 0), head)
        for key, payload in pieces:
            transaction.put(key, payload)


def random_runs(random, num_rows):
    runs = []
    for table in range(3):
        count = int(random.integers(0, num_rows))
        rows = np.sort(random.choice(num_rows, count, replace=False)).astype(np.uint64)
        if count:
            runs.append((table, rows, random.integers(1, 2**42, count).astype(np.uint64)))
    return runs


def as_directory(runs):
    return {
        (t, row): loc for t, rows, locs in runs for row, loc in zip(rows.tolist(), locs.tolist(), strict=True)
    }


@pytest.mark.parametrize("num_rows", [1, 5, 4093, 4094, 20_000])
def test_a_delta_reads_as_it_was_written(catalog, num_rows):
    runs = random_runs(np.random.default_rng(num_rows), num_rows)
    put_delta(catalog, 3, 77, runs)
    (head,) = delta_heads(catalog)
    assert (head.number, head.epoch, head.rows) == (3, 77, sum(len(r) for _, r, _ in runs))
    assert as_directory(read_runs(catalog, head)) == as_directory(runs)
    with catalog.write() as transaction:
        delete_delta(transaction, 3)
    assert delta_heads(catalog) == []


def test_pieces_of_a_checkpoint_whose_commit_never_came_are_no_delta(catalog):
    put_delta(catalog, 3, 77, [])
    _, pieces = delta_pieces(4, 78, random_runs(np.random.default_rng(0), 100))
    with catalog.write() as transaction:
        for key, payload in pieces:
            transaction.put(key, payload)
    assert [head.number for head in delta_heads(catalog)] == [3]


def test_an_empty_delta(catalog):
    put_delta(catalog, 3, 77, [])
    (head,) = delta_heads(catalog)
    assert list(read_runs(catalog, head)) == []


def read_base(catalog, table):
    pages, offsets = catalog.base_pages(table)
    found = {}
    with open(catalog.data_path, "rb") as file:
        for page, offset in zip(pages.tolist(), offsets.tolist(), strict=True):
            file.seek(offset)
            value = file.read(_native.BASE_PAGE_BYTES)
            assert _native.crc32c(value[4:]) == int.from_bytes(value[:4], "little")
            assert int.from_bytes(value[4:8], "little") == table
            assert int.from_bytes(value[8:16], "little") == page
            locations = np.frombuffer(value[16:], "<u8")
            rows = np.flatnonzero(locations)
            found |= {
                (table, page * _native.BASE_PAGE_ROWS + row): int(locations[row]) for row in rows.tolist()
            }
    return found


def test_folding_gives_the_newest_locations_in_bounded_commits_and_survives_an_interruption(catalog):
    random = np.random.default_rng(1)
    want = {}
    for round_ in range(2):
        for number in range(1 + 3 * round_, 4 + 3 * round_):
            runs = random_runs(random, 270_000 if number == 1 else 15_000)
            put_delta(catalog, number, number, runs)
            want |= as_directory(runs)
        fold = Fold(catalog, delta_heads(catalog))
        fold.step()
        fold = Fold(catalog, delta_heads(catalog))  # a crash, then again from the start
        steps, more = 0, True
        while more:
            more, moved = fold.step()
            assert sum(last - first + 1 for _, first, last in moved) <= 64
            steps += 1
        assert steps > 1
        assert delta_heads(catalog) == []
        assert {k: v for table in range(3) for k, v in read_base(catalog, table).items()} == want


def test_deltas_are_folded_when_they_exceed_half_of_the_base():
    class Head:
        def __init__(self, epoch, pieces):
            self.epoch, self.pieces = epoch, pieces

    few = [Head(1, 10), Head(2, 10), Head(9, 1000)]
    assert foldable(few, 2, 0) == []
    many = [Head(1, 100), Head(2, 10), Head(9, 1000)]
    assert foldable(many, 2, 0) == many[:2]
    assert foldable(many, 2, 300 * VALUE_BYTES) == []
    assert foldable([Head(i, 1) for i in range(300)], 400, 10**12) != []


def test_a_flipped_byte_is_named(catalog):
    with catalog.write() as transaction:
        transaction.put_pieces(Kind.EXTRA, 9, b"z" * 30_000)
    path = catalog.data_path
    data = bytearray(path.read_bytes())
    at = data.find(b"z" * 20_000)
    with open(path, "r+b") as file:
        file.seek(at + 100)
        file.write(b"y")
    with pytest.raises(FormatError, match="EXTRA 9/0"):
        catalog.read_pieces(Kind.EXTRA, 9)


def test_a_cap_stops_the_catalog_too_and_the_reserve_is_asked_for_first(tmp_path):
    layout = StoreLayout(tmp_path)
    layout.create(seed=1)
    asked = []
    catalog = Catalog(
        layout.catalog, DiskBudget(64 << 20, layout.data_files), make_room=lambda: asked.append(True)
    )
    with pytest.raises(CapacityError), catalog.write() as transaction:
        transaction.put_pieces(Kind.EXTRA, 1, b"x" * (63 << 20))
    assert asked
    assert catalog.keys(Kind.EXTRA) == []
    catalog.close()
