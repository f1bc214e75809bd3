"""The daemon of Spark's local Python workers."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from checkback.application.worker_daemon import worker

if TYPE_CHECKING:
    import pytest


def test_an_idle_worker_whose_socket_spark_has_closed_ends_without_an_error(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    # Spark 4.2's default (spark.python.daemon.killWorkerOnFlushFailure): the error is raised, and the daemon prints it.
    monkeypatch.setenv("PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE", "true")
    monkeypatch.setattr("sys.argv", ["daemon", "pyspark.worker"])
    ours, spark = socket.socketpair()
    spark.close()
    with ours:
        assert worker(ours, True) != 0
    assert capfd.readouterr() == ("", "")
