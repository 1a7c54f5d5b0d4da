import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from mtrains.errors import StateError
from mtrains.tiers.lock import StoreLock

HOLD = """
import sys, time
from pathlib import Path
from mtrains.tiers.lock import StoreLock
lock = StoreLock(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def hold_elsewhere(folder):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "held\n"
    return process


def test_a_second_opener_in_this_process_is_refused_and_the_first_keeps_the_lock(tmp_path):
    lock = StoreLock(tmp_path)
    for _ in range(2):
        with pytest.raises(StateError, match="open already"):
            StoreLock(tmp_path)
    other = subprocess.run(
        [sys.executable, "-c", HOLD, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert other.returncode != 0
    assert "StateError" in other.stderr
    lock.release()
    lock.release()
    StoreLock(tmp_path).release()


def test_of_many_threads_one_gets_the_lock(tmp_path):
    for _ in range(50):
        start, held = threading.Barrier(4), []

        def take(start=start, held=held):
            start.wait()
            with contextlib.suppress(StateError):
                held.append(StoreLock(tmp_path))

        threads = [threading.Thread(target=take) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(held) == 1
        held[0].release()


def test_another_process_is_refused_at_once_until_the_holder_dies(tmp_path):
    process = hold_elsewhere(tmp_path)
    with pytest.raises(StateError, match="open already"):
        StoreLock(tmp_path)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    StoreLock(tmp_path).release()


def child_of_lock(lock, folder, queue):
    try:
        StoreLock(folder)
    except StateError:
        queue.put("refused")
    lock.release()


def test_a_forked_child_does_not_hold_or_drop_the_lock(tmp_path):
    lock = StoreLock(tmp_path)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=child_of_lock, args=(lock, tmp_path, queue))
    child.start()
    assert queue.get(timeout=30) == "refused"
    child.join()
    with pytest.raises(StateError):
        StoreLock(tmp_path)
    # A child that outlives the holder's lock does not keep it.
    pid = os.fork()
    if pid == 0:
        time.sleep(30)
        os._exit(0)
    lock.release()
    StoreLock(tmp_path).release()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
