"""A job on a standalone cluster whose executors, workers and drivers are killed, on tables in an object store."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from checkback.maintain.maintenance import maintain
from checkback.storage.tables import Tables
from cluster.lake import ENVIRON, Lake, answers
from cluster.submit import CLIENT, CLUSTER, submit
from crash.process import PATIENCE_S
from examples.producer import ExampleProducer
from maintain.fixtures import DAY_MS, Quiet
from support.fault_proxy import fault_proxy, held, hold, release
from support.s3_server import BUCKET, options, s3_server
from support.standalone_cluster import Cluster, kill, kill_session, package, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.spark, pytest.mark.processes]

#: a task writes a file of a topic's table
_WRITES = r"PUT /[^?]*/topics/topic_\d/part-"
_ALL = 1000


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    package()
    with Cluster(tmp_path, ENVIRON) as cluster:
        yield cluster


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The port of a proxy in front of an S3 server."""
    for name, value in ENVIRON.items():
        monkeypatch.setenv(name, value)
    with s3_server() as server, fault_proxy(server) as port:
        yield port


@pytest.fixture
def lake(port: int) -> Iterator[Lake]:
    """Tables in the object store, and the first transactions."""
    with ExampleProducer(answers()) as producer:
        lake = Lake(f"s3://{BUCKET}/cluster", producer.endpoints, options(port), options(port))
        lake.land()
        yield lake


def test_executors_and_workers_die_and_hang(cluster: Cluster, lake: Lake, port: int, tmp_path: Path) -> None:
    """Each in the middle of a batch: the answers to what its tasks write are held."""
    hold(port, _WRITES, _ALL)
    with submit(cluster, lake, tmp_path / "client.log", CLIENT) as driver:
        driver.until(lambda: held(port) > 1)
        kill(next(iter(cluster.executors().values())))
        release(port)
        driver.until(lake.done)
        of_killed = lake.orphans()

        hold(port, _WRITES, 1)
        lake.land()
        driver.until(lake.done)  # the task is done by another attempt
        assert held(port) == 1
        assert lake.orphans() - of_killed
        release(port)

        hold(port, _WRITES, _ALL)
        lake.land()
        driver.until(lambda: held(port) > 0)
        kill_session(cluster.workers[0])
        release(port)
        driver.until(lake.done)
        driver.process.terminate()
        driver.process.wait(PATIENCE_S)
    _assert_once(lake)
    orphans = lake.orphans()
    assert orphans
    _swept(lake)
    assert not orphans & lake.orphans()
    _assert_once(lake)


@pytest.mark.skipif("DRIVERS" not in os.environ, reason="two more starts of Spark on a cluster: make test-cluster")
def test_driver_is_killed_and_one_on_a_worker_goes_on(cluster: Cluster, lake: Lake, port: int, tmp_path: Path) -> None:
    """In the middle of a batch, with a worker and its executor; in cluster mode the rest is published."""
    hold(port, _WRITES, _ALL)
    with submit(cluster, lake, tmp_path / "client.log", CLIENT) as driver:
        driver.until(lambda: held(port) > 0)
        kill_session(cluster.workers[0])
        kill_session(driver.process)
        release(port)
    cluster.add_worker()
    lake.land()
    with submit(cluster, lake, tmp_path / "cluster.log", CLUSTER, "--available-now") as submitted:
        wait_for(lake.done, lambda: submitted.said() + cluster.driver_log())
        wait_for(lambda: cluster.driver() is None, cluster.driver_log)
    _assert_once(lake)


def _assert_once(lake: Lake) -> None:
    published = lake.published()
    assert (set(published), set(published.values())) == (set(range(lake.landed)), {1})
    assert lake.audit() == 0


def _swept(lake: Lake) -> None:
    """`checkback maintain`, when all files of now are old."""
    settings, now = lake.settings(), round(time.time() * 1000)
    maintain(settings, Tables.of(settings.storage), dry_run=False, progress=Quiet(), now=now + 100 * DAY_MS)
