"""One flipped bit anywhere in the files of a store: `verify`, opening or a read finds it, or it changes nothing."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import lmdb
import numpy as np

from mtrains import Store, TableSpec
from mtrains.tiers.verify import verify_store

HERE = Path(__file__).parent


def make_store(folder):
    """Make a store of two checkpoints whose files end where their data do."""
    random = np.random.default_rng(0)
    with Store(folder, dram="64KiB", seed=1) as store:
        tables = [store.add_table(TableSpec(name, 3000, dim)) for name, dim in (("a", 16), ("b", 33))]
        for i in range(2):
            for table in tables:
                rows = np.unique(random.integers(0, 3000, 1500)).astype(np.int64)
                store.engine.write_rows(
                    table.number, rows, random.random((len(rows), table.spec.embedding_dim), np.float32)
                )
            store.checkpoint(f"c{i}", step=i, extra=random.bytes(70_000))
        state = json.dumps(([[c.tag, c.step, len(c.extra)] for c in store.checkpoints()], store.digest()))
    for name in ("rows.lmdb", "catalog.lmdb"):
        with lmdb.open(str(folder / name), readonly=True, lock=False, lib_version=0) as environment:
            end = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
        os.truncate(folder / name / "data.mdb", end)
    assert verify_store(folder) == []
    return state


def test_every_flipped_byte_is_detected_or_means_nothing(tmp_path, full):
    count = 10_000 if full else 120
    source, log = tmp_path / "source", tmp_path / "log"
    state = make_store(source)
    died, first = [], 0
    while first < count:
        command = [sys.executable, HERE / "flip_bytes.py", source, tmp_path / "scratch", log, "1"]
        command += [str(first), str(count)]
        ended = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        if ended.returncode == 0:
            break
        died.append((lines[-1], ended.returncode, ended.stderr[-500:]))
        first = lines[-1][0] + 1
    outcomes = [line for line in lines if len(line) == 5]
    silent = [line for line in outcomes if line[4] not in ("verify", "open", "read", state)]
    counts = Counter(line[4] if line[4] != state else "nothing changed" for line in outcomes)
    print(dict(counts), "died:", len(died))
    assert not died, died
    assert not silent, silent
    assert len(outcomes) == count
    assert counts["verify"] > count / 10
