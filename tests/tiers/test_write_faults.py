"""Every call that writes fails once, with an error or half of the bytes: the last checkpoint opens, training goes on.

`--full` tries every call of the run; without it a few of each kind are tried.
"""

import errno
import shutil

import pytest

SAMPLE = 3
FAULTS = [
    ("sync", errno.EIO),
    ("sync", errno.ENOSPC),
    ("write", errno.EIO),
    ("write", errno.ENOSPC),
    ("write", 0),
    ("allocate", errno.EIO),
    ("allocate", errno.ENOSPC),
    ("open", errno.EIO),
    ("open", errno.EMFILE),
    ("rename", errno.EIO),
    ("mkdir", errno.ENOSPC),
]


@pytest.fixture(scope="module")
def faulty(fork_server, compile_shim):
    server = type(fork_server)(compile_shim("fault_shim"))
    yield server
    server.close()


@pytest.fixture(scope="module")
def calls(faulty, reference, tmp_path_factory):
    """How often the run makes each kind of call."""
    counted = faulty.result("counted", tmp_path_factory.mktemp("counted"))
    assert counted["final"] == reference["final"]
    return counted["calls"]


def numbers_of(total, full):
    step = 1 if full else max(1, (total - 1) // (SAMPLE - 1))
    return range(1, total + 1, step)


@pytest.mark.parametrize(("call", "error"), FAULTS)
def test_a_call_that_fails_leaves_the_last_checkpoint(
    call, error, faulty, calls, reference, full, memory_folder
):
    assert calls[call] > 0
    met = 0
    for number in numbers_of(calls[call], full):
        folder = memory_folder / "run"
        folder.mkdir()
        faults, first, problems = faulty.result(
            "faulted",
            folder,
            call=call,
            number=number,
            times=2 if (call, error) == ("sync", errno.ENOSPC) else 1,  # the second is the store's own sync
            error=error,
            digests=reference["digests"],
            final=reference["final"],
        )
        met += faults
        assert problems == [], f"{call} {number}: {first}"
        if call == "sync" and faults:
            assert "cannot create" in first or "read-only until" in first or "committing" in first, first
        print(call, errno.errorcode.get(error, "short"), number, faults, first)
        shutil.rmtree(folder)
    assert met > 0
