"""An audit of what is left and of what is new: behind retention, and since a time."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from checkback.maintain.erasure import Erasure
from checkback.maintain.erasure_selection import Selection
from checkback.messages.half import RESUMED_FROM
from checkback.query.answers import Answers
from checkback.query.audit.findings import audit_on
from checkback.query.audit.report import as_json, conclusion
from checkback.query.engines.duckdb_engine import DuckDBEngine
from checkback.storage.log.delta_log import DeltaLog
from checkback.storage.tables import Tables
from maintain.fixtures import maintained, rows_of
from maintain.test_row_retention import HORIZON, settings_of
from query.test_audit import settings_at
from support.audit_cases import BROKEN, CLEAN, NUMBER
from support.stories import DECIDED, DONE, Transaction, ms, written

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

    from checkback.settings import Settings
    from support.stories import Row

_LATELY = DONE - timedelta(hours=1)


def _found(settings: Settings, *, whole: bool = False, since: datetime | None = None) -> dict[str, int]:
    """Findings but figures, each with its number."""
    with DuckDBEngine(Tables.of(settings.storage)) as engine:
        report = audit_on(engine, settings, since=since, whole=whole)
    return {each.finding.name: each.count for each in report.found if each.finding.level != "figure"}


@pytest.mark.parametrize("minutes", [-2000, -60, -5, -2, -1, 0, 5])
def test_of_what_ended_since_a_time_nothing_else_is_found(tmp_path: Path, minutes: int) -> None:
    """Wherever a transaction is cut by that time."""
    settings = settings_at(tmp_path)
    written(tmp_path, [row for name, story in CLEAN.items() for row in story(Transaction(NUMBER[name]))])
    assert _found(settings, since=DECIDED + timedelta(minutes=minutes)) == {}


def test_what_is_broken_is_found_if_it_ended_since(tmp_path: Path) -> None:
    """And all of it since long ago."""
    settings = settings_at(tmp_path)
    written(tmp_path, [row for name, (_, story) in BROKEN.items() for row in story(Transaction(NUMBER[name]))])
    answers = Answers(settings)
    everything, early, late = (answers.audit(since=at) for at in (None, "2020-01-01T00:00", "2026-01-03T00:00"))
    found = [{each.finding.name: each.count for each in report.found} for report in (everything, early, late)]
    assert found[0].pop("offset_gap") == 0
    assert found[0] == found[1]
    assert sum(found[2].values()) < sum(found[0].values())
    assert [as_json(report)["asked_since"] for report in (everything, late)] == [None, "2026-01-03T00:00:00.000Z"]
    assert any("judged is only what had not ended at" in line for line in conclusion(late, DONE))


@pytest.mark.parametrize("whole", [False, True])
def test_new_copy_of_an_old_message_is_found(tmp_path: Path, whole: bool) -> None:
    """One discarded message, resumed a week ago and again now."""
    settings = settings_of(tmp_path)
    old = Transaction(0, 0, DONE - timedelta(days=8))
    rows = [*old.given_up()]
    for number, at in enumerate((DONE - timedelta(days=7), DONE - timedelta(minutes=30))):
        copy = Transaction(settings.operator.queue, number, at - timedelta(seconds=30))
        same = {"transaction_id": old.half()[1]["transaction_id"]}
        of_old = {**same, "properties": [(RESUMED_FROM, "0/0")]}
        rows += [copy.half(**of_old), copy.op(**same), copy.decision(decided_at=at, **same)]
        rows.append(copy.published(published_at=at, **of_old))
    written(tmp_path, rows)
    found = _found(settings, whole=whole, since=_LATELY)
    assert {name: found.get(name) for name in ("resumed_twice", "id_published_twice")} == {
        "resumed_twice": 1,
        "id_published_twice": 1,
    }


@pytest.mark.parametrize("whole", [False, True])
def test_retention_of_a_topic_hides_nothing_of_another(tmp_path: Path, whole: bool) -> None:
    rows, begin = [], DONE - timedelta(days=5)
    for number in range(40):
        at, topic = begin + timedelta(hours=number), "ab"[number % 2]
        one = Transaction(0, number, at - timedelta(minutes=1))
        rows += [one.half(real_topic=topic), one.op(), one.published(topic, published_at=at)]
        rows.append(one.decision(decided_at=at, real_topic=topic))
    settings = settings_of(tmp_path, topic={"a": "4d"})
    written(tmp_path, rows)
    assert maintained(settings, ms(DONE))["topics/a"].expired_rows
    assert _found(settings, whole=whole) == {}
    DeltaTable(str(tmp_path / "topics/b")).delete("half_queue_offset = 3")
    assert _found(settings, whole=whole) == {"commit_not_published": 1}


@pytest.mark.parametrize("whole", [False, True])
def test_what_landed_after_the_horizon_by_another_clock_is_over(tmp_path: Path, whole: bool) -> None:
    """The gateway's clock is five seconds ahead."""
    rows = []
    for number in range(400):
        at = HORIZON + timedelta(seconds=number - 300, milliseconds=500)
        landed = at + timedelta(seconds=4)
        one = Transaction(0, number, at - timedelta(seconds=3))
        rows += [one.half(store_timestamp=landed), one.op(store_timestamp=landed), one.decision(decided_at=at)]
        rows.append(one.published(published_at=at, half_store_timestamp=landed))
    settings = settings_of(tmp_path)
    written(tmp_path, rows)
    assert maintained(settings, ms(DONE))["half"].expired_rows
    assert _found(settings, whole=whole) == {}


