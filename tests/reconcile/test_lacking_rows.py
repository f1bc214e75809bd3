"""What the tables lack: nothing after whole batches, and decisions of a message's own topic only."""

from __future__ import annotations

from datetime import timedelta
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from checkback.reconcile.lost_checkpoint.batch_recovery import IDENTITY, _decisions, finish
from checkback.settings import Settings
from checkback.storage.schemas import SCHEMAS
from checkback.storage.tables import Tables
from support.stories import DECIDED, Row, Transaction, write

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
_DUE = DECIDED + timedelta(seconds=10)
_MESSAGES = 600


def _delivery(t: Transaction, **other: Any) -> Row:
    return "deliveries", t.key | {"real_topic": "a", "deliver_at": _DUE, "delivered_at": _DUE, "batch_id": 1} | other


def _whole(queue: int) -> list[Row]:
    """All that batches write of messages that ended in each way."""
    t = [Transaction(queue, offset) for offset in range(6)]
    scheduled = [one.decision(deliver_at=_DUE) for one in t[3:]]
    rows = [*t[0].committed(), *t[1].rolled_back(), *t[2].given_up(), *(one.half() for one in t[3:]), *scheduled]
    rows += [_delivery(t[4]), t[4].published(), t[5].decision("CANCEL"), t[5].discarded(reason="CANCELLED")]
    return rows


def _any(random: Random, queue: int) -> list[Row]:
    """Rows about an offset that hardly fit together, some of them by writers of other kinds."""
    t = Transaction(queue)
    due = random.choice([None, _DUE])
    made: list[Row] = [
        t.decision(deliver_at=due),
        t.decision(random.choice(["COMMIT", "DISCARD", "ROLLBACK", "CANCEL"]), deliver_at=due),
        _delivery(t),
        t.discarded(reason=random.choice(["CHECK_MAX", "CANCELLED", None])),
        t.published(),
        t.published("b"),
        t.unpublished(random.choice(["a", "b"])),
    ]
    chosen = random.sample(made, random.randrange(1, 5))
    others: list[dict[str, Any]] = [{"transaction_id": "other"}, {"transaction_id": None}, {"producer_group": None}]
    others += [{}] * 9
    same = random.random() < 0.3
    other = random.choice(others)
    halves = random.choice([[t.half()], [t.half()], [t.half(real_topic="b")], []])
    return [*halves, *((name, row | (other if same else random.choice(others))) for name, row in chosen)]


def test_decisions_are_of_the_own_topic(spark: SparkSession, tmp_path: Path) -> None:
    """Of what landed: rows in a folder of another name are a stranger's."""
    random = Random(11)
    settings = Settings.model_validate({"storage": {"root": str(tmp_path)}})
    tables = Tables.of(settings.storage)
    tables.create(spark, *SCHEMAS)
    write(spark, tables, [row for queue in range(_MESSAGES) for row in _any(random, queue)])
    half = tables.read(spark, "half")
    topics = {tuple(row[:4]): row["real_topic"] for row in half.select(*IDENTITY, "real_topic").collect()}
    decisions = _decisions(spark, tables, tables.topics(spark))
    made = decisions.where("state = 'COMMIT'").select(*IDENTITY, "real_topic").collect()
    found = [(topics[tuple(row[:4])], row["real_topic"]) for row in made if tuple(row[:4]) in topics]
    assert {topic for topic, _ in found} == {"a", "b"}
    assert all(own == topic for own, topic in found)


def test_nothing_is_lacking_after_whole_batches(spark: SparkSession, tmp_path: Path) -> None:
    settings = Settings.model_validate({"storage": {"root": str(tmp_path)}})
    tables = Tables.of(settings.storage)
    tables.create(spark, *SCHEMAS)
    assert finish(spark, tables, None) == {}
    write(spark, tables, [row for queue in range(2) for row in _whole(queue)])
    assert finish(spark, tables, None) == {}
