"""Spark Connect: a server that dies, and one that has ended the session of an idle client."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from pyspark.sql.connect.client.retries import Retrying

from checkback.spark.connect_retry import ConnectRetryPolicy
from crash.books import audit, count
from crash.fates import GROUP, Lander, answers
from crash.process import PATIENCE_S, TOO_SLOW
from examples.producer import ExampleProducer
from support.connect_server import Server, environ, until

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_NUMBER = 30
#: a notebook: each line on stdin has it go on
_NOTEBOOK = """
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from checkback.settings import Settings
from checkback.spark.session import open_session

def ask():
    try:
        return f"{open_session(Settings()) is SparkSession.active()} {SparkSession.active().range(3).count()}"
    except PySparkException as error:
        return str(error).partition(" ")[0]

spark = open_session(Settings())
spark.client.release_session()  # as the server does with one that is idle, whose client does not know
try:
    spark.range(3).count()
except PySparkException as error:
    assert "SESSION_CLOSED" in str(error)
print(ask(), flush=True)
spark = SparkSession.active()
input()
try:
    spark.range(3).count()
except PySparkException as error:
    print(error.getGrpcStatusCode().name, flush=True)
input()
print(ask(), flush=True)
SparkSession.active().stop()
"""


@pytest.mark.processes
@pytest.mark.spark
def test_server_that_dies_is_told_and_the_next_one_goes_on(tmp_path: Path) -> None:
    """A command ends with one line. A notebook's first cell, run again, has a session of the new server."""
    root = str(tmp_path / "data")
    Lander(root).land(_NUMBER)
    with Server(tmp_path) as server, ExampleProducer(answers(range(_NUMBER))) as producer:
        overrides = _overrides(root, producer.endpoints)
        remote = environ() | {"SPARK_REMOTE": f"{server.url}/;token=abc"}
        notebook = subprocess.Popen(
            [sys.executable, "-c", _NOTEBOOK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=remote
        )
        assert notebook.stdin is not None
        assert notebook.stdout is not None
        client = _started(overrides, remote)
        try:
            assert notebook.stdout.readline() == "True 3\n"
            while _ended_too_soon(client, root):  # on a machine that is busy
                assert TOO_SLOW in client.communicate()[1]
                client = _started(overrides, remote)
            server.kill()
            print(file=notebook.stdin, flush=True)
            _, told = client.communicate(timeout=PATIENCE_S / 6)
            assert client.returncode == 1
            assert told.startswith("checkback: lost the connection to Spark: ")
            assert (told.count("\n"), told.count("abc")) == (1, 0)
            assert notebook.stdout.readline() == "UNAVAILABLE\n"
            with Server(tmp_path, port=server.port) as restarted:
                print(file=notebook.stdin, flush=True)
                assert notebook.stdout.readline() == "True 3\n"
                done = restarted.checkback("reconcile", "--available-now", *overrides)
            assert (done.returncode, done.stderr) == (0, "")
            assert notebook.wait(PATIENCE_S) == 0
        finally:
            for process in (client, notebook):
                process.kill()
                process.wait()
    books = audit(root, timedelta(0), timedelta(milliseconds=1), check_max=1)
    assert (books.transactions, books.lost, books.duplicated, books.faults) == (_NUMBER, [], [], [])


def _started(overrides: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "checkback", "reconcile", *overrides]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)


def _ended_too_soon(client: subprocess.Popen[str], root: str) -> bool:
    """Waits until both queries have done a batch."""
    until(lambda: count(root, "check_answers") > 0 or client.poll() is not None)
    return client.poll() is not None


def _overrides(root: str, endpoints: Sequence[str]) -> list[str]:
    """Of a command."""
    given: dict[str, Any] = {
        "storage.root": root,
        "transaction.timeout": "0s",
        "transaction.check_interval": "1ms",
        "transaction.check_max": 1,
        "reconcile.partitions": 2,
        f"producers.{GROUP}.endpoints": list(endpoints),
    }
    return [part for key, value in given.items() for part in ("--set", f"{key}={json.dumps(value)}")]


def test_call_is_repeated_for_half_a_minute_and_none_after_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    patience, slept = ConnectRetryPolicy(), list[float]()

    def call() -> None:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            for attempt in Retrying(patience, slept.append):
                with attempt:
                    channel.unary_unary("/a/b")(b"")

    for _ in range(2):
        with pytest.raises(grpc.RpcError):
            call()
        assert 25 < sum(slept) < 40
