"""Replays one segment through `reconcile.segment.decide`, batch after batch, in virtual time.

Pure: no clock, no I/O. First by the rules that were in force (`as_recorded`), which must come to what happened, and
tells when batches were necessary and which of them deferred checks; then under other rules (`under`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

import numpy as np

from checkback.reconcile.records import EVENT, Action, Kind, Source
from checkback.reconcile.segment import Segment, births, decide, next_check
from checkback.what_if.answers import Answers
from checkback.what_if.recorded import place
from checkback.what_if.records import NEVER, OUTCOME, State
from checkback.what_if.timeline import Cadence, Needs, Step, Timeline

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from checkback.reconcile.records import Records
    from checkback.reconcile.segment import Rules
    from checkback.what_if.recorded import Recorded

#: most ticks after the last recorded batch
_MOST_TICKS = 10_000
_STATES = {
    Action.COMMIT: State.COMMIT,
    Action.SCHEDULE: State.COMMIT,
    Action.ROLLBACK: State.ROLLBACK,
    Action.DISCARD: State.DISCARD,
}


@dataclass(frozen=True)
class Deferred:
    """By turn, whether the segment had something due that the batch did not do: `reconcile.max_checks` and the like."""

    checks: NDArray[np.bool_]
    deliveries: NDArray[np.bool_]


@dataclass(frozen=True)
class AsRecorded:
    """The replay by the rules in force: OUTCOME records, and what the second replay needs of it."""

    outcomes: Records
    needs: Needs
    deferred: Deferred


def as_recorded(recorded: Recorded, base: int, size: int, timeline: Timeline) -> AsRecorded:
    """Replay a segment of ``size`` offsets from ``base`` by the rules in force.

    A batch that checked and discarded nothing of the segment does so in the replay, whatever is due; likewise for
    deliveries. All else is decided anew.
    """
    return _Recorded(recorded, base, size, timeline, timeline).run()


def under(
    recorded: Recorded,
    base: int,
    size: int,
    timeline: Timeline,
    changed: Timeline,
    deferred: Deferred,
    cadence: Cadence,
) -> Records:
    """Replay a segment by the rules of ``changed``: OUTCOME records.

    After the last recorded batch it goes on for the transactions that are decided in the record, until they are here.
    """
    return _Under(recorded, base, size, timeline, changed, deferred, cadence).run()


class _Replay:
    """What both replays share: the segment, the recorded events, and the answers that are on their way."""

    def __init__(self, recorded: Recorded, base: int, size: int, timeline: Timeline, rules: Timeline) -> None:
        """``timeline``: with the rules in force; ``rules``: with those of the replay."""
        self.recorded = recorded
        self.timeline = timeline
        self.rules = rules
        self.turns = len(timeline)
        self._empty = Segment.empty(base, size)
        self.segment = self._empty
        self.answers = Answers(recorded, timeline)
        order = np.argsort(recorded.read, kind="stable")
        self._events, self._read = recorded.events[order], np.minimum(recorded.read[order], self.turns)
        self._next = 0
        self._coming: list[tuple[int, int, tuple[Any, ...]]] = []  # by turn
        self._landing: list[tuple[int, int, tuple[Any, ...]]] = []  # by time
        self._sent = 0
        self._outcomes = np.zeros(len(recorded.halves), OUTCOME)
        self._outcomes["offset"] = recorded.halves["offset"]
        for name in ("turn", "cancelled", "delivered"):
            self._outcomes[name] = NEVER
        self._last_check = np.zeros(len(recorded.halves), np.int64)
        self._number = np.zeros(len(recorded.halves), np.int64)
        self._received = np.zeros(len(recorded.halves), np.int64)
        self.turn, self.now = -1, -1

    def next_event(self) -> int:
        """The next turn that reads something recorded; ``turns`` = none."""
        recorded = int(self._read[self._next]) if self._next < len(self._read) else self.turns
        return min(recorded, self._coming[0][0]) if self._coming else recorded

    def decide(self, step: Step, check: bool, deliver: bool) -> None:
        """One batch."""
        rules = self.rules.rules_at(min(step.turn, self.turns) - step.tick)
        if not step.tick and ((self.timeline.rebuilt > self.turn) & (self.timeline.rebuilt <= step.turn)).any():
            self._restore(rules)
        events = self._taken(step)
        self._note_received(events)
        self.segment, actions = decide(self.segment, events, step.at, rules, check, (), deliver)
        if len(actions):
            self._note(step, actions, rules)
        if self.segment.forgettable(step.at):
            self.segment = self._empty
        self.now = step.at
        if not step.tick:
            self.turn = step.turn

    def _taken(self, step: Step) -> Records:
        begin = self._next
        if not step.tick:
            self._next = int(np.searchsorted(self._read, step.turn, side="right"))
        found = []
        while self._coming and not step.tick and self._coming[0][0] <= step.turn:
            found.append(heappop(self._coming)[2])
        while self._landing and self._landing[0][0] <= step.at:
            found.append(heappop(self._landing)[2])
        recorded = self._events[begin : self._next]
        return np.concatenate([recorded, np.array(found, EVENT)]) if found else recorded

    def _note(self, step: Step, actions: Records, rules: Rules) -> None:
        turn = NEVER if step.tick else step.turn
        at, known = place(self.recorded.halves, actions["offset"])
        out = self._outcomes
        there = set(actions["action"].tolist())
        for kind, state in _STATES.items():
            if kind in there:
                mine = known & (actions["action"] == kind)
                where = at[mine]
                out["state"][where], out["at"][where], out["turn"][where] = state, step.at, turn
                name = "reason" if state is State.DISCARD else "source"
                out[name][where] = actions["detail"][mine]
                if state is State.DISCARD:
                    out["source"][where] = Source.CHECKBACK
        for kind, name in ((Action.CANCEL, "cancelled"), (Action.DELIVER, "delivered")):
            if kind not in there:
                continue
            where = at[known & (actions["action"] == kind)]
            out[name][where] = turn
            if kind is Action.CANCEL:
                out["state"][where] = State.CANCEL
        checks = known & (actions["action"] == Action.CHECK)
        for where, number in zip(at[checks].tolist(), actions["check_times"][checks].tolist(), strict=True):
            self._ask(where, number, turn, step.at, rules)

    def _ask(self, at: int, number: int, turn: int, now: int, rules: Rules) -> None:
        found, assumed = self.answers.to(at, number, turn, now, rules)
        self._outcomes["checks"][at] += 1
        self._outcomes["assumed"][at] += assumed
        self._last_check[at], self._number[at] = now, number
        for answer in found:
            self._sent += 1
            if answer.turn is not None and answer.turn < NEVER:
                heappush(self._coming, (min(answer.turn, self.turns), self._sent, answer.event))
            else:
                heappush(self._landing, (max(answer.landed, now + 1), self._sent, answer.event))

    def _note_received(self, events: Records) -> None:
        mine = events[events["kind"] == Kind.DELIVERED]
        if len(mine):
            at, known = place(self.recorded.halves, mine["offset"])
            np.maximum.at(self._received, at[known], mine["immunity"][known])

    def _restore(self, rules: Rules) -> None:
        """What a rebuild makes of the pending half messages: as `state_restore` and `check_counts`."""
        pending = self.segment.pending.copy()
        if not len(pending):
            return
        at, _ = place(self.recorded.halves, pending["offset"])
        last, received = self._last_check[at], self._received[at]
        halves = self.recorded.halves[at]
        pending["born"], first = births(halves, rules)
        asked = last > 0
        if rules.count_undelivered:
            number = self._number[at]
            unsent = (number >= rules.check_max) & (received < number)
            times = np.where(unsent, np.maximum(received, rules.check_max - 1), number)
        else:
            times = np.minimum(received, pending["asked"])
        pending["check_times"] = np.where(asked, times, 0)
        pending["due"] = np.where(asked, next_check(pending, last, rules), first)
        self.segment = replace(self.segment, pending=pending)


class _Recorded(_Replay):
    """By the rules in force. A batch visits the segment if it read or did something there."""

    def run(self) -> AsRecorded:
        self._needs = Needs.none(self.turns)
        self._deferred = Deferred(np.zeros(self.turns, bool), np.zeros(self.turns, bool))
        read = self.recorded.read
        inside = read < self.turns
        landed = self.recorded.events["store"][inside] // 1000
        np.minimum.at(self._needs.landed, read[inside], np.maximum(landed, self._begin(read[inside])))
        stops = np.union1d(self.recorded.checked, self.recorded.delivered)
        while True:
            turn, segment = min(self.next_event(), self._forgets()), self.segment
            if len(segment.pending) or len(segment.scheduled):
                after = int(np.searchsorted(stops, self.turn, side="right"))
                turn = min(turn, int(stops[after]) if after < len(stops) else self.turns)
            if len(segment.pending):
                self._put_off(int(segment.pending["due"].min()), turn, self._deferred.checks)
            if segment.next_delivery is not None:
                self._put_off(segment.next_delivery, turn, self._deferred.deliveries)
            if turn >= self.turns:
                return AsRecorded(self._outcomes, self._needs, self._deferred)
            if self._coming and self._coming[0][0] == turn:
                answered = max(self._coming[0][2][4] // 1000, int(self._begin(np.array(turn))))
                self._needs.answer[turn] = min(self._needs.answer[turn], answered)
            check, deliver = _has(self.recorded.checked, turn), _has(self.recorded.delivered, turn)
            self.decide(self.rules.at(turn), check, deliver)
            pending, scheduled = self.segment.pending, self.segment.scheduled
            self._deferred.checks[turn] = not check and bool((pending["due"] <= self.now).any())
            self._deferred.deliveries[turn] = not deliver and bool((scheduled["due"] <= self.now).any())

    def _begin(self, turns: NDArray[Any]) -> NDArray[Any]:
        """The time after which a batch became possible: that of the batch before."""
        before: NDArray[Any] = np.where(turns > 0, self.timeline.times[np.maximum(turns - 1, 0)] + 1, 0)
        return before

    def _forgets(self) -> int:
        """The turn in which waiting ops expire, or the segment is forgotten."""
        segment = self.segment
        if segment is self._empty:
            return self.turns
        if len(segment.early):
            at = int(segment.early["since"].min()) + self.rules.rules_at(self.turn).reserved + 1
        elif len(segment.pending) or len(segment.scheduled):
            return self.turns
        else:
            at = segment.seen_until
        return self.rules.first_turn(at, self.turn)

    def _put_off(self, due: int, turn: int, deferred: NDArray[np.bool_]) -> None:
        """Something came due: note when, and the batches before ``turn``, the segment's next, that did not do it."""
        first = self.timeline.first_turn(due, self.turn)
        if first > turn or first >= self.turns:
            return
        needs = self._needs.due
        needs[first] = min(needs[first], max(due, int(self._begin(np.array(first)))))
        deferred[first:turn] = True
        again = np.arange(first + 1, min(turn + 1, self.turns))
        np.minimum.at(needs, again, self._begin(again))


