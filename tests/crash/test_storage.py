"""A full disk and a failing write stop the job with one line; after the repair a restart completes everything."""

from __future__ import annotations

import os
import re
import subprocess
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from checkback.application.queries import reconcile
from checkback.errors import CheckbackError
from checkback.settings import Settings
from checkback.storage.log.delta_log import DeltaLog
from crash.books import audit, count, rows
from crash.fates import CHECK_MAX, GROUP, Lander, answers
from examples.producer import ExampleProducer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

_NUMBER = 40
_INTERVAL = timedelta(milliseconds=1)
_SIZE = 8 << 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, that can be filled."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={_SIZE}", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a small file system can be mounted by root only")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)  # noqa: S607 - wherever it is


@pytest.fixture
def producer() -> Iterator[ExampleProducer]:
    with ExampleProducer(answers(range(3 * _NUMBER))) as running:
        yield running


def _settings(root: Path, producer: ExampleProducer) -> Settings:
    return Settings.model_validate(
        {
            "storage": {"root": str(root)},
            "transaction": {"timeout": "0s", "check_interval": "1ms", "check_max": CHECK_MAX},
            "reconcile": {"partitions": 2, "segment_size": 64},
            "producers": {GROUP: {"endpoints": producer.endpoints}},
        }
    )


def _complete(spark: SparkSession, settings: Settings, number: int) -> None:
    """Runs until everything is decided; then every promise is kept."""
    root = settings.storage.root
    for _ in range(CHECK_MAX + 1):
        if count(root, "decisions") < number:
            reconcile(spark, settings, available_now=True)
    books = audit(root, timedelta(0), _INTERVAL)
    assert (books.transactions, books.lost, books.duplicated, books.faults) == (number, [], [], [])


def _fails(spark: SparkSession, settings: Settings, said: str) -> None:
    with pytest.raises(CheckbackError) as caught:
        reconcile(spark, settings, available_now=True)
    assert "\n" not in str(caught.value)
    assert re.search(said, str(caught.value)), str(caught.value)


def test_full_disk_stops_the_job_and_loses_nothing(
    spark: SparkSession, small_disk: Path, producer: ExampleProducer
) -> None:
    """Whichever write meets it first: Spark's checkpoint, a task's file, or a commit."""
    settings = _settings(small_disk, producer)
    Lander(str(small_disk)).land(_NUMBER)
    free = os.statvfs(small_disk)
    filler = small_disk / "filler"
    for left in (0, 96 << 10):  # nothing at all; enough to begin a batch
        filler.write_bytes(bytes(max(0, free.f_bavail * free.f_frsize - left)))
        _fails(spark, settings, "No space left on device.*; make room|CANNOT_WRITE_STATE_STORE.*has room")
        filler.unlink()
    _complete(spark, settings, _NUMBER)


def test_failing_write_stops_the_job_and_loses_nothing(
    spark: SparkSession, tmp_path: Path, producer: ExampleProducer
) -> None:
    """A folder cannot be written to: a file stands in its place (a read-only one does not stop root)."""
    settings = _settings(tmp_path, producer)
    Lander(str(tmp_path)).land(_NUMBER)
    place, aside = tmp_path / "decisions", tmp_path / "aside"
    DeltaLog.create("decisions", str(place))
    place.rename(aside)
    place.write_text("in the way")
    _fails(spark, settings, "decisions")
    place.unlink()
    aside.rename(place)
    _complete(spark, settings, _NUMBER)


def test_topics_that_cannot_be_written_stop_nothing(
    spark: SparkSession, tmp_path: Path, producer: ExampleProducer
) -> None:
    """All of them: their folder is a file. What is committed waits, and the next run after the repair publishes it."""
    settings = _settings(tmp_path, producer)
    root = str(tmp_path)
    Lander(root).land(_NUMBER)
    (tmp_path / "topics").write_text("in the way")
    for _ in range(CHECK_MAX + 1):
        if count(root, "decisions") < _NUMBER:
            reconcile(spark, settings, available_now=True)
    books = audit(root, timedelta(0), _INTERVAL)
    assert sorted(books.lost) == sorted(
        row["half_queue_offset"] for row in rows(root, "unpublished", "half_queue_offset")
    )
    (tmp_path / "topics").unlink()
    reconcile(spark, settings, available_now=True)
    _complete(spark, settings, _NUMBER)
