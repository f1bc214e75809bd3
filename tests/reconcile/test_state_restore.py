"""A segment restored from the tables goes on as the one that was lost would have."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from checkback.reconcile.records.segment_records import EVENT, Action, Kind, Records
from checkback.reconcile.segment import Segment, decide
from checkback.reconcile.state.state_codec import decode, encode
from checkback.reconcile.state.state_restore import ROW, Known, restore
from reconcile.segments import RULES, SIZE, commit, events, half, message, op, rollback

DECISIONS = (Action.COMMIT, Action.ROLLBACK, Action.DISCARD)
#: all that a segment's batch says, but for late ops: what a rebuilt one knows of those it has judged from the tables
TOLD = (*DECISIONS, Action.CHECK, Action.REJECT_HALF, Action.REJECT_OP)
batches = st.lists(
    st.tuples(
        st.integers(1, 40),
        st.lists(
            st.builds(
                lambda make, *args, **more: make(*args, **more),
                st.sampled_from([half, half, commit, rollback]),
                st.integers(0, 3),
                st.integers(0, 60),
                group=st.sampled_from([1, 1, 1, 2]),
                tx=st.sampled_from([7, 7, 8]),
            ),
            max_size=4,
        ),
    ),
    max_size=12,
)


class Tables:
    """What a run leaves behind: half, op, decisions, check_requests, rejected."""

    def __init__(self) -> None:
        self.rows: list[tuple[Any, ...]] = []
        self.decided: dict[int, int] = {}
        self.checks: dict[int, tuple[int, int, int]] = {}
        self.rejected: set[tuple[int, ...]] = set()

    def add(self, landed: Records, actions: Records, now: int) -> None:
        self.rows += landed.tolist()
        for action in actions:
            offset = int(action["offset"])
            if action["action"] in DECISIONS:
                self.decided[offset] = now
            elif action["action"] == Action.CHECK:
                number, (_, asked, _) = int(action["check_times"]), self.checks.get(offset, (0, 0, 0))
                # Nobody says here that the last one was sent: it does not count.
                self.checks[offset] = (min(number, RULES.check_max - 1), asked + 1, now)
            elif action["action"] in (Action.REJECT_OP, Action.LATE_OP):
                self.rejected.add(_identity(action))

    def known(self) -> Records:
        rows = []
        for event in np.array(self.rows, EVENT):
            offset = int(event["offset"])
            is_op = event["kind"] != Kind.HALF
            if is_op and (offset in self.decided or _identity(event) in self.rejected):
                continue
            known = Known.OP if is_op else Known.DECIDED if offset in self.decided else Known.UNDECIDED
            times, asked, at = self.checks.get(offset, (0, 0, 0))
            at = self.decided.get(offset, at)
            rows.append((offset, known, *event.tolist()[1:], times, asked, at))
        return np.array(rows, ROW)


def _identity(row: Any) -> tuple[int, ...]:
    return tuple(int(row[name]) for name in ("offset", "group", "transaction"))


def landed(now: int, rows: list[tuple[Any, ...]]) -> Records:
    """The events of a batch, landed just before it, one after the other."""
    landed = events(*rows)
    landed["store"] = now * 1000 - len(landed) + np.arange(len(landed))
    return landed


def _waiting_anew(segment: Segment, now: int) -> Segment:
    """Ops that wait begin to do so with the rebuild: the one thing that a restored segment has otherwise."""
    early = segment.early.copy()
    early["since"] = now
    return replace(segment, early=early)


def told(actions: Records) -> list[tuple[Any, ...]]:
    return sorted(action.tolist() for action in actions if action["action"] in TOLD)


@given(before=batches, after=batches)
def test_restored_segment_decides_as_the_lost_one(
    before: list[tuple[int, list[tuple[Any, ...]]]], after: list[tuple[int, list[tuple[Any, ...]]]]
) -> None:
    segment, tables, now = Segment.empty(0, SIZE), Tables(), 0
    for later, rows in before:
        now += later
        batch = landed(now, rows)
        segment, actions = decide(segment, batch, now, RULES)
        tables.add(batch, actions, now)
    found = restore(0, SIZE, tables.known(), now, RULES) or Segment.empty(0, SIZE)
    restored, _ = decode(encode(found), 0, SIZE)
    segment = _waiting_anew(segment, now)
    for later, rows in [*after, (RULES.max_age // 2, []), (RULES.max_age, [])]:
        now += later
        batch = landed(now, rows)
        segment, expected = decide(segment, batch, now, RULES)
        restored, actions = decide(restored, batch, now, RULES)
        assert told(actions) == told(expected)


def rows_of(*known: tuple[Known, tuple[Any, ...]], checks: tuple[int, int] = (0, 0)) -> Records:
    """``checks``: how many, and when the last one was, or the decision."""
    times, at = checks
    return np.array([(event[0], what, *event[1:], times, times, at) for what, event in known], ROW)


def test_op_that_no_batch_has_dealt_with_is_applied_first() -> None:
    """Before a check that is due, and before a discard."""
    rows = rows_of((Known.UNDECIDED, half(3)), (Known.OP, commit(3)), checks=(RULES.check_max, 0))
    restored = restore(0, SIZE, rows, 500, RULES)
    assert restored is not None
    _, actions = decide(restored, events(), 500, RULES)
    assert actions["action"].tolist() == [Action.COMMIT]


def test_checks_go_on_where_they_were() -> None:
    """The number, and the interval from the last one."""
    restored = restore(0, SIZE, rows_of((Known.UNDECIDED, half(3)), checks=(2, 100)), 105, RULES)
    assert restored is not None
    assert restored.pending["check_times"].tolist() == [2]
    assert restored.pending["due"].tolist() == [100 + RULES.check_interval]


def test_segment_that_nothing_depends_on_is_left_out() -> None:
    """Decided, and longer ago than max_age."""
    rows = rows_of((Known.DECIDED, half(3)))
    assert restore(0, SIZE, rows, RULES.max_age - 1, RULES) is not None
    assert restore(0, SIZE, rows, RULES.max_age, RULES) is None
    assert restore(0, SIZE, rows[:0], 0, RULES) is None


def test_what_was_taken_long_after_it_landed_is_known_for_as_long() -> None:
    """Its decision says when at the latest; of what is pending it may have been just now."""
    decided = restore(0, SIZE, rows_of((Known.DECIDED, half(3)), checks=(0, 5000)), 5999, RULES)
    assert decided is not None
    assert decided.seen_until == 5000 + RULES.max_age
    pending = restore(0, SIZE, rows_of((Known.UNDECIDED, half(3))), 5000, RULES)
    assert pending is not None
    assert pending.seen_until == 5000 + RULES.max_age


def test_restored_op_waits_for_the_reserved_time() -> None:
    """However long ago it landed: an outage may have lain between, and its half message is still to come."""
    restored = restore(0, SIZE, rows_of((Known.OP, commit(3))), 5000, RULES)
    assert restored is not None
    _, actions = decide(restored, events(half(3, 5000)), 5000 + RULES.max_age, RULES)
    assert actions["action"].tolist() == [Action.COMMIT]


def test_half_landed_twice_alike_is_marked() -> None:
    """Publishing must choose one of two rows that agree in all that names them."""
    rows = rows_of((Known.UNDECIDED, half(3)), (Known.UNDECIDED, half(3)), (Known.UNDECIDED, half(5)))
    restored = restore(0, SIZE, rows, 1, RULES)
    assert restored is not None
    assert restored.pending["repeated"].tolist() == [1, 0]


def test_op_that_is_only_to_be_rejected_takes_nobodys_place() -> None:
    """One of an unknown state: the COMMIT of the same producer is applied."""
    rows = rows_of((Known.OP, op(3, Kind.UNKNOWN)), (Known.OP, commit(3, store=2)))
    restored = restore(0, SIZE, rows, RULES.max_age + 2, RULES)
    assert restored is not None
    _, actions = decide(restored, events(half(3)), RULES.max_age + 2, RULES)
    assert Action.COMMIT in actions["action"]


def test_message_without_a_transaction_is_committed_whatever_op_there_is() -> None:
    """Also before one without times, which another writer has appended."""
    rows = rows_of((Known.UNDECIDED, message(3)), (Known.OP, rollback(3, -5, store=-5)), (Known.OP, rollback(3)))
    restored = restore(0, SIZE, rows, 5, RULES)
    assert restored is not None
    _, actions = decide(restored, events(), 6, RULES)
    assert actions["action"].tolist()[0] == Action.COMMIT
    assert Action.ROLLBACK not in actions["action"]


def test_op_of_a_pending_half_is_applied_at_once() -> None:
    """Whatever the half message itself waits for."""
    restored = restore(0, SIZE, rows_of((Known.UNDECIDED, half(3, immunity=60)), (Known.OP, commit(3))), 5, RULES)
    assert restored is not None
    assert restored.wake_at(RULES) == 0
    waiting = restore(0, SIZE, rows_of((Known.OP, commit(3))), 5, RULES)
    assert waiting is not None
    assert (waiting.wake_at(RULES) or 0) > 5
