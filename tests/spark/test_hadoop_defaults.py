"""Hadoop's default settings from our JAR are those of Hadoop's own, and what the user has configured counts."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import pytest

from checkback.spark.hadoop_defaults import _SITES, on_class_path
from checkback.spark.jars import CLASS_PATH, of_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def _made(conf: dict[str, str] | None = None, environ: dict[str, str] | None = None) -> zipfile.ZipFile:
    return zipfile.ZipFile(on_class_path(conf or {}, environ or {})[CLASS_PATH].split(":")[0])


def _settings(xml: bytes) -> list[tuple[str | None, ...]]:
    root = ElementTree.fromstring(xml)  # noqa: S314 - a file of Spark's own JARs
    return [tuple(setting.findtext(name) for name in ("name", "value", "final")) for setting in root]


def _of_hadoop() -> zipfile.ZipFile:
    (source,) = of_spark().glob("hadoop-client-api-*.jar")
    return zipfile.ZipFile(source)


def _same(made: zipfile.ZipFile, *names: str) -> None:
    for name in names:
        own, ours = _of_hadoop().read(name), made.read(name)
        assert len(_settings(own)) > 200
        assert _settings(ours) == _settings(own)
        assert len(ours) < len(own) / 2


def test_the_settings_are_hadoops_own() -> None:
    """But YARN's, and there is nothing to be looked for in other JARs."""
    made = _made()
    _same(made, "core-default.xml", "mapred-default.xml")
    for name in ("yarn-default.xml", *_SITES):
        assert _settings(made.read(name)) == []


def test_what_is_configured_on_the_machine_is_read(tmp_path: Path) -> None:
    """A file of ours would hide it; and YARN's settings may be asked for."""
    folder = tmp_path / "conf"
    folder.mkdir()
    (folder / "core-site.xml").write_text("<configuration/>")
    for conf, environ in (
        ({}, {"HADOOP_CONF_DIR": str(folder)}),
        ({}, {"YARN_CONF_DIR": str(folder)}),
        ({}, {"SPARK_CONF_DIR": str(folder)}),
        ({CLASS_PATH: "/own"}, {}),
    ):
        made = _made(conf, environ)
        _same(made, "core-default.xml", "mapred-default.xml", "yarn-default.xml")
        assert {*_SITES}.isdisjoint(made.namelist())
    assert on_class_path({CLASS_PATH: "/own"}, {})[CLASS_PATH].endswith(".jar:/own")


def test_without_spark_nothing_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert on_class_path({"a": "b"}) == {"a": "b"}


def test_a_session_reads_the_jar(spark: SparkSession) -> None:
    jvm: Any = spark._jvm
    configuration = jvm.org.apache.hadoop.conf.Configuration()
    for name in ("core-default.xml", "core-site.xml"):
        assert "hadoop-defaults-" in configuration.getResource(name).toString()
    assert configuration.get("fs.s3a.connection.maximum") is not None
