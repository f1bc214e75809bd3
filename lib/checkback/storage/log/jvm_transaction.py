"""Appends the driver's rows to a table whose log only Spark's Delta may write, without a Spark job.

Delta's idempotent write (`SparkWriter.append`) takes Spark jobs: one reconstructs the table's state to look the
application up, one writes the rows; 0.4 s of CPU a table, six tables a batch. Here the driver writes the files, Hadoop
copies them into the table's folder with the credentials that Delta has for it, and Delta's own transaction commits them
(OptimisticTransaction.scala of delta-io/delta), with its conflict detection and its hooks.

These are internal classes of Delta in the driver's JVM. Where they are missing or different (on Databricks, with Spark
Connect), and for tables with features that want more than files, Spark writes.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from checkback.errors import StorageError
from checkback.storage.dataframes import is_connect
from checkback.storage.log.compatibility import delta_takes_files
from checkback.storage.log.delta_errors import FORGETS, forgotten
from checkback.storage.log.jvm_files import JvmFiles
from checkback.storage.log.jvm_names import jvm_of
from checkback.storage.log.spark_log import quoted
from checkback.storage.parquet.parquet_files import MOST_ROWS, FileWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from checkback.storage.log.snapshot_files import DataFile
    from checkback.storage.log.spark_log import CatalogName

#: bytes of rows up to which the driver writes them
_MOST_BYTES = 32 << 20
#: py4j's answers if a class, method or constructor is missing
_LACKING = re.compile(r"does not exist in the JVM|(?:Method|Constructor) \S+\(.*\) does not exist|'JavaPackage' object")
#: prefix of temporary folders; the process's id follows
_FOLDER = "checkback-append-"
#: seconds after which a temporary folder is removed if this machine has no such process: another container may have it
_LEFT = 86400
_Told = TypeVar("_Told")


@dataclass
class _Known:
    """A version of a table, and the last versions of applications there that were looked up (-1 = none)."""

    table_id: str
    version: int
    apps: dict[str, int] = field(default_factory=dict)


class Newest(NamedTuple):
    """The newest version of a table, and Delta's id of the table: a table that was recreated has another one.

    ``files``: how many it has, None = not in the version's checksum file.
    """

    version: int
    table_id: str
    files: int | None


class _Begun(NamedTuple):
    """A transaction that has begun, its snapshot, its operation as DESCRIBE HISTORY shows it, the class of actions."""

    transaction: Any
    snapshot: Any
    operation: Any
    action: Any


class JvmTransactions:
    """Appends to tables, each by one transaction. Thread-safe for different tables."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        self._files: dict[str, JvmFiles] = {}
        self._missing: set[CatalogName | str] = set()

    def version(self, name: str) -> int | None:
        """The version of this process's last commit to the table; None if it is not known here."""
        known = self._known.get(name)
        return None if known is None else known.version

    def forget(self, name: str) -> None:
        """Forget what is known of the table: it is looked up again."""
        self._known.pop(name, None)
        self._files.pop(name, None)

    def contents(
        self, spark: SparkSession, place: CatalogName | str, name: str, chosen: Callable[[DataFile], object], most: int
    ) -> list[bytes] | None:
        """The contents of the table's ``chosen`` data files.

        None if these are more than ``most`` bytes, or only Spark can tell their rows. Raises pyspark's errors.
        """
        if place in self._missing or is_connect(spark):
            return None
        jvm = jvm_of(spark)
        path = jvm.org.apache.hadoop.fs.Path

        def read() -> list[bytes] | None:
            snapshot = _started(spark, place).snapshot()
            files = self._files.setdefault(name, JvmFiles()).of(spark, snapshot)
            mine = None if files is None else [file for file in files if chosen(file)]
            if mine is None or sum(file.size for file in mine) > most:
                return None
            log = snapshot.deltaLog()
            system = log.dataPath().getFileSystem(log.newDeltaHadoopConf())
            return [_content(system, path(log.dataPath(), file.path)) for file in mine]

        with _active(jvm, spark._jsparkSession):
            return self._unless_lacking(place, read)

    def newest(self, spark: SparkSession, place: CatalogName | str) -> Newest | None:
        """The table's newest version; None if there is no table, or without Delta's classes.

        Raises pyspark's errors: AnalysisException also if the catalog has no such table.
        """
        if place in self._missing or is_connect(spark):
            return None

        def look() -> Newest | None:
            snapshot = _started(spark, place).snapshot()
            version, checksum = int(snapshot.version()), _checksum(jvm_of(spark), snapshot)
            files = None if checksum is None else int(checksum.numFiles())
            return None if version < 0 else Newest(version, str(snapshot.metadata().id()), files)

        with _active(jvm_of(spark), spark._jsparkSession):
            return self._unless_lacking(place, look)

    def last_version(self, spark: SparkSession, place: CatalogName | str, app: str) -> int | None:
        """The last version that the application has committed to the table, -1 = none; None if this cannot tell.

        That is without Delta's classes, or if the table expires what would tell. Raises pyspark's errors.
        """
        if place in self._missing or is_connect(spark):
            return None
        with _active(jvm_of(spark), spark._jsparkSession):
            begun = self._begin(spark, place, app, 0)
            if begun is None or begun.snapshot.version() < 0:
                return None
            return _last_of(jvm_of(spark), app, begun.snapshot)

    def append(
        self,
        spark: SparkSession,
        place: CatalogName | str,
        rows: pa.Table,
        name: str,
        app: str,
        version: int,
        confirm: Callable[[], object],
    ) -> bool:
        """Append rows of the table ``name`` (`schemas`) as (app, version), unless it has committed that or a later one.

        ``place``: a name in a catalog, or a path. ``confirm`` is called before the commit. Returns False, with nothing
        done, if Spark has to write them. Raises ArrowInvalid, OSError, StorageError if the table expires what would
        tell, or was dropped and recreated meanwhile, the errors of Delta's commit as pyspark has them, among them
        ConcurrentTransactionException if another process commits for the same ``app`` meanwhile.
        """
        if place in self._missing or is_connect(spark) or rows.nbytes > _MOST_BYTES:
            return False
        before = self._known.pop(name, None)  # after an error the table is looked up again
        jvm = jvm_of(spark)
        with _active(jvm, spark._jsparkSession):
            begun = self._begin(spark, place, app, version)
            if begun is None or not _takes_files(name, begun.snapshot):
                return False
            known = _look_up(jvm, before, begun.snapshot, place, app)
            if known.apps[app] >= version:
                self._known[name] = known
                return True
            now = round(time.time() * 1000)
            txn = {"txn": {"appId": app, "version": version, "lastUpdated": now}}
            actions = jvm.java.util.ArrayList()
            for each in (txn, *({"add": add} for add in _upload(jvm, begun.transaction.deltaLog(), name, rows, now))):
                actions.add(begun.action.fromJson(json.dumps(each)))
            actions = jvm.scala.jdk.javaapi.CollectionConverters.asScala(actions).toSeq()
            confirm()
            # Delta does not look: it would commit the next version to a log that has only the first ones.
            log, none = begun.transaction.deltaLog(), jvm.scala.Option.empty()
            _refuse_other(place, known, lambda: log.update(False, none, none))
            made = int(begun.transaction.commit(actions, begun.operation))
            _refuse_other(place, known, lambda: _started(spark, place).snapshot(), made)
        # Commits between the snapshot and this one may be of the table's other applications.
        others = known.apps if made == known.version + 1 else {}
        self._known[name] = _Known(known.table_id, made, {**others, app: version})
        return True

    def _begin(self, spark: SparkSession, place: CatalogName | str, app: str, version: int) -> _Begun | None:
        """Begin a transaction at the table's newest version; None if this JVM's Delta has no such classes."""
        jvm = jvm_of(spark)

        def begin() -> _Begun:
            delta = jvm.org.apache.spark.sql.delta
            transaction = _started(spark, place)
            transaction.readTxn().addOne(app)  # another commit of the application is a conflict
            # SQL reads (app, version) from the userMetadata.
            append, note = jvm.org.apache.spark.sql.streaming.OutputMode.Append(), f"{app} {version}"
            operation = delta.DeltaOperations.StreamingUpdate(append, app, version, jvm.scala.Option.apply(note))
            return _Begun(transaction, transaction.snapshot(), operation, delta.actions.Action)

        return self._unless_lacking(place, begin)

    def _unless_lacking(self, place: CatalogName | str, ask: Callable[[], _Told]) -> _Told | None:
        """What Delta tells; None, which is noted, if this JVM's Delta has no such classes or methods."""
        from py4j.protocol import Py4JError

        try:
            return ask()
        except (Py4JError, TypeError) as error:
            if type(error) not in (Py4JError, TypeError) or not _LACKING.search(str(error)):
                raise  # Py4JJavaError, Py4JNetworkError, or an object that the JVM has given up
        self._missing.add(place)  # not for all: a topic's name may have a table that is none of Delta's
        return None


