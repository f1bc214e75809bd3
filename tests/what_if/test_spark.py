"""Read by Spark: the same figures and the same transactions as in this process. And Spark's hash."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from pyspark.sql import functions as F

from checkback.errors import SettingsError
from checkback.observe.counts import xxhash64
from checkback.settings import Settings
from checkback.storage.timestamps import time_of
from checkback.what_if.records import RECORDED
from checkback.what_if.replayed_tables import replay
from what_if.lake import write
from what_if.test_replay import LATE, LATE_TIMES

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from checkback.what_if.replayed_tables import Change


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Of transactions in several queues and parts that were discarded before their COMMIT came."""
    root: Path = tmp_path_factory.mktemp("late")
    segments = {}
    for queue, number in ((0, 0), (0, 1), (0, 20_000), (7, 0)):
        rows = np.array(list(LATE), RECORDED)
        rows["offset"] += number * 4
        segments[queue, number] = rows
    write(root, LATE_TIMES, segments)
    return Settings.model_validate({"storage": {"root": str(root)}, "reconcile": {"segment_size": 4}})


def test_spark_says_the_same(spark: SparkSession, settings: Settings) -> None:
    told: list[list[Change]] = [[], []]
    changes = {"timeout": 30_000, "check_max": 3, "check_jitter": 500}
    here, there = (
        replay(settings, changes, tell=each.append, spark=engine)
        for each, engine in zip(told, (None, spark), strict=True)
    )
    assert here.total.recorded.transactions == 4
    assert here.total.saved + here.total.lost + here.total.assumed > 0
    assert repr(here) == repr(there)
    assert sorted(told[0], key=str) == sorted(told[1], key=str)


def test_spark_replays_only_what_landed_since_then(spark: SparkSession, settings: Settings, tmp_path: Path) -> None:
    """The half messages landed at 0 s. Without tables it says what to do."""
    assert replay(settings, {}, since=time_of(1), spark=spark).total.recorded.transactions == 0
    nothing = Settings.model_validate({"storage": {"root": str(tmp_path)}})
    with pytest.raises(SettingsError, match="no batch has recorded its rules; run `checkback reconcile` first"):
        replay(nothing, {}, spark=spark)


def test_hash_is_sparks(spark: SparkSession) -> None:
    """That check_jitter goes by the same hashes as in `reconcile`."""
    texts = [
        "",
        "a",
        "é" * 9,
        *("x" * length for length in range(1, 100)),
        *(f"order-{number}" for number in range(50)),
    ]
    rows = spark.createDataFrame([(text,) for text in texts], "text STRING").select(F.xxhash64("text")).collect()
    assert [xxhash64(text) for text in texts] == [row[0] for row in rows]
