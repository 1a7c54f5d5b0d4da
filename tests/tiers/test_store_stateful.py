"""Updates, evictions, sweeps, GC, checkpoints, crashes and restores in any order, against a dict of rows."""

import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from mtrains import Store, TableSpec, _native, init
from mtrains.tiers import fold
from mtrains.tiers.checkpoint_jobs import CallJob
from mtrains.tiers.environment import DATA_FILE
from mtrains.tiers.offline import directories
from mtrains.tiers.readers import read_segments
from mtrains.tiers.verify import verify_store

NUM_ROWS = 300
DIMS = (8, 40, 1100)  # the last one's records take two blocks
KEEP = 2

tables = st.integers(0, len(DIMS) - 1)
row_sets = st.lists(st.integers(0, NUM_ROWS - 1), min_size=1, max_size=120, unique=True)
values = st.integers(-(2**20), 2**20)


class StoreMachine(RuleBasedStateMachine):
    """`live` and `saved` are what the rows must be: {(table, row): value of every column}."""

    @initialize(dram=st.sampled_from(["24KiB", "96KiB", "8MiB"]))
    def open(self, dram):
        self.folder = Path(tempfile.mkdtemp(prefix="stateful-"))
        self.dram = dram
        self.live, self.saved, self.pending = {}, {}, None
        self.next_tag = 0
        self.open_store()

    def open_store(self):
        self.store = Store(self.folder / "s", dram=self.dram, seed=1, keep=KEEP)
        self.tables = [
            self.store.add_table(TableSpec(f"t{dim}", NUM_ROWS, dim, init=init.zeros())) for dim in DIMS
        ]

    def teardown(self):
        if hasattr(self, "store"):
            self.store._finalizer()
            assert verify_store(self.folder / "s") == []
            shutil.rmtree(self.folder)

    # --- rows

    @rule(table=tables, rows=row_sets, value=values)
    def write(self, table, rows, value):
        numbers = np.array(sorted(rows))
        column = (numbers + value).astype(np.float32)
        block = np.repeat(column[:, None], DIMS[table], axis=1)
        self.store.engine.write_rows(table, numbers, block)
        self.live |= {(table, row): float(x) for row, x in zip(numbers.tolist(), column, strict=True)}
        self.check_rows(table)

    @rule(table=tables, rows=row_sets, value=values)
    def step(self, table, rows, value):
        """One step of SGD with lr 1: exact in float32 for these integers."""
        numbers = np.array(sorted(rows))
        sums = np.full((len(rows), DIMS[table]), value, np.float32)
        update = _native.Update(
            table=table,
            optimizer=0,
            lr=1.0,
            rows_ptr=numbers.ctypes.data,
            sums_ptr=sums.ctypes.data,
            num_rows=len(rows),
        )
        self.store.engine.step([update])
        for row in numbers.tolist():
            before = np.float32(self.live.get((table, row), 0.0))
            self.live[table, row] = float(before - np.float32(value))
        self.check_rows(table)

    @rule(table=tables, rows=row_sets)
    def look_up(self, table, rows):
        """Bring rows into slots, clean; others leave."""
        indices = np.array(rows)
        out = np.empty((len(rows), DIMS[table]), np.float32)
        self.store.engine.forward(
            _native.LookupSpec([table], [0], [0]),
            indices_ptr=indices.ctypes.data,
            num_indices=len(rows),
            indices_int64=True,
            offsets_ptr=0,
            num_offsets=0,
            offsets_int64=True,
            include_last_offset=False,
            num_bags=len(rows),
            bag_size=1,
            weights_ptr=0,
            out_ptr=out.ctypes.data,
            out_stride=DIMS[table],
            argmax_ptr=0,
            keep=False,
        )
        want = np.array([self.live.get((table, row), 0.0) for row in rows], np.float32)
        assert (out == want[:, None]).all()

    @rule()
    def flush(self):
        self.settle()
        self.store.flush()

    @rule(data=st.data())
    def evacuate(self, data):
        published = [int(s["number"]) for s in self.store.engine.segments() if s["state"] == 2]
        if published:
            number = data.draw(st.sampled_from(published))
            # On the writer thread, which alone deletes segments.
            self.on_writer(lambda: self.store.engine.evacuate(number))

    # --- checkpoints

    @rule(wait=st.booleans())
    def checkpoint(self, wait):
        self.settle()
        tag, self.next_tag = self.next_tag, self.next_tag + 1
        self.pending = (tag, dict(self.live))
        self.store.checkpoint(tag, extra=b"%d" % tag, wait=wait)
        if wait:
            self.settle()
            self.check_checkpoints()

    def settle(self):
        self.store._settle()
        self.note_committed()

    def note_committed(self):
        """Take over which checkpoints there are: a pending one came through or did not."""
        if self.pending is not None:
            self.saved[self.pending[0]] = self.pending[1]
            self.pending = None
        tags = [c.tag for c in self.store.checkpoints()]
        assert tags == sorted(self.saved)[-KEEP:] or set(tags) <= set(self.saved)
        self.saved = {tag: self.saved[tag] for tag in tags}

    @precondition(lambda self: self.saved)
    @rule(data=st.data())
    def restore(self, data):
        self.settle()
        tag = data.draw(st.sampled_from(sorted(self.saved)))
        self.store.restore(tag)
        self.live = dict(self.saved[tag])
        self.note_committed()
        self.check_all()

    @precondition(lambda self: self.saved)
    @rule(data=st.data())
    def release(self, data):
        self.settle()
        self.store.release(data.draw(st.sampled_from(sorted(self.saved))))
        self.note_committed()
        self.check_checkpoints()

    @rule(dram=st.sampled_from(["24KiB", "96KiB", "8MiB"]))
    def crash(self, dram):
        """The process ends between two commits of its writer thread; a checkpoint that was running may be lost.

        What goes on is a copy of the files as they were then; nothing that closing does is in it.
        """
        self.store._session.writer.stop()
        left = Path(tempfile.mkdtemp(prefix="stateful-"))
        shutil.copytree(self.folder / "s", left / "s")
        self.store._finalizer()
        shutil.rmtree(self.folder)
        self.folder, self.dram = left, dram
        pending, self.pending = self.pending, None
        self.open_store()
        done = self.store.checkpoints()
        if pending is not None and done and done[-1].tag == pending[0]:
            self.saved[pending[0]] = pending[1]
        self.note_committed()
        self.live = dict(self.saved[done[-1].tag]) if done else {}
        self.check_all()

    # --- what must hold

    def on_writer(self, call):
        self.store._session.writer.submit(CallJob(call)).wait()

    def check_all(self):
        for table in range(len(DIMS)):
            self.check_rows(table)
        self.check_checkpoints()

    def check_rows(self, table):
        rows = np.arange(NUM_ROWS)
        out = np.empty((NUM_ROWS, DIMS[table]), np.float32)
        self.store.engine.read_rows(table, rows, out)
        want = np.array([self.live.get((table, row), 0.0) for row in range(NUM_ROWS)], np.float32)
        assert (out == want[:, None]).all()

    def check_checkpoints(self):
        """Every retained checkpoint has exactly its rows, read from the files alone."""
        found = {}
        self.on_writer(lambda: found.update(self.read_checkpoints()))
        assert found == self.saved

    def read_checkpoints(self):
        session = self.store._session
        path = str(self.folder / "s" / "rows.lmdb" / DATA_FILE)
        offsets = dict(session.container.locate().tolist())
        ids = {record.number: record.segment_id for record in read_segments(session.catalog)}
        images = {}
        found = {}
        for directory in directories(session.catalog, list(session.checkpoints)):
            rows_of = found[directory.checkpoint.tag] = {}
            for table, (rows, locations) in directory.tables.items():
                for row, location in zip(rows.tolist(), locations.tolist(), strict=True):
                    number = location >> 18
                    if number not in images:
                        image = _native.read_segment(path, offsets[ids[number]])
                        assert image.bad_blocks == []
                        places = image.locations.tolist()
                        images[number] = (image, {place: i for i, place in enumerate(places)})
                    image, places = images[number]
                    place = places[location]
                    assert (image.tables[place], image.rows[place]) == (table, row)
                    record = np.frombuffer(image.records(place), np.float32)
                    assert (record == record[0]).all()
                    rows_of[table, row] = float(record[0])
        return found


@pytest.fixture(autouse=True)
def fold_often(monkeypatch):
    monkeypatch.setattr(fold, "_FLOOR_BYTES", 0)
    monkeypatch.setattr(fold, "_STEP_PAGES", 1)


StoreMachine.TestCase.settings = settings(
    max_examples=25,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


class TestStore(StoreMachine.TestCase):
    """Runs the machine."""
