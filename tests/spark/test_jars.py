"""JARs that Ivy found once are named on the class path; an archive of classes belongs to one class path.

What `make install` fetched is for all users of the installation.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pyspark
import pytest

from checkback.application import prefetch
from checkback.settings import Settings
from checkback.spark import jars, jvm, local_files
from checkback.spark.jvm import java_check, quick_start, with_class_path
from checkback.spark.session import SHORT, spark_settings

#: where Ivy has what earlier starts fetched
_IVY = str(jars.folder() / "ivy")
_CONF = {jars.PACKAGES: "org.x:one:1", "spark.master": "local[2]"}


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(jars, "installation", lambda: tmp_path / "installation")


def _remembered(tmp_path: Path, conf: dict[str, str], *names: str) -> list[str]:
    """JARs, and the record of a fetch."""
    found = [tmp_path / f"{name}.jar" for name in names or ("one", "two")]
    for jar in found:
        jar.write_bytes(b"")
    (jars.folder() / jars._name(conf)).write_text(json.dumps([str(jar) for jar in found]))
    return [str(jar) for jar in found]


def test_packages_that_were_not_fetched_stay_packages() -> None:
    assert jars.on_class_path(_CONF) == _CONF


def test_what_the_installation_has_is_for_all_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who may not write there reads it, and has the rest in a cache; without a home that is a temporary folder."""
    jars.installation().mkdir()
    found = _remembered(tmp_path, _CONF)
    assert list(jars.installation().glob("jars-*.json"))
    access = os.access  # root may write anywhere
    monkeypatch.setattr(os, "access", lambda *asked: asked != (jars.installation(), os.W_OK) and access(*asked))
    assert jars.folder() == tmp_path / "cache" / "checkback"
    assert jars.on_class_path(_CONF)[jars.CLASS_PATH] == ":".join(found)
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/none")
    assert jars.folder().parent == Path(tempfile.gettempdir())
    assert jars.folder().stat().st_mode & 0o077 == 0
    assert jars.on_class_path(_CONF)[jars.CLASS_PATH] == ":".join(found)


def test_a_temporary_folder_of_somebody_else_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its JARs would be that user's code, run as this one."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    theirs = tmp_path / f"checkback-cache-{os.getuid()}"
    theirs.mkdir()
    theirs.chmod(0o777)
    assert jars._temporary.__wrapped__() != theirs
    theirs.chmod(0o700)
    assert jars._temporary.__wrapped__() == theirs


def test_later_starts_name_the_jars_and_keep_what_the_user_has_there(tmp_path: Path) -> None:
    found = _remembered(tmp_path, _CONF)
    assert jars.on_class_path(_CONF) == {"spark.master": "local[2]", jars.CLASS_PATH: ":".join(found)}
    own = {**_CONF, jars.CLASS_PATH: "/own.jar"}
    assert jars.on_class_path(own)[jars.CLASS_PATH] == ":".join([*found, "/own.jar"])


def test_jars_of_other_packages_are_behind_those_of_spark(tmp_path: Path) -> None:
    """In S3, with Kafka, with a user's own packages: Java takes the archive of the class path that it begins with."""
    alone, more = ({**_CONF, jars.PACKAGES: jars.DELTA_PACKAGE + added} for added in ("", ",org.x:three:1"))
    delta = _remembered(tmp_path, alone)
    three = _remembered(tmp_path, more, "three", "one", "two")[0]
    assert jars.on_class_path(more) == jars.on_class_path(alone)
    assert jars.at_end(alone, {}) == {}
    assert jars.at_end(more, {}) == {"SPARK_DIST_CLASSPATH": three}
    assert jars.at_end(more, {"SPARK_DIST_CLASSPATH": "/own/*"}) == {"SPARK_DIST_CLASSPATH": f"/own/*:{three}"}
    _remembered(tmp_path, more, "three", "one", "two-in-a-newer-version")
    assert jars.at_end(more, {}) == {}, "they are not what the archive has"
    assert jars.on_class_path(more)[jars.CLASS_PATH].split(":")[0] == three
    assert jars.on_class_path(alone)[jars.CLASS_PATH] == ":".join(delta)


@pytest.mark.parametrize(
    "other", [{jars.PACKAGES: "org.x:one:2"}, {"spark.jars.excludes": "y"}, {"spark.jars.repositories": "z"}]
)
def test_other_packages_are_asked_for_anew(tmp_path: Path, other: dict[str, str]) -> None:
    _remembered(tmp_path, _CONF)
    assert jars.PACKAGES in jars.on_class_path({**_CONF, **other})


