"""Table `batches` against the tables that batches write: what is there, what is lost, what has only begun."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, cast

import pytest
from deltalake import DeltaTable

from checkback.query.answers import Answers
from checkback.query.audit.promises import FINDINGS
from checkback.reconcile.publish.batch_row import batch_row
from checkback.settings import Settings
from checkback.storage.tables import Tables
from support.stories import DECIDED, Row, Transaction, batch, checkpoint, ms, write

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from pyspark.sql import SparkSession

    from checkback.query.audit.findings import Report

pytestmark = pytest.mark.slow


_MINUTE = timedelta(minutes=1)


def _at(minutes: int) -> datetime:
    return DECIDED + minutes * _MINUTE


def _committed(offset: int, batch_id: int, minutes: int) -> list[Row]:
    """A transaction that a batch has committed."""
    t, time = Transaction(0, offset), _at(minutes)
    return [
        *(t.half(), t.op(), t.published(published_at=time, batch_id=batch_id)),
        t.decision(decided_at=time, batch_id=batch_id),
    ]


def _settings(root: Path) -> Settings:
    return Settings.model_validate({"storage": {"root": str(root)}, "reconcile": {"partitions": 2}})


def _counts(report: Report) -> dict[str, int]:
    return {each.finding.name: each.count for each in report.found if each.count}


def _samples(report: Report) -> dict[str, list[tuple[int | None, int | None] | str]]:
    return {each.finding.name: [*each.samples] for each in report.found if each.finding.about == "batch"}


def test_batches_of_unknown_applications_are_not_one_another(tmp_path: Path) -> None:
    """Twice `rebuild` has concluded a first batch whose checkpoint was lost; the same row twice is a fault."""
    rows = [
        *(batch(0, _at(0), application=None, committed=1), *_committed(0, 0, 0)),
        *(batch(0, _at(1), application="second", committed=1), *_committed(1, 0, 1)),
        *(batch(0, _at(2), application=None, committed=1), *_committed(2, 0, 2)),
        *(batch(3, _at(3), application=None, committed=1), *_committed(3, 3, 3)),
    ]
    write(None, Tables.of(_settings(tmp_path).storage), rows)
    assert _counts(Answers(_settings(tmp_path)).audit()) == {"halves": 4, "published": 4, "batches": 4}
    write(None, Tables.of(_settings(tmp_path).storage), [batch(0, _at(2), application=None, committed=1)])
    assert _samples(Answers(_settings(tmp_path)).audit())["batch_twice"] == [(0, ms(_at(2)))]


def test_what_batches_and_the_tables_say_of_each_other(tmp_path: Path) -> None:
    """Without a checkpoint the batch under way is known by its rows: it has the next id, or the first of a rebuild."""
    rows = [
        *(row for number, minutes in ((0, -9), (2, -8)) for row in _committed(number, number, minutes)),
        *(batch(3, _at(0), committed=1), *_committed(3, 3, 0)),
        *_committed(4, 4, 1),
        *(batch(5, _at(2), committed=2), *_committed(5, 5, 2)),
        batch(6, _at(3), committed=1),
        *(batch(7, _at(4), committed=1), batch(7, _at(4), committed=1), *_committed(7, 7, 4)),
        *(batch(9, _at(5), committed=None, check_interval_ms=None), *_committed(9, 9, 5)),
        batch(10, _at(6), finished_at=_at(5)),
        *_committed(11, 11, 7),
        *_committed(12, 0, 8),
    ]
    write(None, Tables.of(_settings(tmp_path).storage), rows)
    report = Answers(_settings(tmp_path)).audit()
    assert _samples(report) == {
        "batches": [],
        "batch_not_judged": [(0, ms(_at(-9))), (2, ms(_at(-8))), (9, ms(_at(5)))],
        "batch_without_row": [(4, ms(_at(1)))],
        "batch_differs": [(5, ms(_at(2))), (6, ms(_at(3)))],
        "batch_twice": [(7, ms(_at(4)))],
        "batch_gap": [(5, ms(_at(2))), (9, ms(_at(5)))],
        "batch_clock_back": [(10, ms(_at(6)))],
    }
    counts = _counts(report)
    assert (counts["batches"], counts["batch_gap"], counts["batch_not_judged"]) == (6, 2, 3)
    # The two that have begun are left out as a whole.
    assert (counts["published"], counts["pending"]) == (7, 2)
    assert {(one.batch_id, one.time) for one in report.under_way} == {(11, ms(_at(7))), (0, ms(_at(8)))}
    assert report.done is not None
    assert report.first is not None
    assert (report.done.batch_id, report.first.batch_id, report.past, report.broken) == (10, 3, True, True)


def test_batches_that_fit_say_nothing(tmp_path: Path) -> None:
    """Nor does one that wrote nothing, or one that is known by its id alone not to be done."""
    rows = [
        *(batch(0, _at(0), committed=1), *_committed(0, 0, 0)),
        *(batch(1, _at(1)), batch(0, _at(2), "another", committed=1), *_committed(1, 0, 2)),
    ]
    write(None, Tables.of(_settings(tmp_path).storage), rows)
    report = Answers(_settings(tmp_path)).audit()
    assert _counts(report) == {"halves": 2, "published": 2, "batches": 3}
    assert (report.past, report.broken, report.under_way) == (False, False, ())


def test_what_a_batch_that_rebuild_finished_did_is_unknown(tmp_path: Path) -> None:
    """Its row has no counts. That of a release without delays counts decisions: it has scheduled nothing."""
    t, two, three = Transaction(0, 0), Transaction(0, 1), Transaction(0, 2)
    later = _at(60)
    rows = [
        *(t.half(deliver_at=later), t.op(), t.decision(decided_at=_at(0), batch_id=0, deliver_at=later)),
        batch(0, _at(0), committed=1, scheduled=1),
        *(two.half(deliver_at=later), two.op(), two.decision(decided_at=_at(1), batch_id=1, deliver_at=later)),
        ("deliveries", t.key | {"deliver_at": later, "delivered_at": _at(1), "batch_id": 1, "real_topic": "a"}),
        ("decisions", t.decision("CANCEL", decided_at=_at(1), batch_id=1)[1]),
        ("batches", batch_row("query", 1, ms(_at(1)), ms(_at(2))).to_pylist()[0]),
        *(three.half(deliver_at=later), three.op(), three.decision(decided_at=_at(3), batch_id=2, deliver_at=later)),
        batch(2, _at(3), committed=1, scheduled=None, delivered=None, cancelled=None),
    ]
    write(None, Tables.of(_settings(tmp_path).storage), rows)
    found = _samples(Answers(_settings(tmp_path)).audit())
    assert found["batch_not_judged"] == [(1, ms(_at(1)))]
    assert found["batch_differs"] == [(2, ms(_at(3)))]


def _story(recorded: Collection[int]) -> list[Row]:
    """Batches 0 to 3, the last without decisions; those ``recorded`` have a row."""
    rows = [row for number in range(3) for row in _committed(number, number, number)]
    return rows + [batch(number, _at(number), committed=int(number < 3)) for number in recorded]


@pytest.mark.parametrize(
    ("recorded", "lost"),
    [
        (range(4), []),
        ((), [(0, ms(_at(0))), (1, ms(_at(1))), (2, ms(_at(2)))]),
        ((2, 3), [(0, ms(_at(0))), (1, ms(_at(1)))]),
        (range(3), [(3, None)]),
    ],
)
def test_rows_that_the_checkpoint_knows_of_are_missed(
    tmp_path: Path, recorded: Collection[int], lost: list[tuple[int, int | None]]
) -> None:
    """All of them, the first ones, the last one. Of a batch that did nothing there is nothing else."""
    write(None, Tables.of(_settings(tmp_path).storage), _story(recorded))
    checkpoint(tmp_path, done=_at(3), batch_id=3, rules=0)
    report = Answers(_settings(tmp_path)).audit()
    assert _samples(report).get("batch_without_row", []) == lost
    assert _counts(report).get("batch_without_row", 0) == 4 - len(recorded)
    assert report.broken == (len(recorded) < 4)


@pytest.mark.parametrize("first", [None, 2, 4])
def test_batches_before_the_first_row_are_not_judged(tmp_path: Path, first: int | None) -> None:
    """Nor did the first batches of a checkpoint that it has begun, or all but the one in progress."""
    write(None, Tables.of(_settings(tmp_path).storage), _story([] if first is None else range(first, 4)))
    checkpoint(tmp_path, done=_at(3), batch_id=3, rules=first)
    report = Answers(_settings(tmp_path)).audit()
    assert not report.broken
    assert _counts(report)["batch_not_judged"] == (2 if first == 2 else 3)


@pytest.mark.parametrize("checkpointed", [False, True])
def test_batches_that_scheduled_have_had_a_row(tmp_path: Path, checkpointed: bool) -> None:
    """Without a checkpoint the newest batch may be in progress."""
    rows, due = _story([]), _at(5)
    for number in (1, 2):
        t = Transaction(1, number)
        rows += [t.half(deliver_at=due), t.op(), t.decision(deliver_at=due, decided_at=_at(number), batch_id=number)]
    write(None, Tables.of(_settings(tmp_path).storage), rows)
    if checkpointed:
        checkpoint(tmp_path, done=_at(2), batch_id=2)
    samples = [(1, ms(_at(1))), (2, ms(_at(2)))]
    report = Answers(_settings(tmp_path)).audit()
    assert _samples(report)["batch_without_row"] == (samples if checkpointed else samples[:1])


def test_table_that_was_emptied_or_removed_is_missed_without_a_checkpoint(tmp_path: Path) -> None:
    """By the table's log; by the table made beside it. The newest batch may be in progress."""
    tables = Tables.of(_settings(tmp_path).storage)
    write(None, tables, [row for row in _story(range(3)) if row[0] != "batches"])
    assert not Answers(_settings(tmp_path)).audit().broken
    write(None, tables, [row for row in _story(range(3)) if row[0] == "batches"])
    table = DeltaTable(str(tmp_path / "batches"))
    table.alter.set_table_properties({"delta.appendOnly": "false"})
    table.delete()
    lost = [(0, ms(_at(0))), (1, ms(_at(1)))]
    assert _samples(Answers(_settings(tmp_path)).audit())["batch_without_row"] == lost
    (tmp_path / "batches").rename(tmp_path / "gone")
    assert not Answers(_settings(tmp_path)).audit().broken
    tables.create(cast("SparkSession", None), "deliveries")
    assert _samples(Answers(_settings(tmp_path)).audit())["batch_without_row"] == lost


def test_every_finding_of_batches_has_a_case() -> None:
    cases = {"batch_without_row", "batch_differs", "batch_twice", "batch_gap", "batch_clock_back"}
    found = {name for name, finding in FINDINGS.items() if finding.about == "batch" and finding.level != "figure"}
    assert cases == found
