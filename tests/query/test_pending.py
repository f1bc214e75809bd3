"""A night on call: a group that is dead, one that answers UNKNOWN, one that is well, one without an endpoint."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from checkback.cli import main
from checkback.errors import SettingsError
from checkback.query.answers import Answers
from checkback.query.frames import Frames
from checkback.query.json_lines import json_rows
from checkback.query.shown_rows import table
from checkback.query.transaction_lineage import COLUMNS as LINEAGE_COLUMNS
from checkback.settings import Settings
from checkback.storage.log.commit_reader import CommitReader
from checkback.storage.schemas import CONTENT, arrow_schema
from checkback.storage.tables import Tables
from checkback.storage.valid_texts import OVERTAKEN
from support.pending_columns import COLUMNS, GROUP_COLUMNS
from support.query_times import append, made_at
from support.stories import DONE, Row, Transaction, batch, checkpoint, ms, write

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow
NOW = DONE + timedelta(seconds=5)
_A, _B = "http://127.0.0.1:1/a", "http://127.0.0.1:1/b"
_WHY = "10 tries in a row failed"
_REFUSED = {"error": "connection refused", "delivered": False}


def _ago(minutes: float) -> datetime:
    return NOW - timedelta(minutes=minutes)


def _of(group: str, rows: list[Row]) -> list[Row]:
    return [(name, row | {"producer_group": group}) for name, row in rows]


def _answer(half: Transaction, times: int, minutes: float, outcome: str, endpoint: str | None, **more: Any) -> Row:
    row = {"real_topic": "a", "check_times": times, "endpoint": endpoint, "outcome": outcome, "error": None}
    row |= {"latency_ms": 12, "answered_at": _ago(minutes), "failed_tries": [], "batch_id": times, "delivered": True}
    return "check_answers", half.key | row | more


def _story() -> list[Row]:
    # dead: answered until eleven minutes ago, its two endpoints refuse since ten
    first, second = Transaction(0, 0, _ago(12)), Transaction(0, 1, _ago(12))
    gone = Transaction(0, 2, _ago(12))
    tries = [{"endpoint": _A, "error": "connection refused"}]
    dead = [
        *(first.half(), first.half(store_timestamp=_ago(3), transaction_id="came again")),
        *(second.half(), *gone.committed()),
        *(first.check(times) for times in (1, 2)),
        second.check(1),
        _answer(gone, 1, 11, "COMMIT", _A),
        _answer(first, 1, 10, "NO_ANSWER", _B, failed_tries=tries, **_REFUSED),
        _answer(first, 2, 9.5, "NO_ANSWER", _B, error=f"not tried: {_WHY}", delivered=False),
        _answer(second, 1, 9.8, "NO_ANSWER", _B, **_REFUSED),
        second.op("COUNTED", source="check", remark="check 1", store_timestamp=_ago(9)),
        second.op("COMMIT", producer_group="other"),
    ]
    # unknown: asked twice
    vague = Transaction(0, 10, _ago(5))
    unknown = [vague.half(), vague.check(1), vague.check(2)]
    unknown += [_answer(vague, 1, 4, "UNKNOWN", _A), _answer(vague, 2, 3, "UNKNOWN", _A)]
    # well: one is committed, one is young, and of one the op has landed
    fine, young, landed = Transaction(0, 20, _ago(4)), Transaction(0, 21, _ago(0.05)), Transaction(0, 22, _ago(1))
    well = [
        *(fine.half(), fine.op(), fine.published(published_at=_ago(3)), fine.decision(decided_at=_ago(3))),
        *(young.half(check_immunity_s=60), landed.half(), landed.op("ROLLBACK"), landed.op(store_timestamp=NOW)),
    ]
    # nowhere: reconcile had no endpoint for it
    lost = Transaction(0, 30, _ago(1.5))
    nowhere = [lost.half(), lost.check(1)]
    nowhere.append(_answer(lost, 1, 1, "NO_ANSWER", None, error="producers.nowhere has no endpoints", delivered=False))
    other = [(name, row) for name, row in dead if name == "op" and row["state"] == "COMMIT"]
    return [
        *_of("dead", [row for row in dead if row not in other or row[1]["producer_group"] != "other"]),
        *(row for row in other if row[1]["producer_group"] == "other"),
        *(
            row
            for group, rows in (("unknown", unknown), ("well", well), ("nowhere", nowhere))
            for row in _of(group, rows)
        ),
    ]


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """The tables of that night, committed when it happened."""
    root = tmp_path_factory.mktemp("night")
    settings = Settings.model_validate(
        {
            "storage": {"root": str(root)},
            "producers": {"well": {"endpoints": [_A]}},
            "reconcile": {"partitions": 2},
        }
    )
    write(None, Tables.of(settings.storage), _story())
    names = ("half", "op", "topics/a", "decisions", "check_requests", "check_answers")
    _committed_at(root, NOW - timedelta(seconds=1), *names)
    checkpoint(root)
    return settings


def _committed_at(root: Path, time: datetime, *names: str) -> None:
    """As if the tables had been written then: a version each millisecond."""
    for name in names:
        commits = CommitReader.of(str(root / name))
        assert commits is not None
        for version in range(commits.newest + 1):
            made_at(commits.place, version, ms(time) + version)


def rows_of(found: pa.Table) -> list[dict[str, Any]]:
    """The rows, times as UTC text: Python's own would be in this machine's time zone."""
    return list(json_rows(found))


def test_pending_tells_of_each_how_often_and_why(settings: Settings) -> None:
    found = Answers(settings).pending(NOW)
    assert tuple(found.column_names) == COLUMNS
    rows = {row["queue_offset"]: row for row in rows_of(found)}
    assert list(rows) == [0, 1, 10, 30, 22, 21]
    told = {offset: (row["check_times"], row.get("op_waiting"), row["why"]) for offset, row in rows.items()}
    assert told == {
        0: (2, None, "no endpoint answers: connection refused; breaker open since 2026-01-01 23:50"),
        # It was held back itself not yet, but its endpoints are the same.
        1: (1, None, "no endpoint answers: connection refused; breaker open since 2026-01-01 23:50"),
        10: (2, None, "answered UNKNOWN"),
        30: (1, None, "no endpoint is set for the group"),
        22: (0, "ROLLBACK", "ROLLBACK has landed, not yet read by reconcile: the next batch decides"),
        21: (0, None, "young: the first check is not due yet"),
    }
    # It is not checked any more.
    assert {offset for offset, row in rows.items() if row.get("next_check_at") is None} == {22}
    assert {offset for offset, row in rows.items() if row.get("op_landed_at") is not None} == {22}
    assert rows[0]["transaction_id"] == "tx-0-0"
    assert rows[0]["age_s"] == 720
    assert rows[1]["last_endpoint"] == _B
    # The second check, and a minute; the birth, and its own immunity.
    assert rows[10]["next_check_at"] == "2026-01-01T23:57:12.000Z"
    assert rows[21]["next_check_at"] == "2026-01-02T00:01:02.000Z"
    assert {row["as_of"] for row in rows.values()} == {"2026-01-02T00:00:05.000Z"}


_BREAKER: dict[str, Any] = {"error": f"not tried: {_WHY}", "delivered": False}
_TRIED = [{"endpoint": _A, "error": "timeout"}]
_NOT_TRIED = [{"endpoint": _A, "error": "not tried: 3 tries in a row failed"}]
_OPEN = "breaker open since 23:52"


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ([(7, "UNKNOWN", {})], ("UNKNOWN", None, "answered UNKNOWN")),
        ([(9, "UNKNOWN", {}), (8, "NO_ANSWER", _BREAKER)], ("UNKNOWN", None, f"answered UNKNOWN; {_OPEN}")),
        ([(9, "UNKNOWN", {}), (8, "NO_ANSWER", _BREAKER), (7, "NO_ANSWER", _BREAKER)], None),
        ([(9, "NO_ANSWER", _BREAKER), (8, "UNKNOWN", {})], ("UNKNOWN", None, "answered UNKNOWN")),
        (
            [(8, "NO_ANSWER", _BREAKER | {"failed_tries": _NOT_TRIED})],
            ("NO_ANSWER", "not tried: breaker open", f"no endpoint answers; {_OPEN}"),
        ),
        (
            [(9, "UNKNOWN", {}), (8, "NO_ANSWER", _BREAKER | {"failed_tries": _TRIED})],
            ("NO_ANSWER", "timeout", "no endpoint answers: timeout"),
        ),
    ],
)
def test_breaker_is_not_the_reason(
    tmp_path: Path, answers: list[tuple[int, str, dict[str, Any]]], said: tuple[str, str | None, str] | None
) -> None:
    """It is told besides, since the first check after the last answer that it held back; of discarded ones likewise."""
    about = Settings.model_validate({"storage": {"root": str(tmp_path)}})
    of = Transaction(0, 0, _ago(12))
    rows = [_answer(of, n, minutes, outcome, _B, **more) for n, (minutes, outcome, more) in enumerate(answers, 1)]
    write(None, Tables.of(about.storage), [of.half(), of.discarded(), *rows])
    outcome, error, why = said or ("UNKNOWN", None, f"answered UNKNOWN; {_OPEN}")
    _committed_at(tmp_path, _ago(6), "half", "check_answers")
    (row,) = Answers(about).pending(_ago(5)).to_pylist()
    assert (row["last_outcome"], row["last_error"], row["why"]) == (outcome, error, why)
    (row,) = Answers(about).discarded().to_pylist()
    assert (row["last_outcome"], row["last_error"]) == (outcome, error)


def test_one_cause_is_one_reason(tmp_path: Path) -> None:
    """However often each message was asked, or held back, since when, and by a breaker that had counted how far."""
    about = Settings.model_validate({"storage": {"root": str(tmp_path)}})
    halves = [Transaction(0, number, _ago(12)) for number in range(4)]
    held = [{"error": f"not tried: {number} tries in a row failed", "delivered": False} for number in range(10, 14)]
    rows = [_answer(Transaction(0, 9), 1, 10, "UNKNOWN", _A), _answer(halves[0], 1, 9, "NO_ANSWER", _A, **_REFUSED)]
    rows += [_answer(half, 2, 8 - n, "NO_ANSWER", (_A, _B)[n % 2], **held[n]) for n, half in enumerate(halves)]
    rows.append(_answer(halves[3], 3, 4, "NO_ANSWER", _B, error="timeout"))  # a probe
    write(None, Tables.of(about.storage), [*(half.half() for half in halves), *rows])
    _committed_at(tmp_path, _ago(3), "half", "check_answers")
    whys = [(row["why"], row["pending"]) for row in Answers(about).count_pending(_ago(2)).to_pylist()]
    assert whys == [("no endpoint answers: timeout; breaker open since 23:52", 4)]
    # The probe after it is answered; what was only held back is asked next.
    append(tmp_path, "check_answers", [_answer(halves[3], 4, 1.5, "NO_ANSWER", _B, error="status 404")[1]])
    whys = [(row["why"], row["pending"]) for row in Answers(about).count_pending().to_pylist()]
    assert whys == [
        ("a breaker, closed now, held it back: its next check asks", 2),
        ("no endpoint answers: connection refused", 1),
        ("the endpoint says status 404: is its path right (producers.orders.endpoints)?", 1),
    ]


def test_a_check_that_was_requested_twice_has_the_outcome_of_the_first(tmp_path: Path) -> None:
    about = Settings.model_validate({"storage": {"root": str(tmp_path)}})
    waits, gone = Transaction(0, 0, _ago(9)), Transaction(0, 1, _ago(9))
    skipped = {"error": OVERTAKEN, "delivered": False}
    answers = [
        row
        for half in (waits, gone)
        for row in (_answer(half, 1, 7, "UNKNOWN", _A), _answer(half, 1, 6, "SKIPPED", None, **skipped))
    ]
    write(None, Tables.of(about.storage), [waits.half(), waits.check(), *gone.given_up(), *answers])
    (row,) = Answers(about).pending().to_pylist()
    assert (row["last_outcome"], row["last_error"], row["why"]) == ("UNKNOWN", None, "answered UNKNOWN")
    (row,) = Answers(about).groups().to_pylist()
    assert (row["outcomes"], row["unknown_share"]) == (2, 1.0)
    assert row["why"].startswith("answers UNKNOWN, since ")
    (row,) = Answers(about).discarded().to_pylist()
    assert (row["last_outcome"], row["last_error"]) == ("UNKNOWN", None)


def test_own_immunity_is_capped_as_in_the_segments(tmp_path: Path) -> None:
    """Rule 4: a producer cannot hide what is stuck behind an immunity of years."""
    about = Settings.model_validate({"storage": {"root": str(tmp_path)}, "transaction": {"max_age": "2h"}})
    old = Transaction(0, 0)
    write(None, Tables.of(about.storage), [old.half(check_immunity_s=10 * 365 * 86_400)])
    (row,) = Answers(about).pending().to_pylist()
    assert row["next_check_at"] == old.born + timedelta(hours=2)
    assert row["why"] == "no endpoint is set for the group in these settings"
    assert [group["overdue"] for group in Answers(about).groups(stuck=True).to_pylist()] == [1]


def test_only_operators_resume(tmp_path: Path) -> None:
    """A producer's property makes nobody's action of a half message."""
    about = Settings.model_validate({"storage": {"root": str(tmp_path)}})
    said: dict[str, Any] = {
        "properties": [("CHECKBACK_RESUMED_FROM", "0/1"), ("CHECKBACK_RESUMED_BY", "alice: ticket 7")]
    }
    forged, resumed = Transaction(0, 0), Transaction(9, 0)
    operation = {"action": "RESUME", "actor": "alice", "reason": "ticket 7", "at": DONE, "new_queue_id": 9}
    write(None, Tables.of(about.storage), [forged.half(**said), resumed.half(**said), ("operations", operation)])
    events = [Answers(about).lineage(f"tx-{queue}-0").to_pylist()[0] for queue in (0, 9)]
    assert [event["event"] for event in events] == ["HALF", "RESUMED"]
    assert ["alice" in event["detail"] for event in events] == [False, True]


@pytest.mark.parametrize("far", [2**63 - 1, 569_036_000_000_000_000])
def test_time_beyond_pythons_hides_nobody(spark: SparkSession, tmp_path: Path, far: int) -> None:
    """Another writer's row: the others are told of, and the minutes end now."""
    settings = Settings.model_validate({"storage": {"root": str(tmp_path)}, "reconcile": {"partitions": 2}})
    own = {"queue_id": 0, "producer_group": "orders", "real_topic": "a", "body": b"", "check_immunity_s": 60}
    born = {"born_timestamp": DONE, "store_timestamp": DONE}
    append(tmp_path, "half", [own | born | {"queue_offset": 0, "transaction_id": "honest"}])
    rows = pa.Table.from_pylist([own | born | {"queue_offset": 1, "transaction_id": "far"}], arrow_schema("half"))
    for name in born:
        place = rows.schema.get_field_index(name)
        rows = rows.set_column(place, rows.schema.field(name), pa.array([far], pa.timestamp("us", "UTC")))
    write_deltalake(f"{tmp_path}/half", rows, mode="append")
    assert [row["transaction_id"] for row in rows_of(Frames(settings, spark).pending().toArrow())] == ["honest", "far"]
    assert [name in repr(table(Answers(settings).pending())) for name in ("honest", "far")] == [True, True]
    assert repr(table(pa.table({"number": [0]}))).endswith("0")
    days = Frames(settings, spark).pending_over_time(every=timedelta(days=1))
    counts = [row["pending"] for row in days.select("pending").collect()]
    assert (counts[0], counts[-1]) == (1, 2)


