"""The protocol, rule by rule: each case is the batches of a segment and what each of them does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from checkback.reconcile.segment import ACTION, Action, Kind, Rules, Segment, Source, decide
from reconcile.segments import RULES, SIZE, Run, commit, events, half, op, rollback, undelivered

Batch = tuple[int, list[tuple[Any, ...]], list[tuple[Any, ...]]]

CASES: dict[str, list[Batch]] = {
    # rule 1
    "commit_decides": [(1, [half(0), commit(0)], [("COMMIT", 0, 0)])],
    "rollback_decides": [(1, [half(0), rollback(0)], [("ROLLBACK", 0, 0)])],
    "commit_in_a_later_batch": [(1, [half(0)], []), (2, [commit(0)], [("COMMIT", 0, 0)])],
    "first_batch_wins_over_earlier_store": [
        (1, [half(0), rollback(0, store=9)], [("ROLLBACK", 0, 0)]),
        (2, [commit(0, store=1)], [("LATE_OP", 0)]),
    ],
    "earlier_store_wins": [(1, [half(0), commit(0, 1, store=9), rollback(0, 9, store=8)], [("ROLLBACK", 0, 0)])],
    "same_store_earlier_birth_wins": [(1, [half(0), commit(0, 1), rollback(0, 2)], [("COMMIT", 0, 0)])],
    "exact_tie_rolls_back": [(1, [half(0), commit(0, 1), rollback(0, 1)], [("ROLLBACK", 0, 0)])],
    "repeated_commit_publishes_once": [(1, [half(0), commit(0), commit(0), commit(0)], [("COMMIT", 0, 0)])],
    "commit_after_rollback_changes_nothing": [
        (1, [half(0), rollback(0)], [("ROLLBACK", 0, 0)]),
        (2, [commit(0)], [("LATE_OP", 0)]),
        (5000, [], []),
    ],
    # rule 2
    "wrong_group_is_not_obeyed": [(1, [half(0), commit(0, group=2)], [("REJECT_OP", 0, "WRONG_GROUP")])],
    "wrong_id_is_not_obeyed": [(1, [half(0), commit(0, tx=8)], [("REJECT_OP", 0, "WRONG_TRANSACTION_ID")])],
    "right_op_after_wrong_one_is_obeyed": [
        (1, [half(0), commit(0, 1, group=2), rollback(0, 2)], [("REJECT_OP", 0, "WRONG_GROUP"), ("ROLLBACK", 0, 0)])
    ],
    "unstated_id_needs_the_group": [
        (
            1,
            [half(0), half(1), commit(0, tx=0), commit(1, tx=0, group=2)],
            [("COMMIT", 0, 0), ("REJECT_OP", 1, "WRONG_GROUP")],
        )
    ],
    "unknown_state_is_not_obeyed": [(1, [half(0), op(0, Kind.UNKNOWN)], [("REJECT_OP", 0, "UNKNOWN_STATE")])],
    # rule 3
    "op_waits_for_its_half": [(1, [commit(0)], []), (2, [half(0)], [("COMMIT", 0, 0)])],
    "first_of_the_waiting_ops_decides": [
        (1, [rollback(0, 9, store=9)], []),
        (2, [commit(0, 1, store=1)], []),
        (3, [half(0), commit(0)], [("ROLLBACK", 0, 0)]),
    ],
    "waiting_op_of_another_is_rejected_when_the_half_comes": [
        (1, [commit(0, tx=8)], []),
        (2, [half(0)], [("REJECT_OP", 0, "WRONG_TRANSACTION_ID")]),
    ],
    "op_without_half_is_given_up_after_reserved": [
        (1, [commit(0)], []),
        (1001, [], []),
        (1002, [], [("REJECT_OP", 0, "NO_HALF")]),
    ],
    "repeated_half_is_taken_once": [
        (1, [half(0), half(0)], [("REJECT_HALF", 0)]),
        (2, [half(0), commit(0)], [("COMMIT", 0, 0), ("REJECT_HALF", 0)]),
        (3, [half(0)], [("REJECT_HALF", 0)]),
    ],
    # rule 4
    "due_when_now_is_after_born_and_timeout": [(6, [half(0)], []), (7, [], [("CHECK", 0, 1)])],
    "own_immunity_instead_of_the_timeout": [(30, [half(0, immunity=30)], []), (31, [], [("CHECK", 0, 1)])],
    "immunity_zero_is_due_at_once": [(1, [half(0, immunity=0)], [("CHECK", 0, 1)])],
    "negative_immunity_is_none": [(6, [half(0, immunity=-5)], []), (7, [], [("CHECK", 0, 1)])],
    "birth_in_the_future_counts_as_the_landing": [(6, [half(0, 900, store=0)], []), (7, [], [("CHECK", 0, 1)])],
    "young_message_does_not_delay_an_old_one": [(20, [half(0, 19), half(1, 0)], [("CHECK", 1, 1)])],
    # rule 5
    "checks_are_an_interval_apart": [
        (7, [half(0)], [("CHECK", 0, 1)]),
        (16, [], []),
        (17, [], [("CHECK", 0, 2)]),
        (40, [], [("CHECK", 0, 3)]),
    ],
    "immunity_uses_up_no_checks": [(1, [half(0, immunity=500)], []), (300, [], []), (501, [], [("CHECK", 0, 1)])],
    "op_goes_before_the_check_of_its_batch": [(1, [half(0)], []), (100, [commit(0)], [("COMMIT", 0, 0)])],
    "no_check_after_the_decision": [
        (7, [half(0)], [("CHECK", 0, 1)]),
        (8, [commit(0)], [("COMMIT", 0, 1)]),
        (500, [], []),
    ],
    # rule 6
    "discarded_one_interval_after_the_last_check": [
        (7, [half(0)], [("CHECK", 0, 1)]),
        (17, [], [("CHECK", 0, 2)]),
        (27, [], [("CHECK", 0, 3)]),
        (36, [], []),
        (37, [], [("DISCARD", 0, "CHECK_MAX")]),
    ],
    "answer_to_the_last_check_counts": [
        (7, [half(0)], [("CHECK", 0, 1)]),
        (17, [], [("CHECK", 0, 2)]),
        (27, [], [("CHECK", 0, 3)]),
        (37, [commit(0, source=Source.CHECK)], [("COMMIT", 0, 3)]),
        (99, [], []),
    ],
    # rule 7
    "given_up_when_older_than_reserved": [
        (1, [half(0, immunity=5000)], []),
        (1000, [], []),
        (1001, [], [("DISCARD", 0, "EXPIRED")]),
        (1002, [commit(0)], [("LATE_OP", 0)]),
    ],
    "op_of_its_batch_saves_an_outdated_half": [(5000, [half(0), commit(0)], [("COMMIT", 0, 0)])],
    "check_max_goes_before_expired": [
        (7, [half(0)], [("CHECK", 0, 1)]),
        (17, [], [("CHECK", 0, 2)]),
        (27, [], [("CHECK", 0, 3)]),
        (2000, [], [("DISCARD", 0, "CHECK_MAX")]),
    ],
    "clock_set_back_checks_nothing_early": [
        (7, [half(0)], [("CHECK", 0, 1)]),
        (2, [], []),
        (17, [], [("CHECK", 0, 2)]),
    ],
    # rule 9
    "check_that_reached_nobody_is_not_counted": [
        (7, [half(0)], [("CHECK", 0, 1)]),
        (8, [undelivered(0, 1)], []),
        (16, [], []),
        (17, [], [("CHECK", 0, 1)]),
        (27, [], [("CHECK", 0, 2)]),
    ],
    "check_that_reached_nobody_is_no_reason_to_discard": [
        (7, [half(0)], [("CHECK", 0, 1)]),
        (17, [], [("CHECK", 0, 2)]),
        (27, [], [("CHECK", 0, 3)]),
        (37, [undelivered(0, 3)], [("CHECK", 0, 3)]),
        (47, [], [("DISCARD", 0, "CHECK_MAX")]),
    ],
    "checks_that_reach_nobody_end_with_reserved": [
        (7, [half(0)], [("CHECK", 0, 1)]),
        (17, [undelivered(0, 1)], [("CHECK", 0, 1)]),
        (1001, [undelivered(0, 1)], [("DISCARD", 0, "EXPIRED")]),
    ],
    "undelivered_twice_takes_one_check_back": [
        (7, [half(0)], [("CHECK", 0, 1)]),
        (17, [], [("CHECK", 0, 2)]),
        (18, [undelivered(0, 2), undelivered(0, 2)], []),
        (19, [undelivered(0, 2)], []),
        (27, [], [("CHECK", 0, 2)]),
    ],
    "undelivered_of_another_check_changes_nothing": [
        (7, [half(0)], [("CHECK", 0, 1)]),
        (17, [], [("CHECK", 0, 2)]),
        (18, [undelivered(0, 1), undelivered(0, 3), undelivered(0, -1)], []),
        (27, [], [("CHECK", 0, 3)]),
    ],
    "undelivered_of_another_transaction_changes_nothing": [
        (7, [half(0), half(1)], [("CHECK", 0, 1), ("CHECK", 1, 1)]),
        (8, [undelivered(0, 1, group=2), undelivered(0, 1, tx=8), undelivered(5, 1)], []),
        (17, [], [("CHECK", 0, 2), ("CHECK", 1, 2)]),
    ],
    "undelivered_before_the_first_check_changes_nothing": [
        (1, [half(0), undelivered(0, 0)], []),
        (7, [], [("CHECK", 0, 1)]),
    ],
    "undelivered_early_or_late_is_ignored": [
        (1, [undelivered(0, 1)], []),
        (7, [half(0), undelivered(0, 1)], [("CHECK", 0, 1)]),
        (8, [commit(0), undelivered(0, 1)], [("COMMIT", 0, 1)]),
        (9, [undelivered(0, 1)], []),
        (5000, [undelivered(0, 1)], []),
    ],
}


@pytest.mark.parametrize("name", CASES)
def test_segment(name: str) -> None:
    """Each batch does exactly what its line says."""
    run = Run()
    for now, rows, expected in CASES[name]:
        assert run.at(now, *rows) == sorted(expected), f"at {now}"


def test_decision_names_the_very_row_of_half() -> None:
    """Of two half messages with one offset the first landed is taken, and the decision carries its store time."""
    run = Run()
    _, actions = decide(run.segment, events(half(3, store=20, tx=8), half(3, store=10), commit(3)), 1, RULES)
    taken = actions[actions["action"] == Action.COMMIT]
    assert taken["store"].tolist() == [10_000]
    assert taken["repeated"].tolist() == [0]


def test_rows_that_cannot_be_told_apart_are_flagged() -> None:
    """Two rows of one commit with one offset: publishing must choose, so the decision says so."""
    _, actions = decide(Segment.empty(0, SIZE), events(half(3), half(3), commit(3)), 1, RULES)
    assert actions[actions["action"] == Action.COMMIT]["repeated"].tolist() == [1]


def test_decision_says_whose_op_it_was() -> None:
    """Detail of a COMMIT or ROLLBACK is the op's source."""
    _, actions = decide(
        Segment.empty(0, SIZE),
        events(half(0), half(1), commit(0, source=Source.CHECK), rollback(1, source=Source.OPERATOR)),
        1,
        RULES,
    )
    assert {int(row["offset"]): Source(row["detail"]) for row in actions} == {0: Source.CHECK, 1: Source.OPERATOR}


