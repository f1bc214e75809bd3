"""Replays one segment through `reconcile.segment.decide`, batch after batch, in virtual time.

Pure: no clock, no I/O. First by the rules that were in force (`recorded_replay`), which must come to what happened, and
tells when batches were necessary and which of them deferred checks; then under other rules (`changed_replay`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from checkback.reconcile.records.records import Action, Reason, Source
from checkback.reconcile.segment import Segment, decide
from checkback.reconcile.state.state_codec import AT_ONCE
from checkback.reconcile.state.timer_encoding import delivery_timer, due_timer, ops_timer
from checkback.what_if.estimated_reads import may_have_decided, place, same
from checkback.what_if.records import NEVER, OUTCOME, State
from checkback.what_if.restoration import NAMED, REJECTED, restored

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from checkback.reconcile.records.records import Bits, Records
    from checkback.reconcile.segment import Rules
    from checkback.what_if.recorded_segment import Recorded
    from checkback.what_if.restoration import Held
    from checkback.what_if.timeline import Cadence, Step, Timeline

_STATES = {
    Action.COMMIT: State.COMMIT,
    Action.SCHEDULE: State.COMMIT,
    Action.ROLLBACK: State.ROLLBACK,
    Action.DISCARD: State.DISCARD,
}
_REJECTS = (Action.REJECT_OP, Action.LATE_OP)


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
        self._breaks = np.union1d(timeline.rebuilt, timeline.broken_off)
        self._rejected: list[Records] = []

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

    def break_off(self, step: Step, events: Records, rules: Rules, check: bool, deliver: bool) -> Records:
        """A batch that dies before its end, so that the segment stays as it is: what it would have done."""
        _, actions = decide(self.segment, events, step.at, rules, check, (), deliver)
        rejects = np.isin(actions["action"], _REJECTS)
        self._note_rejected(actions[rejects], broken_off=step.turn)
        self.done(step)
        found: Records = actions[~rejects]
        return found

    def rebuild(self, step: Step, events: Records, held: Held, rules: Rules) -> None:
        """Restore the segment from the tables: from these ``events``, and what is ``held`` of them."""
        rejected = np.concatenate([np.empty(0, REJECTED), *self._rejected])
        found = restored(self.recorded, events, held, rejected, self.base, self.size, step.at, rules)
        self.segment = found or self.empty

    def there(self, taken: NDArray[Any]) -> NDArray[Any]:
        """The recorded events that a rebuild finds, of which its first batch has ``taken`` the last."""
        before = self.order[: self._next - len(taken)]
        found: NDArray[Any] = np.concatenate([before, taken[self.recorded.restored[taken]]])
        return found

    def done(self, step: Step) -> None:
        """The batch has been."""
        self.now = step.at
        if not step.tick:
            self.turn = step.turn

    def _note(self, step: Step, actions: Records, rules: Rules) -> None:
        if len(self.timeline.rebuilt):
            self._note_rejected(actions)
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

    def _note_rejected(self, actions: Records, broken_off: int | None = None) -> None:
        """A rebuild does not restore them; those of a batch that has ``broken_off`` only if they had effect later."""
        mine = actions[np.isin(actions["action"], _REJECTS)]
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

    def after(self, stops: NDArray[Any]) -> int:
        """The first of these turns that is yet to come; ``turns`` = none."""
        at = int(np.searchsorted(stops, self.turn, side="right"))
        return int(stops[at]) if at < len(stops) else self.turns

    def next_break(self) -> int:
        """The next turn in which the segment is lost: a batch that dies, or the first after a rebuild."""
        return self.after(self._breaks)

    def forgets(self, cadence: Cadence | None = None, lag: int = 0) -> Step | None:
        """The batch in which waiting ops expire or, restored, are applied; or the segment is forgotten.

        A tick only with a ``cadence``, after ``lag``.
        """
        segment = self.segment
        if segment is self.empty:
            return None
        if len(segment.early) and segment.wake_at(self.rules.rules_at(self.turn)) == AT_ONCE:
            at, delivery = ops_timer(self.now + 1), segment.next_delivery
            if delivery is not None:  # its timer brings a visit, too, even if what was scheduled is cancelled then
                at = min(at, delivery_timer(max(delivery, self.now + 1)))
            return self.rules.step(at, self.turn, None, lag)
        if len(segment.early):
            at = int(segment.early["since"].min()) + self.rules.rules_at(self.turn).reserved + 1
        elif len(segment.pending) or len(segment.scheduled):
            return None
        else:
            at = segment.seen_until
        step = self.rules.step(due_timer(max(at, self.now + 1)), self.turn, cadence, lag)
        return None if step.turn < self.turns and self.keeps(segment.early, step.turn) else step

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
