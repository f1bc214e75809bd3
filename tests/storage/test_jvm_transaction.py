"""The driver's rows, appended by Delta's own transaction: in a catalog and in a folder that Spark writes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import nullcontext, suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlparse

import pyarrow as pa
import pytest
from py4j.java_gateway import JavaObject
from py4j.protocol import Py4JError

from checkback.errors import FencedError, StorageError
from checkback.storage import spark_writer
from checkback.storage.log import jvm_transaction
from checkback.storage.schemas import arrow_schema
from checkback.storage.tables import Tables

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

NAME, SCHEMA = "topics/orders", "jvm_transaction_test"
_AT = datetime(2026, 3, 1, 12, 30, 15, 123456, tzinfo=timezone.utc)
_KEY = "half_queue_offset"


def _rows(*offsets: int) -> pa.Table:
    filled: dict[str, Any] = {
        "properties": [("region", "eu"), ("amount", None)],
        "body": b"\x00\xff",
        "transaction_id": "tx 1/ä",
        "born_timestamp": _AT,
        "half_queue_id": 3,
    }
    return pa.Table.from_pylist([{**filled, _KEY: offset} for offset in offsets], arrow_schema(NAME))


@pytest.fixture(scope="module")
def folder(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The table, empty."""
    root = tmp_path_factory.mktemp("tables")
    Tables(root=str(root)).create(spark, NAME)
    return root