def test_bodies_only_when_asked_for(settings: Settings) -> None:
    found = Answers(settings).pending(NOW, bodies=True)
    assert tuple(found.column_names) == (*COLUMNS, *CONTENT)
    first = found.to_pylist()[0]
    assert (first["body"], dict(first["properties"])["a"]) == (b"body", "1")


def test_groups_tell_who_since_when_and_why(settings: Settings) -> None:
    found = Answers(settings).groups(NOW, stuck=True)
    assert tuple(found.column_names) == GROUP_COLUMNS
    rows = {row["producer_group"]: row for row in rows_of(found)}
    assert list(rows) == ["dead", "unknown", "nowhere"]  # of "well" all that is overdue has an op
    assert {group: row["why"] for group, row in rows.items()} == {
        "dead": "no endpoint answers: connection refused, since 2026-01-01 23:50; breaker open",
        "unknown": "answers UNKNOWN, since 2026-01-01 23:56",
        "nowhere": "no endpoint is set for the group, since 2026-01-01 23:59",
    }
    dead = rows["dead"]
    assert (dead["pending"], dead["overdue"], dead["oldest_age_s"]) == (2, 2, 720)
    assert dead["last_answer_at"] == "2026-01-01T23:49:05.000Z"
    assert (dead["last_answer"], dead["last_answer_endpoint"]) == ("COMMIT", _A)
    assert (rows["unknown"]["last_answer"], rows["nowhere"].get("last_answer")) == ("UNKNOWN", None)
    assert dead["silent_since"] == "2026-01-01T23:50:05.000Z"
    # Its last minute of checking: that of ten minutes ago, not this one.
    assert (dead["outcomes"], dead["no_answer_share"], dead["endpoints"]) == (3, 1.0, [_A, _B])
    assert (rows["nowhere"]["endpoints"], rows["nowhere"]["last_error"]) == ([], "producers.nowhere has no endpoints")
    assert rows["unknown"]["unknown_share"] == 1.0


