"""`reconcile --standby`: ready behind another one, in its place when that is killed."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import requests
from prometheus_client import CollectorRegistry

from checkback.application import queries, standby
from checkback.observe.logs import EVENTS
from checkback.observe.metrics_server import served
from checkback.settings import Settings
from checkback.spark.hadoop_settings import FILE_MANAGER, NO_RENAME
from checkback.spark.shutdown import stop_on_signal
from checkback.storage.schemas import SCHEMAS
from checkback.storage.tables import Tables
from gateway.process import Gateway, half, op
from release.lake import Lake
from support.jvm import ENVIRON
from support.rows import records_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
#: for a process to do what it must; a test that needs so long has failed
PATIENCE_S = 120


class Process:
    """A reconcile. Use as a context: it is killed at the end."""

    def __init__(self, lake: Lake, *options: str) -> None:
        given = [f"storage.root={lake.root}", "reconcile.partitions=2", "reconcile.segment_size=64"]
        given += ["reconcile.trigger=200ms", "log.format=json"]
        command = [sys.executable, "-m", "checkback", "reconcile", *options]
        command += [word for setting in given for word in ("--set", setting)]
        self._said = tempfile.NamedTemporaryFile(dir=lake.root.parent)  # noqa: SIM115 - as long as the process
        self.process = subprocess.Popen(command, env={**os.environ, **ENVIRON}, stderr=self._said)

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    def says(self, text: str) -> None:
        """Wait until it has said so on stderr."""
        until = time.monotonic() + PATIENCE_S
        while text not in Path(self._said.name).read_text():
            assert self.process.poll() is None, "it has ended"
            assert time.monotonic() < until, text

    def stop(self) -> int:
        """The exit code after SIGTERM."""
        self.process.terminate()
        return self.process.wait(PATIENCE_S)


def waiting(lake: Lake, first: Process) -> Process:
    """One that stands by."""
    first.says("query_started")
    found = Process(lake, "--standby")
    found.says("stands by while process")
    return found


def published(lake: Lake) -> list[str]:
    if not (lake.root / "topics/payments/_delta_log/00000000000000000000.json").exists():
        return []
    return sorted(row["transaction_id"] for row in records_of(lake.root, "topics/payments"))


def send(gateway: Gateway, *names: str) -> None:
    for name in names:
        stored = gateway.post("/v1/half", half(name)).json()
        assert gateway.post("/v1/op", op(stored["queue_offset"], name)).status_code == 200


def test_killed_one_is_replaced(tmp_path: Path) -> None:
    """The second goes on within seconds, once for each message; a third waits behind it, and ends when it is told."""
    lake = Lake(tmp_path / "lake")
    with lake.gateway() as gateway, Process(lake) as first, waiting(lake, first) as second:

        def publishes(*names: str) -> float:
            """Send them, and wait until they are there. Returns seconds."""
            begun = time.monotonic()
            send(gateway, *names)
            while not set(names) <= set(published(lake)):
                assert time.monotonic() < begun + PATIENCE_S
                assert second.process.poll() is None
            return time.monotonic() - begun

        publishes("t-0", "t-1")
        first.process.kill()
        print(f"published {publishes('t-2'):.1f} s after the first one was killed")
        second.says(f"takes over from process {first.process.pid} on ")
        with Process(lake, "--standby") as third:
            third.says("in a folder of its own")
            assert third.stop() == 0
        with waiting(lake, second) as third:
            assert (third.stop(), second.stop()) == (0, 0)
    assert published(lake) == ["t-0", "t-1", "t-2"]
    lake.run("audit")


def test_warms_up_in_a_folder_for_tables_in_an_object_store(
    spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    """Its checkpoints are no object store's, and its log says nothing of the small run."""
    before = spark.conf.get(FILE_MANAGER, None)
    spark.conf.set(FILE_MANAGER, NO_RENAME)
    try:
        with caplog.at_level("INFO"), caplog.at_level("INFO", EVENTS.name), stop_on_signal() as stopper:
            standby._warm_up(spark, stopper)
        assert spark.conf.get(FILE_MANAGER) == NO_RENAME
    finally:
        spark.conf.unset(FILE_MANAGER) if before is None else spark.conf.set(FILE_MANAGER, before)
    told = [record.getMessage() for record in caplog.records if record.name.startswith("checkback")]
    assert not [text for text in told if "will take longer" in text or "batch_published" in text]
    assert not EVENTS.disabled


def test_reads_the_tables_while_it_waits(spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = Settings.model_validate({"storage": {"root": str(tmp_path / "lake"), "sync": False}})
    with caplog.at_level("DEBUG", standby.__name__):
        standby._read(spark, settings)
        assert [record.getMessage()[:25] for record in caplog.records] == ["the tables were not read:"]
        Tables.of(settings.storage).create(spark, *SCHEMAS)
        standby._read(spark, settings)
        assert len(caplog.records) == 1


def test_settings_that_cannot_work_end_it_before_it_stands_by(tmp_path: Path) -> None:
    """One that is ready would take the place of one that works."""
    lake = Lake(tmp_path / "lake")
    with Process(lake, "--standby", "--set", "producers.orders.secret=file:/nowhere") as process:
        assert process.process.wait(PATIENCE_S) == 2


def test_probes_are_answered_while_a_start_reads_the_state(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[requests.Response] = []
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings = Settings.model_validate(
        {"storage": {"root": str(tmp_path / "lake")}, "metrics": {"host": "127.0.0.1", "port": port}}
    )

    def reading(*_: object) -> None:
        answers.extend(requests.get(f"http://127.0.0.1:{port}/{name}", timeout=30) for name in ("healthz", "readyz"))

    monkeypatch.setattr(queries, "_seed", reading)
    waiting = served(CollectorRegistry(), "127.0.0.1", port, "", lambda: None)
    with ExitStack() as stack:
        stack.enter_context(waiting)
        with queries.observed(spark, settings, Tables.of(settings.storage), stack.close):
            assert [answer.status_code for answer in answers] == [200, 503]
