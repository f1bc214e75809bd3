"""Queries end between their batches, on a signal or when another fails, and say why in one line."""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from checkback.errors import CheckbackError, FencedError, StorageError
from checkback.spark.shutdown import GracefulShutdown, failure, stop_on_signal
from checkback.storage.lock import FILE, exclusive_lock
from checkback.storage.tables import Tables

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession


class Counter:
    """Three files, one a batch: which batches were begun, which finished."""

    def __init__(self, spark: SparkSession, folder: Path, checkpoint: Path) -> None:
        self.name = checkpoint.name
        self.spark, self.folder, self.checkpoint = spark, folder, checkpoint
        self.begun: list[int] = []
        self.finished: list[int] = []
        folder.mkdir(exist_ok=True)
        for name in "abc":
            (folder / name).write_text(name)

    def start(self, stopper: GracefulShutdown, act: Any = None, trigger: str = "0 seconds") -> None:
        def write(batch: DataFrame, batch_id: int) -> None:
            self.begun.append(batch_id)
            if act is not None:
                act(batch)
            batch.collect()
            self.finished.append(batch_id)

        lines = self.spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(self.folder))
        writer = lines.writeStream.queryName(self.name).option("checkpointLocation", str(self.checkpoint))
        stopper.start(writer.trigger(processingTime=trigger), write)

    @property
    def committed(self) -> list[str]:
        return self._batches("commits")

    @property
    def planned(self) -> list[str]:
        return self._batches("offsets")

    def _batches(self, log: str) -> list[str]:
        return sorted(file.name for file in (self.checkpoint / log).iterdir() if file.name.isdigit())


@pytest.fixture
def counter(spark: SparkSession, tmp_path: Path) -> Counter:
    return Counter(spark, tmp_path / "in", tmp_path / "checkpoint")