def _look_up(jvm: Any, known: _Known | None, snapshot: Any, place: CatalogName | str, app: str) -> _Known:
    """What is known of the snapshot; it is asked unless ``known`` is of this version.

    Raises StorageError if the application is missing and the table expires transaction identifiers.
    """
    metadata = snapshot.metadata()
    table_id, version = str(metadata.id()), int(snapshot.version())
    if known is None or (known.table_id, known.version) != (table_id, version):
        known = _Known(table_id, version)
    if app not in known.apps:
        last = _last_of(jvm, app, snapshot)
        if last is None:
            raise forgotten(str(place), f"delta.{quoted(place)}" if isinstance(place, str) else str(place))
        known.apps[app] = last
    return known


def _last_of(jvm: Any, app: str, snapshot: Any) -> int | None:
    """The last version that the application has committed, -1 = none; None: the table may have expired it.

    Where the version's checksum file (PROTOCOL.md, Version Checksum File) does not tell, Spark reconstructs the state.
    """
    forgets, checksum = snapshot.metadata().configuration().contains(FORGETS), _checksum(jvm, snapshot)
    if checksum is not None and checksum.setTransactions().isDefined() and not forgets:
        mapper, known = jvm.org.apache.spark.sql.delta.util.JsonUtils.mapper(), checksum.setTransactions().get()
        told = json.loads(mapper.writeValueAsString(known))
        return next((each["version"] for each in told if each["appId"] == app), -1)
    found = snapshot.transactions().get(app)
    if found.isDefined():
        return int(found.get())
    return None if forgets else -1


