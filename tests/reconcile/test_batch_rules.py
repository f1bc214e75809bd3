"""A batch that was begun is finished by what it was begun with: other settings, another release hold from the next."""

from __future__ import annotations

import json
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from checkback.application import queries as application
from checkback.application.queries import reconcile
from checkback.application.rebuild import rebuild
from checkback.errors import CheckbackError, StateError
from checkback.reconcile import checkpointed_rules
from checkback.reconcile.checkpointed_rules import BatchRules, in_force, keep
from checkback.reconcile.publish.publisher import Publisher
from checkback.reconcile.segment import Rules
from checkback.reconcile.start.idle_run import nothing_to_do
from checkback.reconcile.state.processor import STATE_NAME
from checkback.reconcile.state.registered_timers import registered_timers
from checkback.settings import Settings
from checkback.storage.checkpoints.checkpoint import PARTITIONS, last_done, read_checkpoint
from checkback.storage.log.delta_log import DeltaLog
from checkback.storage.parquet.parquet_files import FileWriter
from checkback.storage.schemas import arrow_schema
from checkback.storage.tables import Tables
from support.copied_lakes import copied
from support.rows import rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from checkback.reconcile.publish.batch_row import Written
    from checkback.reconcile.records.actions import Actions


class Lakehouse:
    """Tables in a folder, with one application at a time."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.spark = spark
        self.root = str(root)
        self.tables = Tables.of(self.settings().storage)
        self.tables.create(spark, "half", "op")

    def settings(self, max_checks: int = 160_000, **transaction: Any) -> Settings:
        """`settings_of` these tables."""
        return self.settings_of(self.root, max_checks, **transaction)

    @staticmethod
    def settings_of(root: str, max_checks: int = 160_000, **transaction: Any) -> Settings:
        """Everything is due at once, and again after a millisecond; a segment has one offset."""
        times = {"timeout": "0s", "check_interval": "1ms"}
        return Settings.model_validate(
            {
                "storage": {"root": root},
                "transaction": times | transaction,
                "reconcile": {"partitions": 2, "segment_size": 1, "max_checks": max_checks},
            }
        )

    def land(self, name: str, *rows: dict[str, Any]) -> None:
        """Append rows of `half` or `op`; what all have in common is added."""
        now = datetime.fromtimestamp(time.time(), timezone.utc)
        common = {"queue_id": 0, "producer_group": "g", "born_timestamp": now, "store_timestamp": now}
        with FileWriter(self.root) as writer:
            writer.write(name, pa.Table.from_pylist([common | row for row in rows], arrow_schema(name)))
            DeltaLog(name, f"{self.root}/{name}").commit(writer.close())

    def half(self, *offsets: int) -> None:
        self.land("half", *({"queue_offset": n, "transaction_id": f"t{n}", "real_topic": "t"} for n in offsets))

    def commit(self, *offsets: int) -> None:
        rows = (
            {"queue_offset": n, "transaction_id": f"t{n}", "state": "COMMIT", "source": "producer"} for n in offsets
        )
        self.land("op", *rows)

    def run(self, settings: Settings) -> None:
        self.spark.conf.set(PARTITIONS, settings.reconcile.partitions or 3)
        reconcile(self.spark, settings, available_now=True)

    def rows(self, name: str, *columns: str) -> list[tuple[Any, ...]]:
        """Sorted; nothing where there is no table."""
        if not DeltaTable.is_deltatable(f"{self.root}/{name}"):
            return []
        return sorted(rows_of(self.root, name, *columns))

    def fates(self) -> dict[int, list[str]]:
        """What became of each offset, in whatever table."""
        found: dict[int, list[str]] = {}
        for name, column in (("topics/t", "half_queue_offset"), ("discarded", "queue_offset")):
            for (offset,) in self.rows(name, column):
                found.setdefault(offset, []).append(name)
        return found

    def begun(self) -> int | None:
        """The batch that has begun and is not done."""
        place = self.tables.checkpoint("reconcile")
        checkpoint = read_checkpoint(self.spark, place)
        newest = None if checkpoint is None else checkpoint.newest
        return None if newest is None or newest.batch_id == last_done(self.spark, place) else newest.batch_id


class CrashError(ConnectionError):
    """The crash: as no topic's table has it."""


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Lakehouse:
    return Lakehouse(spark, tmp_path)


def test_partitions_that_nobody_has_set_are_those_of_the_checkpoint(lake: Lakehouse) -> None:
    """A start on a machine with another number of cores goes on, also with the limits of a partition.

    The next scheduled run sees that it has nothing to do.
    """
    lake.half(0)
    lake.commit(0)
    lake.run(lake.settings())
    lake.half(1)
    lake.commit(1)
    unset = lake.settings(max_checks=100)
    unset = unset.model_copy(update={"reconcile": unset.reconcile.model_copy(update={"partitions": None})})
    lake.run(unset)
    assert nothing_to_do(Tables.of(unset.storage), unset, round(time.time() * 1000))
    checkpoint = read_checkpoint(lake.spark, lake.tables.checkpoint("reconcile"))
    assert checkpoint is not None
    assert checkpoint.newest is not None
    assert checkpoint.newest.partitions == 2
    rules = in_force(lake.spark, lake.tables.checkpoint("reconcile"), checkpoint.newest.batch_id)
    assert rules is not None
    assert rules.max_checks == 50