@pytest.mark.parametrize("broken", ['["/nowhere.jar"]', "[1]", "{}", "[", ""])
def test_what_is_not_there_or_not_readable_is_asked_for_anew(tmp_path: Path, broken: str) -> None:
    _remembered(tmp_path, _CONF)
    (jars.folder() / jars._name(_CONF)).write_text(broken)
    assert jars.on_class_path(_CONF) == _CONF


def test_executors_of_their_own_get_the_packages(tmp_path: Path) -> None:
    conf = {**_CONF, "spark.master": "local-cluster[2,1,1024]"}
    _remembered(tmp_path, conf)
    assert quick_start(conf, "/usr/bin/java") == (conf, {})


def test_an_archive_belongs_to_its_jars(tmp_path: Path) -> None:
    """Another JAR, or another version of it in the same place, is another archive."""
    java = shutil.which("java") or pytest.fail("no java")
    found = _remembered(tmp_path, _CONF)
    conf = jars.on_class_path(_CONF)
    file = jars.archive_of(conf, java)
    assert file is not None
    assert jars.with_archive(conf, java) == conf, "there is none yet"
    file.write_bytes(b"")
    options = jars.with_archive({**conf, jars.OPTIONS: "-Xmx1g"}, java)[jars.OPTIONS]
    assert options.startswith(f"-Xmx1g -XX:SharedArchiveFile={file} ")
    own = {**conf, jars.OPTIONS: "-XX:SharedArchiveFile=/own.jsa"}
    assert jars.with_archive(own, java) == own
    os.utime(found[0], (1, 1))
    assert jars.archive_of(conf, java) != file
    assert jars.archive_of(_CONF, java) is None, "Ivy decides about the class path"


def test_a_linked_environment_has_the_same_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's launcher resolves the link, and so the class path is the same."""
    (tmp_path / "linked").symlink_to(Path(pyspark.__file__).parent)
    found = jars.of_spark()
    monkeypatch.setattr(pyspark, "__file__", str(tmp_path / "linked/__init__.py"))
    assert jars.of_spark() == found


@pytest.mark.processes
def test_prefetch_starts_nothing_for_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor looks into the cache of the user who installs: what is there is not for others."""
    settings = spark_settings(Settings())
    jars.installation().mkdir()
    monkeypatch.setattr(jars, "installation", lambda: tmp_path / "share" / "checkback")
    jars.installation().mkdir(parents=True)
    _remembered(tmp_path, settings)
    local_files.jar().parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(local_files.jar(), "w"):
        pass
    file = jars.archive_of(with_class_path(settings), java_check())
    assert file is not None
    file.write_bytes(b"")
    monkeypatch.setattr(jvm, "_launched", pytest.fail)
    prefetch.prefetch()
    assert file.read_bytes() == b""


_LOOK = """
import sys
from checkback.spark.session import running_session
from checkback.settings import Settings
settings = {"storage": {"root": sys.argv[1]}, "spark": {"spark.jars.ivy": sys.argv[2]}}
with running_session(Settings.model_validate(settings), short=True) as spark:
    spark.range(3).write.format("delta").save(sys.argv[1] + "/three")
    conf = spark.sparkContext.getConf()
    print(conf.get("spark.driver.extraClassPath"), conf.get("spark.jars"), conf.get("spark.driver.extraJavaOptions"))
"""


@pytest.mark.processes
@pytest.mark.spark
def test_the_first_start_fetches_what_later_ones_have(tmp_path: Path) -> None:
    """Into the cache, by Ivy, in a JVM of its own: each start has the JARs on its class path."""
    (tmp_path / "venv").mkdir()
    look = f"import sys; sys.prefix = {str(tmp_path / 'venv')!r}\n{_LOOK}"

    def start(number: int) -> list[str]:
        run = [sys.executable, "-c", look, str(tmp_path / str(number)), _IVY]
        done = subprocess.run(run, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.split(maxsplit=2)

    first = start(0)
    path, by_ivy, options = first
    assert f"{_IVY}/jars/io.delta_delta-spark" in path
    assert "hadoop-defaults-" in path
    assert by_ivy == "None"
    assert SHORT[jars.OPTIONS] in options
    (record,) = (tmp_path / "cache" / "checkback").glob("jars-*.json")
    fetched = record.stat()
    assert start(1) == first
    assert record.stat() == fetched
