"""Streams across a run of retention in a catalog: nothing is read twice, and nothing that was not read is lost."""

from __future__ import annotations

import shutil
from collections import Counter
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

from checkback.application.rebuild import rebuild
from checkback.consumer import read_stream
from checkback.maintain.rows_in_sql import RowsInSql
from checkback.maintain.spark_maintenance import retain
from checkback.maintain.sql_changes import SqlChanges
from checkback.storage.horizon import floors
from checkback.storage.schemas import SCHEMAS
from storage import test_spark_tables
from storage.test_spark_tables import Lakehouse
from support.stories import ms

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from checkback.settings import Settings

pytestmark = [pytest.mark.spark, pytest.mark.slow]

DAYS = 40
SCHEMA = "spark_catalog.retained_streams"
#: by table, the columns with the time of a batch
_TIMES = {
    "decisions": ("decided_at",),
    "batches": ("batch_time", "finished_at"),
    "topics/orders_1": ("published_at",),
}


class Lake(Lakehouse):
    """Thirty days of history, and half messages of now."""

    def settings(self, segment_size: int = 64) -> Settings:
        """Topics are kept as long."""
        found = super().settings(segment_size)
        transaction = found.transaction.model_copy(update={"max_age": timedelta(hours=1)})
        retention = found.retention.model_copy(update={"topics": timedelta(days=30)})
        return found.model_copy(update={"transaction": transaction, "retention": retention})

    def age(self) -> None:
        """What batches have written is forty days older."""
        for name, columns in _TIMES.items():
            place = self.tables.in_sql(name)
            self.spark.sql(f"ALTER TABLE {place} SET TBLPROPERTIES ('delta.appendOnly' = 'false')")
            later = ", ".join(f"{column} = {column} - INTERVAL {DAYS} DAYS" for column in columns)
            self.spark.sql(f"UPDATE {place} SET {later}")  # noqa: S608 - our names

    def retain(self) -> Counter[str]:
        """By table the number of rows that are gone; before, the files are compacted."""
        for name in ("half", "op"):
            self.spark.sql(f"OPTIMIZE {self.tables.in_sql(name)}")
        names = [*SCHEMAS, *self.tables.topics(self.spark)]
        own = RowsInSql(SqlChanges(self.spark, self.tables), names, dry_run=False)
        retain(own, self.settings(), ms(datetime.now(timezone.utc)))
        return Counter({name: found.rows for name, found in own.removed.items() if found.rows})

    def offsets(self, name: str) -> list[int]:
        """The offsets that a table has."""
        return sorted(row[0] for row in self.tables.read(self.spark, name).select("queue_offset").collect())


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    monkeypatch.setattr(test_spark_tables, "TOPICS", ("orders_1",))
    spark.sql(f"CREATE SCHEMA {SCHEMA}")
    try:
        yield Lake(spark, tmp_path, dict(zip(("catalog", "schema"), SCHEMA.split("."), strict=True)))
    finally:
        spark.sql(f"DROP SCHEMA {SCHEMA} CASCADE")


def _born(monkeypatch: pytest.MonkeyPatch, days: int) -> None:
    monkeypatch.setattr(test_spark_tables, "_BORN", datetime.now(timezone.utc) - timedelta(days=days, minutes=1))


def _read(rows: DataFrame, place: Path, read: Counter[int]) -> None:
    def batch(found: DataFrame, _: int) -> None:
        read.update(row[0] for row in found.select("half_queue_offset").collect())

    query = rows.writeStream.option("checkpointLocation", str(place)).trigger(availableNow=True)
    query.foreachBatch(batch).start().awaitTermination()


def test_streams_go_on_after_rows_are_removed(lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files are compacted: what was read long ago, and what was not read, lie in one, which loses rows.

    A batch that was done, but not noted as done, is done again after that.
    """
    spark, settings, read, plain = lake.spark, lake.settings(), Counter[int](), Counter[int]()
    with monkeypatch.context() as then:
        _born(then, DAYS)
        lake.land(0, 1, 2, 3)
        lake.end("COMMIT", 0, 1)
        lake.end("ROLLBACK", 2, 3)
        lake.run()
    lake.age()
    _born(monkeypatch, 0)
    lake.land(4)
    lake.run()
    _read(read_stream(spark, settings, "orders_1"), tmp_path / "ours", read)
    _read(lake.spark.readStream.table(lake.tables.location("topics/orders_1")), tmp_path / "plain", plain)
    lake.land(5)
    lake.end("COMMIT", 4, 5)
    lake.run()
    done = lake.checkpoints / "reconcile/commits"
    newest = max(int(path.name) for path in done.iterdir() if path.name.isdigit())
    (done / f"{newest}").unlink()
    (done / f".{newest}.crc").unlink(missing_ok=True)
    lake.land(6, 7)
    lake.end("COMMIT", 6)

    assert lake.retain() == {"half": 4, "op": 4, "decisions": 4, "topics/orders_1": 2}
    assert (lake.offsets("half"), lake.offsets("op")) == ([4, 5, 6, 7], [4, 5, 6])
    assert floors(spark, lake.tables, [1]) == {1: 4}
    lake.run()
    assert lake.decisions() == dict.fromkeys((4, 5, 6), "COMMIT")
    assert lake.published() == {"orders_1": [4, 5, 6]}
    assert lake.figures()["pending"] == 1
    _read(read_stream(spark, settings, "orders_1"), tmp_path / "ours", read)
    assert read == Counter(range(7)) - Counter((2, 3))
    with pytest.raises(StreamingQueryException, match="DELTA_SOURCE_IGNORE_DELETE"):
        _read(spark.readStream.table(lake.tables.location("topics/orders_1")), tmp_path / "plain", plain)

    shutil.rmtree(lake.checkpoints)
    assert rebuild(spark, settings, print) is not None
    lake.end("COMMIT", 0, 7)  # one comes too late by forty days
    lake.run()
    assert lake.published() == {"orders_1": [4, 5, 6, 7]}
