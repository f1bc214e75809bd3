"""How Checkback's Delta tables are created, opened and appended to."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from checkback.errors import NO_SPACE, NO_SPACE_FIX, StorageError, reason
from checkback.storage import external_tables
from checkback.storage.catalog_names import TOPIC_PROPERTY, is_plain, topics_of, whose_folder
from checkback.storage.files import filesystem, table_files
from checkback.storage.files.object_store import concurrently, is_registered, options_of, register
from checkback.storage.files.paths import for_spark, local_path
from checkback.storage.half_restored import RESTORING, refuse_half_restored
from checkback.storage.log import spark_log
from checkback.storage.log.delta_log import AlteredError, DeltaLog
from checkback.storage.log.spark_log import CatalogName
from checkback.storage.log.torn_commits import refuse_torn
from checkback.storage.lru_cache import LruCache
from checkback.storage.parquet.parquet_files import FILES_SCHEMA, FileWriter, files_of, to_files
from checkback.storage.schemas import ERASED, SCHEMAS, TOPIC_PREFIX, arrow_schema, properties_of
from checkback.storage.spark_writer import SparkTable, SparkWriter
from checkback.storage.table_locations import TableLocations

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from checkback.storage.log.snapshot_files import DataFile
    from checkback.storage.parquet.parquet_files import ParquetFile


#: application id of commits without rows, see Tables.mark
_MARK = "mark"
#: Cached logs of topic tables: some 70 KB each, and producers may create any number of topics. A batch that publishes
#: to more than these opens all of its tables, at some 5 ms each.
_OPEN_TOPICS = 2048


def _open_logs() -> LruCache[DeltaLog]:
    return LruCache(_OPEN_TOPICS, SCHEMAS.__contains__)


@dataclass
class Guard:
    """Called before each commit; raises FencedError if this process may not write any more (`lock`)."""

    confirm: Callable[[], object] = bool
    #: in place of ``confirm`` in another process, that runs a batch function
    elsewhere: Callable[[], object] = bool

    def __call__(self) -> None:
        """Call what ``confirm`` is at this moment."""
        self.confirm()


@dataclass(frozen=True)
class Tables(TableLocations):
    """The tables, created, opened and appended to. Commits are made while ``guard`` lets them."""

    guard: Guard = field(default_factory=Guard, repr=False, compare=False)
    _logs: LruCache[DeltaLog] = field(default_factory=_open_logs, repr=False, compare=False)
    _seen: set[str] = field(default_factory=set, repr=False, compare=False)
    _spark_writer: SparkWriter = field(default_factory=SparkWriter, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        """Pickled (with a batch function): no open logs, the guard for elsewhere, and the options of their stores."""
        places = [place for place in (self.root, self.checkpoints) if is_registered(place)]
        stores = {place: options_of(place) for place in places}
        elsewhere = self.guard.elsewhere
        own = {"_logs": _open_logs(), "_spark_writer": SparkWriter(), "guard": Guard(elsewhere, elsewhere)}
        return {**vars(self), **own, "stores": stores}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Registers the stores: a batch function may run in another process, of a Spark Connect server."""
        for place, options in state.pop("stores").items():
            register(place, options)
        vars(self).update(state)

    def in_sql(self, name: str) -> str:
        """The table's identifier in SQL."""
        return self._spark_table(name).in_sql

    def exists(self, spark: SparkSession, name: str) -> bool:
        """True if the table exists."""
        if self.by_files:
            return DeltaLog.exists(self.location(name))
        return self.newest(spark, name) is not None

    def create(self, spark: SparkSession, *names: str) -> None:
        """Create the tables that do not exist, in parallel, and register them.

        Raises StorageError if one cannot be created, or collides with another topic's on a case-insensitive file
        system; StateError while tables are restored there.
        """
        self.refuse_half_restored()
        with ThreadPoolExecutor(max_workers=4) as pool:
            list(pool.map(lambda name: self._create(spark, name), names))
        if self.by_files:
            refuse_half_restored(self.root)  # again: a restore marks the place, and then looks for tables
        if self.register:
            external_tables.register(spark, self.register, {name: self.location(name) for name in names})

    def _create(self, spark: SparkSession, name: str) -> None:
        self.guard.confirm()
        if self.by_files:
            DeltaLog.create(name, self.location(name), self.sync)
            self._own_folder(name)
            return
        wanted = properties_of(name)
        topic = name.removeprefix(TOPIC_PREFIX)
        hashed = self.catalog and topic != name and not is_plain(topic)
        if hashed:
            wanted[TOPIC_PROPERTY] = topic
        found = spark_log.create(spark, self.in_sql(name), name, wanted)
        self._own_folder(name)
        whose = found.get(TOPIC_PROPERTY, topic) if hashed else topic
        if whose != topic:
            what = f"the names of the topics {topic} and {whose} have the same hash, and the table is the latter's"
            raise StorageError(what, self.location(name), "rename one of the topics")

    def _own_folder(self, name: str) -> None:
        """Check that the topic table's folder is not another topic's (names that differ in case only).

        Raises StorageError.
        """
        topic = name.removeprefix(TOPIC_PREFIX)
        if topic == name or not self.local:
            return
        whose = whose_folder(topic, table_files.names(f"{self.root}/{TOPIC_PREFIX}"))
        if whose not in (topic, None):
            raise StorageError(
                f"the file system ignores case, and the table is that of the topic {whose}",
                self.location(name),
                "give the topics names that differ in more than case",
            )

    def topics(self, spark: SparkSession) -> list[str]:
        """Names of the existing topic tables, as ``topics/<topic>``. Raises StorageError."""
        if self.catalog:
            found = topics_of(spark, self.catalog, self.schema, lambda: self.read(spark, "half"))
            return sorted(TOPIC_PREFIX + topic for topic in found)
        place = f"{self.root}/{TOPIC_PREFIX}"
        names = table_files.folders(place) if self.by_files else filesystem.names(spark, place)
        found = [TOPIC_PREFIX + name for name in names]
        with ThreadPoolExecutor(max_workers=16) as pool:
            there = pool.map(lambda name: self.exists(spark, name), found)
            return sorted(name for name, exists in zip(found, there, strict=True) if exists)

    def read(self, spark: SparkSession, name: str, version: int | None = None) -> DataFrame:
        """The table's current snapshot, or that of ``version`` (time travel): its own columns, see `own_columns`."""
        from checkback.storage.spark_schemas import own_columns

        place = self._sound(name)
        if version is None:
            rows = spark.read.table(place) if self.catalog else spark.read.format("delta").load(for_spark(place))
        elif self.catalog:
            rows = spark.sql(f"SELECT * FROM {place} VERSION AS OF {version}")  # noqa: S608 - a quoted name, a number
        else:
            rows = spark.read.format("delta").option("versionAsOf", version).load(for_spark(place))
        return own_columns(rows, name)

    def contents(
        self, spark: SparkSession, name: str, chosen: Callable[[DataFile], object], most: int
    ) -> list[bytes] | None:
        """The contents of the ``chosen`` data files of a table that Spark writes, in the driver.

        None if these are more than ``most`` bytes, or only Spark can read them. Raises StorageError.
        """
        self._sound(name)
        return self._spark_writer.contents(spark, self._spark_table(name), chosen, most)

    def committed_version(self, spark: SparkSession, name: str) -> int:
        """The version of this process's last commit to the table, or a later one. Raises StorageError."""
        if not self.by_files:
            known = self._spark_writer.version(name)
            return self.version(spark, name) if known is None else known
        log = self.log(name)
        return log.seen_version if log.appendable() else log.version()

    def _sound(self, name: str) -> str:
        """The table's location, after checking its log once: Spark silently reads past an empty commit file.

        Raises StorageError.
        """
        self.refuse_half_restored()
        place = self.location(name)
        folder = None if self.catalog else local_path(place)
        if folder is not None and name not in self._seen:
            refuse_torn(folder, self.sync)
            self._seen.add(name)
        return place

    def newest(self, spark: SparkSession, name: str) -> int | None:
        """The table's newest version; None if the table does not exist. Raises StorageError."""
        if self.by_files:
            return self.open_log(name).version() if self.exists(spark, name) else None
        return self._spark_writer.newest(spark, self._spark_table(name))

    def has_rows(self, spark: SparkSession, name: str) -> bool:
        """True if the table has rows, or files whose rows are all deleted. Raises StorageError."""
        if self.readable:
            return bool(self.log(name).data_files())
        files = self._spark_writer.files(spark, self._spark_table(name))
        return bool(self.read(spark, name).limit(1).collect() if files is None else files)

    def version(self, spark: SparkSession, name: str) -> int:
        """The table's newest version. Raises StorageError, also if the table does not exist."""
        found = self.newest(spark, name)
        if found is None:
            raise StorageError("there is no such table", self.location(name))
        return found

    def table_id(self, spark: SparkSession, name: str) -> str:
        """Delta's id of a table that only Spark writes: a table that was recreated has another one."""
        return self._spark_writer.table_id(spark, self._spark_table(name))

    def history(self, spark: SparkSession, name: str, commits: int) -> dict[int, int]:
        """The table's last ``commits``: commit timestamp (ms) by version. Empty if the table does not exist."""
        if self.by_files:
            return self.open_log(name).history(commits) if self.exists(spark, name) else {}
        found = spark_log.history_if_any(spark, self.in_sql(name), commits)
        return {commit.version: commit.made for commit in found or ()}

    def stream(self, spark: SparkSession, name: str, **options: str) -> DataFrame:
        """The table as a streaming source: its own columns, as of ``read``.

        Where Spark removes rows (`maintain`, `erase`), it passes over these commits: they add none, and what they
        removed is in the commits before.
        """
        from checkback.storage.spark_schemas import own_columns

        place = self._sound(name)
        skip = {} if self.by_files else {"skipChangeCommits": "true"}
        reader = spark.readStream.format("delta").options(**{**skip, **options})
        return own_columns(reader.table(place) if self.catalog else reader.load(for_spark(place)), name)

    def append(
        self,
        rows: DataFrame,
        name: str,
        app: str | None = None,
        version: int = 0,
        also: Mapping[str, int] = MappingProxyType({}),
        number: int | None = None,
        fence: tuple[Mapping[str, int | None], Mapping[str, int]] = ({}, {}),
    ) -> bool:
        """Append rows; idempotent with ``app``: a repeated (app, version) is skipped. ``also``: see ``commit``.

        ``number``: of the rows, see ``_files``. ``fence``: versions that other applications are expected at, and those
        to which the same commit advances them, unless Spark writes the table.
        Columns are reordered to the table's schema; a missing one, except erased_at, is an error. Without rows nothing
        is committed. Returns False if (app, version) was committed already; always True if Spark writes the table.
        Raises StorageError if the table cannot be written, CheckbackError if another process writes for the same
        ``app`` concurrently, FencedError, with nothing appended, if the fence does not hold any more.
        """
        from pyspark.sql import functions as F

        names = arrow_schema(name).names
        if ERASED in names and ERASED not in rows.columns:
            rows = rows.withColumn(ERASED, F.lit(None).cast("timestamp"))
        rows = rows.select(*names)
        if not self.by_files:
            self._append_by_spark(rows, name, app, version)
            return True
        log = self.log(name)
        if app is not None and log.has(app, version):
            return False
        expected, marks = fence
        fenced = bool(marks) and log.appendable()
        files = self._files(rows, name, number)
        if app is None or not fenced:
            return self.commit(rows.sparkSession, name, files, app, version, also)
        log.commit_after(files, expected, {**marks, **also, app: version})
        return True

    def _files(self, rows: DataFrame, name: str, number: int | None) -> list[ParquetFile]:
        """Write rows to files. ``number``: of the rows as they were counted, None = they were not.

        Raises StorageError if they are others now: a lost block of the cache was computed again, from changed input.
        """
        files, _ = files_of(rows.mapInArrow(to_files(name, self.table_root), FILES_SCHEMA).toArrow())
        found = sum(file.rows for file in files)
        if number not in (None, found):
            what = f"the input of a batch has changed while it was written: {number} rows have become {found}"
            raise StorageError(f"{what}; nothing was committed", self.location(name), "run it again")
        return files

    def append_arrow(
        self,
        spark: SparkSession,
        rows: pa.Table,
        name: str,
        app: str | None = None,
        version: int = 0,
        also: Mapping[str, int] = MappingProxyType({}),
    ) -> list[str]:
        """Append rows from the driver; see ``commit``. Returns the paths of the files written here.

        Raises StorageError, too, if one cannot be written.
        """
        if not rows.num_rows:
            return []
        if not self.by_files:
            self._spark_writer.append_arrow(spark, rows, self._spark_table(name), app, version, self.guard)
        elif app is None or not self.log(name).has(app, version):
            try:
                with FileWriter(self.root, sync=self.sync) as writer:
                    writer.write(name, rows)
                    files = writer.close()
            except OSError as error:
                what, fix = f"cannot be written: {reason(error)}", NO_SPACE_FIX if NO_SPACE in str(error) else ""
                raise StorageError(what, self.location(name), fix) from error
            self.commit(spark, name, files, app, version, also)
            return [f"{self.location(name)}/{file.path}" for file in files]
        return []

    def commit(
        self,
        spark: SparkSession,
        name: str,
        files: Sequence[ParquetFile],
        app: str | None = None,
        version: int = 0,
        also: Mapping[str, int] = MappingProxyType({}),
    ) -> bool:
        """Append files written by tasks (`parquet_files`); see ``append``.

        ``also``: versions of further applications that the same commit sets, unless Spark writes the table.

        The files are committed as they are, unless the table was clustered, partitioned or altered: then Spark reads
        them and appends the rows. Returns False if (app, version) was committed already; always True if Spark appends.
        Raises StorageError if the files are not in the table's folder any more.
        """
        self.guard.confirm()
        opened = name not in self._logs
        log = self.log(name)
        if opened or self.local:
            self._refuse_moved(name, files)
        try:
            return log.commit(files, app, version, also)
        except AlteredError:
            from checkback.storage.spark_schemas import schema_of

            paths = [for_spark(f"{self.location(name)}/{file.path}") for file in files]
            self._append_by_spark(spark.read.schema(schema_of(name)).parquet(*paths), name, app, version)
        return True

    def _refuse_moved(self, name: str, files: Sequence[ParquetFile]) -> None:
        """Check that the files are there: the table may have been moved away since, and recreated without them."""
        place = self.location(name)
        there = concurrently(self.root, lambda file: table_files.exists(f"{place}/{file.path}"), files)
        if not all(there):
            raise StorageError("its files are gone: the table was moved away while they were written", place)

    def refuse_spark(self, name: str) -> None:
        """Raise AlteredError if the table is in an object store: Spark's commits there may overwrite others'.

        Delta's LogStores for S3 and GCS look whether the commit file exists, then write it (delta-io/delta 1830, 4813).
        """
        if self.by_files and not self.local:
            what = "somebody has clustered, partitioned or altered the table, and in an object store only whole files "
            what += "can be appended safely: a commit by Spark could overwrite another process's"
            raise AlteredError(what, self.location(name), "undo it; until then nothing is written to the table")

    def _append_by_spark(self, rows: DataFrame, name: str, app: str | None, version: int) -> None:
        self.guard.confirm()
        self.refuse_spark(name)
        self._spark_writer.append(rows, self._spark_table(name), app, version)

    def _spark_table(self, name: str) -> SparkTable:
        place = self._place(name)
        if not isinstance(place, CatalogName):
            place = for_spark(place)
        return SparkTable(name, place, self.sync, (lambda: self.log(name)) if self.readable else None)

    def mark(self, spark: SparkSession, name: str) -> None:
        """Commit a new version without rows."""
        log = self.open_log(name) if self.by_files else None
        if log is not None and (log.appendable() or not self.local):
            found = log.versions([_MARK])
            log.commit_after([], found, {_MARK: (found[_MARK] or 0) + 1})
        else:
            # Without an application id Spark would skip a commit without rows.
            nothing, version = arrow_schema(name).empty_table(), time.time_ns() // 1_000_000
            self._spark_writer.append_arrow(spark, nothing, self._spark_table(name), _MARK, version, self.guard)

    def last_version(self, spark: SparkSession, name: str, app: str) -> int | None:
        """The last version an application committed; None if none.

        In a catalog where Delta itself cannot be asked (on Databricks, with Spark Connect): none recently.
        """
        return self._spark_writer.last_version(spark, self._spark_table(name), app)

    def forget(self, name: str) -> None:
        """Evict the table's log from the cache: the table may have been replaced."""
        self._logs.forget(name)
        self._spark_writer.forget(name)

    def refuse_half_restored(self) -> None:
        """Raise StateError if a restore of the tables is not done, as this process begins to use them; StorageError."""
        if self.by_files and RESTORING not in self._seen:
            refuse_half_restored(self.root)
            self._seen.add(RESTORING)

    def log(self, name: str) -> DeltaLog:
        """The table's log, from an LRU cache (only topic tables' logs are evicted).

        Raises StorageError if the table does not exist or only Spark can read its log.
        """
        if not self.readable:
            raise StorageError("its log is Spark's", self.location(name))
        return self._logs.get(name, lambda: self.open_log(name))

    def open_log(self, name: str) -> DeltaLog:
        """The table's log, not shared with anybody.

        Raises StorageError if the table does not exist, StateError while tables are restored there.
        """
        self.refuse_half_restored()
        return DeltaLog(name, self.location(name), self.sync, self.guard)
