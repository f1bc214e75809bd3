"""The segments of one partition in one batch: their state and timers around `segment.decide`."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from checkback.reconcile.records.actions import AS_BEFORE, pack, pending_by_group
from checkback.reconcile.records.segment_records import ACTION, EVENT, Action, Kind
from checkback.reconcile.segment import Segment, decide
from checkback.reconcile.state.next_deliveries import NextDeliveries, load
from checkback.reconcile.state.packed_events import parse_key, unpack
from checkback.reconcile.state.state_codec import AT_ONCE, NO_TIMER, NO_TIMERS, Timers, decode, encode

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle, ValueState

    from checkback.reconcile.records.segment_records import Records
    from checkback.reconcile.segment import Rules


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


#: maximum number of segments per group, batch and partition
SEGMENTS = 256
#: number of ops in a batch for one segment that justify creating it
OPS = 16


class EarlyOpLimit:
    """The limit in one batch and partition."""

    def __init__(self) -> None:
        self._opened: dict[int, int] = {}

    def crowded(self, events: Records) -> Collection[int]:
        """The groups (hashes) whose ops may not create this unseen segment; ``events``: its EVENT records."""
        ops = events[np.isin(events["kind"], (Kind.ROLLBACK, Kind.COMMIT, Kind.CANCEL))]
        if not 0 < len(ops) < OPS or np.isin(events["kind"], (Kind.HALF, Kind.MESSAGE)).any():
            return ()
        groups = np.unique(ops["group"]).tolist()
        full = {group for group in groups if self._opened.get(group, 0) >= SEGMENTS}
        self._opened |= {group: self._opened.get(group, 0) + 1 for group in groups if group not in full}
        return full


class _Turn(Enum):
    """Why a segment is processed."""

    EVENTS = "events"
    PUT_OFF = "put off"
    DUE = "due"

    @property
    def share(self) -> int:
        """Quarters of a limit reserved for it."""
        return 2 if self is _Turn.PUT_OFF else 1


class _Turns(NamedTuple):
    """Why the checks and the deliveries of a segment are processed."""

    check: _Turn
    delivery: _Turn

    @classmethod
    def of(cls, fired: int) -> _Turns:
        """Those of a segment whose timer fired: what was not put off by it has just come due."""
        kind = kind_of(fired)
        return cls(
            _Turn.PUT_OFF if kind is TimerKind.PUT_OFF else _Turn.DUE,
            _Turn.PUT_OFF if kind is TimerKind.LATE_DELIVERY else _Turn.DUE,
        )


_AT_EVENTS = _Turns(_Turn.EVENTS, _Turn.EVENTS)


class _Limit:
    """An approximate maximum of actions in one batch and partition; None = unlimited."""

    def __init__(self, most: int | None) -> None:
        self._most = most
        self._done = Counter[_Turn]()

    @property
    def nothing(self) -> bool:
        """True if nothing at all may be done."""
        return self._most == 0

    def allows(self, turn: _Turn) -> bool:
        """True if a segment that is processed for this reason may act."""
        if self._most is None or self._done[turn] < self._most * turn.share // 4:
            return True
        return turn != _Turn.EVENTS and self._done.total() < self._most

    def count(self, turn: _Turn, number: int) -> None:
        """Add a segment's actions."""
        self._done[turn] += number


