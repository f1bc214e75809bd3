"""Replays a segment under other rules. Pure."""

from __future__ import annotations

from dataclasses import replace
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

import numpy as np

from checkback.reconcile.records.records import EVENT, Action
from checkback.what_if.answers import Answers
from checkback.what_if.estimated_reads import place
from checkback.what_if.records import NEVER, State
from checkback.what_if.replay import Replay
from checkback.what_if.restoration import Held
from checkback.what_if.silent_checks import silent_checks
from checkback.what_if.timeline import Step, has

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from checkback.reconcile.records.records import Bits, Records
    from checkback.reconcile.segment import Rules
    from checkback.what_if.answers import Answer
    from checkback.what_if.recorded_replay import Deferred
    from checkback.what_if.recorded_segment import Recorded
    from checkback.what_if.timeline import Cadence, Timeline

#: most ticks after the last recorded batch, for each transaction; those that are passed over do not count
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
        self._coming: list[tuple[int, int, Answer]] = []  # by turn
        self._landing: list[tuple[int, int, tuple[Any, ...]]] = []  # by time
        self._sent = 0
        self._last_check = np.zeros(len(recorded.halves), np.int64)
        self._number = np.zeros(len(recorded.halves), np.int64)
        self._deliver_at = np.zeros(len(recorded.halves), np.int64)
        self._brought: list[Records] = []

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
        taken = kept = self.taken(step)
        found: list[tuple[Any, ...]] = []
        restored: list[tuple[Any, ...]] = []
        rebuilt = not step.tick and has(self.timeline.rebuilt, step.turn)
        while self._coming and not step.tick and self._coming[0][0] <= step.turn:
            answer = heappop(self._coming)[2]
            (restored if rebuilt and answer.restored else found).append(answer.event)
        while self._landing and self._landing[0][0] <= step.at:
            found.append(heappop(self._landing)[2])
        brought = np.array(found, EVENT)
        if rebuilt:
            self._brought.append(np.array(restored, EVENT))
            events = np.concatenate([self.recorded.events[self.there(taken)], *self._brought])
            self.rebuild(step, events, self._held(), rules)
            kept = taken[~self.recorded.restored[taken]]
        events = self.recorded.events[kept]
        events = np.concatenate([events, brought]) if found else events
        if rebuilt and not len(events) and not self._is_due(step.at, check, deliver):
            self.done(step)  # what was restored and is to be applied waits for the next batch
        elif not step.tick and has(self.timeline.broken_off, step.turn):
            actions = self.break_off(step, events, rules, check, deliver)
            self._note(step, actions[self._written(actions["offset"], step.turn)], rules)
        else:
            self.decide(step, events, rules, check, deliver)
        if found and len(self.timeline.rebuilt):
            self._brought.append(brought)

    def _is_due(self, now: int, check: bool, deliver: bool) -> bool:
        pending, scheduled = self.segment.pending, self.segment.scheduled
        return bool((check and (pending["due"] <= now).any()) or (deliver and (scheduled["due"] <= now).any()))

    def _held(self) -> Held:
        """What this replay has written."""
        out = self.outcomes
        decided, cancelled = out["state"] != State.PENDING, out["state"] == State.CANCEL
        return Held(decided, cancelled, out["at"], self._deliver_at, out["checks"], self._number, self._last_check)

    def _written(self, offsets: NDArray[Any], turn: int) -> Bits:
        """Has the batch, which died before its end, written something of these transactions?"""
        recorded = self.recorded
        written = np.zeros(len(recorded.halves), bool)
        for name in ("turn", "cancelled", "delivered"):
            written |= recorded.outcomes[name] == turn
        asked = recorded.requests["offset"][recorded.requests["turn"] == turn]
        written[place(recorded.halves, asked)[0]] = True
        at, known = place(recorded.halves, offsets)
        found: Bits = known & written[at] if len(written) else known
        return found

    def _next_step(self) -> Step | None:
        """The next batch that has something to do in the segment; turn NEVER = after the recorded ones."""
        found = [self.rules.at(turn) for turn in (self.next_event(), self.next_break()) if turn < self.turns]
        segment, lag = self.segment, self._cadence.due_lag
        otherwise = self.rules.rules_at(self.turn).reserved != self.timeline.rules_at(self.turn).reserved
        if (step := self.forgets(self._cadence if otherwise else None, lag)) is not None:
            found.append(step)
        if len(segment.pending):
            found.append(self._step(int(segment.pending["due"].min()), lag, self._deferred.checks))
        if segment.next_delivery is not None:
            found.append(self._step(segment.next_delivery, lag, self._deferred.deliveries))
        if self._landing:
            found.append(self._step(self._landing[0][0], self._cadence.answer_lag))
        return min(found, key=lambda step: (step.turn, not step.tick, step.at), default=None)

    def _step(self, at: int, lag: int, deferred: NDArray[np.bool_] | None = None) -> Step:
        # What is overdue was put off to the next recorded batch; after one that died there is no other.
        idle = at > self.now and not has(self.timeline.broken_off, self.turn)
        step = self.rules.step(at, self.turn, self._cadence if idle else None, lag)
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
        silence = self._silences()
        for _ in range(_MOST_TICKS * len(self.segment.pending)):
            if not len(self.segment.pending):
                return
            self._pass_over(silence)
            due = int(self.segment.pending["due"].min()) + self._cadence.due_lag
            landing = self._landing[0][0] + self._cadence.answer_lag if self._landing else NEVER
            self._visit(Step(NEVER, True, max(min(due, landing), self.now + 1)), True, True)

    def _silences(self) -> NDArray[np.int64]:
        """By transaction until when its checks bring nothing, as Silence."""
        rules, last = self.rules.rules_at(self.turns), self.now
        found = [self._answers.silence(at, last, rules) for at in range(len(self.recorded.halves))]
        return np.array(found, np.int64).reshape(-1, 2)

    def _pass_over(self, silence: NDArray[np.int64]) -> None:
        """The checks that bring nothing, up to the next one that does, or anything else."""
        segment, lag, rules = self.segment, self._cadence.due_lag, self.rules.rules_at(self.turns)
        if len(segment.early):
            return
        at, _ = place(self.recorded.halves, segment.pending["offset"])
        landing = self._landing[0][0] if self._landing else NEVER
        checks = silent_checks(segment.pending, silence[at], self.now, lag, landing, rules)
        if not checks.any():
            return
        pending = segment.pending.copy()
        counts = checks * (rules.count_undelivered & (pending["check_times"] + 1 < rules.check_max))
        pending["due"] += checks * (rules.check_interval + lag)
        pending["asked"] += checks.astype(np.int32)
        pending["check_times"] += counts.astype(np.int32)
        self.segment = replace(segment, pending=pending)
        self.now = int((pending["due"] - rules.check_interval)[checks > 0].max())
        for name in ("checks", "assumed"):
            self.outcomes[name][at] += checks.astype(np.int32)

    def asked(self, step: Step, actions: Records, at: NDArray[Any], checks: Bits, rules: Rules) -> None:
        """The answers of the batch's checks are on their way; what it has scheduled is noted."""
        known = place(self.recorded.halves, actions["offset"])[1]
        ended = known & np.isin(actions["action"], (Action.CANCEL, Action.DELIVER))
        scheduled = known & (actions["action"] == Action.SCHEDULE)
        self._deliver_at[at[ended]], self._deliver_at[at[scheduled]] = 0, actions["due"][scheduled]
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
                heappush(self._coming, (min(answer.turn, self.turns), self._sent, answer))
            else:
                heappush(self._landing, (max(answer.landed, now + 1), self._sent, answer.event))
