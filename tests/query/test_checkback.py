"""Checkback, the object for scripts and notebooks: which tables it opens, its topics, DataFrames, and what it costs."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from typing import TYPE_CHECKING

import duckdb
import numpy as np
import pyarrow as pa
import pytest
import yaml

import checkback
from checkback import Checkback, Settings, SettingsError, load_settings
from examples.bank.run import settings_of
from support.query_times import append, table
from support.stories import BORN, DONE, Transaction, batch

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

_THEN = BORN + timedelta(seconds=1)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone, in whose notebooks the working folder is."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/base.yml").write_text("storage: {root: ./data}\n")
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path / "notebooks")
    return tmp_path


def test_a_place_that_is_given_is_opened(project: Path) -> None:
    """A relative folder is one in the working folder, as everywhere."""
    assert Checkback("there").settings.storage.root == str(project / "notebooks/there")
    assert repr(Checkback("s3://bucket/t")) == "Checkback('s3://bucket/t')"
    remote = Checkback("s3://bucket/t", options={"aws_endpoint_url": "http://127.0.0.1:1"})
    assert remote.settings.storage.plain_options == {"aws_endpoint_url": "http://127.0.0.1:1"}


def test_a_place_that_is_given_is_opened_rather_than_a_catalog_of_the_settings(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = {"CATALOG": "main", "SCHEMA": "checkback", "CHECKPOINTS": "/c"}
    for key, value in catalog.items():
        monkeypatch.setenv(f"CHECKBACK__STORAGE__{key}", value)
    with pytest.raises(SettingsError, match="the tables are in a catalog"):
        Checkback()
    assert Checkback("there").settings.storage.root == str(project / "notebooks/there")
    with pytest.raises(SettingsError, match="hdfs://host/t: is not read without Spark; ask on Spark"):
        Checkback("hdfs://host/t")


def test_without_a_place_the_settings_name_it(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative folder of theirs is one in the project, wherever the notebook is."""
    assert load_settings().storage.root == str(project / "data")
    assert load_settings(overrides=["storage.root=s3://bucket/t"]).storage.root == "s3://bucket/t"
    (project / "my.yml").write_text("storage: {root: mine}\n")
    assert Checkback(config=project / "my.yml").settings.storage.root == str(project / "mine")
    monkeypatch.setenv("CHECKBACK__STORAGE__ROOT", "theirs")
    assert Checkback().settings.storage.root == str(project / "theirs")
    given = Settings.model_validate({"storage": {"root": "/given"}})
    assert Checkback(settings=given).settings is given
    with pytest.raises(TypeError, match="settings= has it all"):
        Checkback("data", settings=given)


def test_a_schemas_file_is_one_of_the_project(project: Path) -> None:
    """As the tables are; one that is given as an absolute path stays."""
    topics = {"a": {"body": "json", "schema_file": "a.json"}, "b": {"body": "json", "schema_file": "/b.json"}}
    (project / "my.yml").write_text(yaml.safe_dump({"storage": {"root": "mine"}, "topics": topics}))
    settings = load_settings(config=project / "my.yml")
    assert [body.schema_file for body in settings.topics.values()] == [str(project / "a.json"), "/b.json"]
    assert settings.storage.root == str(project / "mine")


def test_without_tables_of_ones_own_those_of_the_example(project: Path) -> None:
    """With its times and endpoints; its secret was known to itself only."""
    (project / "data/bank").mkdir(parents=True)
    (project / "data/bank/checkback.yml").write_text(yaml.safe_dump(settings_of("/elsewhere/data", 1, 2, java=False)))
    settings = load_settings(overrides=["check.concurrency=3"])
    assert settings.storage.root == str(project / "data/bank/data")
    assert settings.transaction.timeout.total_seconds() == 4
    assert settings.producers["accounts"].endpoints == ["http://127.0.0.1:2/check"]
    assert settings.producers["accounts"].secret is None
    assert settings.check.concurrency == 3
    (project / "data/half").mkdir()
    assert load_settings().storage.root == str(project / "data")


