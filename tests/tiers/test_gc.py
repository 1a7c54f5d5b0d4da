import pytest

from mtrains.tiers.gc import DEFAULT_POLICY, IoShare, policy_for


def test_the_less_room_there_is_the_less_garbage_is_left():
    assert policy_for(64) == policy_for(1000) == DEFAULT_POLICY
    assert policy_for(-3) == policy_for(0)
    policies = [policy_for(room) for room in range(64, -1, -1)]
    for field in ("target", "young_target", "old_share"):
        values = [getattr(policy, field) for policy in policies]
        assert values == sorted(values)
    assert policies[-1].slack == 0
    assert policies[-1].target == 0.9


@pytest.mark.parametrize("live_share", [0.0, 0.3, 0.6, 0.9])
def test_garbage_collection_takes_a_bounded_share_of_io(live_share):
    share = IoShare()
    training, pending, read, written = 0, 0.0, 0, 0.0
    for _ in range(2000):
        training += 1
        share.appended(1)
        while share.is_left:
            share.emptied(live_share)
            read += 1
            written += live_share
            pending += live_share
        if pending >= 1:  # what is moved is appended like all else, and gives no share
            share.appended(int(pending))
            pending -= int(pending)
    assert read + written <= IoShare.RATIO * training + IoShare.LIMIT
    assert read + written >= IoShare.RATIO * training * 0.99
    assert written < 2 * training


def test_a_share_of_io_that_is_not_needed_is_not_saved_up():
    share = IoShare()
    assert not share.is_left
    share.appended(1000)
    emptied = 0
    while share.is_left:
        share.emptied(0.5)
        emptied += 1
    assert emptied < IoShare.LIMIT
    share.appended(1000)
    share.not_needed()
    assert not share.is_left