def test_groups_that_go_on_alone_are_listed_but_not_stuck(settings: Settings) -> None:
    groups = {row["producer_group"]: row for row in Answers(settings).groups(NOW).to_pylist()}
    assert {name for name, row in groups.items() if row["stuck"]} == {"dead", "unknown", "nowhere"}
    well = groups["well"]
    assert (well["pending"], well["overdue"], well["op_waiting"]) == (2, 0, 1)
    assert well["why"] == "young: no check is due yet; the op of 1 has landed: the next batch decides"
    stuck = Answers(settings).groups(NOW, stuck=True)
    assert stuck.column("producer_group").to_pylist() == ["dead", "unknown", "nowhere"]


def test_reconcile_that_stands_is_named(settings: Settings) -> None:
    """Ten minutes later; and at a time of which the checkpoint knows no batch, nothing is said of it."""
    later = {row["why"].partition(";")[0] for row in rows_of(Answers(settings).groups(_ago(-10), stuck=True))}
    assert later == {"reconcile does not run: last batch 00:00"}


def test_minutes(settings: Settings) -> None:
    """Rows to plot; each minute of pending has one."""
    decided = rows_of(Answers(settings).decisions(NOW))
    assert {(row["minute"], row["producer_group"], row["state"], row["decisions"]) for row in decided} == {
        ("2026-01-01T23:30:00.000Z", "dead", "COMMIT", 1),
        ("2026-01-01T23:57:00.000Z", "well", "COMMIT", 1),
    }
    since = rows_of(Answers(settings).decisions(NOW, since=_ago(5)))
    assert [row["producer_group"] for row in since] == ["well"]
    coarse = rows_of(Answers(settings).decisions(NOW, every=timedelta(hours=1)))
    assert {(row["minute"], row["producer_group"]) for row in coarse} == {
        ("2026-01-01T23:00:00.000Z", "dead"),
        ("2026-01-01T23:00:00.000Z", "well"),
    }
    fine = rows_of(Answers(settings).pending_over_time(NOW, every=timedelta(seconds=30), group="unknown"))
    assert [row["minute"] for row in fine[:2]] == ["2026-01-01T23:55:00.000Z", "2026-01-01T23:55:30.000Z"]
    outcomes = rows_of(Answers(settings).check_outcomes(NOW))
    assert Counter((row["producer_group"], row.get("endpoint"), row["outcome"]) for row in outcomes) == {
        ("dead", _A, "COMMIT"): 1,
        ("dead", _A, "FAILED_TRY"): 1,
        ("dead", _B, "NO_ANSWER"): 1,
        ("unknown", _A, "UNKNOWN"): 2,
        ("nowhere", None, "NO_ANSWER"): 1,
    }
    assert sum(row["checks"] for row in outcomes if row["outcome"] != "FAILED_TRY") == 7
    latency = {row["producer_group"]: row for row in rows_of(Answers(settings).decision_latency(NOW))}
    assert (latency["well"]["from_birth_p50_s"], latency["well"]["from_landing_p99_s"]) == (60, 59)
    over_time = rows_of(Answers(settings).pending_over_time(NOW))
    of_group: dict[str, list[int]] = {}
    for row in over_time:
        of_group.setdefault(row["producer_group"], []).append(row["pending"])
    assert of_group["unknown"] == [1] * 6
    assert of_group["well"] == [1, 0, 0, 2, 2] or of_group["well"] == [1, 0, 0, 1, 2]
    assert {row["minute"] for row in over_time if row["producer_group"] == "dead"} >= {
        "2026-01-01T23:48:00.000Z",
        "2026-01-02T00:00:00.000Z",
    }


