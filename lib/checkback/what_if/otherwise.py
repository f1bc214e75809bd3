"""Replays a segment under other rules. Pure."""

from __future__ import annotations

from dataclasses import replace
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

import numpy as np

from checkback.reconcile.records import EVENT, Kind
from checkback.reconcile.segment import births, next_check
from checkback.what_if.answers import Answers
from checkback.what_if.reads import place
from checkback.what_if.records import NEVER, State
from checkback.what_if.replay import Replay
from checkback.what_if.restoration import counted
from checkback.what_if.timeline import Step

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from checkback.reconcile.records import Bits, Records
    from checkback.reconcile.segment import Rules
    from checkback.what_if.as_recorded import Deferred
    from checkback.what_if.recorded import Recorded
    from checkback.what_if.timeline import Cadence, Timeline

#: most ticks after the last recorded batch
_MOST_TICKS = 10_000


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


class _Under(Replay):
    """By other rules, with ticks, and with the answers that are on their way instead of the recorded ones."""

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
        super().__init__(recorded, base, size, timeline, rules, ~recorded.by_check)
        self._answers = Answers(recorded, timeline)
        self._deferred = deferred
        self._cadence = cadence
        self._coming: list[tuple[int, int, tuple[Any, ...]]] = []  # by turn
        self._landing: list[tuple[int, int, tuple[Any, ...]]] = []  # by time
        self._sent = 0
        self._last_check = np.zeros(len(recorded.halves), np.int64)
        self._number = np.zeros(len(recorded.halves), np.int64)
        self._received = np.zeros(len(recorded.halves), np.int64)

    def run(self) -> Records:
        while (step := self._next_step()) is not None and step.turn < NEVER:
            recorded = not step.tick
            check = not (recorded and self._deferred.checks[step.turn])
            self._visit(step, check, not (recorded and self._deferred.deliveries[step.turn]))
        checks = self.outcomes[["checks", "assumed"]].copy()
        self._go_on()
        pending = self.outcomes["state"] == State.PENDING  # of what does not end, only what there was until then counts
        for name in ("checks", "assumed"):
            self.outcomes[name][pending] = checks[name][pending]
        return self.outcomes

    def next_event(self) -> int:
        """The next turn that reads something recorded, or an answer; ``turns`` = none."""
        recorded = super().next_event()
        return min(recorded, self._coming[0][0]) if self._coming else recorded

    def _visit(self, step: Step, check: bool, deliver: bool) -> None:
        rules = self.rules.rules_at(min(step.turn, self.turns) - step.tick)
        if not step.tick and ((self.timeline.rebuilt > self.turn) & (self.timeline.rebuilt <= step.turn)).any():
            self._restore(rules)
        found = []
        while self._coming and not step.tick and self._coming[0][0] <= step.turn:
            found.append(heappop(self._coming)[2])
        while self._landing and self._landing[0][0] <= step.at:
            found.append(heappop(self._landing)[2])
        events = self.recorded.events[self.taken(step)]
        events = np.concatenate([events, np.array(found, EVENT)]) if found else events
        self._note_received(events)
        self.decide(step, events, rules, check, deliver)

    def _next_step(self) -> Step | None:
        """The next batch that has something to do in the segment; turn NEVER = after the recorded ones."""
        found = []
        if (turn := self.next_event()) < self.turns:
            found.append(self.rules.at(turn))
        rules = self.rules.rules_at(self.turn)
        wake = None if self.segment is self.empty else self.segment.wake_at(rules)
        if wake is not None:
            step, due = self._step(wake, self._cadence.due_lag, self._deferred.checks), self.segment.pending["due"]
            if step.turn >= self.turns or not self.keeps(self.segment.early, step.turn):
                found.append(step)
            elif len(due):
                found.append(self._step(int(due.min()), self._cadence.due_lag, self._deferred.checks))
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
        self.segment = replace(self.segment, pending=pending, scheduled=self.empty.scheduled)
        self.turn, self.now = self.turns, max(self.now, int(self.timeline.times.max()))
        for event in self.recorded.events[self.skip_events()]:
            self._sent += 1
            heappush(self._landing, (int(event["store"]) // 1000, self._sent, tuple(event.tolist())))
        self._coming = []
        for _ in range(_MOST_TICKS):
            if not len(self.segment.pending):
                return
            due = int(self.segment.pending["due"].min()) + self._cadence.due_lag
            landing = self._landing[0][0] + self._cadence.answer_lag if self._landing else NEVER
            self._visit(Step(NEVER, True, max(min(due, landing), self.now + 1)), True, True)

    def asked(self, step: Step, actions: Records, at: NDArray[Any], checks: Bits, rules: Rules) -> None:
        """The answers of the batch's checks are on their way."""
        turn = NEVER if step.tick else step.turn
        for where, number in zip(at[checks].tolist(), actions["check_times"][checks].tolist(), strict=True):
            self._ask(where, number, turn, step.at, rules)

    def _ask(self, at: int, number: int, turn: int, now: int, rules: Rules) -> None:
        found, assumed = self._answers.to(at, number, turn, now, rules)
        self.outcomes["assumed"][at] += assumed
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
        pending["born"], first = births(self.recorded.halves[at], rules)
        last = self._last_check[at]
        times = counted(self._number[at], pending["asked"], self._received[at], rules)
        pending["check_times"] = np.where(last > 0, times, 0)
        pending["due"] = np.where(last > 0, next_check(pending, last, rules), first)
        self.segment = replace(self.segment, pending=pending)
