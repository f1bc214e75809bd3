"""What `config show` shows of values that may hold a secret, and places that may not hold one."""

from __future__ import annotations

from pathlib import Path

import pytest

from checkback.settings import MASK, Settings, flatten
from checkback.settings.spark_values import shown_value
from support.loading import refusal


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working folder without conf/base.yml."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("driver.extraJavaOptions", "-Djavax.net.ssl.trustStorePassword=hunter2"),
        ("hadoop.javax.jdo.option.ConnectionURL", "jdbc:mysql://h/db?user=u&password=hunter2"),
        ("hadoop.fs.gs.auth.service.account.private.key", "-----BEGIN PRIVATE KEY-----hunter2"),
        ("hadoop.google.cloud.auth.service.account.private.key.id", "hunter2"),
        ("hadoop.fs.azure.sas.c.acct.blob.core.windows.net", "sv=2020&sig=hunter2"),
        ("hadoop.fs.azure.sas.fixed.token.acct", "hunter2"),
        ("hadoop.fs.azure.account.key.acct.dfs.core.windows.net", "hunter2=="),
        ("hadoop.fs.s3a.access.key", "AKIAhunter2"),
        ("sql.catalog.unity.credential", "id:hunter2"),
        ("sql.catalog.unity.token", "hunter2"),
        ("sql.catalog.unity.uri", "https://u:hunter2@host/"),
        ("jars.ivySettings", "/etc/ivy.xml?p=hunter2"),
        ("jars.repositories", "https://u:hunter2@host/repo"),
        ("hadoop.x.endpoint", "https://hunter2@host/"),
        ("x.dir", "s3a://AKIA:hunter2@bucket/x"),
        ("executorEnv.PGPASS", "hunter2"),
        ("ssl.keyPassword", "12345"),
        ("hadoop.x.pin", "12345"),
        ("anything.of.a.library", "hunter2"),
        ("sql.catalog.x.password", "correct.horse.Battery"),
    ],
)
def test_masked(key: str, value: str) -> None:
    shown = flatten(Settings.model_validate({"spark": {f"spark.{key}": value}}))
    assert shown[f"spark.{key}"] == MASK


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("master", "local[2]"),
        ("master", "spark://host:7077"),
        ("executor.memory", "4g"),
        ("executor.memoryOverheadFactor", "0.1"),
        ("network.timeout", "120s"),
        ("speculation", "false"),
        ("sql.shuffle.partitions", "200"),
        ("sql.session.timeZone", "UTC"),
        ("sql.extensions", "io.delta.sql.DeltaSparkSessionExtension,org.x.Other"),
        ("sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog"),
        ("jars.packages", "io.delta:delta-spark_2.13:4.4.0"),
        ("hadoop.fs.s3a.endpoint", "http://127.0.0.1:9000"),
        ("hadoop.fs.s3a.path.style.access", "true"),
        ("hadoop.fs.s3a.aws.credentials.provider", "com.amazonaws.auth.EnvironmentVariableCredentialsProvider"),
        ("sql.warehouse.dir", "/srv/warehouse"),
    ],
)
def test_shown(key: str, value: str) -> None:
    assert shown_value(f"spark.{key}", value) == value


@pytest.mark.parametrize("key", ["storage.root", "storage.checkpoints", "gateway.journal"])
@pytest.mark.parametrize(
    "place",
    [
        "s3a://AKIA:hunter2@bucket/x",
        "s3a://AKIA:hun/ter2@bucket/x",
        "s3://hunter2@bucket/x",
        "abfss://container:hunter2@account.dfs.core.windows.net/x",
        "abfss://a@hunter2@account.dfs.core.windows.net/x",
        "HTTPS://account/x?sv=1&sig=hunter2",
    ],
)
def test_place_with_credentials_is_refused_and_not_repeated(key: str, place: str) -> None:
    line = refusal(None, f"{key}='{place}'")
    assert line.startswith(f"{key} (--set): has a ")
    assert not any(part in line for part in ("hunter2", "hun/ter2", "AKIA"))


@pytest.mark.parametrize("place", ["s3:/bucket/x", "S3A:/bucket/x", "gs:/bucket", "abfss:/lake@account/x"])
def test_place_in_an_object_store_with_one_slash_is_told(place: str) -> None:
    line = refusal(None, f"storage.root={place}")
    assert line == "storage.root (--set): has one slash after its scheme; write two, as in s3://bucket/path"


@pytest.mark.parametrize(
    "place",
    [
        "./data",
        "/srv/user@host/a:b",
        "C:/data",
        "file:///srv/user@host",
        "dbfs:/mnt/x",
        "/Volumes/main/checkback/checkpoints",
        "s3://bucket_name/x@y:z",
        "gs://bucket",
        "abfss://container@account.dfs.core.windows.net/x",
        "wasbs://c@account.blob.core.windows.net",
        "hdfs://nn:8020/user@x",
        "hdfs://nn1:8020,nn2:8020/x",
        "hdfs://[::1]:8020/x",
        "viewfs:///x",
        "s3://bucket/what?",
    ],
)
def test_place_is_taken(place: str) -> None:
    assert Settings.model_validate({"storage": {"root": place, "checkpoints": place}}).storage.root == place