class PartitionBatch:
    """Decides the segments of one partition in one batch.

    ``max_checks``: approximate maximum of checks and discards; None = unlimited. Beyond it the segments only apply ops,
    and their checks are deferred to the next batch, so that commits do not wait for a million checks; a segment without
    ops is not even read. Deterministic, as Spark passes a batch's segments in the same order on each replay.

    No starvation: deferred segments run oldest first, with half of ``max_checks`` reserved for them, and a quarter for
    segments that have just come due. Checks due in segments with events, such as those of half messages born long ago,
    get at most a quarter.

    ``max_deliveries``: likewise, with the same shares, for scheduled messages, which have timers of their own: neither
    waits for the other.

    ``behind``: the batch leaves rows unread that had landed. Nothing is checked or delivered, and any op may wait for
    its half message. ``crowd``: the `EarlyOpLimit` holds otherwise.
    """

    def __init__(
        self,
        rules: Rules,
        segment_size: int,
        max_checks: int | None,
        max_deliveries: int | None,
        handle: StatefulProcessorHandle,
        state: ValueState,
        next_deliveries: ValueState,
        behind: bool = False,
        crowd: bool = True,
    ) -> None:
        """``handle`` registers timers. ``state``, ``next_deliveries``: the state variables of the current segment."""
        self._rules = rules
        self._size = segment_size
        self._behind = behind
        self._checks, self._deliveries = (_Limit(0 if behind else most) for most in (max_checks, max_deliveries))
        self._handle = handle
        self._state, self._next = state, next_deliveries
        self._checked_segments = self._put_off_segments = self._put_off_deliveries = 0
        self._unseen = EarlyOpLimit() if crowd and not behind else None
        self._told_of_others: set[bool] = set()

    def events(self, key: str, blocks: list[bytes], now: int) -> Iterator[pd.DataFrame]:
        """Decide a segment with events: ``blocks`` of PACKED_SCHEMA."""
        return self._step(key, unpack(blocks), now, _AT_EVENTS)

    def restored(self, key: str, block: bytes, now: int) -> None:
        """Load the block of a segment restored by `rebuild`."""
        _, base = parse_key(key, self._size)
        segment, _ = decode(block, base, self._size)
        timers = Timers(self._due_timer(segment, NO_TIMER, NO_TIMER, now, _Turn.EVENTS, check=True)[0])
        delivery = segment.next_delivery
        if delivery is not None:
            timers = timers._replace(delivery=delivery_timer(max(delivery, now + 1)))
        self._keep(segment, timers, NO_TIMERS, NO_TIMER)

    def timer(self, key: str, now: int, fired: int) -> Iterator[pd.DataFrame]:
        """Decide a segment whose timer ``fired`` (ms), or defer it."""
        kind, turns = kind_of(fired), _Turns.of(fired)
        if kind.of_delivery:
            if not self._deliveries.allows(turns.delivery):
                return self._put_off(key, now, self._later_delivery(now))
            if (delivered := self._deliver(key, now, turns, fired)) is not None:
                return iter([delivered])
        elif kind is not TimerKind.WITH_OPS and not self._checks.allows(turns.check):
            return self._put_off(key, now, self._later(now, fired))
        return self._step(key, np.empty(0, EVENT), now, turns, fired)

    def _later_delivery(self, now: int) -> int:
        """The delivery timer of a deferred segment."""
        self._put_off_deliveries += not self._deliveries.nothing
        return put_off_delivery(now, max(0, self._put_off_deliveries - 1))

    def _later(self, now: int, fired: int = NO_TIMER) -> int:
        """The timer of a deferred segment; ``fired``: the one that fired.

        Where nothing is checked all segments get the same one: not all are reported, and none must be left behind.
        """
        if self._checks.nothing:
            return put_off_timer(now)
        ahead = self._put_off_segments // max(1, 2 * self._checked_segments)
        self._put_off_segments += 1
        again = fired != NO_TIMER and kind_of(fired) is TimerKind.PUT_OFF
        return put_off_timer(now, ahead, fired if again else None)

    def _put_off(self, key: str, now: int, until: int) -> Iterator[pd.DataFrame]:
        """Defer the segment to a later batch. Only the partition's first deferred segment of a kind is reported."""
        self._handle.registerTimer(until)
        if (delivery := kind_of(until).of_delivery) not in self._told_of_others:
            self._told_of_others.add(delivery)
            queue_id, base = parse_key(key, self._size)
            yield self._frame(
                (queue_id, base // self._size, AS_BEFORE, AS_BEFORE, 0, AT_ONCE, now), np.empty(0, ACTION)
            )

    def _deliver(self, key: str, now: int, turns: _Turns, fired: int) -> pd.DataFrame | None:
        """Deliver what is due without reading the segment's block; None = it must be read."""
        stored = self._next_deliveries()
        found = None if stored is None else NextDeliveries.of_bytes(stored, self._size)
        actions = [np.empty(0, ACTION)]
        left = None if found is None else found.deliver(now, actions)
        if left is None:
            return None
        before = _with_fired(left.timers, fired, now)
        timers = before._replace(delivery=delivery_timer(left.first))
        self._set_timers(before, timers, fired)
        self._next.update((replace(left, timers=timers).to_bytes(self._size),))
        done = np.concatenate(actions)
        self._count(done, turns)
        queue_id, base = parse_key(key, self._size)
        told = queue_id, base // self._size, left.pending, left.scheduled, left.oldest, _first(*timers), now
        return self._frame(told, done)

    def _next_deliveries(self) -> bytes | None:
        stored = self._next.get()
        return None if stored is None else bytes(stored[0])

    def _step(
        self, key: str, events: Records, now: int, turns: _Turns, fired: int = NO_TIMER
    ) -> Iterator[pd.DataFrame]:
        queue_id, base = parse_key(key, self._size)
        stored = self._state.get()
        crowded: Collection[int] = ()
        if stored is None:
            segment, timers = Segment.empty(base, self._size), NO_TIMERS
            crowded = () if self._unseen is None else self._unseen.crowded(events)
        else:
            segment, timers = load(bytes(stored[0]), self._next_deliveries, base, self._size)
        timers = _with_fired(timers, fired, now)
        check, deliver = self._checks.allows(turns.check), self._deliveries.allows(turns.delivery)
        segment, actions = decide(segment, events, now, self._rules, check, crowded, deliver, not self._behind)
        self._count(actions, turns)
        wake = NO_TIMER
        if segment.forgettable(now):
            self._set_timers(timers, NO_TIMERS, fired)
            if stored is not None:
                self._state.clear()
                self._clear_next(timers)
        else:
            due, due_put_off = self._due_timer(segment, timers.due, fired, now, turns.check, check)
            delivery, delivery_put_off = self._delivery_timer(segment, timers.delivery, fired, now)
            self._keep(segment, Timers(due, delivery), timers, fired)
            wake = AT_ONCE if due_put_off or delivery_put_off else _first(due, delivery)
        counts = len(segment.pending), len(segment.scheduled), segment.oldest
        told = np.concatenate([actions, pending_by_group(segment.pending)])
        yield self._frame((queue_id, base // self._size, *counts, wake, now), told)

    def _count(self, actions: Records, turns: _Turns) -> None:
        kind = actions["action"]
        checks = int(((kind == Action.CHECK) | (kind == Action.DISCARD)).sum())
        self._checks.count(turns.check, checks)
        self._checked_segments += checks > 0
        self._deliveries.count(turns.delivery, int((kind == Action.DELIVER).sum()))

    def _due_timer(
        self, segment: Segment, timer: int, fired: int, now: int, turn: _Turn, check: bool
    ) -> tuple[int, bool]:
        """The due timer of a segment that had ``timer``; and whether its checks are deferred."""
        wake = segment.wake_at(self._rules)
        if wake is None:
            return NO_TIMER, False
        if check or wake > now or wake == AT_ONCE:
            # Strictly in the future: the engine deletes a timer that fired after its handler has run.
            return (ops_timer(now + 1) if wake == AT_ONCE else due_timer(max(wake, now + 1))), False
        # Its timer fires in this batch, after the events or the delivery, or it was put off and has a later one.
        after_events = turn is _Turn.EVENTS and NO_TIMER < timer <= now
        at_delivery = fired != NO_TIMER and kind_of(fired).of_delivery and timer not in (NO_TIMER, fired)
        return timer if after_events or at_delivery else self._later(now, fired), True

    def _delivery_timer(self, segment: Segment, timer: int, fired: int, now: int) -> tuple[int, bool]:
        """The delivery timer of a segment that had ``timer``; and whether deliveries are deferred."""
        at = segment.next_delivery
        if at is None:
            return NO_TIMER, False
        if at > now or len(segment.cancels):  # which hold it for a batch
            return delivery_timer(max(at, now + 1)), False
        # As above: what is due has a timer, as no event brings anything that is due at once.
        return timer if timer not in (NO_TIMER, fired) else self._later_delivery(now), True

    def _keep(self, segment: Segment, timers: Timers, before: Timers, fired: int) -> None:
        """Store the segment, and register its timers in place of those ``before``."""
        self._set_timers(before, timers, fired)
        self._state.update((encode(segment, timers),))
        if len(segment.scheduled):
            found = NextDeliveries.of(segment, timers)
            self._next.update((found.to_bytes(self._size),))
        else:
            self._clear_next(before)

    def _clear_next(self, before: Timers) -> None:
        """Forget the next deliveries; a segment without a delivery timer ``before`` has none."""
        if before.delivery != NO_TIMER:
            self._next.clear()

    def _set_timers(self, old: Timers, new: Timers, fired: int) -> None:
        """Keep one live timer of each kind per segment. The engine deletes the one that fired."""
        for timer in old:
            if timer not in (*new, fired, NO_TIMER):
                self._handle.deleteTimer(timer)
        for timer in new:
            if timer not in (*old, NO_TIMER):
                self._handle.registerTimer(timer)

    def _frame(self, segment: tuple[int, int, int, int, int, int, int], actions: Records) -> pd.DataFrame:
        return pd.DataFrame({"block": [pack(segment, actions)]})


def _with_fired(timers: Timers, fired: int, now: int) -> Timers:
    """The timers as they are registered: if the segment was deferred since, its state has an older one."""
    if fired == NO_TIMER or fired in timers:
        return timers
    if kind_of(fired).of_delivery:
        return timers._replace(delivery=fired) if timers.delivery <= now else timers
    return timers._replace(due=fired) if timers.due <= now else timers


def _first(*timers: int) -> int:
    """The earliest of the timers; NO_TIMER if there is none."""
    return min((timer for timer in timers if timer != NO_TIMER), default=NO_TIMER)
