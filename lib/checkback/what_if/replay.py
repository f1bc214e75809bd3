"""Replays one segment through `reconcile.segment.decide`, batch after batch, in virtual time: no clock, no I/O.

The answer of a check that was not asked for is that of the check of the same transaction that was asked for at the
nearest time. Without any: what the producer's own op says if it was made by then, else UNKNOWN.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

import numpy as np

from checkback.reconcile.records.segment_records import EVENT, Action, Kind, Source
from checkback.reconcile.segment import Segment, decide
from checkback.what_if.recorded_segment import place
from checkback.what_if.records import NEVER, OUTCOME, Answered, State
from checkback.what_if.timeline import Step

if TYPE_CHECKING:
    from collections.abc import Iterator

    from checkback.reconcile.records.segment_records import Records
    from checkback.reconcile.segment import Rules
    from checkback.what_if.recorded_segment import Recorded
    from checkback.what_if.timeline import Cadence, Timeline


@dataclass
class _Check:
    """A recorded check. turn, asked: of its batch, ms. verdict: of its op COMMIT or ROLLBACK, the kind and when (ms).

    outcome: when its op COUNTED landed, or would have (ms). delivered: an endpoint received it, by its answer; an op
    COUNTED tells so only where checks count when received (rule 9), else that it was sent. sent: not skipped.
    """

    turn: int
    asked: int
    verdict: tuple[int, int] | None = None
    outcome: int | None = None
    delivered: bool = False
    sent: bool = False


class SegmentAnswers:
    """The answers of one segment."""

    def __init__(self, recorded: Recorded, timeline: Timeline) -> None:
        """``timeline``: with the rules that were in force."""
        self._named = recorded.halves[["offset", "group", "transaction"]].tolist()
        self._checks: dict[int, list[_Check]] = defaultdict(list)
        numbered: dict[tuple[int, int], list[_Check]] = defaultdict(list)
        requests = recorded.requests
        for at, request in _placed(recorded, requests[np.argsort(requests["turn"], kind="stable")]):
            check = _Check(int(request["turn"]), int(timeline.times[request["turn"]]))
            self._checks[at].append(check)
            numbered[at, int(request["number"])].append(check)

        def asked(rows: Records, number: str, time: str) -> Iterator[tuple[_Check, Any]]:
            """Each row with the check that it is about: the last of its number asked for by then, else the first."""
            for at, row in _placed(recorded, rows[np.argsort(rows[time], kind="stable")]):
                if checks := numbered.get((at, int(row[number]))):
                    before = [check for check in checks if check.asked <= row[time]]
                    yield (before or checks[:1])[-1], row

        for check, answer in asked(recorded.answers, "number", "at"):
            if answer["kind"] != Answered.SKIPPED:
                check.sent = True
            check.delivered |= bool(answer["source"])
            check.outcome = int(answer["at"]) if check.outcome is None else check.outcome
        for check, op in asked(recorded.verdicts, "check", "born"):
            landed = int(op["store"]) // 1000
            check.sent = True
            if op["kind"] == Kind.COUNTED:
                check.outcome = landed
                check.delivered |= not timeline.rules_at(check.turn).count_undelivered
            elif op["kind"] in (Kind.COMMIT, Kind.ROLLBACK):
                check.delivered = True
                check.verdict = check.verdict or (int(op["kind"]), landed)
        self._own = _own_ops(recorded)

    def to(self, at: int, number: int, turn: int, now: int, rules: Rules) -> tuple[Any, bool]:
        """The op that check ``number`` of transaction ``at`` brings, an EVENT or None; and if it was never asked for.

        ``turn``: the batch that asks, NEVER = a tick; ``now``: its time. ``rules``: in force then.
        """
        mine = self._checks.get(at, [])
        check = next((check for check in mine if check.turn == turn), None)
        assumed = check is None
        if check is None:
            check = min((one for one in mine if one.sent), key=lambda one: abs(one.asked - now), default=None)
        if check is None:
            own = self._own.get(at)
            if own is not None and own[1] <= now:
                return self._op(at, own[0], -1, now), True
            return self._op(at, Kind.COUNTED, number, now) if _counts(number, True, True, rules) else None, True
        later = now - check.asked
        if check.verdict is not None:
            return self._op(at, check.verdict[0], -1, check.verdict[1] + later), assumed
        if _counts(number, check.sent, check.delivered, rules) and check.outcome is not None:
            return self._op(at, Kind.COUNTED, number, check.outcome + later), assumed
        return None, assumed

    def _op(self, at: int, kind: int, number: int, landed: int) -> tuple[Any, ...]:
        offset, group, transaction = self._named[at]
        return (offset, int(kind), int(Source.CHECK), landed, landed * 1000, -1, group, transaction, 0, number)


def _placed(recorded: Recorded, rows: Records) -> Iterator[tuple[int, Any]]:
    at, _ = place(recorded.halves, rows["offset"])
    return zip(at.tolist(), rows, strict=True)


def _counts(number: int, sent: bool, delivered: bool, rules: Rules) -> bool:
    """Is there an op COUNTED for a check that decides nothing? As `check.query.op_rows`."""
    return sent and number >= rules.check_max if rules.count_undelivered else delivered


def _own_ops(recorded: Recorded) -> dict[int, tuple[int, int]]:
    """By transaction the producer's first op: its kind, and when it was made (ms)."""
    events = recorded.events
    mine = events[(events["source"] == Source.PRODUCER) & np.isin(events["kind"], (Kind.COMMIT, Kind.ROLLBACK))]
    at, known = place(recorded.halves, mine["offset"])
    mine, at = mine[known], at[known]
    fits = mine["group"] == recorded.halves["group"][at] if len(mine) else np.zeros(0, bool)
    mine, at = mine[fits], at[fits]
    order = np.argsort(-mine["store"], kind="stable")
    return {int(at[row]): (int(mine["kind"][row]), int(mine["born"][row])) for row in order}