def test_lineage_is_the_whole_story_in_order(settings: Settings) -> None:
    found = Answers(settings).lineage("tx-0-1")
    assert tuple(found.column_names) == LINEAGE_COLUMNS
    rows = rows_of(found)
    assert [(row["event"], row["detail"]) for row in rows] == [
        ("HALF", "for a, born 2026-01-01 23:48:05.000"),
        ("OP", "COMMIT by producer of tx-0-1"),
        ("CHECK", "check 1"),
        ("ANSWER", f"check 1 NO_ANSWER from {_B} (connection refused) reached nobody"),
        ("OP", "COUNTED by check of tx-0-1 - check 1 (counts towards check_max)"),
    ]
    assert {(row["table"], row["table_version"], row["version_exact"]) for row in rows} == {
        (name, 1, True) for name in ("half", "op", "check_requests", "check_answers")
    }
    assert {row["committed_at"] for row in rows} == {"2026-01-02T00:00:04.001Z"}
    assert [row["event"] for row in rows_of(Answers(settings).lineage("tx-0-1", group="other"))] == ["OP"]


def test_lineage_after_optimize_knows_the_version_at_most(tmp_path: Path) -> None:
    """And of what was discarded, resumed and rejected it tells, too; bodies and properties it does not."""
    settings = Settings.model_validate({"storage": {"root": str(tmp_path)}, "reconcile": {"partitions": 2}})
    tables = Tables.of(settings.storage)
    lost = Transaction(1, 0)
    again = replace(lost, queue=2_000_000_000)
    properties = [("CHECKBACK_RESUMED_FROM", "1/0"), ("CHECKBACK_RESUMED_BY", "alice: it is back"), ("secret", "s3")]
    operation = lost.key | {"at": DONE, "action": "RESUME", "actor": "alice", "reason": "it is back"}
    operation |= {"real_topic": "a", "new_queue_id": 2_000_000_000, "new_queue_offset": 0, "checkback_version": "1"}
    story = [
        *lost.given_up(),
        lost.rejected_half(),
        ("operations", operation),
        again.half(transaction_id="tx-1-0", properties=properties, store_timestamp=DONE, body=b"hidden"),
    ]
    raw = json.dumps({"queue_id": 1, "queue_offset": 0, "producer_group": "pay", "transaction_id": "tx-1-0"})
    story.append(("rejected", {"source": "op", "raw": raw, "reason": "wrong producer_group", "rejected_at": DONE}))
    write(None, tables, story)
    append(tmp_path, "half", [Transaction(1, 7).half()[1]])
    DeltaTable(str(tmp_path / "half")).optimize.compact()
    rows = rows_of(Answers(settings).lineage("tx-1-0"))
    assert Counter(row["event"] for row in rows) == {
        "HALF": 1,
        "RESUMED": 1,
        "CHECK": 3,
        "DECISION": 1,
        "DISCARDED": 1,
        "OPERATION": 1,
        "REJECTED": 1,
    }
    of_half = [row for row in rows if row["table"] == "half"]
    assert [(row["table_version"], row["version_exact"]) for row in of_half] == [(3, False)] * 2
    resumed = next(row for row in rows if row["event"] == "RESUMED")
    assert resumed["detail"].endswith("resumed from 1/0 by alice: it is back")
    assert all(word not in json.dumps(rows) for word in ("hidden", "s3", "body"))


