"""The session: settings are joined, a start is quiet or explained."""

from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyspark
import pytest
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from checkback.errors import SettingsError, reason, root_cause
from checkback.settings import Settings
from checkback.spark.jars import DELTA_PACKAGE
from checkback.spark.jvm import worker_python
from checkback.spark.session import (
    DELTA_EXTENSION,
    LOCAL,
    LOCAL_CHECKPOINTS,
    PACKAGED,
    REQUIRED,
    open_session,
    running_session,
    spark_settings,
)
from checkback.spark.shutdown import failure
from checkback.spark.stderr import HeldStderr
from checkback.storage.dataframes import frame

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROOT = Path(__file__).parents[2]


def settings(**sections: object) -> Settings:
    return Settings.model_validate(sections)


# Settings of Spark


@pytest.mark.parametrize("version", ["4.3.0", "4.1.1", "3.5.9", "4.20.0"])
def test_other_spark_is_refused(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr("pyspark.__version__", version)
    with pytest.raises(SettingsError, match=rf"Spark {version} is not supported.*install pyspark 4\.2"):
        open_session(Settings())


def test_spark_settings_of_a_console_session() -> None:
    conf = spark_settings(settings(reconcile={"partitions": 7}, spark={"spark.driver.memory": "1g"}))
    theirs = {"spark.sql.shuffle.partitions": "7", "spark.driver.memory": "1g"}
    assert conf == {**REQUIRED, **PACKAGED, **LOCAL, **LOCAL_CHECKPOINTS, **theirs}
    elsewhere = spark_settings(settings(storage={"root": "s3a://bucket/data"}))
    assert LOCAL_CHECKPOINTS.items().isdisjoint(elsewhere.items())


@pytest.mark.spark
@pytest.mark.parametrize(("master", "partitions"), [("local[*]", "1"), ("local[3]", "3"), ("local[64]", "4")])
def test_partitions_that_nobody_has_set(master: str, partitions: str) -> None:
    """One a core that Java may use: as in a container, not all of the machine's."""
    code = """
import os, sys
from checkback.settings import Settings
from checkback.spark.session import running_session
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
with running_session(Settings.model_validate({"spark": {"spark.master": sys.argv[1]}})) as spark:
    print(spark.conf.get("spark.sql.shuffle.partitions"))
"""
    found = subprocess.check_output([sys.executable, "-c", code, master], text=True)
    assert found.split() == [partitions]


def test_partitions_that_somebody_has_set() -> None:
    own = {"spark.sql.shuffle.partitions": "9"}
    assert spark_settings(settings(spark=own))["spark.sql.shuffle.partitions"] == "9"


def test_size_of_a_batch_is_limited_by_the_drivers_memory_alone() -> None:
    """A batch is fetched whole. On a cluster the limit is whose the cluster is."""
    assert spark_settings(settings())["spark.driver.maxResultSize"] == "0"
    own = {"spark.driver.maxResultSize": "2g"}
    assert spark_settings(settings(spark=own))["spark.driver.maxResultSize"] == "2g"
    assert "spark.driver.maxResultSize" not in spark_settings(settings(spark={"spark.master": "yarn"}))


def test_driver_is_not_given_up_when_the_clock_is_set_forward() -> None:
    """Spark goes by the wall clock: no step of it may be over the limit. On a cluster that is whose the cluster is."""
    name = "spark.storage.blockManagerHeartbeatTimeoutMs"
    assert spark_settings(settings())[name] == "36500d"
    assert name not in spark_settings(settings(spark={"spark.master": "yarn"}))


def test_lists_of_spark_settings_are_joined() -> None:
    own = {"spark.sql.extensions": "org.x.Mine", "spark.jars.packages": "org.x:mine:1"}
    conf = spark_settings(settings(spark=own))
    assert conf["spark.sql.extensions"] == f"{DELTA_EXTENSION},org.x.Mine"
    assert conf["spark.jars.packages"] == f"{DELTA_PACKAGE},org.x:mine:1"
    newer = DELTA_PACKAGE.rpartition(":")[0] + ":9.9.9"
    assert spark_settings(settings(spark={"spark.jars.packages": newer}))["spark.jars.packages"] == newer


def test_a_cluster_keeps_its_own_network_settings() -> None:
    conf = spark_settings(settings(spark={"spark.master": "spark://host:7077"}))
    assert "spark.driver.host" not in conf
    assert conf["spark.jars.packages"] == DELTA_PACKAGE


def test_spark_submit_brings_master_and_jars(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    theirs = {"spark.sql.shuffle.partitions": "4", "spark.databricks.delta.snapshotPartitions": "4"}
    assert spark_settings(settings()) == {**REQUIRED, **theirs}


def _properties(file: str) -> dict[str, str]:
    lines = (ROOT / "conf" / file).read_text().splitlines()
    return dict(line.split() for line in lines if line and not line.startswith("#"))


def test_spark_defaults_file_has_what_is_required() -> None:
    assert _properties("spark-defaults.conf") == REQUIRED


def test_file_for_s3_has_what_a_session_on_this_machine_has() -> None:
    here = spark_settings(Settings.model_validate({"storage": {"root": "s3://bucket/lake"}}))
    there = _properties("spark-s3.conf")
    assert there == {key: here[key] for key in there}
    assert there.keys() >= {"spark.hadoop.fs.s3.impl", *(key for key in here if key.startswith("spark.jars"))}


# Sessions


@pytest.mark.spine("the session")
def test_session_has_what_is_required(spark: SparkSession) -> None:
    assert {key: spark.conf.get(key) for key in REQUIRED} == REQUIRED


def test_pyspark_itself_prints_no_error(spark: SparkSession) -> None:
    """With Java's stack trace, in the middle of a batch that has already dealt with it."""
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        assert not PySparkLogger.getLogger(name).isEnabledFor(logging.ERROR)


def test_every_python_worker_finds_the_package(spark: SparkSession) -> None:
    """Also the one that reads the stateful processor's schema: it gets no --py-files, only its environment."""
    assert str(ROOT / "lib") in spark.sparkContext.environment["PYTHONPATH"].split(os.pathsep)


def test_python_workers_import_what_is_installed(spark: SparkSession) -> None:
    """Not Spark's zip of sources, which each new process would compile."""

    def imported(rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in rows:
            yield pa.RecordBatch.from_pydict({"places": [sys.modules["pyspark"].__file__]})

    found = spark.range(1).mapInArrow(imported, "places STRING").first()
    assert found is not None
    assert found[0] == pyspark.__file__


def test_other_machines_run_a_python_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the package may be in another place; so does this one with a pyspark that the zip must bring."""
    assert worker_python("local[2]").keys() == {"PYSPARK_PYTHON", "CHECKBACK_PYTHON"}
    own = {"PYSPARK_PYTHON": sys.executable}
    assert worker_python("spark://host:7077") == own
    monkeypatch.setattr(pyspark, "__file__", "/opt/spark/python/pyspark/__init__.py")
    assert worker_python("local[2]") == own


def test_python_workers_collect_no_garbage_of_their_imports(spark: SparkSession) -> None:
    """They collect after each task."""

    def frozen(rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in rows:
            yield pa.RecordBatch.from_pydict({"objects": [gc.get_freeze_count()]})

    found = spark.range(1).mapInArrow(frozen, "objects BIGINT").first()
    assert found is not None
    assert found[0] > 50_000


def test_running_session_is_taken_changed_and_left_running(spark: SparkSession) -> None:
    before = spark.conf.get("spark.sql.shuffle.partitions")
    assert before is not None
    try:
        wanted = settings(reconcile={"partitions": 3}, spark={"spark.sql.session.timeZone": "Asia/Tokyo"})
        with running_session(wanted) as same:
            assert same.sparkContext is spark.sparkContext
            assert spark.conf.get("spark.sql.shuffle.partitions") == "3"
            assert spark.conf.get("spark.sql.session.timeZone") == "Asia/Tokyo"
        assert spark.range(1).count() == 1
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", before)
        spark.conf.set("spark.sql.session.timeZone", "UTC")


def test_running_session_is_left_running_by_another_thread(spark: SparkSession) -> None:
    """In which Spark has no active session. Several may use it at a time."""

    def use() -> int:
        with running_session(settings(reconcile={"partitions": 2})) as same:
            return same.range(3).count()

    with ThreadPoolExecutor(1) as pool, running_session(settings(reconcile={"partitions": 2})) as same:
        assert pool.submit(use).result() == 3
        assert same.range(3).count() == 3
    assert spark.range(1).count() == 1


def test_frame_of_a_batch_leaves_the_active_session_alone(spark: SparkSession) -> None:
    spark.createDataFrame(pa.table({"id": [1]})).count()  # makes it the active one
    clone = spark.newSession()
    assert frame(clone, pa.table({"id": [1]})).count() == 1
    active = SparkSession.getActiveSession()
    assert active is not None
    assert active._jsparkSession.equals(spark._jsparkSession)


def test_frame_has_the_rows_of_all_pieces(spark: SparkSession) -> None:
    """Of several pieces, some of them empty, PySpark 4.2 makes a DataFrame that lacks rows."""
    rows = pa.table({"number": [1, 2]})
    pieces = pa.concat_tables([rows.slice(0, 0), rows.slice(0, 0), rows, rows.slice(0, 0), rows])
    assert sorted(row.number for row in frame(spark, pieces).collect()) == [1, 1, 2, 2]


def test_setting_that_a_running_session_cannot_take_is_told(
    spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    open_session(settings(reconcile={"partitions": 2}, spark={"spark.driver.memory": "77g"}))
    assert spark.conf.get("spark.driver.memory") != "77g"
    assert caplog.messages == ["spark.driver.memory cannot be changed in a running session and stays as it is"]


def test_reason_of_a_java_error_is_the_java_exception(spark: SparkSession) -> None:
    context = spark.sparkContext
    assert context._jvm is not None
    with pytest.raises(Exception, match="calling") as caught:
        context._jvm.java.util.Optional.empty().get()
    assert reason(caught.value) == "java.util.NoSuchElementException: No value present"


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        ([], None),
        (["Using Spark's default log4j profile", "\tat java.lang.Exception.fillInStackTrace(Exception.java:1)"], None),
        (
            ['Exception in thread "main" java.io.IOException: Invalid UID', "\tat a.b(C.java:1)"],
            "java.io.IOException: Invalid UID",
        ),
        (
            [
                "java.lang.ExceptionInInitializerError",
                "Caused by: a.BException: b",
                "\t... 2 more",
                "Caused by: c.DError: e",
            ],
            "c.DError: e",
        ),
    ],
)
def test_root_cause_is_the_last_one_of_a_stack_trace(lines: list[str], cause: str | None) -> None:
    assert root_cause(lines) == cause


def test_package_that_workers_lack_is_told() -> None:
    """After a worker's traceback. Workers on this machine run this Python; those of a cluster PYSPARK_PYTHON."""
    trace = "Error from python worker:\n  Traceback (most recent call last):\n  No module named 'numpy'\n"
    assert str(failure("reconcile", RuntimeError(f"[STREAM_FAILED] Query terminated\n{trace}PYTHONPATH was:"))) == (
        "query reconcile: No module named 'numpy'; name a Python that has the packages of constraints.txt in "
        "PYSPARK_PYTHON or spark.pyspark.python"
    )


# Starts


@pytest.mark.processes
@pytest.mark.spark
@pytest.mark.parametrize(
    ("own", "told"),
    [
        (
            {
                "spark.jars.packages": "no.such:thing:1",
                "spark.jars.ivySettings": "offline.xml",
                "spark.jars.ivy": "ivy",
            },
            "Delta Lake's JARs could not be fetched; connect to Maven Central once",
        ),
        ({"spark.driver.memory": "1x"}, "Spark did not start: "),
    ],
)
def test_start_that_fails_is_one_line(tmp_path: Path, own: dict[str, str], told: str) -> None:
    # A repository in an empty folder: nothing is asked of the network.
    (tmp_path / "offline.xml").write_text(
        textwrap.dedent("""\
            <ivysettings><settings defaultResolver="empty"/><resolvers><filesystem name="empty">
            <artifact pattern="/nowhere/[artifact].[ext]"/></filesystem></resolvers></ivysettings>""")
    )
    command = [str(Path(sys.executable).parent / "checkback"), "reconcile", "--available-now"]
    for key, value in own.items():
        command += ["--set", f"{key}={value}"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert run.stdout == ""
    assert run.stderr.count("\n") == 1, run.stderr
    assert told in run.stderr


_IN_TWO_THREADS = """
from concurrent.futures import ThreadPoolExecutor
from checkback.settings import Settings
from checkback.spark import session

def use():
    with session.running_session(Settings(), short=True) as spark:
        return spark.range(3).count()

with ThreadPoolExecutor(1) as pool:
    with session.running_session(Settings(), short=True) as spark:
        session._PATIENCE_S = 0
        print(pool.submit(use).exception(), flush=True)
        session._PATIENCE_S = 60
        later = pool.submit(use)
        print(spark.range(3).count())
    print(later.result())
"""


@pytest.mark.processes
@pytest.mark.spark
def test_of_two_threads_one_has_a_session_at_a_time(tmp_path: Path) -> None:
    run = [sys.executable, "-c", _IN_TWO_THREADS]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    told = "Spark is running something else in this process; try again when it is done"
    assert done.stdout.splitlines() == [told, "3", "3"]


@pytest.mark.processes
def test_what_a_child_says_is_held_then_passed_on(capfd: pytest.CaptureFixture[str]) -> None:
    late = r"'Blah 1\n\nlate\n\nBlah'"
    talk = f"import sys; print('early', file=sys.stderr, flush=True); input(); print({late}, file=sys.stderr)"
    with HeldStderr("Blah") as held:
        child = subprocess.Popen([sys.executable, "-c", talk], stdin=subprocess.PIPE, stderr=held.fileno())
        while not held.held:
            assert child.poll() is None
    assert child.stdin is not None
    child.stdin.write(b"\n")
    child.stdin.close()
    assert child.wait() == 0
    held.join()
    assert capfd.readouterr().err == "late\n\n"


@pytest.mark.processes
def test_what_a_failed_child_said_can_be_read(capfd: pytest.CaptureFixture[str]) -> None:
    with HeldStderr() as held:
        subprocess.run([sys.executable, "-c", "import sys; sys.exit('no way')"], stderr=held.fileno(), check=False)
        assert held.lines() == ["no way"]
    assert capfd.readouterr().err == ""
