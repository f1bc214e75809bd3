"""The checksum of a version says what the table's log says, whoever commits; where it cannot know, there is none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from checkback.storage.log.checksum import KEPT, after, write_checksum
from checkback.storage.log.delta_log import DeltaLog
from checkback.storage.parquet.parquet_files import FileWriter, ParquetFile
from checkback.storage.schemas import arrow_schema
from support.examples import fewer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def _files(root: Path, rows: int) -> list[ParquetFile]:
    with FileWriter(str(root)) as writer:
        writer.write("ticks", pa.table({"tick_at": [None] * rows}).cast(arrow_schema("ticks")))
        return writer.close()


def _read(root: Path, version: int) -> dict[str, Any]:
    text = (root / f"ticks/_delta_log/{version:020}.crc").read_text()
    found: dict[str, Any] = json.loads(text)
    return found


def _log(root: Path) -> DeltaLog:
    DeltaLog.create("ticks", str(root / "ticks"))
    return DeltaLog("ticks", str(root / "ticks"))


@pytest.mark.slow
@given(st.lists(st.sampled_from(["append", "replace", "mark", "lost"]), min_size=1, max_size=8))
@settings(fewer(4), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_checksum_says_what_the_table_holds(tmp_path_factory: pytest.TempPathFactory, steps: list[str]) -> None:
    """Also after a file of it was never written, as by a process that was killed."""
    root = tmp_path_factory.mktemp("table")
    log, there = _log(root), dict[str, int]()
    for number, step in enumerate(steps):
        if step == "mark":
            log.commit_after([], log.versions(["app"]), {"app": number})
        elif step == "replace" and there:
            files = _files(root, 3)
            assert log.replace(list(there), files)
            there = {file.path: file.size for file in files}
        else:
            files = _files(root, 1)
            log.commit(files)
            there |= {file.path: file.size for file in files}
        found = _read(root, log.version())
        assert (found["numFiles"], found["tableSizeBytes"]) == (len(there), sum(there.values()))
        assert found["metadata"]["id"] == log.table_id()
        assert found["protocol"]["minWriterVersion"] == 2
        if step == "lost":
            (root / f"ticks/_delta_log/{log.version():020}.crc").unlink()


def test_table_that_queries_read_has_one_from_its_creation_on(tmp_path: Path) -> None:
    """Else Spark computes protocol and metadata in a job, at each start before the first row."""
    log, found = _log(tmp_path), _read(tmp_path, 0)
    assert (found["numFiles"], found["tableSizeBytes"], found["metadata"]["id"]) == (0, 0, log.table_id())


def test_old_ones_are_let_go(tmp_path: Path) -> None:
    log = _log(tmp_path)
    for number in range(KEPT + 2):
        log.commit_after([], log.versions(["app"]), {"app": number})
    there = sorted(int(file.stem) for file in (tmp_path / "ticks/_delta_log").glob("*.crc"))
    assert there == list(range(3, KEPT + 3))


_KNOWN = {"tableSizeBytes": 7, "numFiles": 2, "metadata": {"id": "m"}, "protocol": {"minReaderVersion": 1}}
_WRITE = {"commitInfo": {"operation": "WRITE"}}


@pytest.mark.parametrize(
    "actions",
    [
        [_WRITE, {"remove": {"path": "x"}}],
        [_WRITE, {"domainMetadata": {"domain": "d"}}],
        [{"commitInfo": {"operation": "COMPUTE STATS"}}, {"add": {"path": "x", "size": 1}}],
        [{"add": {"path": "x", "size": 1}}],
        [{"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["deletionVectors"]}}],
        [{"protocol": {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["rowTracking"]}}],
    ],
)
def test_what_a_checksum_cannot_know_has_none(actions: list[dict[str, Any]]) -> None:
    assert after(_KNOWN, [[_WRITE, {"add": {"path": "y", "size": 3}}]]) == {
        **_KNOWN,
        "tableSizeBytes": 10,
        "numFiles": 3,
        "numMetadata": 1,
        "numProtocol": 1,
    }
    assert after(_KNOWN, [actions]) is None
    assert after({}, [[_WRITE]]) is None


def test_a_log_that_cannot_be_read_is_no_failure(tmp_path: Path) -> None:
    log = _log(tmp_path)
    log.commit(_files(tmp_path, 1))
    (tmp_path / "ticks/_delta_log" / f"{1:020}.crc").write_text("{")
    assert not write_checksum(str(tmp_path / "ticks"), 2)
    assert not write_checksum(str(tmp_path / "nowhere"), 0)


@pytest.mark.spark
def test_spark_takes_protocol_and_metadata_from_it_and_finds_it_right(spark: SparkSession, tmp_path: Path) -> None:
    """Delta's own check of a checksum against the log; and Spark goes on from ours with its own."""
    log, place = _log(tmp_path), str(tmp_path / "ticks")
    log.commit(_files(tmp_path, 2))
    jvm: Any = spark._jvm

    def valid() -> bool:
        snapshot = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, place).update(
            False, jvm.scala.Option.empty(), jvm.scala.Option.empty()
        )
        assert snapshot.checksumOpt().isDefined()
        return bool(
            snapshot.validateChecksum(getattr(jvm.scala.collection.immutable, "Map$").__getattr__("MODULE$").empty())
        )

    assert valid()
    spark.read.format("delta").load(place).write.format("delta").mode("append").save(place)
    assert valid()
    log.commit(_files(tmp_path, 1))
    assert log.version() == 3
    assert (_read(tmp_path, 3)["numFiles"], valid()) == (3, True)
