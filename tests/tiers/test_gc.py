import numpy as np

from mtrains.tiers.gc import (
    DEFAULT_POLICY,
    SLACK_SEGMENTS,
    TARGET_LIVE_RATIO,
    GcPolicy,
    choose_victims,
    packed_share,
    policy_for,
)

EAGER = GcPolicy(slack=0)

SEGMENT = np.dtype(
    [
        ("number", "u4"),
        ("state", "u1"),
        ("id", "u8"),
        ("epoch", "u8"),
        ("rows", "u4"),
        ("live", "u4"),
        ("used_pages", "u2"),
        ("offset", "u8"),
    ]
)


def segments(lives, state=2):
    table = np.zeros(len(lives), SEGMENT)
    table["number"] = np.arange(1, len(lives) + 1)
    table["state"] = state
    table["rows"] = 100
    table["used_pages"] = 256
    table["live"] = lives
    return table


def test_the_emptiest_go_first_until_enough_is_live():
    assert choose_victims(segments([90, 10, 50, 95]), 1, policy=EAGER) == [2]
    assert choose_victims(segments([90, 10, 50, 95]), 4, policy=EAGER) == [2]
    assert choose_victims(segments([60, 10, 50, 55]), 4, policy=EAGER)[:2] == [2, 3]


def test_nothing_to_do():
    assert choose_victims(segments([]), 4, policy=EAGER) == []
    assert choose_victims(segments([0, 0]), 4, policy=EAGER) == []  # dead or held: evacuating frees nothing
    assert choose_victims(segments([80, 75, 100]), 4, policy=EAGER) == []
    assert choose_victims(segments([10, 10], state=1), 4, policy=EAGER) == []  # on their way to the file


def test_live_rows_over_their_segments_stay_above_the_target():
    random = np.random.default_rng(0)
    table = segments(random.integers(1, 100, 200))
    victims = choose_victims(table, 200, policy=EAGER)
    live = table["live"].astype(float) / 100
    kept = np.setdiff1d(np.arange(200), np.array(victims) - 1)
    packed = len(kept) + live[np.array(victims) - 1].sum()
    assert live.sum() / packed >= TARGET_LIVE_RATIO - 0.01


def test_what_checkpoints_of_few_rows_left_empty_is_not_live():
    table = segments([100] * 200)
    table["used_pages"] = 4
    victims = choose_victims(table, 200)
    assert len(victims) > 200 - SLACK_SEGMENTS - 8
    assert choose_victims(table[:SLACK_SEGMENTS], 200) == []  # a little is left alone


def test_the_less_room_there_is_the_fuller_segments_get():
    table = segments([80] * 100)
    assert choose_victims(table, 100, policy=policy_for(1000)) == []
    assert policy_for(64) == DEFAULT_POLICY
    assert len(choose_victims(table, 100, policy=policy_for(0))) > 30
    assert policy_for(-3) == policy_for(0)


def test_segments_of_a_small_buffer_are_full_with_fewer_pages():
    assert packed_share(1 << 30) == 1.0
    packed = packed_share(1 << 19)
    assert 0.5 <= packed < 0.51
    table = segments([100] * 100)
    table["used_pages"] = 129
    assert choose_victims(table, 100, policy=EAGER) != []
    assert choose_victims(table, 100, policy=EAGER, packed=packed) == []
