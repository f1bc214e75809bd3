"""Small records, replayed under other rules: ticks, assumed answers, who is saved and who is not. Times are seconds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from checkback.reconcile.records.segment_records import Kind, Reason, Source
from checkback.reconcile.segment import Rules
from checkback.what_if.comparison import Figures, compare
from checkback.what_if.recorded_segment import Recorded
from checkback.what_if.records import NEVER, RECORDED, Answered, Row, State
from checkback.what_if.replay import SegmentAnswers, replayed
from checkback.what_if.timeline import Cadence, Timeline

_RULES = Rules(timeout=6_000, check_interval=60_000, check_max=2, max_age=10**9)
_SIZE = 4
_NAMED = (1, 7, 0, -1)


def _half(born: int, offset: int = 0) -> tuple[Any, ...]:
    return (Row.HALF, offset, Kind.HALF, 0, born * 1000, born * 10**6, -1, *_NAMED, 0, 0, 0, 0)


def _op(kind: Kind, at: int, source: Source = Source.PRODUCER, number: int = -1, offset: int = 0) -> tuple[Any, ...]:
    return (Row.OP, offset, kind, source, at * 1000, at * 10**6, -1, *_NAMED[:-1], number, 0, 0, 0, 0)


def _check(number: int, turn: int, offset: int = 0) -> tuple[Any, ...]:
    return (Row.REQUEST, offset, 0, 0, 0, 0, -1, *_NAMED, number, 0, 0, turn)


def _answer(number: int, outcome: Answered, at: int, offset: int = 0, received: int = 1) -> tuple[Any, ...]:
    return (Row.ANSWER, offset, outcome, received, 0, 0, -1, *_NAMED, number, 0, at * 1000, 0)


def _decision(state: State, source: Source, checks: int, turn: int, reason: int = 0) -> tuple[Any, ...]:
    return (Row.DECISION, 0, state, source, 0, 0, -1, *_NAMED, checks, reason, 0, turn)


def _timeline(*times: int, rules: Rules = _RULES) -> Timeline:
    return Timeline(np.array(times) * 1000, (rules,), np.zeros(len(times), np.int64))


def _under(timeline: Timeline, *rows: tuple[Any, ...], **changes: Any) -> Any:
    """The outcome of the one transaction under the changed rules; by those in force it is as recorded."""
    recorded = Recorded.of(np.array(list(rows), RECORDED), timeline)
    cadence, answers = Cadence.of(timeline, recorded.needs), SegmentAnswers(recorded, timeline)
    first = replayed(recorded, answers, 0, _SIZE, timeline, cadence)
    same = ["state", "source", "reason", "checks", "turn"]
    assert first[same].tolist() == recorded.outcomes[same].tolist()
    (found,) = replayed(recorded, answers, 0, _SIZE, timeline.under(changes), cadence)
    return found


#: asked at 7 s, it does not know; asked at 67 s, it says COMMIT, which the batch at 69 s reads
_SLOW = (
    _half(0),
    _check(1, 1),
    _answer(1, Answered.UNKNOWN, 8),
    _check(2, 2),
    _answer(2, Answered.COMMIT, 68),
    _op(Kind.COMMIT, 68, Source.CHECK, 2),
    _decision(State.COMMIT, Source.CHECK, 2, 3),
)
_TIMES = _timeline(1, 7, 67, 69)


def test_later_check_is_made_by_a_tick_and_answered_as_the_nearest() -> None:
    """At 30 s plus the lag: nearer to the check at 7 s than to that at 67 s. The next one comes after the record."""
    found = _under(_TIMES, *_SLOW, timeout=30_000)
    assert (found["state"], found["checks"], found["assumed"]) == (State.COMMIT, 2, 2)
    assert found["turn"] == NEVER
    assert 91_000 < found["at"] < 96_000


def test_later_check_near_a_commit_brings_it() -> None:
    found = _under(_TIMES, *_SLOW, timeout=50_000)
    assert (found["state"], found["checks"], found["assumed"]) == (State.COMMIT, 1, 1)
    assert 51_000 < found["at"] <= 56_000


def test_nobody_is_checked_before_its_op_came() -> None:
    """With a longer timeout the op that came at 20 s is first."""
    rows = (
        *(_half(0), _op(Kind.ROLLBACK, 20), _check(1, 1), _answer(1, Answered.COMMIT, 8)),
        *(_op(Kind.COMMIT, 8, Source.CHECK, 1), _decision(State.COMMIT, Source.CHECK, 1, 2)),
    )
    found = _under(_timeline(1, 7, 9, 21), *rows, timeout=60_000)
    assert (found["state"], found["source"], found["turn"], found["checks"]) == (State.ROLLBACK, 0, 3, 0)


#: two checks that brought nothing, and a COMMIT that came too late
LATE = (
    *(_half(0), _check(1, 1), _answer(1, Answered.UNKNOWN, 8), _check(2, 2), _answer(2, Answered.UNKNOWN, 68)),
    *(_op(Kind.COUNTED, 68, Source.CHECK, 2), _op(Kind.COMMIT, 150)),
    _decision(State.DISCARD, Source.CHECKBACK, 2, 4, Reason.CHECK_MAX),
)
LATE_TIMES = _timeline(1, 7, 67, 69, 128, 151)


def test_one_more_check_saves_who_was_late() -> None:
    found = _under(LATE_TIMES, *LATE, check_max=3)
    assert (found["state"], found["source"], found["turn"]) == (State.COMMIT, Source.PRODUCER, 5)
    assert (found["checks"], found["assumed"]) == (3, 1)


def test_one_check_less_discards_earlier() -> None:
    found = _under(LATE_TIMES, *LATE, check_max=1)
    assert (found["state"], found["reason"], found["turn"], found["checks"]) == (State.DISCARD, Reason.CHECK_MAX, 2, 1)
    assert not found["assumed"]


def test_nothing_recorded_means_unknown_until_the_op_was_made() -> None:
    """Never asked in the record; asked before its op was made, it cannot know."""
    rows = _half(0), _op(Kind.COMMIT, 5), _decision(State.COMMIT, Source.PRODUCER, 0, 1)
    found = _under(_timeline(1, 6), *rows, timeout=1_000)
    assert (found["state"], found["turn"]) == (State.COMMIT, 1)
    assert found["checks"] == found["assumed"] <= 1


def test_no_tick_while_reconcile_stood_still() -> None:
    """Something was due at 6 s, and the next batch came at 600 s: none would have come at 30 s."""
    rows = (
        *(_half(0), _check(1, 1), _answer(1, Answered.ROLLBACK, 601), _op(Kind.ROLLBACK, 601, Source.CHECK, 1)),
        _decision(State.ROLLBACK, Source.CHECK, 1, 2),
    )
    found = _under(_timeline(1, 600, 602), *rows, timeout=30_000)
    assert (found["state"], found["turn"], found["checks"], found["assumed"]) == (State.ROLLBACK, 2, 1, 0)


#: two checks that reached nobody: of the second the op tells that it was sent
UNREACHED = (
    *(_half(0), _check(1, 1), _answer(1, Answered.NO_ANSWER, 8, received=0)),
    *(_check(2, 2), _answer(2, Answered.NO_ANSWER, 68, received=0), _op(Kind.COUNTED, 68, Source.CHECK, 2)),
    _decision(State.DISCARD, Source.CHECKBACK, 2, 4, Reason.CHECK_MAX),
)


def test_checks_that_reached_nobody_are_not_counted_as_received() -> None:
    """Rules 6 and 9: it is pending until it expires; what takes longer than the checks that count is not followed."""
    found = _under(LATE_TIMES, *UNREACHED, count_undelivered=False, max_age=200_000)
    assert (found["state"], found["reason"], found["turn"]) == (State.DISCARD, Reason.EXPIRED, NEVER)
    assert 200_000 < found["at"] < 400_000
    assert found["checks"] == found["assumed"] + 2 > 200_000 // 62_000
    found = _under(LATE_TIMES, *UNREACHED, count_undelivered=False)
    assert (found["state"], found["turn"], found["checks"], found["assumed"]) == (State.PENDING, NEVER, 3, 1)


def test_without_its_answer_the_op_tells_what_the_rule_in_force_made_it() -> None:
    """Of a check that was received, if checks count when received; else of one that was sent."""
    rows = tuple(row for row in UNREACHED if row[0] != Row.ANSWER)
    assert _under(LATE_TIMES, *rows, count_undelivered=False, max_age=200_000)["reason"] == Reason.EXPIRED
    received = _op(Kind.COUNTED, 8, Source.CHECK, 1)
    times = replace(LATE_TIMES, rules=(replace(_RULES, count_undelivered=False),))
    assert _under(times, *rows, received, check_interval=59_000)["reason"] == Reason.CHECK_MAX


@pytest.mark.parametrize("number", [-1, 7])
def test_verdict_of_no_recorded_check_comes_when_it_landed(number: int) -> None:
    """As of another writer than the check query: it names no check, or none that was requested."""
    rows = (
        *(_half(0), _check(1, 1), _op(Kind.COMMIT, 20, Source.CHECK, number)),
        _decision(State.COMMIT, Source.CHECK, 1, 2),
    )
    for changes in ({}, {"check_interval": 30_000}):
        found = _under(_timeline(1, 7, 21), *rows, **changes)
        assert (found["state"], found["turn"], found["checks"]) == (State.COMMIT, 2, 1)


def test_pending_in_the_record_is_replayed_to_its_end_only() -> None:
    rows = _half(0), _check(1, 1), _answer(1, Answered.UNKNOWN, 8)
    found = _under(_timeline(1, 7, 20), *rows, timeout=9_000)
    assert (found["state"], found["checks"], found["assumed"]) == (State.PENDING, 1, 1)


@pytest.mark.parametrize(("changes", "fates"), [({}, (0, 0, 0)), ({"check_max": 3}, (1, 0, 0))])
def test_figures_of_a_group(changes: dict[str, int], fates: tuple[int, int, int]) -> None:
    rows = np.array(list(LATE), RECORDED)
    needs = Recorded.of(rows, LATE_TIMES).needs
    changed, cadence = LATE_TIMES.under(changes), Cadence.of(LATE_TIMES, needs)
    compared = compare(rows, 0, _SIZE, LATE_TIMES, changed, cadence)
    (figures,) = compared.figures.values()
    assert (figures.saved, figures.lost, figures.otherwise) == fates
    assert figures.recorded.states == {"DISCARD": 1}
    assert figures.recorded.quantile(0.5) == figures.recorded.longest == 128_000
    assert len(compared.changes) == sum(fates)
    both = Figures()
    both.add(figures)
    both.add(figures)
    assert (both.recorded.transactions, both.saved) == (2, 2 * figures.saved)
