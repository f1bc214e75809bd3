"""Spark Connect: the main job on a server of its own, from a client without a JVM; and what is told beforehand."""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.connect.session import SparkSession as ConnectSession

from checkback import Checkback
from checkback.application.rebuild import rebuild
from checkback.consumer import create_views
from checkback.errors import CheckbackError, SettingsError
from checkback.landing.file_query import land
from checkback.settings import Settings
from checkback.spark.connect import check_server, server_of
from checkback.spark.hadoop_settings import FILE_MANAGER, hadoop_settings
from checkback.spark.session import _connected
from checkback.storage.dataframes import frame, is_connect
from checkback.storage.files import table_files
from checkback.storage.schemas import arrow_schema
from checkback.storage.spark_schemas import schema_of
from checkback.storage.tables import Tables
from cluster import lake as cluster
from crash.books import audit, count, decided
from crash.fates import GROUP, Lander, answers
from examples.producer import ExampleProducer
from support.connect_server import Server, environ, until
from support.query_times import append
from support.s3_server import BUCKET, options, s3_server
from support.stories import batch

if TYPE_CHECKING:
    from collections.abc import Iterator

_STORE = f"s3://{BUCKET}/connect"
_NUMBER = 30
#: rows by table, with one check: of ten transactions five are committed, two rolled back, three discarded
_WRITTEN = {"decisions": 30, "topics/a": 3, "topics/b": 12, "discarded": 9, "check_requests": 12, "check_answers": 12}


@pytest.fixture(scope="module")
def s3_server_port() -> Iterator[int]:
    """The port of an S3 server, whose credentials are in the environment."""
    with pytest.MonkeyPatch.context() as patch, s3_server() as port:
        for name, value in cluster.ENVIRON.items():
            patch.setenv(name, value)
        yield port


