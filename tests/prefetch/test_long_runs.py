"""What is left after many steps, Ctrl-C and errors: nothing, and the first error is the one that is told."""

import signal
import subprocess
import sys
import textwrap
import threading
import time

import psutil
import pytest
import torch

import mtrains

ROWS, DIM, SIZE = 20_000, 8, 16

PROGRAM = textwrap.dedent(
    """
    import signal
    import sys
    import torch
    import mtrains

    # Whoever runs the tests in the background of a shell has it ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)

    class Ids(torch.utils.data.Dataset):
        def __len__(self):
            return 1_000_000_000  # no end
        def __getitem__(self, i):
            if sys.argv[2] == "worker" and i == 320:
                raise OverflowError("the worker's")
            return (torch.arange(3) * 7919 + i * 31) % 20_000

    def batches():
        loader = torch.utils.data.DataLoader(Ids(), batch_size=16, num_workers=2 if sys.argv[2] == "worker" else 0)
        for number, batch in enumerate(loader):
            if sys.argv[2] == "loader" and number == 20:
                raise OverflowError("the loader's")
            yield batch

    with mtrains.Store(sys.argv[1], dram="16KiB", seed=1) as store:
        bag = mtrains.TieredEmbeddingBag(20_000, 8, mode="sum", store=store, name="rows")
        optimizer = mtrains.optim.RowWiseAdagrad(bag.parameters(), lr=0.1)
        for number, batch in enumerate(mtrains.prefetch(batches(), lambda batch: {bag: batch}, depth=8)):
            if number == 10:
                store.checkpoint("ten")
                print("ten", flush=True)
            if sys.argv[2] == "model" and number == 20:
                raise OverflowError("the model's")
            optimizer.zero_grad()
            bag(batch).sum().backward()
            optimizer.step()
    """
)


@pytest.mark.parametrize("fault", ["ctrl-c", "loader", "model", "worker"])
def test_the_first_error_is_told_and_the_store_opens(fault, tmp_path):
    path = tmp_path / "rows"
    child = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(path), fault], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stdout.readline() == "ten\n"
    if fault == "ctrl-c":
        child.send_signal(signal.SIGINT)
    _, told = child.communicate(timeout=60)
    assert child.returncode != 0
    last = told.strip().splitlines()[-1]
    assert last.startswith("KeyboardInterrupt") if fault == "ctrl-c" else f"the {fault}'s" in last
    assert "During handling" not in told
    with mtrains.Store(path, dram="1MiB") as store:
        assert [checkpoint.tag for checkpoint in store.checkpoints()] == ["ten"]
        store.restore("ten")
        assert store.tables()[0].name == "rows"


def test_a_long_run_at_depth_8_leaves_nothing(full):
    steps = 20_000 if full else 2_000
    generator = torch.Generator().manual_seed(1)
    process, threads, sizes = psutil.Process(), set(threading.enumerate()), []
    with mtrains.Store(dram=f"{40 * 3 * SIZE * (4 * (DIM + 1) + 16)}", seed=1) as store:
        bag = mtrains.TieredEmbeddingBag(ROWS, DIM, mode="sum", store=store, name="rows")
        optimizer = mtrains.optim.RowWiseAdagrad(bag.parameters(), lr=0.1)
        batches = (torch.randint(ROWS, (SIZE, 3), generator=generator) for _ in range(steps))
        for number, batch in enumerate(mtrains.prefetch(batches, lambda batch: {bag: batch}, depth=8)):
            optimizer.zero_grad()
            bag(batch).sum().backward()
            optimizer.step()
            if number % (steps // 10) == steps // 20:
                memory = process.memory_info()
                sizes.append(memory.rss - memory.shared)  # without pages of LMDB's files
        assert store.engine.pinned_rows() == 0
        tickets = store.stats().prefetch
        assert tickets["used"] + tickets["used_unstaged"] == steps
    until = time.monotonic() + 5
    while (left := {t for t in threading.enumerate() if "mtrains" in t.name} - threads) and time.monotonic() < until:
        time.sleep(0.01)
    assert not left
    # A queue of write-back is some MiB more or less; a leak grows.
    assert sizes[-1] - sizes[5] < 12 << 20, [size >> 20 for size in sizes]
