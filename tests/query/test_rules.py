"""Checks and discards are judged by the rules of their batches: changes, rebuilds, checks that do not count."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from checkback.query.answers import Answers
from checkback.settings import Settings
from checkback.storage.tables import Tables
from support.stories import BORN, Row, Transaction, batch, write

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@dataclass(frozen=True)
class _Batch:
    """A batch, ``after`` the birth of all half messages (seconds)."""

    application: str
    batch_id: int
    after: float
    rules: Mapping[str, Any]

    @property
    def time(self) -> datetime:
        return BORN + timedelta(seconds=self.after)


_SLOW: dict[str, Any] = {}
_FAST = {"timeout_ms": 2_000, "check_interval_ms": 10_000, "check_max": 5}
_MIXED = {"check_interval_ms": 10_000, "check_jitter_ms": 5_000}
_RECEIVED = {"check_interval_ms": 10_000, "count_undelivered": False}
_UNKNOWN = dict.fromkeys(
    ("timeout_ms", "check_interval_ms", "check_max", "max_age_ms", "check_jitter_ms", "count_undelivered", "committed")
)
#: by what they are for, (application, rules, times)
_PLAN: list[tuple[str, str, dict[str, Any], list[float]]] = [
    ("slow", "one", _SLOW, [0.1, 1, 5, 6, 7, 66, 67, 127]),
    ("fast", "one", _FAST, [200, 205, 210, 220, 230, 231, 240]),
    ("slow again", "one", _SLOW, [290, 350]),
    ("rebuilt", "two", _FAST, [360, 370, 371]),
    ("jitter", "two", _MIXED, [400, 409, 410, 430]),
    ("received", "three", _RECEIVED, [500, 510, 520, 530, 540, 550]),
    ("unknown", "three", _UNKNOWN, [600]),
]


def _batches() -> list[_Batch]:
    found: list[_Batch] = []
    for _, application, rules, times in _PLAN:
        for after in times:
            number = sum(one.application == application for one in found)
            found.append(_Batch(application, number, after, rules))
    return found


_BATCHES = _batches()
_AT = {one.after: one for one in _BATCHES}


def _check(t: Transaction, number: int, after: float) -> Row:
    name, row = t.check(number, timedelta(seconds=after))
    return name, row | {"batch_id": _AT[after].batch_id}


def _given_up(t: Transaction, after: float, number: int) -> list[Row]:
    of_batch = {"check_times": number, "batch_id": _AT[after].batch_id}
    return [
        t.decision("DISCARD", decided_at=_AT[after].time, **of_batch),
        t.discarded(discarded_at=_AT[after].time, **of_batch),
    ]


def _checks(t: Transaction, *times: float, first: int = 1, **half: Any) -> list[Row]:
    return [t.half(**half), *(_check(t, number, after) for number, after in enumerate(times, first))]


def _received(t: Transaction, number: int) -> Row:
    return t.op("COUNTED", source="check", remark=f"check {number}")


def _stories() -> dict[str, tuple[set[str], Any]]:
    """By name the findings, and the rows of a transaction."""
    return {
        "60 s apart, as it was": (set(), lambda t: _checks(t, 7, 67, 127)),
        "59 s apart, as it was": ({"check_too_close"}, lambda t: _checks(t, 7, 66)),
        "10 s apart after the change": (set(), lambda t: _checks(t, 7, 67, 127, 200, 210)),
        "5 s apart after the change": ({"check_too_close"}, lambda t: _checks(t, 200, 205)),
        "set to 10 s by the batch that asked, and 60 s now": (set(), lambda t: _checks(t, 231, 290)),
        "4 checks while 5 were allowed": (set(), lambda t: _checks(t, 200, 210, 220, 230)),
        "4 checks while 3 were allowed": ({"check_over_limit"}, lambda t: _checks(t, 200, 210, 220, 290)),
        "in the immunity of then": ({"check_too_early"}, lambda t: _checks(t, 6)),
        "in an immunity of 2 s, but that came later": ({"check_too_early"}, lambda t: _checks(t, 5)),
        "landed when 2 s were in force": (
            set(),
            lambda t: _checks(
                t,
                205,
                born_timestamp=BORN + timedelta(seconds=202),
                store_timestamp=BORN + timedelta(seconds=202),
            ),
        ),
        "given up when 3 were allowed": (set(), lambda t: [*_checks(t, 200, 210, 220), *_given_up(t, 290, 3)]),
        "given up when 5 were allowed": (
            {"discard_too_soon"},
            lambda t: [*_checks(t, 200, 210, 220), *_given_up(t, 230, 3)],
        ),
        "the rebuild set it to 10 s": (set(), lambda t: _checks(t, 350, 360)),
        "1 s later": ({"check_too_close"}, lambda t: _checks(t, 350, 370, 371)),
        "with jitter, which the audit leaves out": (set(), lambda t: _checks(t, 400, 410)),
        "before the interval without jitter": ({"check_too_close"}, lambda t: _checks(t, 400, 409)),
        "one number until it is received": (
            set(),
            lambda t: [
                t.half(),
                *(_check(t, 1, after) for after in (500, 510, 520)),
                _received(t, 1),
                _check(t, 2, 530),
            ],
        ),
        "one number twice, and both counted": (
            {"check_twice"},
            lambda t: [t.half(), _check(t, 1, 7), _check(t, 1, 67)],
        ),
        "committed, and no check received": (
            set(),
            lambda t: [
                *(t.half(), _check(t, 1, 500), t.op()),
                t.published(published_at=_AT[510].time, batch_id=_AT[510].batch_id),
                t.decision(decided_at=_AT[510].time, batch_id=_AT[510].batch_id, check_times=0),
            ],
        ),
        "given up after 3 that were received": (
            set(),
            lambda t: [
                *_checks(t, 500, 510, 520),
                *(_received(t, number) for number in (1, 2, 3)),
                *_given_up(t, 530, 3),
            ],
        ),
        "given up after 3 of which 2 were received": (
            {"discard_not_received"},
            lambda t: [*_checks(t, 500, 510, 520), _received(t, 1), _received(t, 2), *_given_up(t, 530, 3)],
        ),
        "rules not known": (set(), lambda t: [t.half(), _check(t, 1, 550), _check(t, 99, 600)]),
    }


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Tables with all stories, a transaction each."""
    root: Path = tmp_path_factory.mktemp("rules")
    found = Settings.model_validate({"storage": {"root": str(root)}, "reconcile": {"partitions": 2}})
    rows = [row for offset, (_, story) in enumerate(_stories().values()) for row in story(Transaction(0, offset))]
    rows += [
        batch(one.batch_id, one.time, one.application, **{**dict.fromkeys(_COUNTS), **one.rules}) for one in _BATCHES
    ]
    write(None, Tables.of(found.storage), rows)
    return found


#: what batches did is not told here: only their rules are
_COUNTS = ("committed", "rolled_back", "discarded", "scheduled", "checks", "rejected", "unpublished")


@pytest.fixture(scope="module")
def found(settings: Settings) -> dict[str, set[str]]:
    """The findings of each story."""
    names = list(_stories())
    told: dict[str, set[str]] = {name: set() for name in names}
    for row in Answers(settings).findings().to_pylist():
        told[names[row["queue_offset"]]].add(row["finding"])
    return told


@pytest.mark.parametrize("name", _stories())
def test_each_is_judged_by_the_rules_of_its_time(found: dict[str, set[str]], name: str) -> None:
    assert found[name] == _stories()[name][0]


def test_batches_whose_counts_are_not_known_are_not_judged_by_them(settings: Settings) -> None:
    figures = {each.finding.name: each.count for each in Answers(settings).audit().found}
    assert figures["batches"] == figures["batch_not_judged"] == len(_BATCHES)
    assert not {"batch_differs", "batch_without_row", "batch_gap", "batch_twice", "batch_clock_back"} & set(figures)
