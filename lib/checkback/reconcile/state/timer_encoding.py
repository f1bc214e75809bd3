"""Information encoded in the low bits of a segment's timer, so that its state need not be read: pure arithmetic.

1 modulo 4: something comes due in the segment. 3 modulo 8: a scheduled message does; 7 modulo 8: one did, and was
deferred by `reconcile.max_deliveries`. 2 modulo 4: the segment has ops to apply, as restored by `rebuild`. 0 modulo 4:
the segment was deferred by `reconcile.max_checks`; its slot in the timer's window encodes since when: the longer, the
earlier. Spark fires timers in order of time, and so fires the segments that have waited longest first, to within about
half a minute.
"""

from __future__ import annotations

from enum import Enum

#: slots in a window, 4 ms each
SLOTS = 256
#: windows per step of `since`
_STEP = 32
#: maximum number of windows by which a segment is deferred
_FURTHEST = 60
#: number of segments with deferred deliveries that keep their order
_IN_ORDER = 30


class TimerKind(Enum):
    """The type of a timer."""

    DUE = "something comes due"
    PUT_OFF = "put off"
    WITH_OPS = "ops to apply"
    DELIVERY = "a delivery"
    LATE_DELIVERY = "a delivery that was put off"

    @property
    def of_delivery(self) -> bool:
        """True for a timer of scheduled messages."""
        return self in (TimerKind.DELIVERY, TimerKind.LATE_DELIVERY)


#: by the timer modulo 8
_KINDS = (TimerKind.PUT_OFF, TimerKind.DUE, TimerKind.WITH_OPS, TimerKind.DELIVERY) * 2
_KINDS = (*_KINDS[:-1], TimerKind.LATE_DELIVERY)


def kind_of(timer: int) -> TimerKind:
    """The type of the timer (ms)."""
    return _KINDS[timer % 8]


def due_timer(at: int) -> int:
    """The first timer of the kind DUE from ``at`` (ms) on."""
    return at + (1 - at) % 4


def delivery_timer(at: int) -> int:
    """The first timer of the kind DELIVERY from ``at`` (ms) on."""
    return at + (3 - at) % 8


def put_off_delivery(now: int, before: int) -> int:
    """A timer after ``now`` (ms) of the kind LATE_DELIVERY. ``before``: number deferred before it in the batch.

    The first keep their order; all fire in the next batch, or the one after.
    """
    first = now + 1
    return first + (7 - first) % 8 + 8 * min(before, _IN_ORDER)


def ops_timer(at: int) -> int:
    """The first timer of the kind WITH_OPS from ``at`` (ms) on."""
    return at + (2 - at) % 4


def put_off_timer(now: int, ahead: int = 0, before: int | None = None) -> int:
    """A timer after ``now`` (ms) of the kind PUT_OFF.

    ``before``: the timer of that kind that fired; None = the segment was not deferred before. ``ahead``: approximate
    number of batches filled with segments that have waited longer.
    """
    window = now // (4 * SLOTS) + 1 + min(ahead, _FURTHEST)
    since = window // _STEP if before is None else put_off_since(before)
    return 4 * (window * SLOTS + SLOTS - 1 - min(max(0, window // _STEP - since), SLOTS - 1))


def put_off_since(timer: int) -> int:
    """Since when the segment of a PUT_OFF timer waits: a number that increases with time."""
    window, slot = divmod(timer // 4, SLOTS)
    return window // _STEP - (SLOTS - 1 - slot)
