"""Fixtures that more than one folder of tests uses. Whoever asks for `spark` is marked `spark`."""

from __future__ import annotations

import gc
import logging
import signal
import uuid
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

from support import azure_server
from support.jvm import SHARED
from support.s3_server import BUCKET, options, s3_server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from checkback.storage.tables import Tables
    from support.jars import Jars

# How long an example takes says nothing on a machine that does other things, too.
hypothesis.settings.register_profile("checkback", deadline=None)
hypothesis.settings.load_profile("checkback")
# `make test-fast`: a quarter of the examples, where a test does not say how many.
hypothesis.settings.register_profile("fast", hypothesis.settings.get_profile("checkback"), max_examples=25)

#: fixtures that start a server as a process of its own, and parameters for which others do
_SERVERS = {"azure_port", "postgres_url", "adls", "postgresql"}
#: files of few tests that take a minute of CPU time and more; the latter do not use the session of `spark`
_LONG = (
    *("application/test_delay.py", "application/test_object_store.py", "application/test_rebuild.py"),
    *("reconcile/test_batch_rules.py", "reconcile/test_group_hash.py"),
    *("crash/test_points.py", "query/test_engines.py"),
)
_APART = (
    *("cluster/test_cluster.py", "crash/test_kill.py", "crash_consumer/test_rounds.py", "spark/test_connect.py"),
    *("dashboard/test_extreme_times.py", "notebooks/test_notebooks.py"),
)
TRACE = Path(__file__).parent / "data" / "rocketmq-trace"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is imported and collected stays: looking for garbage in it takes a fifth of the short tests' time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what starts Spark or a server, so that `make test-fast` can leave it out.

    In several processes (`make test`) the files with tests of Spark come first: the long ones, then those with most
    tests of it. Of the others the short ones come first; the third process begins at the end, with the long ones.
    """
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
        asked = {*getattr(item, "fixturenames", ()), *_texts(item)}
        if not _SERVERS.isdisjoint(asked):
            item.add_marker(pytest.mark.slow)
    if hasattr(config, "workerinput"):
        dear = Counter((item.path, mark.name) for item in items for mark in item.iter_markers())

        def turn(item: pytest.Item) -> tuple[bool, bool, int, int]:
            path, spark, slow = str(item.path), dear[item.path, "spark"], dear[item.path, "slow"]
            if spark and not path.endswith(_APART):
                return False, not path.endswith(_LONG), -spark, -slow
            return True, path.endswith(_APART), slow, 0

        items.sort(key=turn)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """With a third process: two have a Spark session each, the third begins with the files that need none, at the end.

    While a test waits, for a process of its own or for the disk, the others use its core; a third session would cost
    more than that.
    """
    from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

    class Apart(LoadFileScheduling):  # type: ignore[misc]
        def _assign_work_unit(self, node: Any) -> None:
            if node.gateway.id == "gw2":
                self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
            super()._assign_work_unit(node)

    return Apart(config, log) if config.getoption("dist") == "loadfile" else None


def _texts(item: pytest.Item) -> list[str]:
    """The parameters that are texts."""
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return [value for value in parameters if isinstance(value, str)]


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """A command that is called sets up logging to its stderr, which the next test does not have any more."""
    root, own = logging.getLogger(), logging.getLogger("checkback")
    handlers, levels = root.handlers[:], (root.level, own.level)
    yield
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    own.setLevel(levels[1])


@pytest.fixture
def without_nohup() -> Iterator[None]:
    """Processes that are started hear SIGHUP, also if the tests are run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture(scope="session")
def s3_port() -> Iterator[int]:
    """The port of a running S3 server."""
    with s3_server() as port:
        yield port


@pytest.fixture
def s3(s3_port: int) -> Tables:
    """Tables in a new place of an object store, for this process without Spark."""
    from checkback.settings import Storage
    from checkback.storage.tables import Tables

    root = f"s3a://{BUCKET}/{uuid.uuid4().hex}"
    return Tables.of(Storage.model_validate({"root": root, "options": options(s3_port)}))


