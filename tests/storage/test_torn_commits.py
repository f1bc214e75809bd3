"""Torn logs and checkpoints: named in one line by who reads, put aside by who writes, and only where that is safe."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from checkback.errors import StorageError
from checkback.settings import Settings
from checkback.storage.crash_recovery import recover_tables, torn_query
from checkback.storage.log.commit_reader import CommitReader
from checkback.storage.log.delta_log import DeltaLog
from checkback.storage.log.torn_commits import ASIDE, find_torn, recover_log
from checkback.storage.parquet.parquet_files import FileWriter
from checkback.storage.schemas import arrow_schema
from checkback.storage.tables import Tables


def _tables(folder: Path) -> Tables:
    return Tables.of(Settings.model_validate({"storage": {"root": str(folder)}}).storage)


def _commit(root: Path, version: int) -> None:
    DeltaLog.create("ticks", str(root / "ticks"))
    log = DeltaLog("ticks", str(root / "ticks"))
    with FileWriter(str(root)) as writer:
        writer.write("ticks", pa.table({"tick_at": [None]}).cast(arrow_schema("ticks")))
        files = writer.close()
    log.commit(files, "app", version)


def _table(root: Path, commits: int) -> Path:
    for version in range(1, commits + 1):
        _commit(root, version)
    return root / "ticks/_delta_log"


def _file(log: Path, version: int, kind: str = "json") -> Path:
    return log / f"{version:020}.{kind}"


def _last(root: Path) -> int | None:
    return DeltaLog("ticks", str(root / "ticks")).versions(["app"])["app"]


@pytest.mark.slow
@given(commits=st.integers(1, 4), cut=st.integers(0, 10_000), zeros=st.booleans())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_newest_commit_that_is_cut_off_anywhere_is_named_and_put_aside(
    tmp_path_factory: pytest.TempPathFactory, commits: int, cut: int, zeros: bool
) -> None:
    """Between two lines, too, where what is left is a commit of its own. Without its last line break it is whole."""
    root = tmp_path_factory.mktemp("table")
    log = _table(root, commits)
    newest, whole = _file(log, commits), _file(log, commits).read_bytes()
    newest.write_bytes(b"\0" * len(whole) if zeros else whole[: cut % (len(whole) - 1)])
    _file(log, commits, "crc").unlink()  # written once the commit is on the disk
    for read in (lambda: DeltaLog("ticks", str(root / "ticks")), lambda: CommitReader.of(str(root / "ticks"))):
        with pytest.raises(StorageError, match=f"version {commits} .*empty or cut off.*checkback maintain --repair"):
            read()
    _commit(root, commits)  # what was lost is committed again: who writes puts the torn commit aside
    assert _last(root) == commits
    assert [path.name for path in (root / "ticks" / ASIDE).rglob("*.json")] == [newest.name]


def test_commit_that_is_missing_takes_the_later_ones_along(tmp_path: Path) -> None:
    """None of them was on the disk: the later ones would have been flushed with it."""
    log = _table(tmp_path, 4)
    _file(log, 3).unlink()
    for version in (3, 4):
        _file(log, version, "crc").unlink()
    _commit(tmp_path, 3)
    assert _last(tmp_path) == 3
    assert sorted(version for version in range(6) if _file(log, version).exists()) == [0, 1, 2, 3]


def test_what_was_on_the_disk_once_is_put_aside_by_hand_only(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Its checksum file says so: this was no power cut, or nothing is flushed here."""
    log = _table(tmp_path, 3)
    _file(log, 2).write_bytes(b"")
    _file(log, 3, "crc").unlink()
    with pytest.raises(StorageError, match=r"version 2 .*was on the disk once.*checkback maintain --repair"):
        _commit(tmp_path, 4)
    (line,) = recover_tables(_tables(tmp_path), force=True)
    assert line.startswith("ticks: version 2 of the table's log is empty or cut off")
    assert _last(tmp_path) == 1
    assert find_torn(str(tmp_path / "ticks")) is None


