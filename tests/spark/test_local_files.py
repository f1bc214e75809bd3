"""The classes for local files do what Hadoop's and Delta's do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from checkback.spark import local_files
from checkback.spark.jars import CLASS_PATH

if TYPE_CHECKING:
    import pytest
    from pyspark.sql import SparkSession


def _files(spark: SparkSession, place: Path) -> tuple[Any, Any]:
    """Hadoop's files, and a path in it."""
    jvm: Any = spark.sparkContext._jvm
    path = jvm.org.apache.hadoop.fs.Path(str(place))
    return path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf()), path


def test_permissions_are_set(spark: SparkSession, tmp_path: Path) -> None:
    """Of files that are written the usual ones, as Hadoop's umask has it; others as they are asked for."""
    files, path = _files(spark, tmp_path / "file")
    assert files.getClass().getName() == local_files.SETTINGS["spark.hadoop.fs.file.impl"]
    jvm: Any = spark.sparkContext._jvm
    files.create(path).close()
    assert (tmp_path / "file").stat().st_mode & 0o7777 == 0o644
    for mode in (0o600, 0o751, 0o1777, 0):
        files.setPermission(path, jvm.org.apache.hadoop.fs.permission.FsPermission(mode))
        assert (tmp_path / "file").stat().st_mode & 0o7777 == mode
    files.mkdirs(jvm.org.apache.hadoop.fs.Path(str(tmp_path / "a/b")))
    assert (tmp_path / "a/b").stat().st_mode & 0o7777 == 0o755
    assert (tmp_path / ".file.crc").exists(), "a power cut is found by checksums"


_NAMES = st.sampled_from(["_last_checkpoint", ".0.json.crc", "_sidecars", ".tmp", *(f"{n:020}.json" for n in range(9))])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(there=st.sets(_NAMES), since=st.sampled_from([*(f"{n:020}." for n in range(10)), ".", "_"]))
def test_a_log_is_listed_as_delta_does(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, there: set[str], since: str
) -> None:
    log = tmp_path_factory.mktemp("log")
    for name in there:
        (log / name).write_text(name)
    jvm: Any = spark.sparkContext._jvm
    conf = spark._jsparkSession.sessionState().newHadoopConf()
    path = jvm.org.apache.hadoop.fs.Path(str(log / since))
    ours, theirs = jvm.checkback.LocalFiles.Log(conf), jvm.io.delta.storage.HDFSLogStore(conf)
    found = [
        [(file.getPath().getName(), file.getLen(), file.getModificationTime()) for file in store.listFrom(path, conf)]
        for store in (ours, theirs)
    ]
    assert found[0] == [file for file in found[1] if not file[0].startswith(".")]


def test_what_the_user_sets_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_files, "jar", lambda: tmp_path / "made.jar")
    conf = {CLASS_PATH: "/own.jar", "spark.hadoop.fs.file.impl": "own.Files"}
    assert local_files.on_class_path(conf) == conf, "there is none"
    (tmp_path / "made.jar").write_bytes(b"")
    changed = {CLASS_PATH: f"{tmp_path}/made.jar:/own.jar", "spark.hadoop.fs.file.impl": "own.Files"}
    assert local_files.on_class_path(conf) == {**local_files.SETTINGS, **changed}
