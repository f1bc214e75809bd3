"""Messages published late, by the notes: what says so of them, and what says that their topic has lost them."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

import pytest
from deltalake import DeltaTable

from checkback.query.answers import Answers
from checkback.reconcile.publish.published_notes import note
from checkback.settings import Settings
from checkback.storage.tables import Tables
from support.stories import DECIDED, Row, Transaction, batch, checkpoint, write

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

_NOBODY = cast("SparkSession", None)
_LATE = DECIDED + timedelta(seconds=1)
_NAMES = {0: "at once", 1: "late", 2: "late, and lost", 3: "by another application, and lost", 4: "waits"}


def _rows() -> list[Row]:
    """Batch 0 published one message, and put the others into `unpublished`; batch 1 published some of these."""
    ts = [Transaction(0, offset) for offset in _NAMES]
    rows = [row for t in ts for row in (t.half(), t.op(), t.decision())]
    rows += [ts[0].published(), *(t.unpublished() for t in ts[1:3])]
    rows += [ts[3].unpublished(application="older"), ts[4].unpublished(application="new")]
    rows += [t.published(published_at=_LATE, batch_id=1) for t in ts[1:4]]
    return [*rows, batch(0, DECIDED, committed=5), batch(1, _LATE)]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Tables with `_rows`, and the notes of what was published late."""
    settings = Settings.model_validate({"storage": {"root": str(tmp_path)}})
    tables = Tables.of(settings.storage)
    write(None, tables, _rows())
    note(_NOBODY, tables, {("a", "q"): 0, ("a", "older"): 0})
    return settings


def _found(answers: Answers) -> dict[int, set[str]]:
    found: dict[int, set[str]] = {}
    for row in answers.findings().to_pylist():
        found.setdefault(row["queue_offset"], set()).add(row["finding"])
    return found


def _lose(settings: Settings) -> None:
    deleted = DeltaTable(f"{settings.storage.root}/topics/a").delete("half_queue_offset >= 2")
    assert deleted["num_deleted_rows"] == 2


def _details(answers: Answers, offset: int) -> list[str]:
    """What the lineage says of its row in `unpublished`."""
    rows = answers.lineage(f"tx-0-{offset}").to_pylist()
    return [row["detail"] for row in rows if row["event"] == "UNPUBLISHED"]


@pytest.mark.slow
def test_message_that_its_topic_has_lost_since_is_found(settings: Settings) -> None:
    """Nothing waits for it: it is noted as published. One that is not noted waits."""
    answers = Answers(settings)
    assert _found(answers) == {4: {"unpublished"}}
    _lose(settings)
    lost = {"commit_not_published"}
    assert _found(answers) == {2: lost, 3: lost, 4: {"unpublished"}}
    assert answers.audit().broken
    assert [row["queue_offset"] for row in answers.unpublished().to_pylist()] == [4]
    assert _details(answers, 2) == ["published late: waited for the table of a - why"]
    assert _details(answers, 4) == ["waits for the table of a - why"]


@pytest.mark.spark
def test_spark_says_the_same(spark: SparkSession, settings: Settings) -> None:
    _lose(settings)
    by_spark = Answers(settings, spark)
    assert _found(by_spark) == _found(Answers(settings))
    for offset in (2, 4):
        assert _details(by_spark, offset) == _details(Answers(settings), offset)
    assert [row["queue_offset"] for row in by_spark.unpublished().to_pylist()] == [4]


@pytest.mark.slow
def test_message_that_waits_again_after_its_topic_has_lost_it_waits_once(settings: Settings) -> None:
    """`rebuild --publish-again` has put it into `unpublished`, as its topic's table does not take it."""
    again = Transaction(0, 2).unpublished(application="rebuild/1")
    _lose(settings)
    write(None, Tables.of(settings.storage), [again])
    answers = Answers(settings)
    assert _found(answers)[2] == {"unpublished"}
    write(None, Tables.of(settings.storage), [again])
    assert _found(answers)[2] == {"unpublished", "unpublished_twice"}


@pytest.mark.slow
def test_batch_that_has_its_row_is_not_under_way(tmp_path: Path) -> None:
    """What it published late is noted before the checkpoint tells that it is done."""
    settings = Settings.model_validate({"storage": {"root": str(tmp_path)}})
    tables = Tables.of(settings.storage)
    later: dict[str, Any] = {"published_at": DECIDED + timedelta(seconds=2)}
    rows = [row if row[0] != "topics/a" else (row[0], row[1] | later) for row in _rows()[:-1]]
    write(None, tables, [*rows, batch(1, later["published_at"])])
    checkpoint(tmp_path, done=DECIDED, batch_id=0)
    note(_NOBODY, tables, {("a", "q"): 0, ("a", "older"): 0})
    report = Answers(settings).audit()
    assert not any(each.finding.name == "commit_not_published" for each in report.found)
