"""Why a group is stuck, in a sentence: facts and words, side by side."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone

import pytest

from checkback.query.status.diagnosis import Group, Reconcile, clock, diagnose, is_stuck


def _ms(day: int, hour: int, minute: int) -> int:
    return round(datetime(2026, 11, day, hour, minute, 10, tzinfo=timezone.utc).timestamp() * 1000)


_NOW = _ms(21, 14, 15)
_AT = _ms(21, 14, 5)
_RUNS = Reconcile(_NOW - 3_000)
_SILENT = Group(endpoints=1, requested=True, outcomes=4, no_answer=1.0, silent_since=_AT, error="connection refused")
_UNKNOWN = Group(endpoints=1, requested=True, outcomes=4, unknown=1.0, undecided_since=_AT)

_SAID = {
    "dead": (_SILENT, "no endpoint answers: connection refused, since 14:05"),
    "dead since yesterday": (
        replace(_SILENT, silent_since=_ms(20, 23, 59)),
        "no endpoint answers: connection refused, since 2026-11-20 23:59",
    ),
    "dead, breaker open": (
        replace(_SILENT, held_back="not tried: 10 tries in a row failed"),
        "no endpoint answers: connection refused, since 14:05; breaker open",
    ),
    "another path": (
        replace(_SILENT, error="status 404", name="pay"),
        "the endpoint says status 404, since 14:05: is its path right (producers.pay.endpoints)?",
    ),
    "breaker open, and what was wrong is not known": (
        replace(_SILENT, error=None, held_back="not tried: 10 tries in a row failed"),
        "no endpoint answers: 10 tries in a row failed, since 14:05; breaker open",
    ),
    "dead, and some checks were skipped": (
        replace(_SILENT, no_answer=0.5, skipped=0.5),
        "no endpoint answers: connection refused, since 14:05",
    ),
    "UNKNOWN": (_UNKNOWN, "answers UNKNOWN, since 14:05"),
    "UNKNOWN, as the listener raised": (
        replace(_UNKNOWN, said="listener raised ValueError"),
        "answers UNKNOWN: listener raised ValueError, since 14:05",
    ),
    "no secret is set": (
        replace(_SILENT, error="status 401", name="pay", signed=False),
        (
            "the endpoint says status 401, since 14:05: "
            "the endpoint wants signed checks, and no secret is set (producers.pay.secret)"
        ),
    ),
    "no endpoint, as reconcile's settings say": (
        replace(_SILENT, any_endpoint=False, error="producers.pay has no endpoints"),
        "no endpoint is set for the group, since 14:05",
    ),
    "no endpoint in these settings, never asked": (Group(), "no endpoint is set for the group in these settings"),
    "never asked": (Group(endpoints=1), "checks are due: reconcile is behind"),
    "asked, nothing came": (
        Group(requested=True),
        "asked, no outcome yet: the check query is busy or does not run",
    ),
    "skipped": (
        Group(requested=True, outcomes=2, skipped=1.0, skipped_error="overtaken by check 3"),
        "checks are skipped: overtaken by check 3",
    ),
    "in part": (
        replace(_SILENT, outcomes=200, decided=0.25, unknown=0.249, no_answer=0.5, skipped=0.001),
        "answers in part: 25 % decided, 25 % UNKNOWN, 50 % no answer (connection refused), 1 % skipped",
    ),
    "answers": (Group(outcomes=2, decided=1.0), "answers: what is left waits for its next check"),
    "all have an op": (
        replace(_SILENT, overdue=0, op_waiting=2),
        "ops have landed, not yet read by reconcile: the next batch decides",
    ),
    "one of two has an op": (
        replace(_UNKNOWN, overdue=1, op_waiting=1),
        "answers UNKNOWN, since 14:05",
    ),
    "young": (Group(overdue=0, young=2), "young: no check is due yet"),
    "young, one with an op": (
        Group(overdue=0, young=1, op_waiting=1),
        "young: no check is due yet; the op of 1 has landed: the next batch decides",
    ),
}


@pytest.mark.parametrize("name", _SAID)
def test_sentence(name: str) -> None:
    group, sentence = _SAID[name]
    assert diagnose(group, _RUNS, _NOW) == sentence


def test_only_who_does_not_go_on_alone_is_stuck() -> None:
    """Then `checkback status` lists it, and it is red."""
    well = {name for name, (group, _) in _SAID.items() if not is_stuck(group, _RUNS, _NOW)}
    assert well == {"answers", "all have an op", "young", "young, one with an op"}
    landed = Group(overdue=0, op_waiting=1, due_since=_AT)
    assert is_stuck(landed, Reconcile(_AT), _NOW)
    assert is_stuck(landed, Reconcile(none_yet=True), _NOW)
    assert not is_stuck(Group(overdue=0), Reconcile(none_yet=True), _NOW)


def test_before_the_first_batch_nothing_is_behind() -> None:
    """What is pending waits for it, whatever else is wrong."""
    none = Reconcile(None, none_yet=True)
    for endpoints in (0, 1):
        waits = Group(endpoints=endpoints, due_since=_AT)
        assert diagnose(waits, none, _NOW) == "checks are due: no batch of reconcile has run yet"
    landed = Group(overdue=0, op_waiting=1, due_since=_AT)
    said = "ops have landed, not yet read by reconcile: no batch of reconcile has run yet"
    assert diagnose(landed, none, _NOW) == said
    assert diagnose(replace(_UNKNOWN, due_since=_AT), none, _NOW) == "answers UNKNOWN, since 14:05"


def test_scheduled_reconcile_stands_when_its_next_run_is_overdue() -> None:
    waits, landed = Group(endpoints=1, due_since=_AT), Group(overdue=0, op_waiting=1, due_since=_AT)
    between, late = Reconcile(_AT, next_run_by=_NOW), Reconcile(_AT, next_run_by=_NOW - 1)
    assert diagnose(waits, between, _NOW) == "checks are due: the next scheduled run asks"
    said = "ops have landed, not yet read by reconcile: the next scheduled run decides"
    assert diagnose(landed, between, _NOW) == said
    assert diagnose(landed, late, _NOW).startswith("reconcile does not run: last batch 14:05")
    assert "does not run" not in diagnose(landed, replace(late, last_batch=_NOW - 1), _NOW)


def test_reconcile_that_stands_comes_first() -> None:
    """And what was before is still said: it is what comes next. A batch a minute ago is not long ago."""
    stands, due = Reconcile(_AT), replace(_UNKNOWN, due_since=_AT - 1)
    assert diagnose(due, stands, _NOW) == (
        "reconcile does not run: last batch 14:05; before that: answers UNKNOWN, since 14:05"
    )
    assert diagnose(due, replace(stands, busy=True), _NOW) == (
        "a batch is under way since 14:05; before that: answers UNKNOWN, since 14:05"
    )
    assert diagnose(due, stands, _AT + 60_000) == "answers UNKNOWN, since 14:05"
    assert diagnose(due, Reconcile(None), _NOW) == "answers UNKNOWN, since 14:05"


def test_no_batch_while_nothing_is_due_is_no_standstill() -> None:
    assert diagnose(_UNKNOWN, Reconcile(_AT), _NOW) == "answers UNKNOWN, since 14:05"
    assert diagnose(replace(_UNKNOWN, due_since=_NOW - 60_000), Reconcile(_AT), _NOW) == "answers UNKNOWN, since 14:05"
    assert "does not run" in diagnose(replace(_UNKNOWN, due_since=_NOW - 60_001), Reconcile(_AT), _NOW)


def test_clock_says_the_day_when_it_is_another() -> None:
    assert clock(_AT, _NOW) == "14:05"
    assert clock(_ms(20, 14, 5), _NOW) == "2026-11-20 14:05"
