"""kill -9 at every named moment of the storage protocol, and training that goes on from what is left.

`--full` kills at up to PASSINGS passings of each point, spread over the run; without it at one of each.
"""

import shutil

import pytest

from mtrains.tiers.commit_points import CommitPoint

PASSINGS = 24


def passings_of(total, wanted):
    """Return `wanted` of the passings 1 to `total`, spread evenly, the first and the last among them."""
    if wanted >= total:
        return list(range(1, total + 1))
    return sorted({1 + round(i * (total - 1) / (wanted - 1)) for i in range(wanted)})


def kill(server, reference, folder, point, passing, mutation="none"):
    """Kill a run at one passing of a point and go on; return (whether it was killed, what is wrong)."""
    folder.mkdir()
    status, _ = server.call("killed", folder, point=point, passing=passing, mutation=mutation)
    assert status in (-9, 0), server.stderr()  # 0: the threads met fewer moments this time
    problems = server.result(
        "recovered",
        folder,
        digests=reference["digests"],
        final=reference["final"],
        possible=server.possible_newest((folder / "acknowledged").read_text().splitlines()),
        oldest=passing % 2 == 0,
    )
    shutil.rmtree(folder)
    return status == -9, problems


@pytest.mark.parametrize("point", [point.name for point in CommitPoint])
def test_a_store_killed_at_a_point_goes_on_to_the_same_bits(point, fork_server, reference, full, tmp_path):
    total = reference["passings"][point]
    assert total > 0, "the run never passes this point"
    kills = 0
    for passing in passings_of(total, PASSINGS) if full else [(total + 1) // 2]:
        killed, problems = kill(fork_server, reference, tmp_path / "run", point, passing)
        assert problems == [], f"killed at passing {passing} of {point}"
        kills += killed
    assert kills > 0
    print(f"{point}: {kills} kills")


def test_deleting_before_the_commit_is_found(fork_server, reference, tmp_path):
    found = (
        kill(fork_server, reference, tmp_path / "run", "CHECKPOINT_WRITTEN", passing, "delete first")
        for passing in range(3, reference["passings"]["CHECKPOINT_WRITTEN"] + 1)
    )
    assert any("missing" in problem for _, problems in found for problem in problems)
