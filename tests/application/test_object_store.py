"""The whole path on tables in an object store: landed, reconciled, killed, rebuilt, maintained, audited."""

from __future__ import annotations

import time
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from checkback.application.queries import reconcile, tick
from checkback.application.rebuild import rebuild
from checkback.errors import CheckbackError, FencedError
from checkback.landing.file_query import land
from checkback.maintain.maintenance import maintain
from checkback.query.answers import Answers
from checkback.reconcile.start.idle_run import nothing_to_do
from checkback.settings import Settings, Storage
from checkback.storage.lock import exclusive_lock
from checkback.storage.tables import Tables
from maintain.fixtures import Quiet
from support.ended import assert_ended
from support.fault_proxy import cut, fault_proxy
from support.s3_server import options
from support.scripted import made

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

_CHECK_MAX = 1


class CrashError(ConnectionError):
    """The application dies."""


def test_tables_in_an_object_store_end_as_in_a_folder(
    spark: SparkSession, tmp_path: Path, s3_storage: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(18)
    trace = made(random, 60, round(time.time() * 1000))
    for number, half in enumerate(trace.halves.values()):
        half["check_immunity"] = None
        if number % 3 == 0:
            half["delay"] = "1ms"  # published by a later run
    trace.write(tmp_path, random)
    content: dict[str, Any] = {
        "storage": s3_storage,
        # No checks before the crash: one that is repeated counts twice.
        "transaction": {"timeout": "1h", "check_max": _CHECK_MAX, "check_interval": "1ms"},
        "reconcile": {"partitions": 2, "segment_size": 64},
        "maintain": {"min_files": 2},
    }
    settings = Settings.model_validate(content)
    tables = Tables.of(settings.storage)
    land(spark, settings, f"{tmp_path}/half", f"{tmp_path}/op", available_now=True)
    with exclusive_lock(tables), pytest.raises(FencedError, match="already working on these tables"):
        reconcile(spark, settings, available_now=True)

    commit = Tables.commit

    def dying_commit(self: Tables, spark: SparkSession, name: str, *args: Any) -> None:
        if name == "decisions":  # after the topics' tables
            raise CrashError
        commit(self, spark, name, *args)

    with monkeypatch.context() as dying:
        dying.setattr(Tables, "commit", dying_commit)
        with pytest.raises(CheckbackError):
            reconcile(spark, settings, available_now=True)
    reconcile(spark, settings, available_now=True)
    content["transaction"]["timeout"] = "0s"
    settings = Settings.model_validate(content)
    rebuilt = rebuild(spark, settings, print)
    assert rebuilt is not None
    assert (rebuilt.set_aside or "").startswith(f"{tables.root}/_checkpoints/reconcile.before-")
    for _ in range(_CHECK_MAX + 1):
        reconcile(spark, settings, available_now=True)
    reports = {report.table: report for report in maintain(settings, tables, dry_run=False, progress=Quiet())}
    assert reports["ticks"].files_after < reports["ticks"].files_before
    assert nothing_to_do(tables, settings, round(time.time() * 1000))
    assert_ended(spark, settings, trace)
    assert tables.read(spark, "deliveries").count() > 0
    assert not Answers(settings).audit().broken


def test_reads_of_spark_that_break_off_are_repeated(
    spark: SparkSession, s3_storage: dict[str, Any], s3_port: int
) -> None:
    """A commit, which the driver reads, and a file, which a task does: either would end the query."""
    with fault_proxy(s3_port) as port:
        tables = Tables.of(Storage.model_validate(s3_storage | {"options": options(port)}))
        tables.create(spark, "ticks")
        hadoop = spark.sparkContext._jsc.hadoopConfiguration()
        hadoop.set("fs.s3a.endpoint", f"http://127.0.0.1:{port}")
        hadoop.set("fs.s3.impl.disable.cache", "true")
        try:
            for number, request in enumerate(("GET .*_delta_log/", "GET .*parquet"), 1):
                tick(spark, tables)
                cut(port, request, 2)
                assert len(tables.read(spark, "ticks").collect()) == number
        finally:
            hadoop.set("fs.s3a.endpoint", f"http://127.0.0.1:{s3_port}")
            hadoop.unset("fs.s3.impl.disable.cache")