def test_without_sync_nothing_is_put_aside_without_a_word(tmp_path: Path) -> None:
    log = _table(tmp_path, 2)
    _file(log, 2).write_bytes(b"")
    _file(log, 2, "crc").unlink()
    with pytest.raises(StorageError, match="checkback maintain --repair"):
        DeltaLog.create("ticks", str(tmp_path / "ticks"), sync=False)
    assert _file(log, 2).exists()


def test_commit_that_is_empty_below_whole_ones_is_seen(tmp_path: Path) -> None:
    """Without sync by whoever opens the table, however far it is below; with sync by `maintain --repair`."""
    log = _table(tmp_path, 45)
    _file(log, 41).write_bytes(b"")
    place = str(tmp_path / "ticks")
    said = "version 41 of the table's log is empty or cut off"
    for opens in (DeltaLog, DeltaLog.create):
        with pytest.raises(StorageError, match=rf"ticks: {said}.*checkback maintain --repair"):
            opens("ticks", place, sync=False)
    (line,) = recover_tables(_tables(tmp_path), force=True)
    assert line.startswith(f"ticks: {said}")
    assert find_torn(place, checksums=False) is None
    assert _last(tmp_path) == 40


def test_checkpoint_that_is_cut_off_goes_and_the_commits_stay(tmp_path: Path) -> None:
    log = _table(tmp_path, 21)
    checkpoint = next(log.glob("*.checkpoint.parquet"))
    checkpoint.write_bytes(checkpoint.read_bytes()[:1000])
    with pytest.raises(StorageError, match=r"checkpoint\.parquet of the table's log is empty or cut off"):
        DeltaLog("ticks", str(tmp_path / "ticks"))
    _commit(tmp_path, 22)
    assert _last(tmp_path) == 22
    assert not checkpoint.exists()
    assert not (log / "_last_checkpoint").exists(), "it named the checkpoint"


def test_log_whose_old_commits_were_removed_in_part_is_whole(tmp_path: Path) -> None:
    """Below a checkpoint `maintain` removes: a power cut may bring some of them back."""
    log = _table(tmp_path, 25)
    for version in (*range(8), 10, 12, 18):
        _file(log, version).unlink()
    assert find_torn(str(tmp_path / "ticks")) is None
    _commit(tmp_path, 26)
    assert _last(tmp_path) == 26


def test_checksum_of_a_version_that_is_gone_goes(tmp_path: Path) -> None:
    """The next version of that number is another; Spark would believe the checksum."""
    log = _table(tmp_path, 3)
    _file(log, 3).unlink()
    (log / "_last_checkpoint").write_text('{"version": 2, "size')
    assert recover_log(str(tmp_path / "ticks")) is None
    assert not _file(log, 3, "crc").exists()
    assert not (log / "_last_checkpoint").exists()
    _commit(tmp_path, 3)
    assert json.loads(_file(log, 3, "crc").read_text())["numFiles"] == 3


def test_table_whose_making_was_cut_off_is_made(tmp_path: Path) -> None:
    for left in ("", '{"commitInfo":{}}\n'):
        (tmp_path / "ticks/_delta_log").mkdir(parents=True, exist_ok=True)
        _file(tmp_path / "ticks/_delta_log", 0).write_text(left)
        _commit(tmp_path, 1)
        assert _last(tmp_path) == 1
        for path in (tmp_path / "ticks/_delta_log").iterdir():
            path.unlink()


_OFFSETS = (
    'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}\n'
    '{"sourceVersion":1,"reservoirId":"x","reservoirVersion":%d,"index":-1,"isStartingVersion":false}'
)


def _checkpoint(root: Path, batches: int, version: int = 1) -> Path:
    place = root / "_checkpoints/check"
    for folder in ("offsets", "commits", "state/0/0", "state/0/_metadata/v2"):
        (place / folder).mkdir(parents=True)
    (place / "metadata").write_text('{"id":"q"}')
    for batch in range(batches):
        (place / f"offsets/{batch}").write_text(_OFFSETS % version)
        (place / f"commits/{batch}").write_text('v1\n{"nextBatchWatermarkMs":0}')
        (place / f"state/0/0/{batch + 1}.changelog").write_text("state")
        (place / f"state/0/_metadata/v2/{batch}").write_text("v1\n{}")
    return place


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.is_file()}


