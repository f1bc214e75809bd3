"""What Spark is told of an object store: what delta-rs is told, in Hadoop's names."""

from __future__ import annotations

import pytest

from checkback.settings import Settings
from checkback.spark.hadoop_settings import FILE_MANAGER, NO_RENAME, hadoop_settings, packages_for
from checkback.spark.session import spark_settings

_ENVIRON = {
    "AWS_ENDPOINT_URL": "http://127.0.0.1:9000",
    "AWS_REGION": "eu-central-1",
    "AWS_ACCESS_KEY_ID": "id",
    "AWS_SECRET_ACCESS_KEY": "key",
}


def test_environment_alone_is_enough() -> None:
    """Keys are left to S3A, which reads them there itself: a Spark setting may be shown."""
    found = hadoop_settings("s3a://bucket/lake", "s3a://bucket/lake/_checkpoints", {}, _ENVIRON)
    assert found["spark.hadoop.fs.s3a.endpoint"] == "http://127.0.0.1:9000"
    assert found["spark.hadoop.fs.s3a.connection.ssl.enabled"] == "false"
    assert found["spark.hadoop.fs.s3a.path.style.access"] == "true"
    assert found["spark.hadoop.fs.s3a.endpoint.region"] == "eu-central-1"
    assert found[FILE_MANAGER] == NO_RENAME
    assert found["spark.hadoop.fs.s3a.performance.flags"] == "create,mkdir"
    assert not {"id", "key"} & set(found.values())


def test_options_go_before_the_environment() -> None:
    options = {"aws_endpoint": "https://s3.example.com", "aws_access_key_id": "mine", "aws_secret_access_key": "own"}
    options["aws_virtual_hosted_style_request"] = "true"
    environ = {**_ENVIRON, "AWS_ENDPOINT_URL": ""}
    found = hadoop_settings("s3://bucket", "/checkpoints", options, environ)
    assert found["spark.hadoop.fs.s3a.endpoint"] == "https://s3.example.com"
    assert found["spark.hadoop.fs.s3a.connection.ssl.enabled"] == "true"
    assert found["spark.hadoop.fs.s3a.path.style.access"] == "false"
    assert found["spark.hadoop.fs.s3a.access.key"] == "mine"
    assert found["spark.hadoop.fs.s3a.secret.key"] == "own"
    assert FILE_MANAGER not in found


def test_files_are_created_with_a_look_where_no_lease_excludes_a_second_process() -> None:
    """As for checkpoints in S3 of tables in a catalog: there the overwrite flag is Spark's own fence."""
    for root, checkpoints in (("", "s3://bucket/checkpoints"), ("s3://bucket", "/checkpoints")):
        assert "spark.hadoop.fs.s3a.performance.flags" not in hadoop_settings(root, checkpoints, {}, _ENVIRON)


@pytest.mark.parametrize("root", ["/data", "data", "gs://bucket/x", "abfss://c@a.dfs.core.windows.net/x", "hdfs://n/x"])
def test_elsewhere_nothing_is_set(root: str) -> None:
    assert hadoop_settings(root, f"{root}/_checkpoints", {}, _ENVIRON) == {}
    assert packages_for(root) == []


def test_a_source_in_an_object_store_is_read_into_tables_elsewhere() -> None:
    """The tables' own checkpoints stay as they are."""
    found = hadoop_settings("/data", "/data/_checkpoints", {}, _ENVIRON, ["main.shop.ops", "s3a://bucket/outbox"])
    assert found["spark.hadoop.fs.s3.impl"] == "org.apache.hadoop.fs.s3a.S3AFileSystem"
    assert FILE_MANAGER not in found
    settings = Settings.model_validate({"storage": {"root": "/data"}})
    packages = spark_settings(settings, sources=["s3a://bucket/outbox"])["spark.jars.packages"]
    assert set(packages_for("s3://any")) <= set(packages.split(","))


def test_packages_are_those_that_spark_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on a cluster; but spark-submit brings its own. hadoop-aws is not among what is excluded."""
    local, cluster = (
        spark_settings(Settings.model_validate({"storage": {"root": "s3a://bucket/x"}, "spark": spark}))
        for spark in ({}, {"spark.master": "spark://host:7077"})
    )
    for conf in (local, cluster):
        assert "io.delta:delta-spark" in conf["spark.jars.packages"]
        assert ":hadoop-aws:" in conf["spark.jars.packages"]
        excluded = conf["spark.jars.excludes"].split(",")
        assert "software.amazon.awssdk:bundle" in excluded
        assert not {"org.apache.hadoop:*", "org.apache.hadoop:hadoop-aws"} & set(excluded)
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    submitted = spark_settings(Settings.model_validate({"storage": {"root": "s3a://bucket/x"}}))
    assert "spark.jars.packages" not in submitted
    assert "spark.hadoop.fs.s3.impl" in submitted


def test_package_that_somebody_names_is_not_excluded() -> None:
    """As that of Azure, which is none of S3's and therefore left out of its dependencies."""
    spark = {"spark.jars.packages": "org.apache.hadoop:hadoop-azure:3.5.0, io.netty:netty-all:4.2.0"}
    for root in ("abfss://c@a.dfs.core.windows.net/x", "s3://bucket/x"):
        conf = spark_settings(Settings.model_validate({"storage": {"root": root}, "spark": spark}))
        excluded = conf["spark.jars.excludes"].split(",")
        assert "org.apache.hadoop:hadoop-azure:3.5.0" in conf["spark.jars.packages"]
        assert not {"org.apache.hadoop:hadoop-azure", "io.netty:*"} & set(excluded)
        assert "software.amazon.awssdk:bundle" in excluded
