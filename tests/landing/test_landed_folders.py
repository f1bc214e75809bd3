"""What is taken from a folder or a pattern: files that change, links, folders that are watched, wrong paths."""

from __future__ import annotations

import gzip
import os
import shutil
import signal
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from checkback.errors import CheckbackError, SettingsError
from checkback.landing import file_query
from checkback.landing.batch import Landing
from checkback.landing.landing_queries import Landed
from landing.fixtures import Lakehouse, half

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession


def test_watching_ends_with_a_vanished_folder(lake: Lakehouse, inbox: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    take = Landing.__call__

    def take_and_remove(landing: Landing, batch: DataFrame, batch_id: int) -> None:
        take(landing, batch, batch_id)
        shutil.rmtree(inbox)

    monkeypatch.setattr(Landing, "__call__", take_and_remove)
    (inbox / "a.jsonl").write_text(half(0))
    with pytest.raises(CheckbackError) as caught:
        lake.land(half=inbox, available_now=False)
    assert str(caught.value) == f"{inbox}: the folder has vanished; restore it and run again"
    assert lake.rows("half", "queue_offset") == [(0,)]
    assert not lake.spark.streams.active


def test_changed_files_are_not_read_again_and_are_told_of(
    lake: Lakehouse, inbox: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in "abc":
        (inbox / name).write_text(half(ord(name)) + "\n")
    assert lake.land(half=inbox) == Landed(half=3)
    assert lake.land(half=inbox) == Landed()
    assert not caplog.messages
    # One grows, one is written anew, one is renamed.
    with (inbox / "a").open("a") as file:
        file.write(half(0))
    (inbox / "b").write_text(half(1))
    os.utime(inbox / "b", (2_000_000_000, 2_000_000_000))
    (inbox / "c").rename(inbox / "d")
    os.utime(inbox / "a", (2_000_000_000, 2_000_000_000))
    assert lake.land(half=inbox) == Landed(rejected=1)
    (told,) = caplog.messages
    assert told.startswith("2 files have changed since they were read, as ")
    assert lake.rows("rejected", "file", "raw") == [(f"{inbox}/d", half(ord("c")))]


def test_one_file_or_link_of_somebody_holds_nobody_s_files_up(
    lake: Lakehouse, inbox: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "secret").write_text("password\n")
    (tmp_path / "home").mkdir()
    for name, target in (("a", "."), ("b", "."), ("home", "../home"), ("secret", "../secret"), ("own", "0")):
        (inbox / name).symlink_to(target)
    os.truncate(os.open(inbox / "holes", os.O_CREAT | os.O_RDWR), 15 << 30)
    (inbox / "0").write_text(half(0))
    (inbox / "future").write_text(half(1))
    os.utime(inbox / "future", (2**33, 2**33))  # the year 2242
    assert lake.land(half=inbox) == Landed(half=2, rejected=3)
    rejected = [
        (f"{inbox}/holes", "file: is over 256 MiB and has holes, which were never written; copy it without", None),
        (f"{inbox}/own", "repeated (queue_id, queue_offset) 0/0", half(0)),
        (
            f"{inbox}/secret",
            "file: is a link that leads out of the folder that is landed; put the file itself there",
            None,
        ),
    ]
    assert lake.rows("rejected", "file", "reason", "raw") == rejected
    assert f"{inbox}/home: skipped: a link that leads out of the folder that is landed" in caplog.messages
    # The future has been seen.
    (inbox / "2").write_text(half(2))
    os.utime(inbox / "2", (-(2**31), -(2**31)))
    (tmp_path / "link").symlink_to(inbox)
    assert lake.land(half=inbox) == Landed(half=1)
    # The operator's own links, and globs.
    (tmp_path / "file").symlink_to(inbox / "0")
    assert lake.land(half=tmp_path / "link" / "2").rejected == 1
    assert lake.land(half=tmp_path / "file").rejected == 1
    (tmp_path / "in").symlink_to(inbox)
    (inbox / "3, file:").write_text(half(3))
    assert lake.land(half=f"{tmp_path}/in/3*") == Landed(half=1)


def test_files_that_spark_has_listed_itself_are_not_taken_again(lake: Lakehouse, inbox: Path) -> None:
    """As it did in checkpoints of before: the URIs are the same."""
    for number, name in enumerate(
        ["a b%20", "ü😀", "n\nl", "[x]{a,b}*?\\", "\u00a0\u2028", ":@&=+$,;~!()'\"<>#^`|", "sub/c"]
    ):
        (inbox / name).parent.mkdir(exist_ok=True)
        (inbox / name).write_text(half(number))
    pattern, schema = file_query._as_glob(str(inbox)), file_query._BINARY_FILE
    rows = lake.spark.readStream.format("binaryFile").schema(schema).options(**file_query._OPTIONS).load(pattern)
    query = rows.select("path").writeStream.option("checkpointLocation", lake.tables.checkpoint("land-half"))
    query.trigger(availableNow=True).foreachBatch(lambda *_: None).start().awaitTermination()
    (inbox / "new").write_text(half(9))
    assert lake.land(half=inbox) == Landed(half=1)


def test_folder_is_looked_at_again_while_it_is_watched(
    lake: Lakehouse, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = Landing.__call__

    def take_and_go_on(landing: Landing, batch: DataFrame, batch_id: int) -> None:
        take(landing, batch, batch_id)
        if batch_id == 0:
            (inbox / "b.jsonl").write_text(half(1))
        else:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Landing, "__call__", take_and_go_on)
    (inbox / "a.jsonl").write_text(half(0))
    assert lake.land(half=inbox, available_now=False) == Landed(half=2)


def test_elsewhere_hadoop_reads_no_line_beyond_a_limit(
    spark: SparkSession, inbox: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Not on this machine Spark reads the lines: what it is told of their length must reach Hadoop's reader."""
    monkeypatch.setitem(file_query._OPTIONS, "mapreduce.input.linerecordreader.line.maxlength", "1000")
    for end in ("", ".gz"):
        data = b"first\n" + b"a" * 100_000 + b"\nlast\n"
        (inbox / f"a{end}").write_bytes(gzip.compress(data) if end else data)
    found = replace(file_query.Source.find(spark, str(inbox)), local=False)
    query = found.stream(spark).writeStream.format("memory").queryName("elsewhere")
    query.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start().awaitTermination()
    lines = [bytes(row["line"]) for row in spark.table("elsewhere").select("line").collect()]
    assert sorted(lines) == [b"first", b"first", b"last", b"last"]


@pytest.mark.parametrize(
    ("path", "what"),
    [
        ("nowhere", "no such file or folder"),
        ("_hidden", "files whose names begin with _ or . are skipped"),
        ("nosuch://bucket/in", 'No FileSystem for scheme "nosuch"'),
    ],
)
def test_wrong_path_is_refused_before_anything_starts(lake: Lakehouse, tmp_path: Path, path: str, what: str) -> None:
    (tmp_path / "_hidden").touch()
    with pytest.raises(SettingsError, match=what) as caught:
        lake.land(half=path if "://" in path else tmp_path / path)
    assert caught.value.where.endswith(path)
    assert not lake.root.exists()


def test_nothing_to_land_is_refused(lake: Lakehouse) -> None:
    with pytest.raises(SettingsError, match="give --half PATH, --op PATH or both"):
        lake.land()
