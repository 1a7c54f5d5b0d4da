"""Flip bytes of a closed store, one at a time; say of each what became of it. A process of its own: it may die."""

import json
import random
import shutil
import sys
from pathlib import Path

from mtrains import MtrainsError, Store
from mtrains.tiers.verify import verify_store


def look(folder):
    """Return how the damage of a store shows: "verify", "open", "read", or "" if it is as it was to all of them."""
    if verify_store(folder):
        return "verify"
    try:
        store = Store(folder, dram="64KiB")
    except MtrainsError:
        return "open"
    with store:
        try:
            state = [[c.tag, c.step, len(c.extra)] for c in store.checkpoints()], store.digest()
        except MtrainsError:
            return "read"
        return json.dumps(state)


def main(source, scratch, log, seed, first, last):
    """Try flips first to last of a seed; append a line of (flip, file, offset, bit, outcome) for each to `log`.

    A line without outcome is written before; so one that ends there killed the process.
    """
    files = [Path("rows.lmdb/data.mdb"), Path("catalog.lmdb/data.mdb")]
    with open(log, "a", buffering=1) as lines:
        for flip in range(first, last):
            rng = random.Random(seed * 1_000_003 + flip)
            file = files[flip % 2]
            offset, bit = rng.randrange((source / file).stat().st_size), rng.randrange(8)
            shutil.rmtree(scratch, ignore_errors=True)
            shutil.copytree(source, scratch)
            with open(scratch / file, "r+b") as opened:
                opened.seek(offset)
                byte = opened.read(1)[0] ^ 1 << bit
                opened.seek(offset)
                opened.write(bytes([byte]))
            lines.write(json.dumps([flip, str(file), offset, bit]) + "\n")
            lines.write(json.dumps([flip, str(file), offset, bit, look(scratch)]) + "\n")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]), *map(int, sys.argv[4:7]))