@pytest.fixture(scope="module")
def server(s3_server_port: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One for tables in folders and in the object store. It has S3's packages from its start."""
    found = hadoop_settings(_STORE, _STORE, options(s3_server_port), {})
    del found[FILE_MANAGER]  # a client sets it for its session
    with Server(tmp_path_factory.mktemp("server"), "spark-s3.conf", found) as server:
        yield server


@pytest.mark.processes
@pytest.mark.spark
def test_main_job_runs_on_spark_connect(tmp_path: Path, server: Server) -> None:
    """Every transaction ends as its fate says, those without an op at their one check; a replay changes nothing."""
    root = tmp_path / "data"
    Lander(str(root)).land(_NUMBER)
    with ExampleProducer(answers(range(_NUMBER))) as producer:
        for _ in range(2):
            done = server.checkback(
                "reconcile",
                "--available-now",
                storage__root=str(root),
                transaction__timeout="0s",
                transaction__check_interval="1ms",
                transaction__check_max=1,
                reconcile__partitions=2,
                reconcile__segment_size=64,
                **{f"producers__{GROUP}__endpoints": list(producer.endpoints)},
            )
            assert (done.returncode, done.stderr) == (0, ""), server.log.read_text()
            books = audit(str(root), timedelta(0), timedelta(milliseconds=1), check_max=1)
            assert (books.transactions, books.lost, books.duplicated, books.faults) == (_NUMBER, [], [], [])
            assert {name: count(str(root), name) for name in _WRITTEN} == _WRITTEN
            _forget_last_batches(root)


@pytest.mark.processes
@pytest.mark.spark
def test_tables_and_checkpoints_in_an_object_store(s3_server_port: int, server: Server) -> None:
    """A replay changes nothing there, either."""
    with ExampleProducer(cluster.answers()) as producer:
        lake = cluster.Lake(_STORE, producer.endpoints, options(s3_server_port))
        lake.land(200)
        for _ in range(2):
            done = server.checkback("reconcile", "--available-now", *lake.overrides(lake.options))
            assert (done.returncode, done.stderr) == (0, ""), server.log.read_text()
            assert lake.published() == dict.fromkeys(range(200), 1)
            assert lake.audit() == 0
            for query in ("reconcile", "check"):
                commits = f"{lake.root}/_checkpoints/{query}/commits"
                newest = max(map(int, filter(str.isdecimal, table_files.names(commits))))
                table_files.remove(f"{commits}/{newest}")


@pytest.mark.processes
@pytest.mark.spark
def test_killed_client_leaves_no_query_behind(tmp_path: Path, server: Server) -> None:
    """The server goes on with its queries, without a lock: they write nothing more. The next start does."""
    root = str(tmp_path / "data")
    lander = Lander(root)
    lander.land(_NUMBER)
    arguments = "--set", f"storage.root={root}", "--set", "reconcile.partitions=2"
    command = [sys.executable, "-m", "checkback", "reconcile", *arguments]
    said = f"{root}/_reconcile.lock: process"
    client = subprocess.Popen(command, env=environ() | {"SPARK_REMOTE": server.url})
    try:
        until(lambda: count(root, "batches") > 0 or client.poll() is not None)
    finally:
        client.kill()
        client.wait()
    lander.land(_NUMBER)
    until(lambda: said in server.log.read_text() or set(range(_NUMBER, 2 * _NUMBER)) & decided(root))
    assert said in server.log.read_text()
    assert not set(range(_NUMBER, 2 * _NUMBER)) & decided(root)
    done = server.checkback("reconcile", "--available-now", storage__root=root, reconcile__partitions=2)
    assert (done.returncode, done.stderr) == (0, "")
    assert set(range(_NUMBER, 2 * _NUMBER)) & decided(root)


@pytest.mark.spark
def test_rows_of_an_empty_table(server: Server) -> None:
    """Spark Connect asks for the schema of no rows: `discarded`, `lineage` of a notebook."""
    spark = ConnectSession.builder.remote(server.url).getOrCreate()
    try:
        for name in ("half", "op"):
            empty = arrow_schema(name).empty_table()
            assert frame(spark, empty).schema.simpleString() == schema_of(name).simpleString()  # type: ignore[arg-type]
    finally:
        spark.stop()


@pytest.mark.spark
def test_typed_bodies(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The decoder goes to the server's workers, for DataFrames and temporary views."""
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")  # as in a process whose only session is remote
    append(tmp_path, "half", [{"queue_id": 0, "queue_offset": 0}])
    row = batch(1, datetime.now(timezone.utc))[1]
    append(tmp_path, "batches", [row])
    bodies = [b'{"amount": 42}', b"no"]
    message = {"batch_id": 1, "published_at": row["batch_time"]}
    append(tmp_path, "topics/payments", [message | {"body": body} for body in bodies])
    schema = {"type": "object", "properties": {"amount": {"type": "integer"}}}
    topics = {"payments": {"body": "json", "schema": schema}}
    settings = Settings.model_validate({"storage": {"root": str(tmp_path)}, "topics": topics})
    spark: Any = ConnectSession.builder.remote(server.url).getOrCreate()
    try:
        expected = [(42, None), (None, "is not JSON")]
        topic = Checkback(settings=settings, spark=spark).topic("payments").to_spark()
        create_views(spark, settings)
        for rows in (topic, spark.table("payments")):
            found = rows.selectExpr("value.amount AS amount", "value_error").collect()
            assert sorted(map(tuple, found), key=str, reverse=True) == sorted(expected, key=str, reverse=True)
    finally:
        spark.stop()


def test_server_that_does_not_answer_is_told_in_a_line_without_its_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("checkback.spark.connect._PATIENCE_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"sc://localhost:{free.getsockname()[1]}"
    with pytest.raises(CheckbackError, match=r"^sc://localhost:[0-9]+/: no connection to Spark") as told:
        _connected(f"{url}/;token=abc;use_ssl=true", Settings())
    assert "abc" not in str(told.value)


def _forget_last_batches(root: Path) -> None:
    """As if the server had died before it noted the end of the last batch of each query."""
    for query in ("reconcile", "check"):
        commits = root / "_checkpoints" / query / "commits"
        newest = max(int(file.name) for file in commits.iterdir() if file.name.isdecimal())
        (commits / str(newest)).unlink()
        (commits / f".{newest}.crc").unlink(missing_ok=True)


@pytest.mark.parametrize(
    "url", ["sc://localhost:1/token=abc", "sc://me:abc@localhost:1/x", "token=abc", "sc://localhost:1/;token=abc;x"]
)
def test_url_that_is_mistyped_is_told_without_its_token(url: str) -> None:
    with pytest.raises(CheckbackError, match="no connection to Spark") as told:
        _connected(url, Settings())
    assert "abc" not in str(told.value)
    assert "SPARK_CONNECT_MODE_ENABLED" not in os.environ, "with it no process starts a Spark of its own"


def test_server_comes_from_settings_or_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings first."""
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    assert server_of(Settings()) is None
    monkeypatch.setenv("SPARK_REMOTE", "sc://a")
    assert server_of(Settings()) == "sc://a"
    assert server_of(Settings.model_validate({"spark": {"spark.remote": "sc://b:1"}})) == "sc://b:1"


def test_folders_of_this_machine_are_not_for_a_server_elsewhere() -> None:
    check_server("sc://localhost:15002", local_folders=True)
    check_server("sc://spark.example.com:443/;use_ssl=true", local_folders=False)
    with pytest.raises(SettingsError, match=r"Spark runs on spark\.example\.com"):
        check_server("sc://spark.example.com:443/;token=abc", local_folders=True)


def test_tables_go_to_another_process_without_their_open_logs(tmp_path: Path) -> None:
    """A batch function takes its tables along; a log that is open here cannot go with them."""
    Lander(str(tmp_path))
    tables = Tables(root=str(tmp_path), by_files=True)
    assert tables.log("half").table_id() == pickle.loads(pickle.dumps(tables)).log("half").table_id()  # noqa: S301 - ours


@pytest.mark.processes
def test_tables_go_to_another_process_with_the_options_of_their_store(s3: Tables) -> None:
    s3.create(None, "half")  # type: ignore[arg-type]  # no Spark is needed
    code = "import pickle, sys; print(pickle.load(sys.stdin.buffer).log('half').table_id())"
    done = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(s3), capture_output=True, check=True)
    assert done.stdout.decode().strip() == s3.log("half").table_id()


def test_no_part_of_classic_spark_is_taken_for_connect() -> None:
    assert not is_connect(Settings())


def test_command_that_needs_a_jvm_is_refused() -> None:
    session: Any = object.__new__(ConnectSession)  # no server needed
    assert is_connect(session)
    with pytest.raises(SettingsError, match="checkback land: does not run on Spark Connect"):
        land(session, Settings(), "half.jsonl", None, available_now=True)
    with pytest.raises(SettingsError, match="checkback rebuild: does not run on Spark Connect"):
        rebuild(session, Settings.model_validate({"storage": {"root": _STORE}}), print)