def _command(capfd: pytest.CaptureFixture[str], settings: Settings, *arguments: str) -> list[str]:
    assert main([*arguments, "--set", f"storage.root={settings.storage.root}"]) == 0
    out, err = capfd.readouterr()
    assert err == ""
    return out.splitlines()


def test_commands(settings: Settings, capfd: pytest.CaptureFixture[str]) -> None:
    """Who is stuck can be told from the lines; --json has the same."""
    lines = _command(capfd, settings, "tx", "list", "--as-of", "2026-01-02T00:00:05", "--group", "dead")
    assert len(lines) == 1 + 2
    assert "no endpoint answers: connection refused" in lines[2]
    assert " 2 of 15 " in lines[1]
    assert " check 2026-01-01T23:" in lines[1]
    assert _command(capfd, settings, "tx", "list", "--as-of", "2026-01-01T00:00", "-o", "json") == []
    (half, *_) = _command(capfd, settings, "tx", "describe", "tx-0-10", "-o", "json")
    assert json.loads(half)["event"] == "HALF"
    assert "answers UNKNOWN" not in "".join(_command(capfd, settings, "tx", "describe", "tx-0-10"))
    told = json.loads("\n".join(_command(capfd, settings, "status", "-o", "json")))
    assert (told["reconcile"]["at_work"], told["batch"]["batch_id"], told["interrupted"]["batch_id"]) == (False, 0, 1)
    assert told["under_way"] is None
    assert told["pending"] == 6
    assert {group["producer_group"]: group["pending"] for group in told["groups"]} == {
        "dead": 2,
        "unknown": 1,
        "nowhere": 1,
        "well": 2,
    }
    lines = _command(capfd, settings, "status")
    assert any(line.startswith("dead ") and "connection refused" in line for line in lines)
    assert any(line.startswith("last batch  0, 2026-01-02 00:00:00") for line in lines)


