"""Fixtures that more than one folder of tests uses, and the two tiers of tests."""

from __future__ import annotations

import gc
import logging
import os
import re
import signal
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

from checkback import tracing
from support import azure_server
from support.jvm import SHARED
from support.npm import NotFetchedError
from support.s3_server import BUCKET, options, s3_server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from checkback.storage.tables import Tables
    from support.jars import Jars

# How long an example takes says nothing on a machine that does other things, too. How many there are says the profile
# (--hypothesis-profile), and a test whose examples are dear only which share of them it takes: support/examples.py.
_QUIET = hypothesis.settings(deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.register_profile("fast", _QUIET, max_examples=25)
hypothesis.settings.register_profile("default", _QUIET, max_examples=100)
hypothesis.settings.register_profile("thorough", _QUIET, max_examples=1500)
hypothesis.settings.load_profile("default")

#: fixtures that start a server as a process of its own, and parameters for which others do
_SERVERS = {"s3_port", "s3", "azure_port", "postgres_url", "kafka", "adls", "postgresql"}
#: what Python tells of processes that are started, except by multiprocessing's `spawn`; and programs that end at once
_STARTS, _QUICK = {"subprocess.Popen", "os.posix_spawn", "os.fork"}, {"env", "make", "git", "openssl"}
_started: list[str] = []


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if event in _STARTS and not (arguments and os.path.basename(os.fsdecode(arguments[0])) in _QUICK):
        _started.append(f"{event} {arguments}"[:200])


sys.addaudithook(_note)
#: how a module marks all its tests
_MARKED = re.compile(r"^pytestmark = (?:\[[^]]*\]|.*)", re.MULTILINE)
TRACE = Path(__file__).parent / "data" / "rocketmq-trace"


def pytest_configure() -> None:
    """A shell starts background jobs with SIGINT ignored, and tests send it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is imported and collected stays: looking for garbage in it takes a fifth of the short tests' time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Modules all of whose tests the target leaves out are not imported, which is half of all imports' time."""
    left_out = {"not slow": {"slow", "spark", "processes"}, "not rest": {"spark", "processes"}}.get(
        config.option.markexpr
    )
    if left_out is None or collection_path.suffix != ".py":
        return None
    text = collection_path.read_text(encoding="utf-8")
    marks = {mark for found in _MARKED.findall(text) for mark in re.findall(r"mark\.(\w+)", found)}
    return True if marks & left_out and ("slow" in left_out or "mark.spine" not in text) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what starts Spark or a server, by its fixtures; then the second tier: all of it that is not of the spine.

    Tests of the session of `spark` come first: of the processes of `make test` one takes them all, and none starts a
    session at the end.
    """
    for item in items:
        names = getattr(item, "fixturenames", ())
        if "spark" in names:
            item.add_marker(pytest.mark.spark)
        if not _SERVERS.isdisjoint({*names, *_texts(item)}):
            item.add_marker(pytest.mark.processes)
        kinds = {mark.name for mark in item.iter_markers()}
        if kinds & {"spark", "processes"}:
            item.add_marker(pytest.mark.slow)
            if "spine" not in kinds:
                item.add_marker(pytest.mark.rest)
    items.sort(key=lambda item: "spark" not in getattr(item, "fixturenames", ()))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    _started.clear()


@pytest.fixture(autouse=True)
def processes_are_marked(request: pytest.FixtureRequest) -> Iterator[None]:
    """The rule of the two tiers: what starts a process says so, else it fails."""
    yield
    kinds = {mark.name for mark in request.node.iter_markers()}
    assert not _started or kinds & {"spark", "processes"}, f"mark it `processes`: {_started[0]}"


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


@pytest.fixture(scope="session", autouse=True)
def without_spans() -> Iterator[None]:
    """As without OpenTelemetry, which test_tracing.py and Apache's client load for the whole process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tracing, "loaded", lambda: False)
        yield


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
    except NotFetchedError as error:
        pytest.skip(f"ADLS is not tested: {error}")
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
def java() -> list[str]:
    """The command that runs a source file with RocketMQ's client for Java."""
    from checkback.errors import CheckbackError
    from examples.bank.java_accounts import class_path, compiling_java

    try:
        return [compiling_java(), "-cp", class_path()]
    except CheckbackError as error:
        pytest.skip(f"RocketMQ's client for Java is not tested: {error}")


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
