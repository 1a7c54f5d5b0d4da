"""How much garbage collection does: which share of the disk may be garbage, and which share of IO it may take.

The engine knows the segments and moves the rows, the log writer deletes."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DEFAULT_POLICY", "SLACK_SEGMENTS", "GcPolicy", "IoShare", "policy_for"]

# So many segments' worth of dead bytes are left alone: checkpoints of few rows would else copy all live rows each time.
SLACK_SEGMENTS = 32
# With room for fewer segments than this, less and less is left alone.
_SCARCE_SEGMENTS = 64


@dataclass(frozen=True, kw_only=True)
class GcPolicy:
    """Shares of full segments: what `Engine.empty_garbage` goes by.

    target: of their segments that needed rows, live or of a checkpoint, should take. young_target: that live rows
    should take of segments born after the newest checkpoint; these can be deleted at once, and what they are when the
    next one begins is held. old_share: an older segment with less of it live is emptied before the next checkpoint
    holds it as well. slack: segments that may be dead all the same.

    Source of the values: a model of uniform updates with two checkpoints kept: disk stays within 1.5 x (live + held),
    and what is written at 1.8 x.
    """

    target: float = 0.7
    young_target: float = 0.8
    old_share: float = 0.2
    slack: int = SLACK_SEGMENTS


DEFAULT_POLICY = GcPolicy()
_SCARCE_POLICY = GcPolicy(target=0.9, young_target=0.9, old_share=0.6, slack=0)


def policy_for(room: int) -> GcPolicy:
    """Return what to aim at with room on the disk for so many more segments: the less, the fuller they get."""
    share = min(max(0, room), _SCARCE_SEGMENTS) / _SCARCE_SEGMENTS

    def between(scarce: float, default: float) -> float:
        return scarce + (default - scarce) * share

    return GcPolicy(
        target=between(_SCARCE_POLICY.target, DEFAULT_POLICY.target),
        young_target=between(_SCARCE_POLICY.young_target, DEFAULT_POLICY.young_target),
        old_share=between(_SCARCE_POLICY.old_share, DEFAULT_POLICY.old_share),
        slack=round(between(_SCARCE_POLICY.slack, DEFAULT_POLICY.slack)),
    )


class IoShare:
    """What garbage collection may read and write, in segments: a fixed multiple of what training appends.

    So it takes at most RATIO / (RATIO + 1) of the log's IO, and writes less than two bytes for each of training's. What
    it does not need is not saved up beyond LIMIT. Where room is scarce the writer does not ask.
    """

    # Emptying segments that are 0.6 full reads and writes 4 bytes for each that training may append then.
    RATIO = 4.0
    LIMIT = 64.0

    def __init__(self) -> None:
        self._left = 0.0

    @property
    def is_left(self) -> bool:
        """Whether another segment may be emptied now."""
        return self._left > 0

    def appended(self, num_segments: int) -> None:
        """Segments were appended, of whatever rows."""
        self._left = min(self.LIMIT, self._left + self.RATIO * num_segments)

    def emptied(self, live_share: float) -> None:
        """A segment was read, and so much of one is appended for it, which is not training's."""
        self._left -= 1 + live_share + self.RATIO * live_share

    def not_needed(self) -> None:
        """There is nothing to collect."""
        self._left = min(self._left, 0.0)