def _interrupt(lake: Lakehouse, settings: Settings, step: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """A run that dies before this step of `Publisher`; the batch that it leaves."""
    with monkeypatch.context() as patch:
        patch.setattr(Publisher, step, _never)
        with pytest.raises(CheckbackError):
            lake.run(settings)
    begun = lake.begun()
    assert begun is not None
    return begun


def _crash(lake: Lakehouse, settings: Settings, before: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """A run that dies before it commits to a table, after all others of the batch; the batch that it leaves."""
    commit = Tables.commit
    others: set[str] = set()

    def dying(self: Tables, spark: SparkSession, name: str, *args: Any) -> None:
        if name == before:
            for _ in range(500):  # commits are made side by side
                if {"decisions", "discarded"} <= others:
                    break
                time.sleep(0.01)
            raise CrashError
        commit(self, spark, name, *args)
        others.add(name)

    with monkeypatch.context() as patch:
        patch.setattr(Tables, "commit", dying)
        with pytest.raises(CheckbackError):
            lake.run(settings)
    begun = lake.begun()
    assert begun is not None
    return begun


def test_batch_that_was_begun_is_finished_with_the_settings_it_was_begun_with(
    lake: Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With check_max 15 a replay would check what the tables have as discarded, and publish it when its op comes."""
    first, second = lake.settings(check_max=1), lake.settings(check_max=15)
    lake.half(0, 1)
    lake.run(first)  # the one check of both
    lake.commit(1)
    batch = _crash(lake, first, "topics/t", monkeypatch)
    assert lake.rows("decisions", "queue_offset", "state") == [(0, "DISCARD"), (1, "COMMIT")]
    lake.commit(0)
    lake.run(second)
    assert lake.fates() == {0: ["discarded"], 1: ["topics/t"]}
    assert lake.rows("decisions", "queue_offset", "state") == [(0, "DISCARD"), (1, "COMMIT")]
    # The settings of today hold from the next batch on.
    by_batch = dict(lake.rows("batches", "batch_id", "check_max"))
    assert by_batch == {n: 1 if n <= batch else 15 for n in by_batch}
    assert max(by_batch) > batch


def test_batch_that_was_begun_puts_off_the_same_checks(lake: Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """max_checks 1 discards a few; a replay that discards all would forget the others, which no table has."""
    first, second = lake.settings(max_checks=1, check_max=1), lake.settings(max_checks=160_000, check_max=1)
    lake.half(*range(10))
    lake.run(second)  # their one check
    lake.commit(9)
    _crash(lake, first, "topics/t", monkeypatch)
    left = set(range(9)) - {offset for offset, _ in lake.rows("discarded", "queue_offset", "reason")}
    assert left
    lake.commit(*left)
    lake.run(second)
    fates = lake.fates()
    assert sorted(fates) == [*range(10)]
    assert all(len(tables) == 1 for tables in fates.values())
    assert {offset for offset, tables in fates.items() if tables == ["topics/t"]} == {9, *left}


@pytest.fixture(scope="module")
def begun(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lakehouse:
    """After the first run of another release, of its one check of both messages; an op has landed since."""
    lake = Lakehouse(spark, tmp_path_factory.mktemp("begun") / "data")
    lake.half(0, 1)
    lake.run(lake.settings(check_max=1))
    lake.commit(1)
    return lake


def _as_other_release(lake: Lakehouse, root: Path, version: int | None) -> Lakehouse:
    """A copy, with the rules beside the checkpoint of a release that decides otherwise; None: they are lost."""
    lake = Lakehouse(lake.spark, copied(Path(lake.root), root))
    folder = Path(lake.tables.checkpoint("reconcile"), checkpointed_rules.FOLDER)
    for file in folder.iterdir():
        if version is None:
            file.unlink()
        else:
            found = json.loads(file.read_text())
            file.write_text(json.dumps(found | {"decision_version": version, "release": "0.0.9"}))
    return lake


def test_batch_of_another_release_that_has_written_is_refused_until_a_rebuild(
    begun: Lakehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crashed = Lakehouse(begun.spark, copied(Path(begun.root), tmp_path / "crashed"))
    settings = crashed.settings(check_max=1)
    batch = _crash(crashed, settings, "topics/t", monkeypatch)
    for version in (None, 0):
        lake = _as_other_release(crashed, tmp_path / f"{version}", version)
        settings = lake.settings(check_max=1)
        with pytest.raises(StateError, match="`checkback rebuild`") as refused:
            lake.run(settings)
        assert f"batch {batch} was begun by" in str(refused.value), version
        assert rebuild(lake.spark, settings, print) is not None
        old, new = (
            sorted({row[0] for row in lake.rows("batches", "application")}),
            lake.rows("batches", "batch_id"),
        )
        # The batch that was finished is concluded by its query's name.
        assert (len(old), new.count((batch,))) == (2, 1), version
        lake.commit(0)
        lake.run(settings)
        assert lake.fates() == {0: ["discarded"], 1: ["topics/t"]}, version


def test_batch_of_another_release_that_has_written_nothing_is_decided_anew(
    begun: Lakehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state that its first try has written is forgotten, so that nobody takes it up."""
    crashed = Lakehouse(begun.spark, copied(Path(begun.root), tmp_path / "crashed"))
    batch = _interrupt(crashed, crashed.settings(check_max=1), "publish", monkeypatch)
    # As with a checkpoint in an object store: in local folders each start removes the state of a batch not done.
    monkeypatch.setattr(application, "torn_query", lambda *_: None)
    publish = Publisher.publish

    def once(self: Publisher, spark: SparkSession, actions: Actions, batch_id: int, app: str) -> Written:
        if batch_id > batch:
            raise CrashError
        return publish(self, spark, actions, batch_id, app)

    for version in (None, 0):
        lake = _as_other_release(crashed, tmp_path / f"{version}", version)
        (state,) = Path(lake.tables.checkpoint("reconcile"), "state").iterdir()
        for partition in state.iterdir():
            if partition.name.isdecimal():
                (partition / f"{batch + 1}.zip").write_bytes(b"of the first try")
        with monkeypatch.context() as patch:
            patch.setattr(Publisher, "publish", once)  # then the state is read from the files
            with pytest.raises(CheckbackError):
                lake.run(lake.settings(check_max=2))
        lake.run(lake.settings(check_max=2))
        lake.run(lake.settings(check_max=2))
        assert lake.fates() == {0: ["discarded"], 1: ["topics/t"]}, version
        assert set(dict(lake.rows("batches", "batch_id", "check_max")).items()) >= {(batch, 2)}, version
        # The first try discarded it: by that state the next batch would not check it.
        assert (batch + 1, 0) in lake.rows("check_requests", "batch_id", "queue_offset"), version


def test_batch_that_is_done_again_leaves_the_same_state(lake: Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which of the two tries' files Spark takes up is its own affair: they say the same, timers included."""
    settings = lake.settings(check_max=2)
    lake.half(*range(6))
    lake.run(settings)
    lake.commit(1)
    lake.half(7, 8)
    batch = _crash(lake, settings, "topics/t", monkeypatch)
    place = lake.tables.checkpoint("reconcile")
    folder = Path(place, "state/0/0")
    first = {name: (folder / name).read_bytes() for name in (f"{batch + 1}.changelog", f".{batch + 1}.changelog.crc")}
    checkpointed_rules.forget_state(lake.spark, place, batch)
    assert not any((folder / name).exists() for name in first)
    lake.run(settings)
    second = _state(lake, place, batch)
    assert len(second) > 6
    for name, content in first.items():
        (folder / name).write_bytes(content)
    assert _state(lake, place, batch) == second


def _state(lake: Lakehouse, place: str, batch: int) -> list[tuple[Any, ...]]:
    """The segments' blocks and the timers after a batch."""
    rows = lake.spark.read.format("statestore").options(
        batchId=str(batch), stateVarName=STATE_NAME, flattenCollectionTypes="true"
    )
    blocks = [(row[0], bytes(row[1])) for row in rows.load(place).selectExpr("key.*", "value.*").collect()]
    return sorted([*blocks, *map(tuple, registered_timers(lake.spark, place, batch).collect())], key=str)


def _never(self: Publisher, *args: Any) -> None:
    raise CrashError


def test_each_batch_has_the_rules_that_were_in_force(spark: SparkSession, tmp_path: Path) -> None:
    place = str(tmp_path)
    one, two = BatchRules(Rules(timeout=1)), BatchRules(Rules(timeout=2))
    assert in_force(spark, place, 0) is None
    keep(spark, place, 0, one)
    keep(spark, place, 5, one)  # no change: no file
    keep(spark, place, 7, two)
    assert [in_force(spark, place, batch) for batch in (0, 6, 7, 8)] == [one, one, two, two]
    assert sorted(path.name for path in (tmp_path / "rules").iterdir()) == ["0", "7"]
    (tmp_path / "rules" / "7").write_text("{")
    assert in_force(spark, place, 8) is None
    keep(spark, place, 8, two)
    assert in_force(spark, place, 8) == two
    keep(spark, place, 6, one)  # a power cut has taken batches 6 and 7 back
    assert [in_force(spark, place, batch) for batch in (6, 7, 9)] == [one, one, one]
