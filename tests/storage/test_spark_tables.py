"""Tables that only Spark writes, in a catalog and in folders: the main job, its guards, and a rebuild."""

from __future__ import annotations

import shutil
import threading
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlparse

import pyarrow as pa
import pytest

from checkback.application.queries import reconcile
from checkback.application.rebuild import rebuild
from checkback.errors import CheckbackError, FencedError, StateError, StorageError
from checkback.maintain.spark_maintenance import maintain_by_spark
from checkback.query.answers import Answers
from checkback.query.frames import Frames
from checkback.reconcile.checkpoint_owner import claim
from checkback.reconcile.publish.publisher import Publisher
from checkback.reconcile.start.start_facts import facts
from checkback.settings import Settings
from checkback.storage.catalog_names import TOPIC_PROPERTY
from checkback.storage.log.spark_log import properties
from checkback.storage.parquet.parquet_files import MOST_ROWS
from checkback.storage.schemas import FORMAT_PROPERTY, SCHEMAS, arrow_schema, properties_of
from checkback.storage.spark_schemas import TOPIC, schema_of
from checkback.storage.spark_writer import SparkTable, SparkWriter
from checkback.storage.tables import Tables
from maintain.fixtures import Quiet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

#: three names that are one where case does not count, or only small letters, digits and underscores
TOPICS = ("orders_1", "Orders_1", "orders|1")
_BORN = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)


class Lakehouse:
    """Tables that only Spark writes, and what lands in them."""

    def __init__(self, spark: SparkSession, folder: Path, storage: dict[str, Any]) -> None:
        self.spark, self.checkpoints = spark, folder / "checkpoints"
        self.storage = {"checkpoints": str(self.checkpoints), **storage}
        self.tables = Tables.of(self.settings().storage)

    def settings(self, segment_size: int = 64) -> Settings:
        """Nobody is asked."""
        return Settings.model_validate(
            {
                "storage": self.storage,
                "transaction": {
                    "timeout": "36500d",
                    "max_age": "36500d",
                },
                "reconcile": {"partitions": 2, "segment_size": segment_size},
            }
        )

    def land(self, *offsets: int) -> None:
        """Half messages: of each topic one in turn."""
        rows = [
            {
                "queue_id": 1,
                "queue_offset": offset,
                "transaction_id": f"tx-{offset}",
                "producer_group": "shop",
                "real_topic": TOPICS[offset % len(TOPICS)],
                "real_queue_id": 0,
                "properties": [],
                "body": b"%d" % offset,
                "born_timestamp": _BORN,
                "store_timestamp": _BORN + timedelta(seconds=1),
            }
            for offset in offsets
        ]
        self._append("half", rows)

    def end(self, state: str, *offsets: int) -> None:
        """Ops of half messages."""
        rows = [
            {
                "queue_id": 1,
                "queue_offset": offset,
                "transaction_id": f"tx-{offset}",
                "producer_group": "shop",
                "state": state,
                "source": "producer",
                "born_timestamp": _BORN,
                "store_timestamp": _BORN + timedelta(seconds=2),
            }
            for offset in offsets
        ]
        self._append("op", rows)

    def _append(self, name: str, rows: list[dict[str, Any]]) -> None:
        self.tables.create(self.spark, name)
        self.tables.append_arrow(self.spark, pa.Table.from_pylist(rows, arrow_schema(name)), name)

    def run(self, **settings: Any) -> None:
        """A scheduled run."""
        reconcile(self.spark, self.settings(**settings), available_now=True)

    def decisions(self) -> dict[int, str]:
        """State by offset; each is decided once."""
        rows = self.tables.read(self.spark, "decisions").collect()
        assert len({row["queue_offset"] for row in rows}) == len(rows)
        return {row["queue_offset"]: row["state"] for row in rows}

    def published(self) -> dict[str, list[int]]:
        """Offsets by topic, as they are in its table."""
        found = {}
        for name in self.tables.topics(self.spark):
            rows = self.tables.read(self.spark, name).select("half_queue_offset").collect()
            found[name.removeprefix("topics/")] = sorted(row[0] for row in rows)
        return found

    def figures(self) -> dict[str, int]:
        """What an audit counts, which finds nothing broken."""
        report = Answers(self.settings(), self.spark).audit()
        assert not report.broken, report
        return {each.finding.name: each.count for each in report.found if each.count}

    def refusal(self, **settings: Any) -> str:
        """Why a run is refused."""
        with pytest.raises(StateError) as refused:
            self.run(**settings)
        return str(refused.value)