def _across_the_horizon() -> dict[str, list[Row]]:
    """Transactions of which a part is older than the horizon."""
    hour, one = timedelta(hours=1), Transaction(0, 0, HORIZON - timedelta(hours=5))
    due, out = HORIZON - 2 * hour, HORIZON - hour
    names = ("queue_id", "queue_offset", "transaction_id", "producer_group", "real_topic")
    delivery: Row = (
        "deliveries",
        {name: one.decision()[1][name] for name in names} | {"deliver_at": due, "delivered_at": out, "batch_id": 0},
    )
    published = [one.half(), one.op(), one.published(published_at=out), one.decision(decided_at=out)]
    scheduled = [one.half(deliver_at=due), one.op(), one.decision(decided_at=HORIZON - 4 * hour, deliver_at=due)]
    another = one.half(transaction_id="other", store_timestamp=HORIZON - hour / 2)
    return {
        "an op landed again": [*published, one.op(source="check", store_timestamp=HORIZON + hour)],
        "delivered, and waits": [*scheduled, delivery, one.unpublished(unpublished_at=out, application="query")],
        "its offset was used again": [*published, another, one.rejected_half()],
    }


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("name", _across_the_horizon())
def test_what_lies_across_the_horizon_is_judged_as_before(tmp_path: Path, name: str, whole: bool) -> None:
    rows = _across_the_horizon()[name]
    for number in range(200):
        at = HORIZON - timedelta(days=3) + timedelta(minutes=number)
        old = Transaction(0, 1000 + number, at - timedelta(minutes=1))
        rows += [old.half(), old.op(), old.published(published_at=at), old.decision(decided_at=at)]
    settings = settings_of(tmp_path)
    written(tmp_path, rows)
    before = _found(settings, whole=whole)
    assert maintained(settings, ms(DONE))["half"].expired_rows
    assert _found(settings, whole=whole) == before
    left = [row["queue_offset"] for row in rows_of(tmp_path, "half")]
    assert left == ([0] if "waits" in name else [])


def test_erasure_under_way_breaks_no_promise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After each of its commits."""
    rows = []
    for number in range(4):
        one = Transaction(0, number)
        rows += [one.half(keys="k"), one.op(), one.published(keys="k"), one.decision()]
    settings = settings_of(tmp_path)
    written(tmp_path, rows)
    found: list[dict[str, int]] = []
    remove = DeltaLog.remove

    def removed(self: DeltaLog, *args: Any, **more: Any) -> bool:
        done = remove(self, *args, **more)
        found.extend(_found(settings, whole=whole) for whole in (False, True))
        return done

    monkeypatch.setattr(DeltaLog, "remove", removed)
    erasure = Erasure(Tables.of(settings.storage), Selection.of("k", None, None, None))
    with erasure.lock():
        erasure.erase(erasure.find(), DONE)
    assert found == [{}] * 4
