import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtrains.train.metrics import auc, log_loss


def auc_by_pairs(labels, scores):
    pairs = [
        (p, n)
        for p, lp in zip(scores, labels, strict=True)
        if lp
        for n, ln in zip(scores, labels, strict=True)
        if not ln
    ]
    return sum(1.0 if p > n else 0.5 if p == n else 0.0 for p, n in pairs) / len(pairs)


@given(st.lists(st.tuples(st.booleans(), st.integers(-3, 3)), min_size=2, max_size=40))
def test_auc_counts_pairs_and_half_of_ties(samples):
    labels = np.array([label for label, _ in samples], np.float32)
    scores = np.array([score for _, score in samples], np.float32)
    if labels.min() == labels.max():
        assert auc(labels, scores) is None
    else:
        assert auc(labels, scores) == pytest.approx(auc_by_pairs(labels, scores), abs=1e-15)


def test_auc_of_perfect_and_reversed_and_constant_scores():
    labels = np.array([0, 0, 1, 1], np.float32)
    scores = np.array([1, 2, 3, 4], np.float32)
    assert auc(labels, scores) == 1.0
    assert auc(labels, -scores) == 0.0
    assert auc(labels, np.zeros(4, np.float32)) == 0.5


def test_auc_of_nothing_is_undefined():
    assert auc(np.zeros(0, np.float32), np.zeros(0, np.float32)) is None


def test_log_loss_is_finite_where_probabilities_round_to_one():
    labels = np.array([1, 0], np.float32)
    assert log_loss(labels, np.array([200, 0], np.float32)) == pytest.approx(math.log(2) / 2)
    assert log_loss(labels, np.array([-200, 0], np.float32)) == pytest.approx((200 + math.log(2)) / 2)
