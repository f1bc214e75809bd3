"""What a rebuild writes for decisions that are lost: as they were, by what the other tables have."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from checkback.query.answers import Answers
from checkback.reconcile.lost_checkpoint.batch_recovery import finish
from checkback.reconcile.lost_checkpoint.interrupted_batch import find
from checkback.settings import Settings
from checkback.storage.schemas import SCHEMAS
from checkback.storage.tables import Tables
from support.rows import records_of
from support.stories import DECIDED, Row, Transaction, batch, write

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

_SECOND = timedelta(seconds=1)


@pytest.mark.spark
def test_commits_of_delivered_messages_have_their_deliver_at(spark: SparkSession, tmp_path: Path) -> None:
    """By a delay, by a time, and published at once; `decisions` was put back to before them."""
    due, out = DECIDED + 10 * _SECOND, DECIDED + 12 * _SECOND
    delayed, timed, at_once = (Transaction(0, offset) for offset in range(3))
    rows: list[Row] = [delayed.half(delay_ms=10_000), timed.half(deliver_at=due), at_once.half()]
    for t in (delayed, timed):
        decision = t.decision(deliver_at=due, decided_at=out, batch_id=2)[1]
        delivery = {name: decision[name] for name in (*t.key, "real_topic", "deliver_at", "batch_id")}
        rows += [("deliveries", delivery | {"delivered_at": out}), t.published(published_at=out, batch_id=2)]
    rows += [*(t.op() for t in (delayed, timed, at_once)), at_once.published(batch_id=1)]
    rows += [batch(0, Transaction(0).born - _SECOND), batch(1, DECIDED, committed=3, scheduled=2)]
    rows += [batch(2, out, delivered=2), batch(3, out + _SECOND)]
    settings = Settings.model_validate({"storage": {"root": str(tmp_path)}})
    tables = Tables.of(settings.storage)
    tables.create(spark, *SCHEMAS)
    write(spark, tables, rows)
    assert finish(spark, tables, find(spark, tables)) == {"decisions": 3}
    assert finish(spark, tables, find(spark, tables)) == {}
    found = {row["queue_offset"]: (row["batch_id"], row["deliver_at"]) for row in records_of(tmp_path, "decisions")}
    assert found == {0: (1, due), 1: (1, due), 2: (1, None)}
    assert all(each.finding.level == "figure" for each in Answers(settings).audit().found)


@pytest.mark.spark
def test_only_rows_in_the_topic_of_their_half_message_are_published(spark: SparkSession, tmp_path: Path) -> None:
    """Somebody has copied a topic's table to another name, or moved it there, after a batch broke off."""
    due, out = DECIDED + 10 * _SECOND, DECIDED + 12 * _SECOND
    copied, moved, without_half, copied_out, moved_out = (Transaction(0, offset) for offset in range(5))
    elsewhere = "0_old"  # a name that comes before the topic's
    late: dict[str, Any] = {"published_at": out, "batch_id": 2}
    rows: list[Row] = [one.half() for one in (copied, moved)]
    rows += [t.half(deliver_at=due) for t in (copied_out, moved_out)]
    rows += [t.decision(deliver_at=due, batch_id=1) for t in (copied_out, moved_out)]
    rows += [t.published(**late) for t in (copied, without_half, copied_out)]
    rows += [t.published(elsewhere, **late) for t in (copied, moved, copied_out, moved_out)]
    rows += [batch(0, Transaction(0).born - _SECOND), batch(1, DECIDED, committed=2, scheduled=2)]
    settings = Settings.model_validate({"storage": {"root": str(tmp_path)}})
    tables = Tables.of(settings.storage)
    tables.create(spark, *SCHEMAS)
    write(spark, tables, rows)
    assert finish(spark, tables, find(spark, tables)) == {"decisions": 2, "deliveries": 1}
    assert finish(spark, tables, find(spark, tables)) == {}
    found = {name: records_of(tmp_path, name) for name in ("decisions", "deliveries")}
    assert {(row["queue_offset"], row["real_topic"]) for row in found["decisions"]} == {(n, "a") for n in (0, 2, 3, 4)}
    assert [(row["queue_offset"], row["real_topic"]) for row in found["deliveries"]] == [(3, "a")]
