"""The segments of one partition in one batch: their state and timers around `segment.decide`."""

from __future__ import annotations

from collections import Counter
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from checkback.reconcile.actions import AS_BEFORE, pack
from checkback.reconcile.early_ops import EarlyOpLimit
from checkback.reconcile.packed_events import parse_key, unpack
from checkback.reconcile.records import ACTION, EVENT, Action
from checkback.reconcile.segment import Segment, decide
from checkback.reconcile.state_codec import AT_ONCE, NO_TIMER, decode, encode
from checkback.reconcile.timer_encoding import TimerKind, due_timer, kind_of, ops_timer, put_off_timer

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle, ValueState

    from checkback.reconcile.group_hash import GroupHash
    from checkback.reconcile.records import Records
    from checkback.reconcile.segment import Rules


class _Turn(Enum):
    """Why a segment is processed."""

    EVENTS = "events"
    PUT_OFF = "put off"
    DUE = "due"

    @property
    def share(self) -> int:
        """Quarters of ``max_checks`` reserved for it."""
        return 2 if self is _Turn.PUT_OFF else 1


class PartitionBatch:
    """Decides the segments of one partition in one batch.

    ``max_checks``: approximate maximum of checks and discards; None = unlimited. Beyond it the segments only apply ops,
    and their checks are deferred to the next batch, so that commits do not wait for a million checks; a segment without
    ops is not even read. Deterministic, as Spark passes a batch's segments in the same order on each replay.

    No starvation: deferred segments run oldest first, with half of ``max_checks`` reserved for them, and a quarter for
    segments that have just come due. Checks due in segments with events, such as those of half messages born long ago,
    get at most a quarter.
    """

    def __init__(
        self,
        rules: Rules,
        segment_size: int,
        max_checks: int | None,
        group_hash: GroupHash,
        handle: StatefulProcessorHandle,
        state: ValueState,
    ) -> None:
        """``handle`` registers timers. ``state``: the state variable of the current segment."""
        self._rules = rules
        self._size = segment_size
        self._max_checks = max_checks
        self._group_hash = group_hash
        self._handle = handle
        self._state = state
        self._checks = Counter[_Turn]()
        self._checked_segments = self._put_off_segments = 0
        self._unseen = EarlyOpLimit()
        self._told_of_others = False

    def events(self, key: str, blocks: list[bytes], now: int) -> Iterator[pd.DataFrame]:
        """Decide a segment with events: ``blocks`` of PACKED_SCHEMA."""
        return self._step(key, unpack(blocks), now, _Turn.EVENTS)

    def restored(self, key: str, block: bytes, now: int) -> None:
        """Load the block of a segment restored by `rebuild`."""
        _, base = parse_key(key, self._size)
        segment, _ = decode(block, base, self._size, self._group_hash)
        self._keep(segment, NO_TIMER, NO_TIMER, now)

    def timer(self, key: str, now: int, fired: int) -> Iterator[pd.DataFrame]:
        """Decide a segment whose timer ``fired`` (ms), or defer it."""
        kind = kind_of(fired)
        turn = _Turn.PUT_OFF if kind is TimerKind.PUT_OFF else _Turn.DUE
        if kind is not TimerKind.WITH_OPS and not self._may_check(turn):
            return self._put_off(key, now, fired)
        return self._step(key, np.empty(0, EVENT), now, turn, fired)

    def _may_check(self, turn: _Turn) -> bool:
        if self._max_checks is None or self._checks[turn] < self._max_checks * turn.share // 4:
            return True
        return turn != _Turn.EVENTS and self._checks.total() < self._max_checks

    def _later(self, now: int, fired: int = NO_TIMER) -> int:
        """The timer of a deferred segment; ``fired``: the one that fired."""
        ahead = self._put_off_segments // max(1, 2 * self._checked_segments)
        self._put_off_segments += 1
        again = fired != NO_TIMER and kind_of(fired) is TimerKind.PUT_OFF
        return put_off_timer(now, ahead, fired if again else None)

    def _put_off(self, key: str, now: int, fired: int) -> Iterator[pd.DataFrame]:
        """Defer the segment to a later batch. Only the partition's first deferred segment is reported."""
        self._handle.registerTimer(self._later(now, fired))
        if not self._told_of_others:
            self._told_of_others = True
            queue_id, base = parse_key(key, self._size)
            yield self._frame((queue_id, base // self._size, AS_BEFORE, 0, AT_ONCE, now), np.empty(0, ACTION))

    def _step(self, key: str, events: Records, now: int, turn: _Turn, fired: int = NO_TIMER) -> Iterator[pd.DataFrame]:
        queue_id, base = parse_key(key, self._size)
        stored = self._state.get()
        crowded: Collection[int] = ()
        if stored is None:
            segment, timer = Segment.empty(base, self._size), NO_TIMER
            crowded = self._unseen.crowded(events)
        else:
            segment, timer = decode(bytes(stored[0]), base, self._size, self._group_hash)
        if fired != NO_TIMER and timer <= now:
            timer = fired  # the segment was deferred since: its own timer has fired, too
        check = self._may_check(turn)
        segment, actions = decide(segment, events, now, self._rules, check, crowded)
        checks = int(((actions["action"] == Action.CHECK) | (actions["action"] == Action.DISCARD)).sum())
        self._checks[turn] += checks
        self._checked_segments += checks > 0
        wake = NO_TIMER
        if segment.forgettable(now):
            self._set_timer(timer, NO_TIMER, fired)
            if stored is not None:
                self._state.clear()
        elif check or segment.wake_at(self._rules) > now:
            wake = self._keep(segment, timer, fired, now)
        else:
            self._keep_put_off(segment, timer, fired, now)
            wake = AT_ONCE
        births = segment.pending["born"]
        oldest = int(births.min()) if len(births) else 0
        yield self._frame((queue_id, base // self._size, len(births), oldest, wake, now), actions)

    def _keep(self, segment: Segment, timer: int, fired: int, now: int) -> int:
        """Store the segment; returns its timer."""
        # Strictly in the future: the engine deletes a timer that fired after its handler has run.
        wake = segment.wake_at(self._rules)
        wake = ops_timer(now + 1) if wake == AT_ONCE else due_timer(max(wake, now + 1))
        self._set_timer(timer, wake, fired)
        self._state.update((encode(segment, wake, self._group_hash),))
        return wake

    def _keep_put_off(self, segment: Segment, timer: int, fired: int, now: int) -> None:
        """Store a segment with deferred checks. A timer that fires after the events keeps its place."""
        wake = timer
        if fired != NO_TIMER or timer == NO_TIMER or timer > now:
            wake = self._later(now, fired)
            self._set_timer(timer, wake, fired)
        self._state.update((encode(segment, wake, self._group_hash),))

    def _set_timer(self, old: int, new: int, fired: int) -> None:
        """Keep one live timer per segment. The engine deletes the one that fired."""
        if old not in (new, fired, NO_TIMER):
            self._handle.deleteTimer(old)
        if new not in (old, NO_TIMER):
            self._handle.registerTimer(new)

    def _frame(self, segment: tuple[int, int, int, int, int, int], actions: Records) -> pd.DataFrame:
        return pd.DataFrame({"block": [pack(segment, actions)]})