@pytest.fixture(scope="session")
def azure_port(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a running Azure Blob Storage server; without Node.js its tests are skipped."""
    cache = getattr(pytestconfig, "cache", None)  # absent with -p no:cacheprovider
    try:
        program = azure_server.find_azurite(
            tmp_path_factory.mktemp("azurite") if cache is None else cache.mkdir("azurite")
        )
    except azure_server.NoServerError as error:
        pytest.skip(str(error))
    with azure_server.serving(program) as port:
        yield port


@pytest.fixture
def adls(azure_port: int) -> Tables:
    """Tables in a new place of Azure Data Lake Storage, for this process without Spark."""
    from checkback.settings import Storage
    from checkback.storage.tables import Tables

    root = f"{azure_server.ROOT}/{uuid.uuid4().hex}"
    return Tables.of(Storage.model_validate({"root": root, "options": azure_server.options(azure_port)}))


@pytest.fixture
def s3_storage(spark: SparkSession, jars: Jars | str, s3_port: int) -> dict[str, Any]:
    """The settings of tables in a new place of an object store, which the session can read."""
    assert not isinstance(jars, str), jars
    from checkback.spark.hadoop_settings import hadoop_settings

    storage: dict[str, Any] = {"root": f"s3a://{BUCKET}/{uuid.uuid4().hex}", "options": options(s3_port)}
    hadoop: Any = spark.sparkContext._jsc.hadoopConfiguration()
    for key, value in hadoop_settings(storage["root"], storage["root"], storage["options"], {}).items():
        hadoop.set(key.removeprefix("spark.hadoop."), value)
    return storage


@pytest.fixture(scope="session")
def jars(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Jars | str:
    """The JARs of the tests of Kafka and of S3, or why there are none."""
    from checkback.errors import CheckbackError
    from support.jars import find_jars

    cache = getattr(pytestconfig, "cache", None)  # absent with -p no:cacheprovider
    try:
        return find_jars(tmp_path_factory.mktemp("jars") if cache is None else cache.mkdir("jars"))
    except CheckbackError as error:
        return str(error)


@pytest.fixture(scope="session")
def spark(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One Spark session for all tests, on two cores; with JARs for Kafka and S3 if tests of these are among them."""
    from checkback.settings import Settings
    from checkback.spark.session import open_session

    warehouse = tmp_path_factory.mktemp("warehouse")
    wanted = any("jars" in getattr(item, "fixturenames", ()) for item in request.session.items)
    jars = request.getfixturevalue("jars") if wanted else ""
    settings = Settings.model_validate(
        {
            "reconcile": {"partitions": 2},
            "spark": {
                "spark.master": "local[2]",
                # Tables of a few rows: compiling each plan takes longer than running it. Commands that tests start
                # as processes of their own generate code as users do.
                "spark.sql.codegen.wholeStage": "false",
                "spark.sql.codegen.factoryMode": "NO_CODEGEN",
                # By default a page of this heap has 64 MiB, and each broadcast of a few rows keeps one: 2 GiB after ten
                # rebuilds, and a fifth of the CPU time for garbage collection.
                "spark.buffer.pageSize": "1m",
                # Of each test's tables Delta would keep the snapshots and their plans for an hour: 1 GiB in the end.
                "spark.databricks.delta.delta.log.cacheSize": "100",
                # Of these tables it changes no plan, and plans stage by stage: an eighth of the time of an audit.
                "spark.sql.adaptive.enabled": "false",
                "spark.sql.ui.explainMode": "simple",  # a description of each plan, which nobody reads
                "spark.sql.warehouse.dir": str(warehouse),
                "spark.driver.extraJavaOptions": f"{SHARED} -Dderby.system.home={warehouse}",
                "spark.jars": "" if isinstance(jars, str) else ",".join([*jars.source, *jars.s3]),
            },
        }
    )
    session = open_session(settings, "checkback-tests")
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
