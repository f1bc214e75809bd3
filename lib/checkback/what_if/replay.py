"""Replays one segment through `reconcile.segment.decide`, batch after batch, in virtual time.

Pure: no clock, no I/O. First by the rules that were in force (`as_recorded`), which must come to what happened, and
tells when batches were necessary and which of them deferred checks; then under other rules (`otherwise`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from checkback.reconcile.records import Action, Source
from checkback.reconcile.segment import Segment, decide
from checkback.what_if.reads import may_have_decided, place, same
from checkback.what_if.records import NEVER, OUTCOME, State

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from checkback.reconcile.records import Bits, Records
    from checkback.reconcile.segment import Rules
    from checkback.what_if.recorded import Recorded
    from checkback.what_if.timeline import Step, Timeline

_STATES = {
    Action.COMMIT: State.COMMIT,
    Action.SCHEDULE: State.COMMIT,
    Action.ROLLBACK: State.ROLLBACK,
    Action.DISCARD: State.DISCARD,
}


class Replay:
    """What both replays share: the segment, the recorded events, and what became of the transactions."""

    def __init__(
        self, recorded: Recorded, base: int, size: int, timeline: Timeline, rules: Timeline, events: Bits
    ) -> None:
        """``timeline``: with the rules in force; ``rules``: with those of the replay. ``events``: which of them."""
        self.recorded = recorded
        self.timeline = timeline
        self.rules = rules
        self.turns = len(timeline)
        self.base, self.size = base, size
        self.empty = Segment.empty(base, size)
        self.segment = self.empty
        order = np.flatnonzero(events)
        order = order[np.argsort(recorded.read[order], kind="stable")]
        self.order = order
        self.read = np.minimum(recorded.read[order], self.turns)
        self._next = 0
        self.outcomes = np.zeros(len(recorded.halves), OUTCOME)
        self.outcomes["offset"] = recorded.halves["offset"]
        for name in ("turn", "cancelled", "delivered"):
            self.outcomes[name] = NEVER
        self.turn, self.now = -1, -1

    def next_event(self) -> int:
        """The next turn that reads something recorded; ``turns`` = none."""
        return int(self.read[self._next]) if self._next < len(self.read) else self.turns

    def taken(self, step: Step) -> NDArray[Any]:
        """Which of the recorded events this batch reads."""
        begin = self._next
        if not step.tick:
            self._next = int(np.searchsorted(self.read, step.turn, side="right"))
        return self.order[begin : self._next]

    def skip_events(self) -> NDArray[Any]:
        """Those that no recorded batch has read."""
        begin, self._next = self._next, len(self.read)
        return self.order[begin:]

    def decide(self, step: Step, events: Records, rules: Rules, check: bool, deliver: bool) -> None:
        """One batch."""
        self.segment, actions = decide(self.segment, events, step.at, rules, check, (), deliver)
        if len(actions):
            self._note(step, actions, rules)
        if self.segment.forgettable(step.at):
            self.segment = self.empty
        self.done(step)

    def done(self, step: Step) -> None:
        """The batch has been."""
        self.now = step.at
        if not step.tick:
            self.turn = step.turn

    def _note(self, step: Step, actions: Records, rules: Rules) -> None:
        turn = NEVER if step.tick else step.turn
        at, known = place(self.recorded.halves, actions["offset"])
        out = self.outcomes
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
        np.add.at(out["checks"], at[checks], 1)
        self.asked(step, actions, at, checks, rules)

    def asked(self, step: Step, actions: Records, at: NDArray[Any], checks: Bits, rules: Rules) -> None:
        """The batch has acted; ``at``: by action its transaction, ``checks``: which actions are checks of one."""

    def keeps(self, early: Records, turn: int) -> bool:
        """Would a visit in that turn expire all ops that can have made a later decision: was it put off until then?"""
        recorded = self.recorded
        at, known = place(recorded.halves, early["offset"])
        if not known.any():
            return False
        expired = early["since"] < self.rules.at(turn).at - self.rules.rules_at(turn).reserved
        ends = recorded.outcomes["turn"]
        mine = known & same(recorded.halves, at, early) & (ends[at] > turn) & (ends[at] == recorded.halves["turn"][at])
        mine &= may_have_decided(early, recorded.outcomes[at])
        due = np.setdiff1d(at[mine & expired], at[mine & ~expired])
        if not len(due):
            return False
        at, known = place(recorded.halves, recorded.events["offset"])
        later = (
            known & (recorded.read > turn) & (recorded.read <= ends[at]) & same(recorded.halves, at, recorded.events)
        )
        later &= may_have_decided(recorded.events, recorded.outcomes[at])
        return bool(len(np.setdiff1d(due, at[later])))
