"""While Spark starts, Hadoop's client for S3 is loaded; it keeps nobody waiting, and says nothing."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import pytest

from checkback.spark import s3a_classes
from checkback.spark.hadoop_settings import hadoop_settings
from support.fault_proxy import fault_proxy, requests_since
from support.s3_server import options

if TYPE_CHECKING:
    from threading import Thread

    from pyspark.sql import SparkSession


def _load(place: str, port: int) -> Thread:
    conf = hadoop_settings(place, place, options(port), {})
    return s3a_classes.load(conf, "/data", place) or pytest.fail("not loaded")


@pytest.mark.spark
def test_it_asks_the_store_once(
    spark: SparkSession, s3_storage: dict[str, Any], s3_port: int, capfd: pytest.CaptureFixture[str]
) -> None:
    with fault_proxy(s3_port) as port:
        _load(f"{s3_storage['root']}/two words", port).join()
        assert sum(requests_since(port).values()) == 2
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        _load(s3_storage["root"], closed.getsockname()[1]).join()
    assert spark.range(3).count() == 3
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("place", ["/data", "gs://bucket/x", "abfss://c@a.dfs.core.windows.net/x", "hdfs://n/x", ""])
def test_elsewhere_it_is_not_needed(place: str) -> None:
    assert s3a_classes.load({}, place, place) is None