@pytest.fixture
def catalog(spark: SparkSession, tmp_path: Path) -> Iterator[Lakehouse]:
    spark.sql("CREATE SCHEMA spark_catalog.checkback_test")
    try:
        yield Lakehouse(spark, tmp_path, {"catalog": "spark_catalog", "schema": "checkback_test"})
    finally:
        spark.sql("DROP SCHEMA spark_catalog.checkback_test CASCADE")


@pytest.fixture
def folders(spark: SparkSession, tmp_path: Path) -> Lakehouse:
    return Lakehouse(spark, tmp_path, {"root": str(tmp_path / "data"), "writer": "spark"})


def _damaged(lake: Lakehouse, *names: str) -> Callable[[], object]:
    """Damage the tables' logs; call what is returned to put them back."""
    jvm: Any = lake.spark._jvm
    before: dict[Path, bytes] = {}
    for name in names:
        place = lake.spark.sql(f"DESCRIBE DETAIL {lake.tables.in_sql(name)}").select("location").collect()[0][0]
        files = [path for path in (Path(urlparse(place).path) / "_delta_log").iterdir() if path.is_file()]
        before |= {path: path.read_bytes() for path in files}
        for path in files:
            path.write_text("{what is this?")

    def put_back() -> None:
        for path, content in before.items():
            path.write_bytes(content)
        jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()

    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    return put_back


def test_job_in_a_catalog(catalog: Lakehouse) -> None:
    """Decided and published; a lost checkpoint is not begun anew but rebuilt, and the one before is not ours.

    Meanwhile two topics are damaged: each is named, though its properties do not tell its topic, and a rebuild does not
    publish again.
    """
    lake, damaged = catalog, ["topics/Orders_1", "topics/orders_1"]
    lake.land(0, 1, 2, 3, 4)
    lake.end("COMMIT", 0, 1, 2)
    lake.end("ROLLBACK", 3)
    lake.run()
    assert [row["transaction_id"] for row in Frames(lake.settings(), lake.spark).pending().collect()] == ["tx-4"]
    states = {0: "COMMIT", 1: "COMMIT", 2: "COMMIT", 3: "ROLLBACK"}
    assert lake.decisions() == states
    assert lake.published() == {"orders_1": [0], "Orders_1": [1], "orders|1": [2]}

    lost = lake.checkpoints.with_name("lost")
    shutil.move(lake.checkpoints, lost)
    assert "this checkpoint is new" in lake.refusal()

    put_back = _damaged(lake, *damaged)
    assert lake.tables.topics(lake.spark) == ["topics/Orders_1", "topics/orders_1", "topics/orders|1"]
    report = Answers(lake.settings(), lake.spark).audit()
    assert sorted(report.unread) == ["Orders_1", "orders_1"]
    assert not report.broken, report
    done = maintain_by_spark(lake.spark, lake.settings(), lake.tables, dry_run=True, progress=Quiet())
    assert [each.table for each in done if each.skipped is not None] == damaged
    assert len(done) == len(SCHEMAS) + len(TOPICS)
    rebuilt = rebuild(lake.spark, lake.settings(segment_size=32), print)
    assert rebuilt is not None
    assert rebuilt.finished == {}
    put_back()
    assert lake.published() == {"orders_1": [0], "Orders_1": [1], "orders|1": [2]}

    lake.land(5)
    lake.end("COMMIT", 5)
    lake.run(segment_size=32)
    assert lake.decisions() == {**states, 5: "COMMIT"}
    assert lake.published() == {"orders_1": [0], "Orders_1": [1], "orders|1": [2, 5]}
    assert lake.figures() == {"halves": 6, "published": 4, "rolled_back": 1, "pending": 1, "batches": 3}
    shutil.rmtree(lake.checkpoints)
    shutil.move(lost, lake.checkpoints)
    assert "the tables belong to another checkpoint" in lake.refusal()


