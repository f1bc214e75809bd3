"""Replays a segment by the rules that were in force: it must come to what happened. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from checkback.what_if.estimated_reads import place
from checkback.what_if.records import State
from checkback.what_if.replay import Replay
from checkback.what_if.restoration import Held
from checkback.what_if.timeline import Needs, has

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from checkback.reconcile.records.records import Records
    from checkback.what_if.recorded_segment import Recorded
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

    def run(self) -> AsRecorded:
        self._needs = Needs.none(self.turns)
        self._deferred = Deferred(np.zeros(self.turns, bool), np.zeros(self.turns, bool))
        recorded = self.recorded
        for needs, mine in ((self._needs.landed, ~recorded.by_check), (self._needs.answer, recorded.by_check)):
            inside = mine & (recorded.read < self.turns)
            turns, landed = recorded.read[inside], recorded.events["store"][inside] // 1000
            np.minimum.at(needs, turns, np.maximum(landed, self._begin(turns)))
        stops = np.union1d(recorded.checked, recorded.delivered)
        while True:
            segment = self.segment
            forgets = self.forgets()
            turn = min(self.next_event(), self.next_break(), forgets.turn if forgets is not None else self.turns)
            if len(segment.pending) or len(segment.scheduled):
                turn = min(turn, self.after(stops))
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
        rebuilt = has(self.timeline.rebuilt, turn)
        if rebuilt:
            held = Held.before(self.recorded, turn, self.timeline)
            self.rebuild(step, self.recorded.events[self.there(taken)], held, rules)
            taken = taken[~self.recorded.restored[taken]]
        if has(self.timeline.broken_off, turn):
            self._adopt(turn)
            self.break_off(step, self.recorded.events[taken], rules, check, deliver)
        elif rebuilt and not (len(taken) or check or deliver):
            self.done(step)  # what was restored and is to be applied waits for the next batch
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

    def _begin(self, turns: NDArray[Any]) -> NDArray[Any]:
        """The time after which a batch became possible: that of the batch before."""
        before: NDArray[Any] = np.where(turns > 0, self.timeline.times[np.maximum(turns - 1, 0)] + 1, 0)
        return before

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