def test_wake_at_names_the_next_time_that_anything_happens() -> None:
    """Nothing is due before it, and something is at it."""
    run = Run()
    run.at(1, half(0), half(1, immunity=500), commit(9))
    while not run.segment.forgettable(10**6) and (len(run.segment.pending) or len(run.segment.early)):
        wake = run.segment.wake_at(RULES)
        assert run.at(wake - 1) == []
        assert run.at(wake) != []


def test_segment_is_forgotten_only_when_repeats_may_be() -> None:
    """The bits stay for the reserved time after the last half."""
    run = Run()
    run.at(1, half(0), commit(0))
    assert not run.segment.forgettable(1000)
    assert run.segment.forgettable(1001)


def test_undelivered_is_forgotten_with_its_batch() -> None:
    """It waits for nothing: a segment of which nothing is known stays so."""
    segment, actions = decide(Segment.empty(0, SIZE), events(undelivered(3, 1)), 1, RULES)
    assert segment.forgettable(1)
    assert len(actions) == 0


def test_jitter_spreads_what_came_due_together() -> None:
    """Sixteen first checks in one batch; the second ones over the whole jitter, each at the time of its own."""
    rules = replace(RULES, check_interval=1000, check_jitter=100, reserved=10**6)
    first: list[list[int]] = [[], []]
    for run in first:
        segment, _ = decide(Segment.empty(0, SIZE), events(*map(half, range(SIZE))), 500, rules)
        run.extend((segment.pending["due"] - 1500).tolist())
    assert first[0] == first[1]
    assert min(first[0]) >= 0
    assert max(first[0]) <= 100
    assert len(set(first[0])) > SIZE // 2
    segment, actions = decide(segment, events(), 1600, rules)
    assert set(actions["check_times"]) == {2}
    assert (segment.pending["due"] - 2600).tolist() != first[0]


def test_decide_leaves_its_input_alone() -> None:
    """A segment is a value."""
    first, _ = decide(Segment.empty(0, SIZE), events(half(0), half(1)), 1, Rules())
    before = (first.seen.copy(), first.pending.copy())
    decide(first, events(commit(0), half(2)), 10**9, Rules())
    assert np.array_equal(first.seen, before[0])
    assert np.array_equal(first.pending, before[1])


def test_no_events_and_nothing_due_does_nothing() -> None:
    """An empty step is empty."""
    _, actions = decide(Segment.empty(0, SIZE), events(), 1, RULES)
    assert len(actions) == 0
    assert actions.dtype == ACTION


def test_offsets_at_the_end_of_the_range() -> None:
    """The last offsets that a BIGINT holds are like any other."""
    base = (2**63 - 1) // SIZE * SIZE
    last = 2**63 - 1
    _, actions = decide(Segment.empty(base, SIZE), events(half(last), commit(last)), 1, RULES)
    assert actions["offset"].tolist() == [last]