def test_after_the_last_check_comes_the_discard(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """By the limit of the last batch, not that of the settings here."""
    about, half = Settings.model_validate({"storage": {"root": str(tmp_path)}}), Transaction(0, 0, _ago(12))
    write(None, Tables.of(about.storage), [half.half(), half.check(1), half.check(2), batch(7, DONE, check_max=2)])
    assert Answers(about).check_max() == 2
    (_, line) = _command(capfd, about, "tx", "list")
    assert " 2 of 2 " in line
    assert " discard 2026-01-01T23:" in line


@pytest.mark.parametrize("command", [["tx", "list"], ["tx", "describe", "tx"]])
def test_wrong_time_is_told(command: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "--as-of", "noon", "--set", f"storage.root={tmp_path}"]) == 2
    assert "'noon' is not a time; write 2026-11-20T15:00" in capfd.readouterr().err


def test_without_tables_it_is_told_what_to_do(tmp_path: Path) -> None:
    settings = Settings.model_validate({"storage": {"root": str(tmp_path)}})
    with pytest.raises(SettingsError, match="there is no such table; run `checkback reconcile` first"):
        Answers(settings).pending()


def test_message_without_a_transaction_waits_for_the_next_batch(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """It needs no op, and its group no endpoint."""
    settings = Settings.model_validate({"storage": {"root": str(tmp_path)}})
    write(None, Tables.of(settings.storage), [Transaction(0).half(committed=True)])
    (line,) = _command(capfd, settings, "tx", "list", "-o", "json")
    row = json.loads(line)
    assert (row["op_waiting"], row["next_check_at"]) == ("COMMIT", None)
    assert row["why"] == "COMMIT has landed, not yet read by reconcile: the next batch decides"
    (group,) = Answers(settings).groups().to_pylist()
    assert (group["pending"], group["overdue"], group["op_waiting"]) == (1, 0, 1)
    assert group["why"] == "ops have landed, not yet read by reconcile: no batch of reconcile has run yet"
    assert "COMMIT by the next batch" in " ".join(" ".join(_command(capfd, settings, "tx", "list")).split())
