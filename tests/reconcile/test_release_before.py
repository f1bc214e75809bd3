"""The release before had no delays: its tables get their columns, its checkpoint goes on, or says what to do."""

from __future__ import annotations

import tarfile
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from checkback.application.rebuild import rebuild
from checkback.application.run import reconcile
from checkback.errors import StateError
from checkback.inspect.audit import audit
from checkback.storage.checkpoint import PARTITIONS
from checkback.storage.schemas import ADDED
from checkback.storage.tables import Tables
from reconcile.release_before import end, half, settings_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from checkback.settings import Settings

_ARCHIVE = Path(__file__).parents[1] / "data" / "release-before" / "lake.tar.xz"
_COMMITTED, _ROLLED_BACK = [*range(10), *range(15, 20), *range(40, 45)], [*range(10, 15), *range(20, 23)]


@pytest.fixture(scope="module")
def lakes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the release before has left, as it was."""
    folder = tmp_path_factory.mktemp("release-before")
    with tarfile.open(_ARCHIVE) as archive:
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

    def offsets(self, name: str, where: str = "true") -> list[int]:
        """Sorted offsets in a table."""
        column = "half_queue_offset" if name.startswith("topics/") else "queue_offset"
        return sorted(row[0] for row in self.tables.read(self.spark, name).where(where).select(column).collect())

    def assert_columns_were_added(self) -> None:
        """Once, at the end, with their comments; of the others nothing changed."""
        for name, added in ADDED.items():
            fields = self.tables.read(self.spark, name).schema.fields
            assert {field.name for field in fields[-len(added) :]} == added
            assert all(field.metadata["comment"] and field.nullable for field in fields[-len(added) :])
            changes = [
                row["operation"]
                for row in self.spark.sql(f"DESCRIBE HISTORY {self.tables.in_sql(name)}").collect()
                if not row["operation"].startswith(("CREATE", "WRITE", "STREAMING"))
            ]
            assert len(changes) == 1, (name, changes)

    def assert_whole(self) -> None:
        """Each transaction ended as its op says, once, and the audit has nothing to say."""
        assert self.offsets("topics/t") == _COMMITTED
        assert self.offsets("decisions", "state = 'ROLLBACK'") == _ROLLED_BACK
        assert self.offsets("decisions", "state = 'COMMIT'") == _COMMITTED
        report = audit(self.spark, self.settings)
        assert not report.broken, report


def _copied(lakes: Path, which: str, tmp_path: Path) -> Path:
    """As if they had been written there: Spark keeps the path of its state's schema, /lake/done or /lake/under_way."""
    root = (lakes / which).rename(tmp_path / "lake")
    for metadata in (root / "_checkpoints/reconcile/state").glob("*/_metadata/v2/[0-9]*"):
        written = metadata.read_text()
        assert f"file:/lake/{which}/" in written
        metadata.write_text(written.replace(f"file:/lake/{which}/", f"file:{root}/"))
        metadata.with_name(f".{metadata.name}.crc").unlink(missing_ok=True)
    return root


def test_checkpoint_goes_on_and_takes_delays(spark: SparkSession, lakes: Path, tmp_path: Path) -> None:
    """Unread rows, early ops and pending half messages of before; then delays in the same tables."""
    root = _copied(lakes, "done", tmp_path)
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
    assert lake.offsets("decisions", "deliver_at IS NOT NULL") == [60, 63]
    lake.assert_columns_were_added()


def test_batch_under_way_is_finished_by_the_release_before_or_by_a_rebuild(
    spark: SparkSession, lakes: Path, tmp_path: Path
) -> None:
    root = _copied(lakes, "under_way", tmp_path)
    lake = Lake(spark, settings_of(root))
    with pytest.raises(StateError, match=r"begun by Checkback 0\.1\.0.*checkback rebuild"):
        lake.run()
    assert lake.offsets("topics/t") == list(range(10))
    (root / "_checkpoints" / "reconcile").rename(tmp_path / "gone")
    assert rebuild(spark, lake.settings, lambda _: None) is not None
    lake.run()
    lake.assert_columns_were_added()
    lake.assert_whole()
