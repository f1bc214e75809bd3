"""Replays a segment by the rules that were in force: it must come to what happened. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from checkback.reconcile.records import Action, Reason
from checkback.reconcile.segment import decide
from checkback.reconcile.state_codec import AT_ONCE
from checkback.reconcile.timer_encoding import delivery_timer, due_timer, ops_timer
from checkback.what_if.reads import place
from checkback.what_if.records import NEVER, State
from checkback.what_if.replay import Replay
from checkback.what_if.restoration import NAMED, REJECTED, restored
from checkback.what_if.timeline import Needs

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from checkback.reconcile.records import Bits, Records
    from checkback.reconcile.segment import Rules
    from checkback.what_if.recorded import Recorded
    from checkback.what_if.timeline import Step, Timeline


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
    deliveries. Of a batch that died before its end counts what it has written, and a rebuild begins with what the
    tables held. All else is decided anew.
    """
    return _Recorded(recorded, base, size, timeline).run()


class _Recorded(Replay):
    """A batch visits the segment if it read or did something there."""

    def __init__(self, recorded: Recorded, base: int, size: int, timeline: Timeline) -> None:
        super().__init__(recorded, base, size, timeline, timeline, np.ones(len(recorded.events), bool))
        self._rejected: list[Records] = []

    def run(self) -> AsRecorded:
        self._needs = Needs.none(self.turns)
        self._deferred = Deferred(np.zeros(self.turns, bool), np.zeros(self.turns, bool))
        recorded = self.recorded
        for needs, mine in ((self._needs.landed, ~recorded.by_check), (self._needs.answer, recorded.by_check)):
            inside = mine & (recorded.read < self.turns)
            turns, landed = recorded.read[inside], recorded.events["store"][inside] // 1000
            np.minimum.at(needs, turns, np.maximum(landed, self._begin(turns)))
        breaks = np.union1d(self.timeline.rebuilt, self.timeline.broken_off)
        stops = np.union1d(recorded.checked, recorded.delivered)
        while True:
            segment = self.segment
            turn = min(self.next_event(), self._forgets(), self._after(breaks))
            if len(segment.pending) or len(segment.scheduled):
                turn = min(turn, self._after(stops))
            if len(segment.pending):
                self._put_off(int(segment.pending["due"].min()), turn, self._deferred.checks)
            if segment.next_delivery is not None:
                self._put_off(segment.next_delivery, turn, self._deferred.deliveries)
            if turn >= self.turns:
                return AsRecorded(self.outcomes, self._needs, self._deferred)
            self._visit(self.rules.at(turn))

    def _visit(self, step: Step) -> None:
        turn, rules = step.turn, self.rules.rules_at(step.turn)
        taken = self.taken(step)
        check, deliver = has(self.recorded.checked, turn), has(self.recorded.delivered, turn)
        if has(self.timeline.broken_off, turn):
            self._adopt(turn)
            _, actions = decide(self.segment, self.recorded.events[taken], step.at, rules, check, (), deliver)
            self._note_rejected(actions, broken_off=turn)
            self.done(step)
        elif has(self.timeline.rebuilt, turn):
            rejected = np.concatenate([np.empty(0, REJECTED), *self._rejected])
            self.segment = restored(self.recorded, self.base, self.size, turn, self.timeline, rejected) or self.empty
            taken = taken[~self.recorded.restored[taken]]
            # What was restored and is to be applied waits for the next batch, unless this one reads more.
            if len(taken) or check or deliver:
                self.decide(step, self.recorded.events[taken], rules, check, deliver)
            self.done(step)
        else:
            self.decide(step, self.recorded.events[taken], rules, check, deliver)
        pending, scheduled = self.segment.pending, self.segment.scheduled
        self._deferred.checks[turn] = not check and bool((pending["due"] <= self.now).any())
        self._deferred.deliveries[turn] = not deliver and bool((scheduled["due"] <= self.now).any())

    def _adopt(self, turn: int) -> None:
        """What a batch that died before its end has written."""
        recorded = self.recorded
        ended = recorded.outcomes["turn"] == turn
        for name in ("state", "source", "reason", "at", "turn"):
            self.outcomes[name][ended] = recorded.outcomes[name][ended]
        for name in ("cancelled", "delivered"):
            self.outcomes[name][recorded.outcomes[name] == turn] = turn
        self.outcomes["state"][recorded.outcomes["cancelled"] == turn] = State.CANCEL
        asked = recorded.requests["offset"][recorded.requests["turn"] == turn]
        np.add.at(self.outcomes["checks"], place(recorded.halves, asked)[0], 1)

    def asked(self, step: Step, actions: Records, at: NDArray[Any], checks: Bits, rules: Rules) -> None:  # noqa: ARG002
        """The batch has acted."""
        if len(self.timeline.rebuilt):
            self._note_rejected(actions)

    def _note_rejected(self, actions: Records, broken_off: int | None = None) -> None:
        """A rebuild does not restore them; those of a batch that has ``broken_off`` only if they had effect later."""
        mine = actions[np.isin(actions["action"], (Action.REJECT_OP, Action.LATE_OP))]
        if broken_off is not None and len(mine):
            at, known = place(self.recorded.halves, mine["offset"])
            cancels = mine["detail"] == Reason.NOT_SCHEDULED
            ended = np.where(cancels, *(self.recorded.outcomes[name][at] for name in ("cancelled", "turn")))
            mine = mine[~(known & (ended > broken_off) & (ended < NEVER))]
        found = np.empty(len(mine), REJECTED)
        for name in NAMED:
            found[name] = mine[name]
        found["unknown"] = mine["detail"] == Reason.UNKNOWN_STATE
        self._rejected.append(found)

    def _after(self, stops: NDArray[Any]) -> int:
        """The first of these turns that is yet to come."""
        at = int(np.searchsorted(stops, self.turn, side="right"))
        return int(stops[at]) if at < len(stops) else self.turns

    def _begin(self, turns: NDArray[Any]) -> NDArray[Any]:
        """The time after which a batch became possible: that of the batch before."""
        before: NDArray[Any] = np.where(turns > 0, self.timeline.times[np.maximum(turns - 1, 0)] + 1, 0)
        return before

    def _forgets(self) -> int:
        """The turn in which waiting ops expire or, restored, are applied; or the segment is forgotten."""
        segment = self.segment
        if segment is self.empty:
            return self.turns
        if len(segment.early) and segment.wake_at(self.rules.rules_at(self.turn)) == AT_ONCE:
            at, delivery = ops_timer(self.now + 1), segment.next_delivery
            if delivery is not None:  # its timer brings a visit, too, even if what was scheduled is cancelled then
                at = min(at, delivery_timer(max(delivery, self.now + 1)))
            return self.rules.first_turn(at, self.turn)
        if len(segment.early):
            at = int(segment.early["since"].min()) + self.rules.rules_at(self.turn).reserved + 1
        elif len(segment.pending) or len(segment.scheduled):
            return self.turns
        else:
            at = segment.seen_until
        turn = self.rules.first_turn(due_timer(max(at, self.now + 1)), self.turn)
        return self.turns if turn < self.turns and self.keeps(segment.early, turn) else turn

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


def has(turns: NDArray[Any], turn: int) -> bool:
    """Is the turn one of these, in order?"""
    at = int(np.searchsorted(turns, turn))
    return at < len(turns) and int(turns[at]) == turn
