"""Builds before, without delays or next deliveries: their checkpoints go on, or say what to do; tables get columns."""

from __future__ import annotations

import tarfile
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from checkback.application.rebuild import rebuild
from checkback.application.run import reconcile
from checkback.errors import StateError
from checkback.inspect.answers import Answers
from checkback.inspect.state_store import state_segments
from checkback.storage.checkpoints.checkpoint import PARTITIONS
from checkback.storage.schemas import ADDED
from checkback.storage.tables import Tables
from reconcile.release_before import end, half, land, settings_of
from support.copied_lakes import settle
from support.rows import records_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from checkback.settings import Settings

_ARCHIVES = Path(__file__).parents[1] / "data" / "release-before"
_COMMITTED, _ROLLED_BACK = [*range(10), *range(15, 20), *range(40, 45)], [*range(10, 15), *range(20, 23)]


@pytest.fixture(scope="module")
def lakes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the release before has left, as it was."""
    folder = tmp_path_factory.mktemp("release-before")
    for name in ("lake", "delayed"):
        with tarfile.open(_ARCHIVES / f"{name}.tar.xz") as archive:
            archive.extractall(folder, filter="data")
    return folder


class Lake:
    """Tables of the release before, which this one takes over."""

    def __init__(self, spark: SparkSession, settings: Settings) -> None:
        self.spark, self.settings = spark, settings
        self.tables = Tables.of(settings.storage)
        spark.conf.set(PARTITIONS, settings.reconcile.partitions)

    def run(self) -> None:
        reconcile(self.spark, self.settings, available_now=True)

    def offsets(self, name: str, state: str | None = None) -> list[int]:
        """Sorted offsets in a table, of decisions with a state."""
        column = "half_queue_offset" if name.startswith("topics/") else "queue_offset"
        rows = records_of(self.tables.root, name)
        return sorted(row[column] for row in rows if state is None or row["state"] == state)

    def scheduled(self) -> tuple[int, int]:
        """Scheduled messages and pending half messages by the state store."""
        rows = state_segments(self.spark, self.settings).collect()
        return sum(row["scheduled"] for row in rows), sum(row["pending"] for row in rows)

    def assert_columns_were_added(self) -> None:
        """Once, at the end, with their comments; of the others nothing changed."""
        for name, added in ADDED.items():
            table = DeltaTable(self.tables.location(name))
            fields = table.schema().fields[-len(added) :]
            assert {field.name for field in fields} == added
            assert all(field.metadata["comment"] and field.nullable for field in fields)
            changes = [
                commit["operation"]
                for commit in table.history()
                if not commit["operation"].startswith(("CREATE", "WRITE", "STREAMING"))
            ]
            assert len(changes) == 1, (name, changes)

    def assert_whole(self) -> None:
        """Each transaction ended as its op says, once, and the audit has nothing to say."""
        assert self.offsets("topics/t") == _COMMITTED
        assert self.offsets("decisions", "ROLLBACK") == _ROLLED_BACK
        assert self.offsets("decisions", "COMMIT") == _COMMITTED
        report = Answers(self.settings).audit()
        assert not report.broken, report


def _moved(lakes: Path, which: str, tmp_path: Path) -> Path:
    """As if they had been written there, and not in /lake."""
    root = (lakes / which).rename(tmp_path / "lake")
    settle(root, f"/lake/{which}")
    return root


def test_checkpoint_goes_on_and_takes_delays(spark: SparkSession, lakes: Path, tmp_path: Path) -> None:
    """Unread rows, early ops and pending half messages of before; then delays in the same tables."""
    root = _moved(lakes, "done", tmp_path)
    lake = Lake(spark, settings_of(root))
    lake.run()
    lake.assert_columns_were_added()
    lake.assert_whole()
    now = datetime.now(timezone.utc)
    half(root, 60, delay_ms=1)
    half(root, 61, 62, committed=True)
    half(root, 63, deliver_at=now + timedelta(hours=1), committed=True)
    end(root, "COMMIT", 60)
    end(root, "ROLLBACK", 49)
    lake.run()
    lake.run()
    assert lake.offsets("topics/t") == sorted([*_COMMITTED, 60, 61, 62])
    assert lake.offsets("deliveries") == [60]
    delayed = [row["queue_offset"] for row in records_of(root, "decisions") if row["deliver_at"] is not None]
    assert sorted(delayed) == [60, 63]
    lake.assert_columns_were_added()


def test_batch_under_way_is_finished_by_the_release_before_or_by_a_rebuild(
    spark: SparkSession, lakes: Path, tmp_path: Path
) -> None:
    root = _moved(lakes, "under_way", tmp_path)
    lake = Lake(spark, settings_of(root))
    with pytest.raises(StateError, match=r"begun by Checkback 0\.1\.0.*checkback rebuild"):
        lake.run()
    assert lake.offsets("topics/t") == list(range(10))
    (root / "_checkpoints" / "reconcile").rename(tmp_path / "gone")
    assert rebuild(spark, lake.settings, lambda _: None) is not None
    lake.run()
    lake.assert_columns_were_added()
    lake.assert_whole()


def test_scheduled_messages_of_the_build_before_are_delivered_once(
    spark: SparkSession, lakes: Path, tmp_path: Path
) -> None:
    """Of its checkpoint, which gets the state variable of the next deliveries, and then by these."""
    root = _moved(lakes, "delayed", tmp_path)
    lake = Lake(spark, settings_of(root))
    assert lake.scheduled() == (10, 1)
    lake.run()
    assert lake.offsets("deliveries") == list(range(4))
    assert lake.scheduled() == (6, 1)
    cancel = {"half_offset": 9, "transaction_id": "t9", "state": "CANCEL", "source": "operator"}
    land(root, "op", cancel)
    end(root, "COMMIT", 10)
    half(root, 11, delay_ms=1, committed=True)
    lake.run()
    assert lake.offsets("discarded") == [9]
    lake.run()
    assert lake.offsets("topics/t") == lake.offsets("deliveries") == [*range(4), 10, 11]
    assert lake.scheduled() == (5, 0)
    land(root, "op", cancel | {"half_offset": 11, "transaction_id": "t11"})  # the block is read, where it is scheduled
    lake.run()
    assert lake.offsets("topics/t") == [*range(4), 10, 11]
    assert lake.offsets("discarded") == [9]
    assert not Answers(lake.settings).audit().broken
