"""What a segment's timer says besides its time, so that its state need not be read: pure arithmetic of milliseconds.

A timer that is odd is of a segment in which something comes due. One that leaves 2 when divided by 4 is of a segment
with ops to apply, as `rebuild` restores them. One that 4 divides is of a segment that was put off, because a batch
makes so many checks and no more (`reconcile.max_checks`). Its place in its window tells since when: the longer, the
earlier. So Spark, which fires timers in the order of their times, fires first what has waited longest, to about half a
minute.
"""

from __future__ import annotations

from enum import Enum

#: places of a window, 4 ms each
SLOTS = 256
#: windows that make one step of `since`
_STEP = 32
#: windows for which a segment is left alone that so many others are before
_FURTHEST = 60


class TimerKind(Enum):
    """Of which segments a timer is."""

    DUE = "something comes due"
    PUT_OFF = "put off"
    WITH_OPS = "ops to apply"


def kind_of(timer: int) -> TimerKind:
    """What the timer (ms) says."""
    if timer % 2:
        return TimerKind.DUE
    return TimerKind.WITH_OPS if timer % 4 else TimerKind.PUT_OFF


def due_timer(at: int) -> int:
    """The first timer of the kind DUE from ``at`` (ms) on."""
    return at | 1


def ops_timer(at: int) -> int:
    """The first timer of the kind WITH_OPS from ``at`` (ms) on."""
    return at + (2 - at) % 4


def put_off_timer(now: int, ahead: int = 0, before: int | None = None) -> int:
    """A timer after ``now`` (ms) of the kind PUT_OFF.

    ``before``: the one of that kind that has fired; None = it was not put off. ``ahead``: how many batches, about, are
    full of others that have waited longer.
    """
    window = now // (4 * SLOTS) + 1 + min(ahead, _FURTHEST)
    since = window // _STEP if before is None else put_off_since(before)
    return 4 * (window * SLOTS + SLOTS - 1 - min(max(0, window // _STEP - since), SLOTS - 1))


def put_off_since(timer: int) -> int:
    """Since when the segment of a timer of the kind PUT_OFF waits: a number that grows with time."""
    window, slot = divmod(timer // 4, SLOTS)
    return window // _STEP - (SLOTS - 1 - slot)
