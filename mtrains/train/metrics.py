"""Quality of predicted click probabilities."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["auc", "log_loss"]


def auc(labels: NDArray[np.float32], scores: NDArray[np.float32]) -> float | None:
    """Return the exact area under the ROC curve: P(positive > negative) + P(equal) / 2 over all pairs.

    The Mann-Whitney statistic from ranks, ties at their mean rank; any monotone transform of the scores gives
    the same. labels: 0 or 1. None if there are not samples of both classes.
    """
    positive = labels > 0.5
    num_positive = int(positive.sum())
    num_negative = len(labels) - num_positive
    if not num_positive or not num_negative:
        return None
    order = np.argsort(scores, kind="stable")
    ordered = scores[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    ends = np.r_[starts[1:], len(ordered)]
    # Twice the mean rank of each run of equal scores is an integer, so the sum below is exact.
    twice_rank = np.repeat(starts + ends + 1, ends - starts)
    twice_sum = int(twice_rank[positive[order]].sum())
    twice_wins = twice_sum - num_positive * (num_positive + 1)
    return twice_wins / (2 * num_positive * num_negative)


def log_loss(labels: NDArray[np.float32], logits: NDArray[np.float32]) -> float:
    """Return the mean of -log p(label) in float64, from logits, so that no probability rounds to 0 or 1."""
    wide = logits.astype(np.float64)
    signed = np.where(labels > 0.5, wide, -wide)
    return float(np.logaddexp(0.0, -signed).mean())
