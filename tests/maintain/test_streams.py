"""Streams across a run of `maintain`: what they have not read stays, and nothing is read twice. And Spark's own way."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException

from checkback.application.queries import reconcile
from checkback.gateway.appender import op_rows
from checkback.maintain.spark_maintenance import hours_kept, maintain_by_spark
from checkback.maintain.streams import LOST
from checkback.messages.op import Op
from checkback.reconcile.checkpoint_owner import claim
from checkback.settings import Settings
from checkback.storage.parquet.parquet_files import FileWriter
from checkback.storage.spark_schemas import schema_of
from checkback.storage.tables import Tables
from maintain.fixtures import DAY_MS, Quiet, Sender, append, maintained, settings_of
from support.rows import count_of, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession


def long_after() -> int:
    """When all that is there is older than every retention."""
    return round(time.time() * 1000) + 40 * DAY_MS


@pytest.mark.parametrize("fails_in", [0, 1, 3])
def test_stream_that_stood_still_goes_on(spark: SparkSession, tmp_path: Path, fails_in: int) -> None:
    """It broke off in its first batch, amid the snapshot that it begins with, or amid a later commit of many files."""
    settings = settings_of(tmp_path)
    tables = Tables.of(settings.storage)
    sender = Sender(tmp_path)
    for _ in range(4):
        sender.commit()
    read: Counter[tuple[int, int]] = Counter()

    def drain(breaks: bool) -> None:
        def batch(rows: DataFrame, batch_id: int) -> None:
            if breaks and batch_id == fails_in:
                raise RuntimeError("the machine is gone")
            read.update((row[0], row[1]) for row in rows.select("queue_id", "queue_offset").collect())

        query = (
            tables.stream(spark, "half", maxFilesPerTrigger="1" if breaks else "1000")
            .writeStream.option("checkpointLocation", tables.checkpoint("reconcile"))
            .trigger(availableNow=True)
            .foreachBatch(batch)
            .start()
        )
        query.awaitTermination()

    if fails_in > 2:
        drain(breaks=False)
    _commit_of_files(sender, tables, 4)
    with pytest.raises(StreamingQueryException, match="the machine is gone"):
        drain(breaks=True)
    before = Counter(read)
    for _ in range(8):
        sender.commit()
    for _ in range(2):  # the second run finds what the first one has replaced
        maintained(settings, long_after())
        sender.commit()
    kept = maintained(settings, long_after())["half"]
    drain(breaks=False)
    assert set(read.values()) == {1}
    assert len(read) == sender.sent
    assert len(before) < len(read)
    assert kept.kept
    drained = maintained(settings, long_after())["half"]
    assert drained.kept == ()
    assert {path.name for path in (tmp_path / "half").glob("*.parquet")} == tables.log("half").paths()
    # On start Spark lists the commits of the last batch once more, however long ago it was.
    sender.commit()
    drain(breaks=False)
    assert set(read.values()) == {1}
    assert len(read) == sender.sent


def _commit_of_files(sender: Sender, tables: Tables, files: int) -> None:
    """A commit of several files."""
    written = []
    for _ in range(files):
        with FileWriter(tables.root) as writer:
            writer.write("half", sender.rows(0, 2))
            written += writer.close()
    tables.log("half").commit(written)


@pytest.mark.spine("maintenance beside the streams")
def test_reconcile_goes_on_where_it_stood(spark: SparkSession, tmp_path: Path) -> None:
    """Half of it is decided; more lands, all becomes few files, the log is cut: each is published once."""
    content = {
        "storage": {"root": str(tmp_path)},
        "transaction": {"timeout": "1h"},
        "reconcile": {"partitions": 2, "segment_size": 64},
        "maintain": {"min_files": 2},
    }
    settings = Settings.model_validate(content)
    sender = Sender(tmp_path)
    late = _land(sender, tmp_path, 8)
    reconcile(spark, settings, available_now=True)
    maintained(settings)
    late += _land(sender, tmp_path, 8)
    for _ in range(2):  # the second run finds what the first one has replaced
        done = maintained(settings, long_after())
    assert done["half"].kept
    assert done["op"].kept
    append(tmp_path, "op", pa.concat_tables(late))
    reconcile(spark, settings, available_now=True)
    done = maintained(settings, long_after())
    assert done["half"].kept == ()
    assert done["half"].removed_files
    decided = rows_of(tmp_path, "decisions", "queue_id", "queue_offset")
    published = rows_of(tmp_path, "topics/orders", "half_queue_id", "half_queue_offset")
    assert len(decided) == len({*decided}) == len(published) == len({*published}) == sender.sent
    assert count_of(tmp_path, "rejected") == 0


def _land(sender: Sender, root: Path, commits: int) -> list[pa.Table]:
    """Small commits of half messages and of ops; the ops of every third one, which are yet to come."""
    late = []
    for number in range(commits):
        halves = sender.commit()
        ops = [
            Op(half["queue_id"], half["queue_offset"], half["transaction_id"], "ga", "COMMIT", 1000)
            for half in halves.select(["queue_id", "queue_offset", "transaction_id"]).to_pylist()
        ]
        rows = op_rows(ops, [None] * len(ops), 3000)
        if number % 3 == 2:
            late.append(rows)
        else:
            append(root, "op", rows)
    return late


def test_tables_of_a_catalog_by_spark(spark: SparkSession, tmp_path: Path) -> None:
    """Fewer files, the same rows; no VACUUM while the checkpoint of `reconcile` is somewhere else."""
    spark.sql("CREATE SCHEMA IF NOT EXISTS spark_catalog.maintained")
    storage = {
        "root": str(tmp_path),
        "catalog": "spark_catalog",
        "schema": "maintained",
        "checkpoints": f"{tmp_path}/_checkpoints",
    }
    settings = Settings.model_validate(
        {"storage": storage, "maintain": {"min_files": 2}, "reconcile": {"partitions": 3}}
    )
    tables = Tables.of(settings.storage)
    try:
        # Delta's builder of tables takes no name of three levels outside Databricks.
        spark.createDataFrame([], schema_of("half")).write.format("delta").saveAsTable(tables.location("half"))
        sender = Sender(tmp_path / "elsewhere")
        for _ in range(4):
            tables.append_arrow(spark, sender.rows(0, 3), "half")
        dry = maintain_by_spark(spark, settings, tables, dry_run=True, progress=Quiet())
        assert [(one.table, one.files_before, one.files_after) for one in dry] == [("half", 4, 4)]
        with _most_tasks(spark) as most:
            (done,) = maintain_by_spark(spark, settings, tables, dry_run=False, progress=Quiet())
        assert most() <= 2 * 3  # a table has no folders of its own: VACUUM's default is 10,000
        assert (done.files_before, done.files_after, done.rewritten) == (4, 1, 4)
        assert done.version_after > done.version_before
        rows = tables.read(spark, "half")
        assert rows.count() == rows.select("queue_offset").distinct().count() == 12
        # reconcile runs with a checkpoint that cannot be seen here
        tables.create(spark, "decisions")
        claim(spark, tables, "some-query", 64)
        held = maintain_by_spark(spark, settings, tables, dry_run=False, progress=Quiet())
        assert {one.table: one.kept for one in held} == {"half": (LOST,), "decisions": (LOST,)}
        (tmp_path / "_checkpoints/reconcile").mkdir(parents=True)
        (tmp_path / "_checkpoints/reconcile/metadata").write_text('{"id": "some-query"}')
        seen = maintain_by_spark(spark, settings, tables, dry_run=False, progress=Quiet())
        assert {one.table: one.kept for one in seen} == {"half": (), "decisions": ()}
    finally:
        spark.sql("DROP SCHEMA spark_catalog.maintained CASCADE")


@contextmanager
def _most_tasks(spark: SparkSession) -> Iterator[Callable[[], int]]:
    """The most tasks of any stage that is run within."""
    context, group = spark.sparkContext, "most tasks"
    context.setJobGroup(group, group)
    try:
        yield lambda: max(stages.values())
    finally:
        tracker: Any = context.statusTracker()
        jobs = filter(None, map(tracker.getJobInfo, tracker.getJobIdsForGroup(group)))
        found = [tracker.getStageInfo(stage) for job in jobs for stage in job.stageIds]
        stages = {stage.stageId: stage.numTasks for stage in found if stage is not None}
        for key in ("spark.jobGroup.id", "spark.job.description"):
            context.setLocalProperty(key, None)  # type: ignore[arg-type]


def test_hours_that_vacuum_keeps() -> None:
    from datetime import timedelta

    hour, now = 3_600_000, 10**12
    assert hours_kept([], now, timedelta(days=7)) == 168
    assert hours_kept([now - hour], now, timedelta(days=7)) == 168
    assert hours_kept([now - 200 * hour, now], now, timedelta(days=7)) == 201
    assert hours_kept([None], now, timedelta(days=7)) is None
    assert hours_kept([], now, timedelta(minutes=61)) == 2