def _torn(root: Path) -> str | None:
    return torn_query(_tables(root), "check")


@pytest.mark.parametrize("file", ["offsets/2", "commits/2", "metadata", "sources/0/1", "sources/0/2.compact"])
@pytest.mark.parametrize(
    "left", [b"", b"v1\n", b"\0" * 200, b'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}']
)
def test_torn_file_of_a_checkpoint_is_named(tmp_path: Path, file: str, left: bytes) -> None:
    place = _checkpoint(tmp_path, 3)
    (place / "sources/0").mkdir(parents=True)
    assert _torn(tmp_path) is None
    (place / file).write_bytes(left)
    assert _torn(tmp_path) == f"{file} is torn or missing, as after a power cut"


def test_offsets_without_those_of_a_source_are_torn(tmp_path: Path) -> None:
    place = _checkpoint(tmp_path, 3)
    (place / "offsets/2").write_text('v1\n{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}\n')
    assert _torn(tmp_path) == "offsets/2 is torn or missing, as after a power cut"


def test_file_that_fails_its_checksum_is_torn(tmp_path: Path) -> None:
    place = _checkpoint(tmp_path, 3)
    content = (place / "offsets/2").read_bytes()
    known = b"crc\0" + (512).to_bytes(4, "big") + zlib.crc32(content).to_bytes(4, "big")
    (place / "offsets/.2.crc").write_bytes(known)
    assert _torn(tmp_path) is None
    (place / "offsets/2").write_bytes(content.replace(b'"batchTimestampMs":1', b'"batchTimestampMs":2'))
    assert _torn(tmp_path) == "offsets/2 is torn or missing, as after a power cut"


def test_missing_entry_of_a_source_is_named(tmp_path: Path) -> None:
    """The newest batch refers to it; a compacted one stands for it, too."""
    place = _checkpoint(tmp_path, 3)
    (place / "sources/0").mkdir(parents=True)
    (place / "offsets/2").write_text('v1\n{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}\n{"logOffset":7}')
    assert _torn(tmp_path) == "sources/0/7 is torn or missing, as after a power cut"
    (place / "sources/0/7.compact").write_text('v1\n{"path":"x"}')
    assert _torn(tmp_path) is None


@pytest.mark.parametrize("begun", ["offsets", "sources", "state", None])
def test_checkpoint_without_its_id_is_torn_once_spark_has_written_in_it(begun: str | None, tmp_path: Path) -> None:
    """The id of Kafka's topic is noted before Spark writes."""
    place = tmp_path / "_checkpoints/check"
    (place / "topic-AbC_0").mkdir(parents=True)
    if begun is not None:
        (place / begun).mkdir()
    assert _torn(tmp_path) == (begun and "metadata is torn or missing, as after a power cut")


def test_what_an_unfinished_batch_has_left_is_removed(tmp_path: Path) -> None:
    """As after a kill: its state, lone checksums, temporary files. The batch stays."""
    place = _checkpoint(tmp_path, 3)
    (place / "commits/2").unlink()
    (place / "offsets/.7.crc").write_bytes(b"crc\0")
    (place / "commits/.2.0d7c6fbc-5f4d-4b5e-8a08-d33ec2b9a4a4.tmp").touch()
    for _ in range(2):
        assert _torn(tmp_path) is None
        assert (_names(place / "offsets"), _names(place / "commits")) == ({"0", "1", "2"}, {"0", "1"})
        assert _names(place / "state/0/0") == {"1.changelog", "2.changelog"}
        assert _names(place / "state/0/_metadata/v2") == {"0", "1"}


def test_state_of_a_first_batch_that_is_lost_goes_with_its_folders(tmp_path: Path) -> None:
    """As after a power cut: Spark starts no query whose checkpoint has no batch and a state that is not empty."""
    place = _checkpoint(tmp_path, 1)
    (place / "commits/0").unlink()
    (place / "offsets/0").unlink()
    assert _torn(tmp_path) is None
    assert not (place / "state").exists()
