"""The protocol, rule by rule: each case is the batches of a segment and what each of them does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from checkback.reconcile.records.segment_records import ACTION, Action, Kind, Source
from checkback.reconcile.segment import WAITING_AT_OFFSET, WAITING_OF_GROUP, Rules, Segment, decide
from checkback.reconcile.state.packed_events import pack, parse_key, unpack
from checkback.reconcile.state.state_codec import decode, encode
from reconcile.segments import RULES, SIZE, Run, cancel, commit, delivered, events, half, message, op, read, rollback

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
    # rule 11
    "cancel_read_with_its_message_holds_it": [
        (9, [message(0, at=5), cancel(0)], [("SCHEDULE", 0, 0)]),
        (10, [], [("CANCEL", 0, 0)]),
    ],
    "cancel_waits_for_the_next_batch_although_its_segment_comes_again": [
        (9, [message(0, at=5), cancel(0)], [("SCHEDULE", 0, 0)]),
        (9, [], []),
        (10, [], [("CANCEL", 0, 0)]),
    ],
    "cancel_waits_for_its_message": [
        (1, [cancel(0), cancel(0, tx=8)], []),
        (2, [message(0, delay=7)], [("SCHEDULE", 0, 0)]),
        (3, [], [("CANCEL", 0, 0), ("REJECT_OP", 0, "WRONG_TRANSACTION_ID")]),
    ],
    "another_groups_cancel_holds_it_for_a_batch": [
        (9, [message(0, at=5), cancel(0, group=2)], [("SCHEDULE", 0, 0)]),
        (10, [], [("REJECT_OP", 0, "WRONG_GROUP"), ("DELIVER", 0, 0)]),
    ],
    "cancel_of_what_is_published_at_once_is_rejected": [
        (1, [message(0), cancel(0)], [("COMMIT", 0, 0)]),
        (2, [], [("REJECT_OP", 0, "NOT_SCHEDULED")]),
    ],
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
        (37, [commit(0, check=3)], [("COMMIT", 0, 3)]),
        (99, [], []),
    ],
    # rule 7
    "immunity_beyond_reserved_ends_there": [
        (1, [half(0, immunity=5000)], []),
        (1000, [], []),
        (1001, [], [("CHECK", 0, 1)]),
        (1011, [], [("CHECK", 0, 2)]),
    ],
    "old_birth_is_checked_before_it_is_given_up": [
        (5000, [half(0, 1, store=5000)], [("CHECK", 0, 1)]),
        (5002, [commit(0)], [("COMMIT", 0, 1)]),
    ],
    "what_landed_days_ago_has_all_its_checks": [
        (5000, [half(0)], [("CHECK", 0, 1)]),
        (5010, [], [("CHECK", 0, 2)]),
        (5020, [], [("CHECK", 0, 3)]),
        (5029, [], []),
        (5030, [], [("DISCARD", 0, "CHECK_MAX")]),
        (5031, [commit(0)], [("LATE_OP", 0)]),
    ],
    "clock_that_leaps_discards_nothing_unchecked": [
        (1, [half(0), half(1)], []),
        (7, [], [("CHECK", 0, 1), ("CHECK", 1, 1)]),
        (90000, [commit(0)], [("COMMIT", 0, 1), ("CHECK", 1, 2)]),
        (90005, [commit(1)], [("COMMIT", 1, 2)]),
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
    # rule 9 does not apply
    "every_check_counts": [
        (7, [half(0)], [("CHECK", 0, 1)]),
        (17, [], [("CHECK", 0, 2)]),
        (27, [delivered(0, 2)], [("CHECK", 0, 3)]),
        (37, [], [("DISCARD", 0, "CHECK_MAX")]),
    ],
}
#: rule 9: only checks that somebody received count
RECEIVED: dict[str, list[Batch]] = {
    "check_counts_once_it_is_received": [
        (7, [half(0)], [("CHECK", 0, 1)]),
        (8, [delivered(0, 1)], []),
        (16, [], []),
        (17, [], [("CHECK", 0, 2)]),
        (27, [delivered(0, 2)], [("CHECK", 0, 3)]),
        (28, [delivered(0, 3)], []),
        (36, [], []),
        (37, [], [("DISCARD", 0, "CHECK_MAX")]),
    ],
    "check_that_reached_nobody_has_its_number_again": [
        (7, [half(0)], [("CHECK", 0, 1)]),
        (17, [], [("CHECK", 0, 1)]),
        (27, [], [("CHECK", 0, 1)]),
        (37, [], [("CHECK", 0, 1)]),
        (47, [delivered(0, 1)], [("CHECK", 0, 2)]),
    ],
    "received_is_told_late": [
        (7, [half(0)], [("CHECK", 0, 1)]),
        (17, [], [("CHECK", 0, 1)]),
        (27, [], [("CHECK", 0, 1)]),
        (28, [delivered(0, 1)], []),
        (37, [], [("CHECK", 0, 2)]),
        (38, [delivered(0, 1)], []),
        (47, [], [("CHECK", 0, 2)]),
    ],
    "received_is_told_twice_and_in_any_order": [
        (7, [half(0)], [("CHECK", 0, 1)]),
        (17, [delivered(0, 1), delivered(0, 1)], [("CHECK", 0, 2)]),
        (18, [delivered(0, 2), delivered(0, 1)], []),
        (27, [delivered(0, 1)], [("CHECK", 0, 3)]),
    ],
    "answer_counts_that_came_with_the_last_check": [
        (7, [half(0)], [("CHECK", 0, 1)]),
        (17, [delivered(0, 1)], [("CHECK", 0, 2)]),
        (27, [delivered(0, 2)], [("CHECK", 0, 3)]),
        (37, [commit(0, check=3)], [("COMMIT", 0, 3)]),
    ],
    "a_number_that_was_never_asked_counts_nothing": [
        (7, [half(0)], [("CHECK", 0, 1)]),
        (8, [delivered(0, 3), delivered(0, -1), delivered(0, 0)], []),
        (17, [], [("CHECK", 0, 1)]),
    ],
    "received_by_another_changes_nothing": [
        (7, [half(0), half(1)], [("CHECK", 0, 1), ("CHECK", 1, 1)]),
        (8, [delivered(0, 1, group=2), delivered(0, 1, tx=8), delivered(5, 1)], []),
        (17, [], [("CHECK", 0, 1), ("CHECK", 1, 1)]),
    ],
    "received_early_or_late_is_ignored": [
        (1, [delivered(0, 1)], []),
        (7, [half(0), delivered(0, 1)], [("CHECK", 0, 1)]),
        (8, [commit(0), delivered(0, 1)], [("COMMIT", 0, 1)]),
        (9, [delivered(0, 1)], []),
        (5000, [delivered(0, 1)], []),
    ],
    "reserved_ends_what_nobody_receives_an_interval_after_a_last_check": [
        (7, [half(0)], [("CHECK", 0, 1)]),
        (500, [], [("CHECK", 0, 1)]),
        (1000, [], [("CHECK", 0, 1)]),
        (90000, [], [("CHECK", 0, 1)]),
        (90009, [], []),
        (90010, [], [("DISCARD", 0, "EXPIRED")]),
    ],
    "reserved_does_not_end_what_was_hardly_checked": [
        (7, [half(0)], [("CHECK", 0, 1)]),
        (90000, [], [("CHECK", 0, 1)]),
        (90010, [], [("CHECK", 0, 1)]),
        (90020, [], [("DISCARD", 0, "EXPIRED")]),
    ],
}


@pytest.mark.parametrize("name", CASES)
def test_segment(name: str) -> None:
    """Each batch does exactly what its line says."""
    run = Run(sends=True)
    for now, rows, expected in CASES[name]:
        assert run.at(now, *rows) == sorted(expected), f"at {now}"


@pytest.mark.parametrize("name", RECEIVED)
def test_segment_where_only_received_checks_count(name: str) -> None:
    run = Run(replace(RULES, count_undelivered=False))
    for now, rows, expected in RECEIVED[name]:
        assert run.at(now, *rows) == sorted(expected), f"at {now}"


def test_nothing_is_discarded_whose_last_check_was_sent_to_nobody() -> None:
    """It was skipped, because `check` lagged: it is requested again, with its number, until it is told of."""
    run = Run(replace(RULES, max_age=10**9))
    run.at(0, half(1))
    numbers = [number for now in range(10, 100, 10) for _, _, number in run.at(now)]
    assert numbers == [1, 2, *[3] * 7]
    assert run.at(100, delivered(1, 2)) == [("CHECK", 1, 3)]
    assert run.at(105, delivered(1, 3)) == []
    assert run.at(110) == [("DISCARD", 1, "CHECK_MAX")]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([], ("CHECK", 1)),
        ([delivered(1, 1)], ("DISCARD", 1)),
        ([commit(1)], ("COMMIT", 0)),
        ([commit(1, check=1)], ("COMMIT", 1)),
        ([delivered(1, 1), rollback(1)], ("ROLLBACK", 1)),
    ],
)
def test_a_decision_has_the_number_of_checks_that_count(rows: list[tuple[Any, ...]], expected: tuple[str, int]) -> None:
    """Never more than check_max, however often a check was requested again: `check` lagged, and skipped it."""
    rules, segment = replace(RULES, check_max=1), Segment.empty(0, SIZE)
    for now in (0, 10, 20, 30):
        segment, _ = decide(segment, events(*([half(1)] if now == 0 else [])), now, rules)
    segment, actions = decide(segment, events(*rows), 40, rules)
    assert [(Action(row["action"]).name, int(row["check_times"])) for row in actions] == [expected]


@pytest.mark.parametrize("lag", [40_000, 70_000, 500_000])
def test_nothing_is_discarded_whose_checks_nobody_received(lag: int) -> None:
    """However late the check query is. One check in four gets through, and is told of so long after the request."""
    rules = replace(Rules(), count_undelivered=False)
    told: list[tuple[int, int]] = []
    run, received, number, now = Run(rules), 0, 0, 0
    run.at(0, half(1))
    while len(run.segment.pending):
        now += 2_000
        due, told = [of for at, of in told if at <= now], [(at, of) for at, of in told if at > now]
        for _, _, times in run.at(now, *(delivered(1, of) for of in due)):
            number += 1
            if number % 4 == 0 and times != "CHECK_MAX":
                told.append((now + lag, times))
                received += 1
    assert received >= rules.check_max
    assert run.at(now) == []


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
        assert wake is not None
        assert run.at(wake - 1) == []
        assert run.at(wake) != []


def test_segment_is_forgotten_only_when_repeats_may_be() -> None:
    """The bits stay for max_age after the last half."""
    run = Run()
    run.at(1, half(0), commit(0))
    assert not run.segment.forgettable(1000)
    assert run.segment.forgettable(1001)


def test_what_became_of_a_check_waits_for_nothing() -> None:
    """A segment of which nothing is known stays so."""
    segment, actions = decide(Segment.empty(0, SIZE), events(delivered(3, 1)), 1, RULES)
    assert segment.forgettable(1)
    assert len(actions) == 0


def test_jitter_spreads_what_came_due_together() -> None:
    """Sixteen first checks in one batch; the second ones over the whole jitter, each at the time of its own."""
    rules = replace(RULES, check_interval=1000, check_jitter=100, max_age=10**6)
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


@pytest.mark.parametrize("size", [1, 13, SIZE])
@pytest.mark.parametrize("offset", [2**63 - 1, -1, -(2**63)])
def test_offsets_at_the_ends_of_the_range(offset: int, size: int) -> None:
    """The first and last offsets that a BIGINT holds are like any other, also where their segment begins before it."""
    ((key, block),) = pack(np.zeros(2, np.int32), events(half(offset), commit(offset)), size)
    _, base = parse_key(key, size)
    segment, actions = decide(Segment.empty(base, size), unpack([block]), 1, RULES)
    assert actions["offset"].tolist() == [offset]
    again, _ = decode(encode(segment), base, size)
    assert read(decide(again, unpack([block]), 2, RULES)[1]) == [("LATE_OP", offset), ("REJECT_HALF", offset)]


def test_ops_that_wait_at_one_offset_are_bounded_group_by_group() -> None:
    """A group's many take nobody else's place; what is too many is rejected, and the first ones stay."""
    floods = [commit(3, group=9, tx=100 + number) for number in range(1000)]
    run = Run()
    assert run.at(1, *floods) == [("REJECT_OP", 3, "TOO_MANY")] * (1000 - WAITING_OF_GROUP)
    assert run.at(2, *floods) == [("REJECT_OP", 3, "TOO_MANY")] * (1000 - WAITING_OF_GROUP)
    assert run.at(3, commit(3), commit(4, group=9)) == []
    assert run.segment.early["transaction"].tolist() == [*range(100, 100 + WAITING_OF_GROUP), 7, 7]
    assert ("COMMIT", 3, 0) in run.at(4, half(3))


def test_ops_that_wait_at_one_offset_are_bounded_in_all() -> None:
    """By 200 groups of one op each; those at other offsets are not concerned."""
    run = Run()
    found = run.at(1, *(commit(3, group=group) for group in range(200)), commit(4, group=500), rollback(5, group=7))
    assert found == [("REJECT_OP", 3, "TOO_MANY")] * (200 - WAITING_AT_OFFSET)
    assert len(run.segment.early) == WAITING_AT_OFFSET + 2


def test_crowded_groups_ops_do_not_begin_to_wait() -> None:
    """What its half message is there for is obeyed, and others' wait."""
    ops = events(half(0), commit(0), commit(1), commit(2, group=2))
    segment, actions = decide(Segment.empty(0, SIZE), ops, 1, RULES, crowded={1})
    assert read(actions) == [("COMMIT", 0, 0), ("REJECT_OP", 1, "TOO_MANY")]
    assert segment.early["offset"].tolist() == [2]