def test_first_batch_whose_checkpoint_is_lost(catalog: Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has published, and decided nothing yet: a new checkpoint would publish that again, a rebuild finishes it."""
    lake, commit, published = catalog, SparkWriter._append_in_jvm, threading.Event()
    lake.land(0)
    lake.end("COMMIT", 0)

    def dying(self: SparkWriter, spark: SparkSession, rows: pa.Table, table: SparkTable, *more: Any) -> bool:
        if table.name == "topics/orders_1":
            commit(self, spark, rows, table, *more)
            published.set()
        published.wait(600)
        raise ConnectionError("the machine is off")

    with monkeypatch.context() as machine:
        machine.setattr(SparkWriter, "_append_in_jvm", dying)
        with pytest.raises(CheckbackError, match="the machine is off"):
            lake.run()
    assert (lake.published(), lake.decisions()) == ({"orders_1": [0]}, {})
    shutil.rmtree(lake.checkpoints)
    assert "this checkpoint is new" in lake.refusal()
    assert rebuild(lake.spark, lake.settings(), print) is not None
    assert (lake.published(), lake.decisions()) == ({"orders_1": [0]}, {0: "COMMIT"})


def test_rebuild_while_a_topic_waits(catalog: Lakehouse) -> None:
    """Its own batch publishes what waits, or tries to: it takes the tables from the checkpoint that is lost."""
    lake = catalog
    lake.tables.create(lake.spark, *SCHEMAS, "topics/orders_1")
    lake.spark.sql(f"ALTER TABLE {lake.tables.in_sql('topics/orders_1')} ADD CONSTRAINT none CHECK (batch_id < 0)")
    lake.land(0, 1)
    lake.end("COMMIT", 0, 1)
    lake.run()
    assert lake.published() == {"orders_1": [], "Orders_1": [1]}
    shutil.rmtree(lake.checkpoints)
    assert rebuild(lake.spark, lake.settings(), print) is not None
    lake.spark.sql(f"ALTER TABLE {lake.tables.in_sql('topics/orders_1')} DROP CONSTRAINT none")
    lake.run()
    assert lake.published() == {"orders_1": [0], "Orders_1": [1]}


def test_another_checkpoint_takes_the_tables_while_the_first_batch_is_under_way(
    catalog: Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are new when they start, and no lock keeps them apart: who comes second to the tables writes nothing."""
    lake, durable = catalog, Publisher._make_durable
    lake.land(0)
    lake.end("COMMIT", 0)

    def overtaken(self: Publisher) -> None:
        durable(self)
        if not self._claimed:
            claim(lake.spark, lake.tables, "another", 64)

    monkeypatch.setattr(Publisher, "_make_durable", overtaken)
    with pytest.raises(FencedError, match="the tables belong to another checkpoint"):
        lake.run()
    assert (lake.published(), lake.decisions()) == ({}, {})
    assert properties(lake.spark, lake.tables.in_sql("decisions"))["checkback.checkpoint"] == "another"


def test_damaged_table_of_no_topic(catalog: Lakehouse) -> None:
    """It is not left out: nobody knows whose messages it has. The error names it."""
    lake = catalog
    lake.tables.create(lake.spark, *SCHEMAS, "topics/Other")
    put_back = _damaged(lake, "topics/Other")
    with pytest.raises(StorageError, match=r"topic_other__[0-9a-f]{10}`: nobody knows which topic's table it is"):
        rebuild(lake.spark, lake.settings(), print)
    put_back()
    assert lake.tables.topics(lake.spark) == ["topics/Other"]


def test_guards_know_what_spark_wrote(folders: Lakehouse) -> None:
    """Another segment size and an older checkpoint are refused; what is known of the logs is what delta-rs knows."""
    lake = folders
    lake.land(0)
    lake.end("COMMIT", 0)
    lake.run()
    backup = lake.checkpoints.with_name("backup")
    shutil.copytree(lake.checkpoints, backup)
    lake.land(1)
    lake.end("COMMIT", 1)
    lake.run()
    assert "reconcile.segment_size: is 32, but the checkpoint" in lake.refusal(segment_size=32)
    by_spark = facts(lake.spark, lake.settings(), lake.tables)
    by_files = facts(lake.spark, lake.settings(), replace(lake.tables, by_files=True))
    assert (by_spark.checkpoint, list(by_spark.logs)) == (by_files.checkpoint, ["half", "op", "ticks"])
    for name, log in by_files.logs.items():
        assert by_spark.logs[name] == replace(log, oldest=by_spark.logs[name].oldest)
        assert log.oldest <= by_spark.logs[name].oldest <= log.newest
    shutil.rmtree(lake.checkpoints)
    shutil.copytree(backup, lake.checkpoints)
    assert "the checkpoint is older than the tables" in lake.refusal()


@pytest.fixture(params=["catalog", "folders"])
def lake(request: pytest.FixtureRequest) -> Lakehouse:
    """Both kinds of tables."""
    kind: Lakehouse = request.getfixturevalue(request.param)
    return kind


_FOLDERS = pytest.param("folders", marks=pytest.mark.spine("tables in folders"))


@pytest.mark.parametrize("lake", ["catalog", _FOLDERS], indirect=True)
def test_tables_have_comments_and_properties(lake: Lakehouse) -> None:
    """As those that delta-rs makes; making them again changes nothing."""
    names = ("half", "check_answers", *(f"topics/{topic}" for topic in TOPICS))
    for _ in range(2):
        lake.tables.create(lake.spark, *names)
    for name in names:
        schema = lake.tables.read(lake.spark, name).schema
        assert [(field.name, field.metadata["comment"]) for field in schema] == [
            (field.name, field.metadata["comment"]) for field in schema_of(name)
        ]
        found = properties(lake.spark, lake.tables.in_sql(name))
        assert properties_of(name).items() <= found.items()
        assert list(lake.tables.history(lake.spark, name, 9)) == [0]
    own = {topic: properties(lake.spark, lake.tables.in_sql(f"topics/{topic}")).get(TOPIC_PROPERTY) for topic in TOPICS}
    catalog = bool(lake.tables.catalog)
    assert own == {
        "orders_1": None,
        "Orders_1": "Orders_1" if catalog else None,
        "orders|1": "orders|1" if catalog else None,
    }
    assert lake.tables.topics(lake.spark) == sorted(f"topics/{topic}" for topic in TOPICS)
    assert TOPIC.names == lake.tables.read(lake.spark, "topics/Orders_1").columns


def test_schema_that_is_missing_is_told(spark: SparkSession) -> None:
    tables = Tables(catalog="spark_catalog", schema="no_such", checkpoints="/nowhere")
    with pytest.raises(StorageError, match=r"SCHEMA_NOT_FOUND.*make the schema first"):
        tables.create(spark, "half")
    assert not tables.exists(spark, "half")


def test_mark_and_last_version(lake: Lakehouse) -> None:
    """A mark is a version without rows, each time another; an application's last version is read back."""
    lake.tables.create(lake.spark, "ticks")
    for marks in (1, 2):
        lake.tables.mark(lake.spark, "ticks")
        assert list(lake.tables.history(lake.spark, "ticks", 9)) == list(range(marks, -1, -1))
    assert lake.tables.read(lake.spark, "ticks").count() == 0
    tick = pa.Table.from_pylist([{"tick_at": _BORN}], arrow_schema("ticks"))
    for version in (3, 4, 4):
        lake.tables.append_arrow(lake.spark, tick, "ticks", "a b/c", version)
    assert lake.tables.read(lake.spark, "ticks").count() == 2
    assert lake.tables.last_version(lake.spark, "ticks", "a b/c") == 4
    assert lake.tables.last_version(lake.spark, "ticks", "b/c") is None


def test_mark_of_a_table_that_only_spark_may_write(spark: SparkSession, tmp_path: Path) -> None:
    """A rebuild begins with it: delta-rs commits nothing to a table with a feature that it does not know."""
    tables = Tables(root=str(tmp_path), by_files=True)
    tables.create(spark, "half")
    feature = "'delta.feature.allowColumnDefaults' = 'supported'"
    spark.sql(f"ALTER TABLE {tables.in_sql('half')} SET TBLPROPERTIES ({feature})")
    for marks in (2, 3):
        tables.mark(spark, "half")
        assert max(tables.history(spark, "half", 1)) == marks


def test_check_requests_lie_in_small_files(lake: Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream takes whole files: so Spark, too, writes no more rows into one than a batch of checks is to have."""
    monkeypatch.setitem(MOST_ROWS, "check_requests", 3)
    rows = [{"queue_id": 0, "queue_offset": offset} for offset in range(7)]
    lake.tables.create(lake.spark, "check_requests", "decisions")
    for name in ("check_requests", "decisions"):
        table = pa.Table.from_pylist(rows, arrow_schema(name))
        lake.tables.append_arrow(lake.spark, table.combine_chunks(), name, "a", 1)
    assert len(lake.tables.read(lake.spark, "check_requests").inputFiles()) >= 3
    assert len(lake.tables.read(lake.spark, "decisions").inputFiles()) <= 2


def test_table_of_another_format_is_refused(lake: Lakehouse) -> None:
    """Made by Spark, in a catalog and in folders."""
    lake.tables.create(lake.spark, "half")
    lake.spark.sql(f"ALTER TABLE {lake.tables.in_sql('half')} SET TBLPROPERTIES ('{FORMAT_PROPERTY}' = '2')")
    with pytest.raises(StorageError, match=r"checkback\.format is 2, this release reads format 1"):
        lake.tables.create(lake.spark, *SCHEMAS)