@pytest.fixture(params=["catalog", "folder"])
def tables(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Iterator[Tables]:
    if request.param == "folder":
        shutil.copytree(request.getfixturevalue("folder"), tmp_path, dirs_exist_ok=True)
        yield Tables(root=str(tmp_path), sync=True)
        return
    spark.sql(f"CREATE SCHEMA spark_catalog.{SCHEMA}")
    try:
        found = Tables(catalog="spark_catalog", schema=SCHEMA, checkpoints=str(tmp_path))
        found.create(spark, NAME)
        yield found
    finally:
        spark.sql(f"DROP SCHEMA spark_catalog.{SCHEMA} CASCADE")


def _offsets(spark: SparkSession, tables: Tables) -> list[int]:
    return sorted(row[0] for row in tables.read(spark, NAME).select(_KEY).collect())


def _operations(spark: SparkSession, tables: Tables) -> list[str]:
    """Of the table's commits, oldest first."""
    found = spark.sql(f"DESCRIBE HISTORY {tables.in_sql(NAME)}").select("version", "operation").collect()
    return [operation for _, operation in sorted(found)]


def _log(spark: SparkSession, tables: Tables) -> Path:
    place = spark.sql(f"DESCRIBE DETAIL {tables.in_sql(NAME)}").select("location").collect()[0][0]
    return Path(urlparse(place).path) / "_delta_log"


def _jobs(spark: SparkSession) -> int:
    context: Any = spark.sparkContext
    return int(context._jsc.sc().dagScheduler().numTotalJobs())


def _by_spark(rows: DataFrame, tables: Tables, app: str, version: int) -> None:
    Tables(**{key: vars(tables)[key] for key in ("root", "catalog", "schema")})._append_by_spark(
        rows, NAME, app, version
    )


@pytest.mark.spine("commits by the JVM's Delta")
def test_rows_are_as_spark_writes_them(spark: SparkSession, tables: Tables) -> None:
    """The same values, found by the statistics, in a file of the table's folder, with Delta's own history."""
    tables.append_arrow(spark, _rows(1, 2), NAME, "a", 1)
    _by_spark(spark.createDataFrame(_rows(3)), tables, "a", 2)
    found = tables.read(spark, NAME).orderBy(_KEY).toArrow().drop_columns(_KEY).to_pylist()
    assert found[0] == found[1] == found[2]
    assert found[0]["body"] == b"\x00\xff"
    assert tables.read(spark, NAME).where(f"{_KEY} = 2 AND half_queue_id = 3").count() == 1
    assert _operations(spark, tables) == ["CREATE TABLE", "STREAMING UPDATE", "WRITE"]
    assert [tables.last_version(spark, NAME, app) for app in ("a", "b")] == [2, None]


def test_no_spark_job_once_the_table_is_known(spark: SparkSession, tables: Tables) -> None:
    """The first commit looks the application up; and nobody need ask which version the last one made."""
    tables.append_arrow(spark, _rows(1), NAME, "a", 1)
    before = _jobs(spark)
    for version in range(2, 6):
        tables.append_arrow(spark, _rows(version), NAME, "a", version)
        assert tables.committed_version(spark, NAME) == version
    assert _jobs(spark) == before
    assert _offsets(spark, tables) == [1, 2, 3, 4, 5]


def test_newest_and_last_versions_take_no_spark_job(spark: SparkSession, tables: Tables) -> None:
    """Where the log is opened anew, too; of a torn checksum file, and without one, Spark tells the same."""
    for app, version in (("a", 1), ("b", 7), ("a", 2)):
        tables.append_arrow(spark, _rows(version), NAME, app, version)
    tables.create(spark, "topics/empty")
    jvm: Any = spark._jvm
    for number, end in enumerate((None, -200, 0, None)):
        for file in _log(spark, tables).glob("[0-9]*.crc"):
            file.write_bytes(file.read_bytes()[:end])
            file.with_name(f".{file.name}.crc").unlink(missing_ok=True)  # Hadoop's, which would tell of it
            if number == 3:
                file.unlink()
        jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
        before = _jobs(spark)
        assert (tables.newest(spark, NAME), tables.exists(spark, NAME)) == (3, True)
        assert (tables.has_rows(spark, NAME), tables.has_rows(spark, "topics/empty")) == (True, False)
        found = {app: tables._spark_writer._transactions.last_version(spark, tables._place(NAME), app) for app in "abc"}
        assert found == {"a": 2, "b": 7, "c": -1}
        assert min(_jobs(spark) - before, 1) == min(number, 1)
    assert (tables.newest(spark, "topics/none"), tables.exists(spark, "topics/none")) == (None, False)


def test_checksum_of_a_lost_commit_tells_nothing(spark: SparkSession, tables: Tables) -> None:
    """As a restore may leave it: Delta writes no other in its place. What it names was not committed here."""
    jvm: Any = spark._jvm
    for version in (1, 9, 2, 3):
        tables = Tables(**{key: vars(tables)[key] for key in ("root", "catalog", "schema", "sync")})
        tables.append_arrow(spark, _rows(version), NAME, "a", version)
        if version == 9:
            for name in (f"{2:020}.json", f".{2:020}.json.crc"):
                (_log(spark, tables) / name).unlink(missing_ok=True)
            assert (_log(spark, tables) / f"{2:020}.crc").exists()
        jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    assert _offsets(spark, tables) == [1, 2, 3]


def test_repeated_version_is_skipped(spark: SparkSession, tables: Tables) -> None:
    """By the process that has committed it, by one that starts, and by Spark; a version is an application's own."""
    again = Tables(**{key: vars(tables)[key] for key in ("root", "catalog", "schema")})
    for known in (tables, tables, again):
        for version in (1, 2, 1):
            known.append_arrow(spark, _rows(version), NAME, "a", version)
    _by_spark(spark.createDataFrame(_rows(2)), tables, "a", 2)
    _by_spark(spark.createDataFrame(_rows(3)), tables, "a", 3)
    tables.append_arrow(spark, _rows(3), NAME, "a", 3)
    tables.append_arrow(spark, _rows(4), NAME, "b", 1)
    assert _offsets(spark, tables) == [1, 2, 3, 4]


def test_versions_that_delta_forgets(spark: SparkSession, tables: Tables) -> None:
    """A replay is refused, or skipped where the history tells; so is who was never there; without the property not."""
    tables.append_arrow(spark, _rows(1), NAME, "a", 1)
    table, name = tables.in_sql(NAME), "delta.setTransactionRetentionDuration"
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('{name}' = 'interval 0 seconds')")
    refused = re.escape(f"{tables.location(NAME)}: {name} is set: nobody can tell what was committed; ALTER TABLE ")
    refused += re.escape(f"{table} UNSET TBLPROPERTIES ('{name}')")
    for app in ("a", "b"):
        with pytest.raises(StorageError, match=refused):
            tables.append_arrow(spark, _rows(1), NAME, app, 1)
    with pytest.raises(StorageError, match=refused):
        _by_spark(spark.createDataFrame(_rows(1)), tables, "b", 1)
    with nullcontext() if tables.catalog else pytest.raises(StorageError, match=refused):
        _by_spark(spark.createDataFrame(_rows(1)), tables, "a", 1)
    assert _offsets(spark, tables) == [1]
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('{name}' = 'interval 30 days')")
    tables.append_arrow(spark, _rows(1), NAME, "a", 1)
    tables.append_arrow(spark, _rows(2), NAME, "a", 2)
    _by_spark(spark.createDataFrame(_rows(3)), tables, "a", 3)
    assert _offsets(spark, tables) == [1, 2, 3]


def test_last_version_of_long_ago(spark: SparkSession, tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not sought in the latest commits, and a RESTORE, which removes its rows, leaves it."""
    monkeypatch.setattr(spark_writer, "_RECENT", 2)
    tables.append_arrow(spark, _rows(1), NAME, "a", 7)
    for version in (1, 2, 3):
        tables.append_arrow(spark, _rows(10 + version), NAME, "b", version)
    assert [tables.last_version(spark, NAME, app) for app in ("a", "b", "c")] == [7, 3, None]
    spark.sql(f"RESTORE TABLE {tables.in_sql(NAME)} TO VERSION AS OF 0")
    tables.forget(NAME)
    assert [tables.last_version(spark, NAME, app) for app in ("a", "b", "c")] == [7, 3, None]
    spark.sql(f"ALTER TABLE {tables.in_sql(NAME)} ADD CONSTRAINT few CHECK (half_queue_offset < 100)")
    assert tables.last_version(spark, NAME, "a") == 7


@pytest.mark.parametrize("late", [False, True], ids=["before the commit", "as it commits"])
def test_table_made_anew_meanwhile(
    spark: SparkSession, tables: Tables, late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new one has the first version only, and the commit would be its fifth: it is refused, or told of."""
    for version in (1, 2, 3):
        tables.append_arrow(spark, _rows(version), NAME, "a", version)
    left = [1]

    def anew() -> None:
        if left.pop():
            left.append(0)
            if tables.catalog:
                spark.sql(f"DROP TABLE {tables.in_sql(NAME)}")
            else:
                shutil.rmtree(tables.location(NAME))
            Tables(**{key: vars(tables)[key] for key in ("root", "catalog", "schema")}).create(spark, NAME)

    if late:
        found = jvm_transaction._refuse_other

        def looked_at(*given: Any) -> None:
            found(*given)
            anew()

        monkeypatch.setattr(jvm_transaction, "_refuse_other", looked_at)
    else:
        tables.guard.confirm = anew
    told = re.escape(tables.location(NAME)) + ": somebody has dropped and recreated the table"
    with pytest.raises(StorageError, match=f"{told}.*lacks the versions before 4" if late else told):
        tables.append_arrow(spark, _rows(4), NAME, "a", 4)
    left[:] = [0]
    if not late:
        assert _offsets(spark, tables) == []
        tables.append_arrow(spark, _rows(4), NAME, "a", 4)
        assert _offsets(spark, tables) == [4]
        assert _operations(spark, tables) == ["CREATE TABLE", "STREAMING UPDATE"]


def test_recreated_table_is_looked_up_anew(spark: SparkSession, tables: Tables) -> None:
    """It has the version that the table before had, but not its rows."""
    tables.append_arrow(spark, _rows(1), NAME, "a", 1)
    spark.sql(f"CREATE OR REPLACE TABLE {tables.in_sql(NAME)} USING delta AS TABLE {tables.in_sql(NAME)} LIMIT 0")
    tables.append_arrow(spark, _rows(2), NAME, "a", 2)
    assert _offsets(spark, tables) == [2]


def test_two_processes_of_one_application(spark: SparkSession, tables: Tables) -> None:
    """One of both commits a version, the other one skips it or fails; nothing is lost, nothing twice."""
    versions = range(1, 9)

    def write() -> None:
        own = Tables(**{key: vars(tables)[key] for key in ("root", "catalog", "schema")})
        for version in versions:
            with suppress(Exception):  # a conflict; which error a loser gets, `test_commit_that_comes_between` tells
                own.append_arrow(spark, _rows(version), NAME, "a", version)
            own.append_arrow(spark, _rows(version), NAME, "a", version)

    threads = [threading.Thread(target=write) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert _offsets(spark, tables) == list(versions)


@pytest.mark.parametrize("app", ["a", "b"])
def test_commit_that_comes_between(spark: SparkSession, tables: Tables, app: str) -> None:
    """One of the same application is a conflict; after one of another application, that is looked up anew."""
    tables.append_arrow(spark, _rows(1), NAME, "a", 1)
    between = [_rows(2)]

    def confirm() -> None:
        while between:
            _by_spark(spark.createDataFrame(between.pop()), tables, app, 2)

    tables.guard.confirm = confirm
    if app == "a":
        with pytest.raises(Exception, match="ConcurrentTransactionException"):
            tables.append_arrow(spark, _rows(3), NAME, "a", 3)
    tables.append_arrow(spark, _rows(3), NAME, "a", 3)
    tables.append_arrow(spark, _rows(2), NAME, app, 2)
    assert _offsets(spark, tables) == [1, 2, 3]


def test_process_that_may_not_write_any_more(spark: SparkSession, tables: Tables) -> None:
    def confirm() -> None:
        raise FencedError("another process has taken over", "here", "stop it")

    tables.guard.confirm = confirm
    with pytest.raises(FencedError):
        tables.append_arrow(spark, _rows(1), NAME, "a", 1)
    assert _offsets(spark, tables) == []


def _append_around(spark: SparkSession, tables: Tables, change: str, first: int) -> None:
    """A row before the table is altered, and three after it, the second of them twice."""
    tables.append_arrow(spark, _rows(first), NAME, "a", first)
    spark.sql(f"ALTER TABLE {tables.in_sql(NAME)} {change}")
    for version in (first + 1, first + 2, first + 1):
        tables.append_arrow(spark, _rows(version), NAME, "a", version)
    version = max(tables.history(spark, NAME, 1))
    assert tables.committed_version(spark, NAME) == version
    tables.append_arrow(spark, _rows(first + 3), NAME, "a", first + 3)
    assert tables.committed_version(spark, NAME) == version + 1


def test_table_whose_features_want_no_more_than_files(spark: SparkSession, tables: Tables) -> None:
    """Delta's own transaction writes it, whichever of them it has."""
    changes = (
        "ADD COLUMNS (note STRING)",
        "SET TBLPROPERTIES (delta.enableDeletionVectors = true, delta.checkpointPolicy = 'v2')",
        "SET TBLPROPERTIES (delta.enableInCommitTimestamps = true)",
        "SET TBLPROPERTIES (delta.enableRowTracking = true)",
    )
    for number, change in enumerate(changes):
        _append_around(spark, tables, change, 4 * number + 1)
    rows = 4 * len(changes)
    assert _offsets(spark, tables) == list(range(1, rows + 1))
    operations = Counter(_operations(spark, tables))
    assert (operations["STREAMING UPDATE"], operations["WRITE"]) == (rows, 0)
    ids = spark.sql(f"SELECT DISTINCT _metadata.row_id FROM {tables.in_sql(NAME)}")  # noqa: S608 - quoted
    assert ids.count() == rows


@pytest.mark.parametrize(
    "change",
    [
        "ADD CONSTRAINT few CHECK (half_queue_offset < 100)",
        "SET TBLPROPERTIES (delta.columnMapping.mode = 'name')",
        "CLUSTER BY (half_queue_id)",
    ],
)
def test_table_whose_features_want_more_than_files(spark: SparkSession, tables: Tables, change: str) -> None:
    """Spark writes it; the rows are there all the same."""
    _append_around(spark, tables, change, 1)
    assert _offsets(spark, tables) == [1, 2, 3, 4]
    operations = _operations(spark, tables)
    assert (operations.count("STREAMING UPDATE"), operations[-3:]) == (1, ["WRITE"] * 3)


def test_changes_can_be_read(spark: SparkSession, tables: Tables) -> None:
    """The change data feed has the rows as inserted."""
    spark.sql(f"ALTER TABLE {tables.in_sql(NAME)} SET TBLPROPERTIES (delta.enableChangeDataFeed = true)")
    tables.append_arrow(spark, _rows(1, 2), NAME, "a", 1)
    assert _operations(spark, tables)[-1] == "STREAMING UPDATE"
    place = f"'{tables.in_sql(NAME)}'"
    changes = spark.sql(f"SELECT {_KEY}, _change_type FROM table_changes({place}, 2)")  # noqa: S608 - quoted
    assert sorted(map(tuple, changes.collect())) == [(1, "insert"), (2, "insert")]


def test_spark_writes_where_delta_is_another(
    spark: SparkSession, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as on Databricks, whose Delta has other classes: that is found out once."""
    asked = []

    def other(*_: object) -> Any:
        asked.append(1)
        jvm: Any = spark._jvm
        return jvm.java.util.ArrayList()

    monkeypatch.setattr(jvm_transaction, "_started", other)
    for version in (1, 2, 1):
        tables.append_arrow(spark, _rows(version), NAME, "a", version)
    assert asked == [1]
    assert _operations(spark, tables) == ["CREATE TABLE", "WRITE", "WRITE"]
    assert _offsets(spark, tables) == [1, 2]


def test_a_failed_call_does_not_say_that_delta_is_another(
    spark: SparkSession, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """py4j's errors have no cause in Java if the JVM has given up an object either: that one append fails."""
    gateway: Any = spark.sparkContext._gateway
    with monkeypatch.context() as once:
        once.setattr(jvm_transaction, "_started", lambda *_: JavaObject("o999999999", gateway._gateway_client))
        with pytest.raises(Py4JError, match="Target Object ID does not exist"):
            tables.append_arrow(spark, _rows(1), NAME, "a", 1)
    tables.append_arrow(spark, _rows(1), NAME, "a", 1)
    assert _operations(spark, tables) == ["CREATE TABLE", "STREAMING UPDATE"]


def test_a_table_of_another_format_is_no_other_delta(spark: SparkSession, tables: Tables, tmp_path: Path) -> None:
    """It cannot be appended to; the other tables still are, without a job."""
    if tables.catalog:
        spark.sql(f"CREATE TABLE spark_catalog.{SCHEMA}.topic_raw (n INT) USING parquet")
    else:
        (tmp_path / "topics/raw").mkdir(parents=True)
        (tmp_path / "topics/raw/file.parquet").write_bytes(b"")
    with pytest.raises(Exception, match="raw"):
        tables.append_arrow(spark, _rows(1), "topics/raw", "a", 1)
    assert tables.newest(spark, "topics/raw") is None
    tables.append_arrow(spark, _rows(1), NAME, "a", 1)
    assert _operations(spark, tables) == ["CREATE TABLE", "STREAMING UPDATE"]


def test_files_of_a_process_that_was_killed_are_removed(
    spark: SparkSession, tables: Tables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A day later, unless it lives; what is younger may be that of a process in another container."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    there = tmp_path / "temporary"
    monkeypatch.setattr(tempfile, "tempdir", str(there))
    old = time.time() - 2 * 86400
    for pid, at in ((ended.pid, old), (ended.pid, None), (os.getpid(), old)):
        folder = there / f"checkback-append-{pid}-{at is None}"
        folder.mkdir(parents=True)
        (folder / "file").touch()
        if at is not None:
            os.utime(folder, (at, at))
    jvm_transaction._remove_left.cache_clear()
    tables.append_arrow(spark, _rows(1), NAME, "a", 1)
    left = {folder.name for folder in there.iterdir()}
    assert left == {f"checkback-append-{ended.pid}-True", f"checkback-append-{os.getpid()}-False"}