def _checksum(jvm: Any, snapshot: Any) -> Any:
    """The checksum of the snapshot's version; None if there is none, or it may be of a commit that the log has not.

    Delta leaves a checksum file that is there: where a version was removed from a log without its own, as a restore may
    do, this tells of the lost commit. Both have the commit's txnId.
    """
    from py4j.protocol import Py4JJavaError

    found = snapshot.checksumOpt()
    if not found.isDefined() or not found.get().txnId().isDefined():
        return None
    log, names = snapshot.deltaLog(), jvm.org.apache.spark.sql.delta.util.FileNames
    try:
        commit = log.store().read(names.unsafeDeltaFile(log.logPath(), snapshot.version()), log.newDeltaHadoopConf())
    except Py4JJavaError:  # as where the catalog commits: the file has another name
        return None
    about: dict[str, Any] = json.loads(commit.head()).get("commitInfo", {})  # the first action
    return found.get() if about.get("txnId") == found.get().txnId().get() else None


def _refuse_other(place: CatalogName | str, known: _Known, look: Callable[[], Any], made: int | None = None) -> None:
    """Raise StorageError if the table in ``place`` is not the ``known`` one any more. ``made``: after this commit."""
    try:
        same = str(look().metadata().id()) == known.table_id
    except Exception as error:
        if made is None or "DELTA_VERSIONS_NOT_CONTIGUOUS" not in str(error):
            raise
        same = False
    if not same:
        what, fix = "somebody has dropped and recreated the table while rows were appended", "run it again"
        if made is not None:
            fix = f"if its log lacks the versions before {made}, remove this one from the folder _delta_log; then {fix}"
        raise StorageError(what, str(place), fix)


@contextmanager
def _active(jvm: Any, session: Any) -> Iterator[None]:
    """The session is the JVM thread's active one, as Delta's transactions expect; afterwards what it was before."""
    sessions = jvm.org.apache.spark.sql.SparkSession
    before = sessions.getActiveSession()
    sessions.setActiveSession(session)
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()


def _started(spark: SparkSession, place: CatalogName | str) -> Any:
    """A transaction. A catalog gives the table with the credentials and the committer that it has for it."""
    jvm = jvm_of(spark)
    none = jvm.scala.Option.empty()
    if isinstance(place, str):
        log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, place)
        return log.startTransaction(none, none)
    gateway: Any = spark.sparkContext._gateway
    schema = gateway.new_array(jvm.java.lang.String, 1)
    schema[0] = place.schema
    identifier = jvm.org.apache.spark.sql.connector.catalog.Identifier.of(schema, place.table)
    state: Any = spark._jsparkSession.sessionState()
    return state.catalogManager().catalog(place.catalog).loadTable(identifier).startTransaction(none)


def _takes_files(name: str, snapshot: Any) -> bool:
    """True if files can be added to the table unchanged."""
    if snapshot.version() < 0:  # there is no table: Spark makes one, or says why not
        return False
    metadata, protocol = json.loads(snapshot.metadata().json()), json.loads(snapshot.protocol().json())
    return delta_takes_files(metadata["metaData"], protocol["protocol"], name)


def _upload(jvm: Any, log: Any, name: str, rows: pa.Table, now: int) -> list[dict[str, object]]:
    """Write the rows' files into the table's folder. Returns their Add File actions."""
    path = jvm.org.apache.hadoop.fs.Path
    _remove_left()
    with tempfile.TemporaryDirectory(prefix=f"{_FOLDER}{os.getpid()}-") as folder:
        with FileWriter(folder, most_rows=MOST_ROWS, sync=False) as writer:
            writer.write(name, rows)
            files = writer.close()
        to = log.dataPath()
        system = to.getFileSystem(log.newDeltaHadoopConf())
        for file in files:
            system.copyFromLocalFile(True, False, path(f"file://{folder}/{name}/{file.path}"), path(to, file.path))
    return [file.add_action(now) for file in files]


def _content(system: Any, path: Any) -> bytes:
    stream = system.open(path)
    try:
        return bytes(stream.readAllBytes())
    finally:
        stream.close()


@cache
def _remove_left() -> None:
    """Remove the temporary folders of processes that were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_FOLDER}*-*"):
        with suppress(OSError, ValueError):
            if folder.stat().st_mtime < time.time() - _LEFT:
                try:
                    os.kill(int(folder.name.removeprefix(_FOLDER).partition("-")[0]), 0)
                except ProcessLookupError:
                    shutil.rmtree(folder, ignore_errors=True)