def test_stop_completes_the_batch_and_begins_no_other(
    counter: Counter, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with stop_on_signal() as stopper:
        counter.start(stopper, act=lambda _: stopper.stop())
        stopper.wait()
        assert stopper.start(None, None) is None  # type: ignore[arg-type]
    assert counter.begun == counter.finished == [0]
    assert counter.committed == counter.planned == ["0"]
    assert not caplog.records

    def stop_at_the_last(batch: DataFrame) -> None:
        if counter.begun[-1] == 2:
            os.kill(os.getpid(), signal.SIGINT)

    with stop_on_signal() as stopper:
        counter.start(stopper, act=stop_at_the_last)
        stopper.wait()
    assert "StackOverflow" not in capfd.readouterr().err
    assert counter.finished == [0, 1, 2]
    assert counter.committed == counter.planned == ["0", "1", "2"]


@pytest.mark.parametrize("step", ["before the batch function", "between two batches"])
def test_stop_outside_the_batch_function_leaves_no_batch_begun(counter: Counter, step: str) -> None:
    """Before it, the batch is completed as well; while the query is idle it ends at once."""
    idle = step == "between two batches"
    with stop_on_signal() as stopper:
        counter.start(stopper, trigger="1 hour" if idle else "0 seconds")
        log = "commits" if idle else "offsets"
        while not (counter.checkpoint / log / "0").exists():
            pass
        stopper.stop()
        stopper.wait()
    assert counter.committed == counter.planned != []


def test_failing_query_stops_the_others(spark: SparkSession, counter: Counter, tmp_path: Path) -> None:
    other, late = Counter(spark, tmp_path / "in", tmp_path / "other"), threading.Event()

    def fail(batch: DataFrame) -> None:
        late.wait(30)
        raise StorageError("the table is gone", where="half")

    with stop_on_signal() as stopper:
        counter.start(stopper, act=fail)
        other.start(stopper, act=lambda _: late.set())
        with pytest.raises(StorageError, match="half: the table is gone"):
            stopper.wait()
    assert other.begun == other.finished
    assert len(other.committed) == len(other.finished) > 0
    assert not spark.streams.active


def test_second_signal_interrupts(spark: SparkSession, counter: Counter) -> None:
    def never_ends(batch: DataFrame) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        batch.sparkSession.sparkContext._jvm.java.lang.Thread.sleep(60_000)  # type: ignore[union-attr]

    with stop_on_signal() as stopper:
        counter.start(stopper, act=never_ends)
        with pytest.raises(KeyboardInterrupt):
            stopper.wait()
    assert counter.finished == []
    assert not spark.streams.active


def test_error_of_a_worker_is_named_and_not_its_stack(spark: SparkSession) -> None:
    def explode(batches: Any) -> Any:
        raise ValueError("row 7 is odd")

    with pytest.raises(Exception, match="row 7 is odd") as caught:
        spark.range(1).mapInArrow(explode, "id long").select(F.col("id") + 1).collect()
    assert str(failure("land-half", caught.value)) == "query land-half: ValueError: row 7 is odd"


def test_cause_is_told_and_not_its_wrapper(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(1).write.parquet(str(tmp_path / "gone"))
    rows = spark.read.parquet(str(tmp_path / "gone"))
    for file in (tmp_path / "gone").iterdir():
        file.unlink()
    with pytest.raises(Exception, match="awaitResult") as caught:
        rows.toArrow()
    assert "FAILED_READ_FILE" in str(failure("reconcile", caught.value))


def test_failures_in_one_line() -> None:
    assert str(failure("check", ValueError("a\nb"))) == "query check: a"
    assert str(failure(None, ValueError())) == "ValueError"
    assert str(failure(None, RuntimeError("[X] gone. SQLSTATE: 42K03"))) == "[X] gone."
    full = RuntimeError(
        "Job aborted: [CANNOT_WRITE_X] it failed.\nCaused by: java.io.IOException: No space left on device"
    )
    line = "query check: No space left on device: Job aborted: [CANNOT_WRITE_X] it failed.; make room on the disk"
    assert str(failure("check", full)).startswith(line)
    altered = RuntimeError("[DELTA_SCHEMA_CHANGED_WITH_VERSION] Detected schema change in version 2:\nstreaming ..")
    assert str(failure("reconcile", altered)) == (
        "query reconcile: [DELTA_SCHEMA_CHANGED_WITH_VERSION] Detected schema change in version 2; "
        "a table that it reads was altered, as by a new column: run again, and it goes on"
    )
    dropped = RuntimeError("[DELTA_STREAMING_INCOMPATIBLE_SCHEMA_CHANGE_USE_SCHEMA_LOG] Streaming read is not")
    assert "for the query check move the folder check of its checkpoint away" in str(failure("check", dropped))
    own = CheckbackError("gone", where="half")
    assert failure("check", own) is own


def test_lost_connection_is_one_line_too() -> None:
    class Gone:
        """A query whose JVM has ended."""

        id = "gone"

        @property
        def isActive(self) -> bool:  # noqa: N802 - Spark's name
            raise ConnectionRefusedError("[Errno 111] Connection refused")

        status = isActive

    stopper = GracefulShutdown()
    stopper._queries.append(Gone())  # type: ignore[arg-type]
    with pytest.raises(CheckbackError, match="lost the connection to Spark; see what Spark says, then run again"):
        stopper.wait()


def test_lock_that_is_taken_away_ends_the_queries(counter: Counter, tmp_path: Path) -> None:
    """After the batch that they are in."""
    tables = Tables(root=str(tmp_path))
    with exclusive_lock(tables) as lock, stop_on_signal(lock.confirm) as stopper:
        counter.start(stopper, act=lambda _: (tmp_path / FILE).unlink(missing_ok=True))
        with pytest.raises(FencedError, match="the lock file was deleted"):
            stopper.wait()
    assert counter.begun == counter.finished


def test_stop_outside_the_main_thread() -> None:
    found: list[bool] = []

    def run() -> None:
        with stop_on_signal() as stopper:
            stopper.stop()
            stopper.wait()
            found.append(stopper.wanted)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(10)
    assert found == [True]