def test_where_there_is_nothing_it_says_so_in_a_line(tmp_path: Path) -> None:
    with Checkback(tmp_path / "no") as cb, pytest.raises(SettingsError, match="no/half: there is no such table"):
        cb.pending()
    with pytest.raises(SettingsError, match="the tables are in a catalog"):
        Checkback(overrides=["storage.catalog=main", "storage.schema=checkback", "storage.checkpoints=/c"])
    table(tmp_path, "half")
    with pytest.raises(SettingsError, match="orders: there is no such topic; a topic is there once"):
        Checkback(tmp_path).topic("orders")
    with pytest.raises(SettingsError, match=r"there is no Spark session; give one: Checkback\(..., spark=spark\)"):
        _ = Checkback(tmp_path).frames


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A group that nobody asked, pending for ever, and a topic with three messages of two batches."""
    append(tmp_path, "half", [Transaction(0, 0).half()[1]])
    times = (BORN, BORN + timedelta(seconds=2))
    append(tmp_path, "batches", [batch(number, time)[1] for number, time in enumerate(times)])
    rows = [
        {"half_queue_id": 0, "half_queue_offset": number, "batch_id": number // 2, "published_at": times[number // 2]}
        for number in (2, 1, 0)
    ]
    append(tmp_path, "topics/payments", rows)
    return tmp_path


def test_stuck_is_who_is_stuck(lake: Path) -> None:
    with Checkback(lake) as cb:
        assert cb.stuck(DONE).equals(cb.groups(DONE, stuck=True))
        assert "stuck" not in cb.stuck().column_names
        assert cb.stuck().num_rows == 1
        assert not cb.consumers().num_rows
    cb.close()


def test_a_place_may_be_of_numpy(lake: Path) -> None:
    """As a pandas row has it."""
    place = np.int32(0), np.int64(0)
    cb = Checkback(lake)
    assert cb.transactions(place=place).num_rows == cb.pending(place=place).num_rows == 1


def test_a_topic_is_its_messages(lake: Path) -> None:
    """Now, and as of a time; for whoever reads Arrow."""
    topic = Checkback(lake).topic("payments")
    assert (len(topic), repr(topic)) == (3, f"Checkback({str(lake)!r}).topic('payments')")
    assert topic.to_arrow()["half_queue_offset"].to_pylist() == [0, 1, 2]
    assert list(topic.to_pandas()["batch_id"]) == [0, 0, 1]
    assert pa.table(topic).equals(topic.to_arrow())
    with duckdb.connect() as connection:
        assert connection.execute("SELECT count(*) FROM topic").fetchall() == [(3,)]
    assert len(Checkback(lake).topic("payments", _THEN)) == 2
    with pytest.raises(SettingsError, match="payment: there is no such topic; there are payments"):
        Checkback(lake).topic("payment")
    with pytest.raises(SettingsError, match="there is no Spark session"):
        topic.to_spark()


@pytest.mark.spark
def test_on_spark_the_answers_are_the_same_and_frames_collect_nothing(spark: SparkSession, lake: Path) -> None:
    here, there = Checkback(lake), Checkback(lake, spark=spark)
    for name in ("stuck", "scheduled", "unpublished", "topics"):
        one, other = (getattr(cb, name)(_THEN) for cb in (here, there))
        assert one.to_pylist() == other.to_pylist(), name
    assert here.topic("payments").to_arrow().to_pylist() == there.topic("payments").to_arrow().to_pylist()
    frame = there.frames.pending(_THEN)
    assert [row["transaction_id"] for row in frame.collect()] == here.pending(_THEN)["transaction_id"].to_pylist()
    assert there.topic("payments").to_spark().count() == 3
    assert there.topic("payments", _THEN).to_spark().count() == 2
    assert sorted(there.frames.snapshot().topics) == ["payments"]


@pytest.mark.processes
def test_it_brings_nothing_that_it_does_not_use(lake: Path) -> None:
    """``import checkback`` the standard library only; a question no Spark."""
    program = (
        "import sys, checkback\n"
        "first = {'pyarrow', 'duckdb', 'pydantic', 'yaml'} & sys.modules.keys()\n"
        "checkback.Checkback(sys.argv[1]).pending()\n"
        "print(sorted(first | {'pyspark', 'matplotlib'} & sys.modules.keys()))"
    )
    said = subprocess.run([sys.executable, "-c", program, str(lake)], check=True, capture_output=True, text=True).stdout
    assert said == "[]\n"


def test_all_that_is_exported_is_there() -> None:
    assert [name for name in checkback.__all__ if getattr(checkback, name, None) is None] == []
    assert set(checkback.__all__) <= set(dir(checkback))
