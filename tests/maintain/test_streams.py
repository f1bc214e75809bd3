"""Streams across a run of `maintain`: what they have not read stays, and nothing is read twice. And Spark's own way."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

from checkback.files import FileWriter
from checkback.landing.files import land
from checkback.maintain.by_spark import hours_kept, maintain_by_spark
from checkback.reconcile.run import reconcile
from checkback.settings import Settings
from checkback.tables import Tables
from ended import assert_ended
from maintain.house import DAY_MS, Quiet, Sender, maintained, settings_of
from scripted import made

if TYPE_CHECKING:
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


def _commit_of_files(sender: Sender, tables: Tables, files: int) -> None:
    """A commit of several files."""
    written = []
    for _ in range(files):
        with FileWriter(tables.root) as writer:
            writer.write("half", sender.rows(0, 2))
            written += writer.close()
    tables.log("half").commit(written)


def test_reconcile_goes_on_where_it_stood(spark: SparkSession, tmp_path: Path) -> None:
    """Half of the trace is decided; the rest lands, all becomes few files, the log is cut: everything ends once."""
    random = Random(11)
    trace = made(random, 90, round(time.time() * 1000))
    for half in trace.halves.values():
        half["check_immunity_s"] = None
    trace.write_parts(tmp_path, random, 3)
    content = {
        "storage": {"root": str(tmp_path / "data")},
        "transaction": {"timeout": "1h", "check_max": 1, "check_interval": "1ms"},
        "reconcile": {"partitions": 2, "segment_size": 64},
        "maintain": {"min_files": 2},
    }
    settings = Settings.model_validate(content)

    def land_file(number: int) -> None:
        for kind in ("half", "op"):
            (tmp_path / f"now/{kind}").mkdir(parents=True, exist_ok=True)
            (tmp_path / kind / f"{number}.jsonl").rename(tmp_path / f"now/{kind}/{number}.jsonl")
        land(spark, settings, f"{tmp_path}/now/half", f"{tmp_path}/now/op", available_now=True)

    land_file(0)
    reconcile(spark, settings, available_now=True)
    for number in (1, 2):
        land_file(number)
    for _ in range(2):
        done = maintained(settings, long_after())
    assert done["half"].kept
    content["transaction"] = {"timeout": "0s", "check_max": 1, "check_interval": "1ms"}
    settings = Settings.model_validate(content)
    for _ in range(2):
        reconcile(spark, settings, available_now=True)
    done = maintained(settings, long_after())
    assert done["half"].removed_files
    assert done["decisions"].rewritten
    assert_ended(spark, settings, trace)


def test_tables_of_a_catalog_by_spark(spark: SparkSession, tmp_path: Path) -> None:
    """Fewer files, the same rows; a stream that stands still in the past keeps VACUUM from all."""
    spark.sql("CREATE SCHEMA IF NOT EXISTS spark_catalog.maintained")
    storage = {"root": str(tmp_path), "catalog": "spark_catalog", "schema": "maintained"}
    settings = Settings.model_validate({"storage": storage, "maintain": {"min_files": 2}})
    tables = Tables.of(settings.storage)
    try:
        tables.create(spark, "half")
        sender = Sender(tmp_path / "elsewhere")
        for _ in range(4):
            tables.append_arrow(spark, sender.rows(0, 3), "half")
        dry = maintain_by_spark(spark, settings, tables, dry_run=True, progress=Quiet())
        assert [(one.table, one.files_before, one.files_after) for one in dry] == [("half", 4, 4)]
        (done,) = maintain_by_spark(spark, settings, tables, dry_run=False, progress=Quiet())
        assert (done.files_before, done.files_after, done.rewritten) == (4, 1, 4)
        assert done.version_after > done.version_before
        rows = tables.read(spark, "half")
        assert rows.count() == rows.select("queue_offset").distinct().count() == 12
    finally:
        spark.sql("DROP SCHEMA spark_catalog.maintained CASCADE")


def test_hours_that_vacuum_keeps() -> None:
    from datetime import timedelta

    hour, now = 3_600_000, 10**12
    assert hours_kept([], now, timedelta(days=7)) == 168
    assert hours_kept([now - hour], now, timedelta(days=7)) == 168
    assert hours_kept([now - 200 * hour, now], now, timedelta(days=7)) == 201
    assert hours_kept([None], now, timedelta(days=7)) is None
    assert hours_kept([], now, timedelta(minutes=61)) == 2