_STATES = {
    Action.COMMIT: State.COMMIT,
    Action.SCHEDULE: State.COMMIT,
    Action.ROLLBACK: State.ROLLBACK,
    Action.DISCARD: State.DISCARD,
    Action.CANCEL: State.CANCEL,
}


def replayed(
    recorded: Recorded, answers: SegmentAnswers, base: int, size: int, rules: Timeline, cadence: Cadence
) -> Records:
    """Replay a segment of ``size`` offsets from ``base`` by these ``rules``: OUTCOME records.

    After the last recorded batch it goes on for the transactions that are decided in the record. There are as many
    ticks as check_max + 2 checks of each transaction need at most.
    """
    return _Replay(recorded, answers, base, size, rules, cadence).run()


class _Replay:
    """With ticks, and with the answers that are on their way instead of the recorded ones."""

    def __init__(
        self, recorded: Recorded, answers: SegmentAnswers, base: int, size: int, rules: Timeline, cadence: Cadence
    ) -> None:
        self._recorded = recorded
        self._rules = rules
        self._turns = len(rules)
        self._cadence = cadence
        self._answers = answers
        self._segment = Segment.empty(base, size)
        order = np.argsort(recorded.read, kind="stable")
        self._events, self._read = recorded.events[order], np.minimum(recorded.read[order], self._turns)
        self._next = 0
        self._landing: list[tuple[int, int, tuple[Any, ...]]] = []  # by time
        self._sent = 0
        self._outcomes = np.zeros(len(recorded.halves), OUTCOME)
        self._outcomes["offset"], self._outcomes["turn"] = recorded.halves["offset"], NEVER
        self._turn, self._now = -1, -1
        self._ticks = (max(each.check_max for each in rules.rules) + 2) * len(recorded.halves)

    def run(self) -> Records:
        while (step := self._next_step()) is not None and step.turn < NEVER:
            self._visit(step)
        checks = self._outcomes[["checks", "assumed"]].copy()
        self._go_on()
        pending = self._outcomes["state"] == State.PENDING  # of what does not end, only those until then count
        for name in ("checks", "assumed"):
            self._outcomes[name][pending] = checks[name][pending]
        return self._outcomes

    def _next_step(self) -> Step | None:
        """The next batch that has something to do in the segment; turn NEVER = after the recorded ones."""
        found, segment = [], self._segment
        if self._next < len(self._read) and self._read[self._next] < self._turns:
            found.append(self._rules.at(int(self._read[self._next])))
        if len(segment.pending):
            found.append(self._step(int(segment.pending["due"].min()), check=True))
        if segment.next_delivery is not None:
            found.append(self._step(segment.next_delivery))
        if self._landing:
            found.append(self._step(self._landing[0][0]))
        return min(found, key=lambda step: (step.turn, not step.tick, step.at), default=None)

    def _step(self, at: int, *, check: bool = False) -> Step:
        step = self._rules.step(at, self._turn, self._cadence if self._ticks > 0 else None)
        if step.tick:
            return step._replace(at=max(step.at, self._now + 1))
        if not check or not self._recorded.deferred[step.turn]:
            return step
        later = np.flatnonzero(~self._recorded.deferred[step.turn :])
        return self._rules.at(step.turn + int(later[0])) if len(later) else Step(NEVER, True, at + self._cadence.lag)

    def _visit(self, step: Step) -> None:
        """One batch."""
        rules = self._rules.rules_at(min(step.turn, self._turns) - step.tick)
        begin = self._next
        if not step.tick:
            self._next = int(np.searchsorted(self._read, step.turn, side="right"))
        landed = []
        while self._landing and self._landing[0][0] <= step.at:
            landed.append(heappop(self._landing)[2])
        events = np.concatenate([self._events[begin : self._next], np.array(landed, EVENT)])
        check = step.tick or not self._recorded.deferred[step.turn]
        self._segment, actions = decide(self._segment, events, step.at, rules, check)
        if len(actions):
            self._note(step, actions, rules)
        self._now = step.at
        self._ticks -= step.tick
        if not step.tick:
            self._turn = step.turn

    def _note(self, step: Step, actions: Records, rules: Any) -> None:
        """What the batch has decided; the answers of its checks are on their way."""
        turn, out = NEVER if step.tick else step.turn, self._outcomes
        at, known = place(self._recorded.halves, actions["offset"])
        at, actions = at[known], actions[known]
        for kind in set(actions["action"].tolist()) & _STATES.keys():
            mine = actions["action"] == kind
            where = at[mine]
            out["state"][where] = _STATES[kind]
            if kind == Action.CANCEL:
                continue
            out["at"][where], out["turn"][where] = step.at, turn
            discard = kind == Action.DISCARD
            out["reason" if discard else "source"][where] = actions["detail"][mine]
            if discard:
                out["source"][where] = Source.CHECKBACK
        checks = actions["action"] == Action.CHECK
        for where, number in zip(at[checks].tolist(), actions["check_times"][checks].tolist(), strict=True):
            op, assumed = self._answers.to(where, number, turn, step.at, rules)
            out["checks"][where] += 1
            out["assumed"][where] += assumed
            if op is not None:
                self._lands(max(op[4] // 1000, step.at + 1), op)

    def _lands(self, at: int, event: tuple[Any, ...]) -> None:
        self._sent += 1
        heappush(self._landing, (at, self._sent, event))

    def _go_on(self) -> None:
        """After the last recorded batch, for what the record has decided."""
        ended = self._recorded.halves["offset"][self._recorded.outcomes["turn"] < NEVER]
        pending = self._segment.pending[np.isin(self._segment.pending["offset"], ended)]
        self._segment = replace(self._segment, pending=pending, scheduled=self._segment.scheduled[:0])
        self._now = max(self._now, int(self._rules.times.max()))
        for event in self._events[self._next :]:
            self._lands(int(event["store"]) // 1000, tuple(event.tolist()))
        while len(self._segment.pending) and self._ticks > 0:
            due = int(self._segment.pending["due"].min())
            landing = self._landing[0][0] if self._landing else NEVER
            self._visit(Step(NEVER, True, max(min(due, landing) + self._cadence.lag, self._now + 1)))
