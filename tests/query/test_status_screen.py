"""What status says of given facts."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from io import StringIO
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from checkback.commands.status import _screen
from checkback.messages.durations import span
from checkback.query.engines.duckdb_engine import DuckDBEngine
from checkback.query.status.progress import Progress, RunSchedule
from checkback.query.status.screen import Line, as_json, check_rows, group_rows, lines
from checkback.query.status.status import (
    CommittedNotPublished,
    ConsumerFacts,
    ReconcileFacts,
    Status,
    TableFacts,
    read_status,
)
from checkback.query.undelivered_messages import UnpublishedTopic
from checkback.query.versions.view import View
from checkback.settings import Settings
from checkback.storage.checkpoints.checkpoint import Batch
from checkback.storage.log.commit_reader import Backlog
from checkback.storage.tables import Tables
from checkback.storage.timestamps import iso, time_of
from support.pending_columns import GROUP_COLUMNS
from support.stories import DECIDED, DONE, Transaction, batch, ms, write

if TYPE_CHECKING:
    from pathlib import Path

_NOW = round(datetime(2026, 11, 21, 14, 15, tzinfo=timezone.utc).timestamp() * 1000)
_YEAR = 31_536_000_000
_DONE = Batch(41, _NOW - 5_000)
_RUNS = (_NOW - 1_260_000, _NOW - 960_000)
_STUCK = dict.fromkeys(GROUP_COLUMNS) | {
    "producer_group": "pay",
    "pending": 3,
    "overdue": 2,
    "oldest_age_s": 620.0,
    "silent_since": time_of(_NOW - 600_000),
    "stuck": True,
    "why": "no endpoint answers",
}
_YOUNG = dict.fromkeys(GROUP_COLUMNS) | {
    "producer_group": "orders",
    "pending": 1,
    "overdue": 1,
    "why": "ops have landed",
    "stuck": None,
}
_LEDGER = TableFacts(
    groups=(_STUCK, _YOUNG),
    decisions=(("COMMIT", 2, 5), ("DISCARD", 0, 1)),
    discarded_today=7,
    checks=(("pay", "http://a/", "NO_ANSWER", 3), ("pay", "http://a/", "UNKNOWN", 1), ("none", None, "NO_ANSWER", 2)),
)
_STATUS = Status(
    now=_NOW,
    timeout=timedelta(seconds=6),
    max_age=timedelta(hours=72),
    reconcile=ReconcileFacts(
        "process 12 on host",
        Progress(_DONE, _DONE, _NOW - 3_500),
        {"half": Backlog(12, _NOW - 2_000), "op": Backlog(0, None)},
    ),
    facts=_LEDGER,
)


def _said(status: Status) -> dict[str, str]:
    return {line.name: line.text for line in lines(status)}


def test_lines() -> None:
    assert _said(_STATUS) == {
        "reconcile": "running: process 12 on host",
        "last batch": "41, 14:14:55, 5s ago, took 1.5 s",
        "watermarks": (
            "checked what was born before 14:14:49 (timeout), discarded before 2026-11-18 14:14:55 (max_age)"
        ),
        "lag": "half 12 rows, oldest 2s; op 0 rows",
        "pending": "4",
        "decisions": (
            "last minute: COMMIT 2, ROLLBACK 0, DISCARD 0, CANCEL 0; "
            "last 5 minutes: COMMIT 5, ROLLBACK 0, DISCARD 1, CANCEL 0; discarded today: 7"
        ),
    }
    assert {line.name for line in lines(_STATUS) if line.bad} == {"decisions"}, "of a discard within 5 minutes"
    earlier = replace(_LEDGER, decisions=(("COMMIT", 2, 5), ("DISCARD", 0, 0)))
    assert not any(line.bad for line in lines(replace(_STATUS, facts=earlier)))


@pytest.mark.parametrize(
    ("reconcile", "line"),
    [
        (ReconcileFacts(None), Line("reconcile", "not known here: its lock is on another machine")),
        (ReconcileFacts(""), Line("reconcile", "not running: nobody holds its lock", bad=True)),
        (
            ReconcileFacts(
                "", Progress(_DONE, _DONE, schedule=RunSchedule((_NOW - 1_260_000, _NOW - 960_000, _NOW - 300_000)))
            ),
            Line("reconcile", "scheduled, every 11m: last run 14:10:00, 5m ago"),
        ),
        (
            ReconcileFacts("", Progress(_DONE, _DONE, schedule=RunSchedule((_NOW - 900_000, _NOW - 600_000)))),
            Line("reconcile", "scheduled, every 5m: last run 14:05:00, 10m ago; overdue since 14:13:30", bad=True),
        ),
        (
            ReconcileFacts("", Progress(_DONE, _DONE, schedule=RunSchedule((_NOW, _NOW - 3_600_000)))),
            Line("reconcile", "scheduled: last run 13:15:00, 1h ago"),
        ),
        *(
            (
                ReconcileFacts(
                    "", Progress(_DONE, _DONE, schedule=RunSchedule((_NOW - 900_000, *wrong, _NOW - 600_000)))
                ),
                Line("reconcile", "scheduled, every 5m: last run 14:05:00, 10m ago; overdue since 14:13:30", bad=True),
            )
            for wrong in ((_NOW + _YEAR, _NOW + _YEAR + 300_000), (_NOW - _YEAR, _NOW - _YEAR + 300_000))
        ),
        (
            ReconcileFacts("", Progress(_DONE, _DONE, schedule=RunSchedule((_NOW - 3_600_001,)))),
            Line("reconcile", "scheduled: last run 13:14:59, 1h ago; overdue since 14:14:59", bad=True),
        ),
        (
            ReconcileFacts("process 12 on host", Progress(_DONE, _DONE, schedule=RunSchedule((_NOW - 7_200_000,)))),
            Line("reconcile", "running: process 12 on host"),
        ),
        (ReconcileFacts("", Progress()), Line("last batch", "none yet: no checkpoint", bad=True)),
        (ReconcileFacts("a", Progress(_DONE)), Line("last batch", "none is done yet; 41 is under way for 5s")),
        (
            ReconcileFacts(None, Progress(Batch(42, _NOW - 200_000), _DONE)),
            Line("last batch", "41, 14:14:55, 5s ago; 42 is under way for 3m 20s"),
        ),
        (
            ReconcileFacts("", Progress(Batch(42, _NOW - 200_000), _DONE)),
            Line("last batch", "41, 14:14:55, 5s ago; 42 was interrupted: the next start takes it up"),
        ),
    ],
)
def test_line_of_reconcile(reconcile: ReconcileFacts, line: Line) -> None:
    assert line in lines(replace(_STATUS, reconcile=reconcile))


def test_before_spark_has_started_the_tables_are_left_out() -> None:
    early = replace(_STATUS, facts=None)
    assert set(_said(early)) == {"reconcile", "last batch", "watermarks", "lag"}
    told = as_json(early)
    assert (told["groups"], told["checks"], told["pending"], told["decisions"]) == (None, None, None, None)


def test_what_waits_for_its_topics_table_has_a_line_each() -> None:
    """With the reason; a name that somebody has landed otherwise does nothing to the terminal."""
    waiting = (
        UnpublishedTopic("orders", 12, _NOW - 300_000, "no such column"),
        UnpublishedTopic("a\x1b[2J", 1, _NOW, "no name"),
    )
    status = replace(_STATUS, facts=replace(_LEDGER, unpublished=waiting))
    retried = "tried again within 1m, at once when reconcile starts"
    assert [line for line in lines(status) if line.name == "unpublished"] == [
        Line("unpublished", f"12 for orders, since 14:10:00, 5m ago: no such column; {retried}", bad=True),
        Line("unpublished", "1 for a?[2J, since 14:15:00, 0s ago: no name", bad=True),
    ]
    told = json.loads(json.dumps(as_json(status)))["unpublished"]
    assert told[0] == {
        "topic": "orders",
        "messages": 12,
        "since": "2026-11-21T14:10:00.000Z",
        "reason": "no such column",
    }


def test_commits_that_came_after_another_decision_are_told_first(tmp_path: Path) -> None:
    """Only of the half message's own names, and neither an operator's nor one that ended a scheduled message."""
    settings = Settings.model_validate({"storage": {"root": str(tmp_path)}})
    discarded, rolled_back, cancelled, resumed, well, others, operators = map(Transaction, range(7))
    later: dict[str, Any] = {"store_timestamp": DECIDED + timedelta(seconds=1)}
    scheduled = cancelled.decision(deliver_at=DONE)
    rows = [
        *discarded.given_up(),
        discarded.op(source="check", **later),
        *rolled_back.rolled_back(),
        rolled_back.op(**later, transaction_id=None),
        rolled_back.op(store_timestamp=DECIDED + timedelta(seconds=2)),
        *[cancelled.half(), cancelled.op(), scheduled, cancelled.decision("CANCEL")],
        *resumed.given_up(),
        resumed.op(**later),
        ("operations", resumed.key | {"action": "RESUME", "at": DONE}),
        *well.committed(),
        well.op("ROLLBACK", **later),
        *others.given_up(),
        others.op(producer_group="stock", **later),
        others.op(transaction_id="another", **later),
        *operators.given_up(),
        operators.op(source="operator", **later),
        batch(0, DECIDED),
    ]
    tables = Tables.of(settings.storage)
    write(None, tables, rows)

    def status(now: datetime) -> Status:
        with DuckDBEngine(tables) as reconcile:
            return read_status(settings, now, View.on(reconcile))

    found = status(DONE)
    first = lines(found)[0]
    assert (first.name, first.bad) == ("committed, not published", True)
    assert first.text.startswith("2 in the last day, decided before their COMMIT came: tx-0-0 (DISCARD), tx-1-0 (ROLL")
    told = json.loads(json.dumps(as_json(found)))["committed_not_published"]
    assert told["number"] == 2
    assert told["transactions"][1] == rolled_back.key | {
        "state": "ROLLBACK",
        "committed_at": iso(ms(later["store_timestamp"])),
    }
    assert "committed, not published" not in _said(status(DONE + timedelta(days=2)))


def test_name_longer_than_its_column_is_apart_from_the_text() -> None:
    out = Console(file=StringIO(), width=200)
    out.print(_screen(replace(_STATUS, facts=replace(_LEDGER, lost=CommittedNotPublished(1)))))
    assert isinstance(out.file, StringIO)
    told = out.file.getvalue().splitlines()
    assert told[0].startswith("committed, not published 1 in the last day")
    assert any(line.startswith("reconcile   ") for line in told)


def test_each_consumer_group_has_a_line_and_one_that_nobody_consumes_is_marked() -> None:
    groups = (ConsumerFacts("credits", 2, 12, 200.5, 1, 3), ConsumerFacts("mail", 0, 0, 0, 0, 0))
    killed = (
        ConsumerFacts("killed", 0, 7, 60, 0, 0, None, 1, 3_600),
        ConsumerFacts("idle", 0, 0, 0, 0, 0, None, 1, 3_600),
    )
    status = replace(_STATUS, consumers=(*groups, ConsumerFacts("old", 0, 7, 60, 0, 0), *killed))
    assert [line for line in lines(status) if line.name == "consumers"] == [
        Line("consumers", "credits: members 2, lag 12, 3m 20s behind, retries 1, given up 3 times"),
        Line("consumers", "mail: members 0, lag 0, retries 0, given up 0 times"),
        Line("consumers", "old: members 0, lag 7, 1m behind, retries 0, given up 0 times", bad=True),
        Line(
            "consumers",
            "killed: members 0 (1 not heard of for 1h), lag 7, 1m behind, retries 0, given up 0 times",
            bad=True,
        ),
        Line("consumers", "idle: members 0 (1 not heard of for 1h), lag 0, retries 0, given up 0 times"),
    ]
    new = replace(status, facts=replace(_LEDGER, dead_letters={"credits": 2}))
    assert next(line for line in lines(new) if line.name == "consumers") == Line(
        "consumers",
        "credits: members 2, lag 12, 3m 20s behind, retries 1, given up 3 times, new dead letters 2",
        bad=True,
    )
    assert [each["new_dead_letters"] for each in as_json(new)["consumers"]] == [2, 0, 0, 0, 0]
    assert as_json(status)["consumers"][0] == {
        "group": "credits",
        "members": 2,
        "lag_messages": 12,
        "lag_s": 200.5,
        "retries": 1,
        "dead_letters": 3,
        "damaged": None,
        "silent": 0,
        "heard_s": 0.0,
        "unsubscribed": (),
        "held_queues": 0,
        "held_s": None,
        "missing": (),
        "new_dead_letters": 0,
    }
    assert as_json(_STATUS)["consumers"] is None


@pytest.mark.parametrize(("queues", "for_s", "told"), [(1, 59.0, "1 queue"), (2, 60.0, "2 queues")])
def test_consumer_group_whose_queues_are_held_up_for_long_is_marked(queues: int, for_s: float, told: str) -> None:
    held = ConsumerFacts("credits", 2, 12, 200.5, 1, 0, held_queues=queues, held_s=for_s)
    line = next(line for line in lines(replace(_STATUS, consumers=(held,))) if line.name == "consumers")
    assert line.text.endswith(f", {told} blocked by a failing message for {span(for_s)}")
    assert line.bad == (for_s >= 60)


def test_tables() -> None:
    """Who is stuck is marked; the outcomes of an endpoint are in one row."""
    assert group_rows(_LEDGER) == [
        (("pay", "3", "2", "10m 20s", "no endpoint answers"), True),
        (("orders", "1", "1", "-", "ops have landed"), False),
    ]
    assert check_rows(_LEDGER) == [("pay", "http://a/", "NO_ANSWER 3, UNKNOWN 1"), ("none", "-", "NO_ANSWER 2")]


def test_scheduled_messages_and_whether_they_are_overdue() -> None:
    def line(messages: int, due: int | None) -> list[Line]:
        status = replace(_STATUS, facts=replace(_LEDGER, scheduled=(messages, due)))
        return [each for each in lines(status) if each.name == "scheduled"]

    assert line(0, None) == []
    assert line(3, _NOW + 90_000) == [Line("scheduled", "3; the next in 1m 30s")]
    assert line(3, _NOW - 30_000) == [Line("scheduled", "3; overdue by 30s")]
    assert line(3, _NOW - 90_000) == [Line("scheduled", "3; overdue by 1m 30s", bad=True)]
    facts = replace(_LEDGER, scheduled=(3, _NOW + 90_000))
    assert as_json(replace(_STATUS, facts=facts))["scheduled"] == {
        "messages": 3,
        "next_at": "2026-11-21T14:16:30.000Z",
    }


def test_json_has_the_documented_keys() -> None:
    told = json.loads(json.dumps(as_json(_STATUS)))
    assert told["at"] == "2026-11-21T14:15:00.000Z"
    assert told["reconcile"] == {"at_work": True, "owner": "process 12 on host", "schedule": None}
    runs = RunSchedule((_NOW - 600_000, _NOW - 300_000))
    scheduled = replace(_STATUS, reconcile=ReconcileFacts("", Progress(_DONE, _DONE, schedule=runs)))
    assert as_json(scheduled)["reconcile"]["schedule"] == {
        "last_run": "2026-11-21T14:10:00.000Z",
        "every_s": 300.0,
        "next_by": "2026-11-21T14:18:30.000Z",
    }
    assert told["batch"] == {"batch_id": 41, "time": "2026-11-21T14:14:55.000Z", "age_s": 5.0, "duration_s": 1.5}
    assert (told["under_way"], told["interrupted"]) == (None, None)
    begun, none = {"batch_id": 42, "time": "2026-11-21T14:14:59.000Z"}, None
    for owner, expected in (("process 12 on host", (begun, none)), (None, (begun, none)), ("", (none, begun))):
        told_of = as_json(replace(_STATUS, reconcile=ReconcileFacts(owner, Progress(Batch(42, _NOW - 1000), _DONE))))
        assert (told_of["under_way"], told_of["interrupted"]) == expected
    assert told["watermarks"] == {"timeout": "2026-11-21T14:14:49.000Z", "max_age": "2026-11-18T14:14:55.000Z"}
    assert told["lag"] == {
        "half": {"rows": 12, "oldest": "2026-11-21T14:14:58.000Z", "age_s": 2.0},
        "op": {"rows": 0, "oldest": None, "age_s": None},
    }
    assert told["decisions"]["last_5_minutes"] == {"COMMIT": 5, "ROLLBACK": 0, "DISCARD": 1, "CANCEL": 0}
    assert (told["pending"], told["decisions"]["discarded_today"]) == (4, 7)
    assert told["groups"][0]["silent_since"] == "2026-11-21T14:05:00.000Z"
    assert set(told["groups"][0]) == {*GROUP_COLUMNS, "stuck"}
    assert told["checks"][2] == {"producer_group": "none", "endpoint": None, "outcome": "NO_ANSWER", "checks": 2}
