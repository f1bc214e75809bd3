"""The classes for local files do what Hadoop's and Delta's do."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from checkback.spark import local_files
from checkback.spark.jars import CLASS_PATH

if TYPE_CHECKING:
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


_RIVAL = """
import java.io.File; import java.nio.file.Files; import java.util.Iterator;
public class Rival implements Iterator {
    private final File file; private boolean more = true;
    public Rival(String file) { this.file = new File(file); }
    public boolean hasNext() { return more; }
    public Object next() {
        more = false;
        try {
            Files.write(file.toPath(), "rival".getBytes());
        } catch (java.io.IOException e) {
            throw new RuntimeException(e);
        }
        return "mine";
    }
}
"""


def test_of_two_commits_one_succeeds(spark: SparkSession, tmp_path: Path) -> None:
    """The other one has looked, found no such version, and comes first: it stays, and the later one is told."""
    jvm: Any = spark.sparkContext._jvm
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.cook(_RIVAL)
    conf = spark._jsparkSession.sessionState().newHadoopConf()
    commit = tmp_path / f"{0:020}.json"
    gateway: Any = spark.sparkContext._gateway
    rival_of = compiler.getClassLoader().loadClass("Rival").getConstructors()[0]
    given = gateway.new_array(jvm.java.lang.Object, 1)
    given[0] = str(commit)
    rival = rival_of.newInstance(given)
    store, path = jvm.checkback.LocalFiles.Log(conf), jvm.org.apache.hadoop.fs.Path(str(commit))
    with pytest.raises(Exception, match="FileAlreadyExistsException"):
        store.write(path, rival, False, conf)
    assert commit.read_text() == "rival"
    commit.unlink()
    lines = jvm.java.util.ArrayList()
    lines.add("one")
    lines.add("two")
    store.write(path, lines.iterator(), False, conf)
    assert commit.read_text() == "one\ntwo\n"
    assert [file.name for file in tmp_path.iterdir()] == [commit.name], "nothing is left"


def test_a_jar_that_was_cut_off_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_files, "jar", lambda: tmp_path / "made.jar")
    with zipfile.ZipFile(tmp_path / "made.jar", "w") as made:
        made.writestr("some.class", bytes(1000))
    assert local_files.is_made()
    for size in (500, 0):
        os.truncate(tmp_path / "made.jar", size)
        assert not local_files.is_made()
        assert local_files.on_class_path({}) == {}


def test_what_the_user_sets_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_files, "jar", lambda: tmp_path / "made.jar")
    conf = {CLASS_PATH: "/own.jar", "spark.hadoop.fs.file.impl": "own.Files"}
    assert local_files.on_class_path(conf) == conf, "there is none"
    with zipfile.ZipFile(tmp_path / "made.jar", "w"):
        pass
    changed = {CLASS_PATH: f"{tmp_path}/made.jar:/own.jar", "spark.hadoop.fs.file.impl": "own.Files"}
    assert local_files.on_class_path(conf) == {**local_files.SETTINGS, **changed}
