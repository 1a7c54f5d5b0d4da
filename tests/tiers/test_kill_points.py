"""kill -9 at every named moment of the storage protocol, and training that goes on from what is left.

`--full` kills at up to PASSINGS passings of each point, spread over the run; without it at one of each.
"""

import shutil

import pytest

from mtrains.tiers.commit_points import CommitPoint

PASSINGS = 12


def passings_of(total, wanted):
    """Return `wanted` of the passings 1 to `total`, spread evenly, the first and the last among them."""
    if wanted >= total:
        return list(range(1, total + 1))
    return sorted({1 + round(i * (total - 1) / (wanted - 1)) for i in range(wanted)})


@pytest.mark.parametrize("point", [point.name for point in CommitPoint])
def test_a_store_killed_at_a_point_goes_on_to_the_same_bits(point, fork_server, reference, full, tmp_path):
    total = reference["passings"][point]
    assert total > 0, "the run never passes this point"
    passings = passings_of(total, PASSINGS) if full else [(total + 1) // 2]
    kills = 0
    for passing in passings:
        folder = tmp_path / "run"
        folder.mkdir()
        status, _ = fork_server.call("killed", folder, point=point, passing=passing)
        kills += status == -9
        assert status in (-9, 0), fork_server.stderr()  # 0: the threads met fewer moments this time
        problems = fork_server.result(
            "recovered",
            folder,
            digests=reference["digests"],
            final=reference["final"],
            possible=fork_server.possible_newest((folder / "acknowledged").read_text().splitlines()),
            oldest=passing % 2 == 0,
        )
        assert problems == [], f"killed at passing {passing} of {point}"
        shutil.rmtree(folder)
    assert kills > 0