class _Under(_Replay):
    """By other rules, with ticks."""

    def __init__(
        self,
        recorded: Recorded,
        base: int,
        size: int,
        timeline: Timeline,
        rules: Timeline,
        deferred: Deferred,
        cadence: Cadence,
    ) -> None:
        super().__init__(recorded, base, size, timeline, rules)
        self._deferred = deferred
        self._cadence = cadence

    def run(self) -> Records:
        while (step := self._next_step()) is not None and step.turn < NEVER:
            recorded = not step.tick
            check = not (recorded and self._deferred.checks[step.turn])
            self.decide(step, check, not (recorded and self._deferred.deliveries[step.turn]))
        self._go_on()
        return self._outcomes

    def _next_step(self) -> Step | None:
        """The next batch that has something to do in the segment; turn NEVER = after the recorded ones."""
        found = []
        if (turn := self.next_event()) < self.turns:
            found.append(self.rules.at(turn))
        rules = self.rules.rules_at(self.turn)
        wake = None if self.segment is self._empty else self.segment.wake_at(rules)
        if wake is not None:
            found.append(self._step(wake, self._cadence.due_lag, self._deferred.checks))
        if self.segment.next_delivery is not None:
            found.append(self._step(self.segment.next_delivery, self._cadence.due_lag, self._deferred.deliveries))
        if self._landing:
            found.append(self._step(self._landing[0][0], self._cadence.answer_lag))
        return min(found, key=lambda step: (step.turn, not step.tick, step.at), default=None)

    def _step(self, at: int, lag: int, deferred: NDArray[np.bool_] | None = None) -> Step:
        # What is overdue was put off to the next recorded batch.
        step = self.rules.step(at, self.turn, self._cadence if at > self.now else None, lag)
        if step.tick:
            return step._replace(at=max(step.at, self.now + 1))
        if deferred is None or not deferred[step.turn]:
            return step
        later = np.flatnonzero(~deferred[step.turn :])
        return self.rules.at(step.turn + int(later[0])) if len(later) else Step(NEVER, True, step.at + lag)

    def _go_on(self) -> None:
        """After the last recorded batch, for what the record has decided, until it is decided here."""
        ended = self.recorded.halves["offset"][self.recorded.outcomes["turn"] < NEVER]
        pending = self.segment.pending[np.isin(self.segment.pending["offset"], ended)]
        self.segment = replace(self.segment, pending=pending, scheduled=self._empty.scheduled)
        self.turn, self.now = self.turns, max(self.now, int(self.timeline.times.max()))
        for event in self._events[self._next :]:
            self._sent += 1
            heappush(self._landing, (int(event["store"]) // 1000, self._sent, tuple(event.tolist())))
        self._coming, self._next = [], len(self._events)
        for _ in range(_MOST_TICKS):
            if not len(self.segment.pending):
                return
            due = int(self.segment.pending["due"].min()) + self._cadence.due_lag
            landing = self._landing[0][0] + self._cadence.answer_lag if self._landing else NEVER
            self.decide(Step(NEVER, True, max(min(due, landing), self.now + 1)), True, True)


def _has(turns: NDArray[Any], turn: int) -> bool:
    at = int(np.searchsorted(turns, turn))
    return at < len(turns) and int(turns[at]) == turn
