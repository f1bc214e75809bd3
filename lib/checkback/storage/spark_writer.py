"""Appends to tables whose logs only Spark's Delta may write: those in a catalog, or with storage.writer: spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeVar

from checkback.storage.dataframes import frame
from checkback.storage.files.fsync import LogFlush
from checkback.storage.files.paths import local_path
from checkback.storage.log import spark_log
from checkback.storage.log.delta_errors import FORGETS, forgotten
from checkback.storage.log.jvm_transaction import JvmTransactions, Newest
from checkback.storage.log.spark_log import CatalogName
from checkback.storage.parquet.parquet_files import MOST_ROWS
from checkback.storage.schemas import arrow_schema

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from checkback.storage.log.delta_log import DeltaLog
    from checkback.storage.log.snapshot_files import DataFile

#: commits of a table searched for an application's last one, if Delta itself cannot be asked
_RECENT = 50


#: attempts at an append while properties of its table are changed
_TRIES = 5
_ALTERED = "DELTA_METADATA_CHANGED"
_Done = TypeVar("_Done")


class SparkTable(NamedTuple):
    """A table by its name (`schemas`), and where it is: a name in a catalog, or a path.

    ``sync``: see `fsync`. ``log``: opens its log, None = only Spark can read that.
    """

    name: str
    place: CatalogName | str
    sync: bool
    log: Callable[[], DeltaLog] | None

    @property
    def in_sql(self) -> str:
        """The identifier in SQL."""
        return str(self.place) if isinstance(self.place, CatalogName) else f"delta.{spark_log.quoted(self.place)}"

    def flush(self) -> None:
        """Flush its newest commit, if it is to be."""
        if self.sync:
            LogFlush(local_path(str(self.place)) or str(self.place)).with_files()


class SparkWriter:
    """Appends, idempotent by application version. Thread-safe for different tables."""

    def __init__(self) -> None:
        self._transactions = JvmTransactions()

    def version(self, name: str) -> int | None:
        """The version of the driver's own last commit to the table; None if it is not known here."""
        return self._transactions.version(name)

    def forget(self, name: str) -> None:
        """Forget what is known of the table."""
        self._transactions.forget(name)

    def append_arrow(
        self,
        spark: SparkSession,
        rows: pa.Table,
        table: SparkTable,
        app: str | None,
        version: int,
        confirm: Callable[[], object],
    ) -> None:
        """As `append`, of rows in the driver: without a Spark job where the JVM's Delta allows it."""
        if app is not None and self._append_in_jvm(spark, rows, table, app, version, confirm):
            return
        confirm()
        one = frame(spark, rows.select(arrow_schema(table.name).names)).coalesce(1)  # a task, and a file
        self.append(one, table, app, version)

    def _append_in_jvm(
        self,
        spark: SparkSession,
        rows: pa.Table,
        table: SparkTable,
        app: str,
        version: int,
        confirm: Callable[[], object],
    ) -> bool:
        """False if Spark has to write them (`jvm_transaction`)."""
        done = _unless_altered(
            lambda: self._transactions.append(spark, table.place, rows, table.name, app, version, confirm)
        )
        if done:
            table.flush()
        return done

    def append(self, rows: DataFrame, table: SparkTable, app: str | None, version: int) -> None:
        """Spark's idempotent write (https://docs.delta.io/latest/delta-streaming.html, txnAppId, txnVersion).

        SQL cannot read these back, so they are repeated in userMetadata, see `last_version`. Raises StorageError if the
        table may have expired what would tell whether (app, version) was committed.
        """
        self._transactions.forget(table.name)
        if app is not None and self._committed_before(rows.sparkSession, table, app, version):
            return
        writer = rows.write.format("delta").mode("append")
        if app is not None:
            writer = writer.option("txnAppId", app).option("txnVersion", version)
            writer = writer.option("userMetadata", f"{app} {version}")
        if table.name in MOST_ROWS:
            writer = writer.option("maxRecordsPerFile", MOST_ROWS[table.name])
        if isinstance(table.place, CatalogName):
            _unless_altered(lambda: writer.saveAsTable(str(table.place)))
        else:
            _unless_altered(lambda: writer.save(str(table.place)))
        table.flush()

    def _committed_before(self, spark: SparkSession, table: SparkTable, app: str, version: int) -> bool:
        """True if Spark would append (app, version) again: it was committed, and the table may have expired that.

        Raises StorageError if that is unknown.
        """
        if FORGETS not in spark_log.properties(spark, table.in_sql):
            return False
        last = self.last_version(spark, table, app)
        if last is None:
            raise forgotten(str(table.place), table.in_sql)
        return last >= version

    def newest(self, spark: SparkSession, table: SparkTable) -> int | None:
        """The table's newest version; None if it does not exist."""
        found = self._newest(spark, table)
        if found is not None:
            return found.version
        commits = spark_log.history_if_any(spark, table.in_sql, 1)
        return commits[0].version if commits else None

    def table_id(self, spark: SparkSession, table: SparkTable) -> str:
        """Delta's table id: a table recreated in the same place has a different one."""
        found = self._newest(spark, table)
        return spark_log.table_id(spark, table.in_sql) if found is None else found.table_id

    def files(self, spark: SparkSession, table: SparkTable) -> int | None:
        """The number of the table's files; None = only its rows tell."""
        found = self._newest(spark, table)
        return None if found is None else found.files

    def _newest(self, spark: SparkSession, table: SparkTable) -> Newest | None:
        """As Delta's snapshot in the JVM has it: SQL takes two Spark jobs to tell, and tells of a missing table."""
        from pyspark.errors import AnalysisException

        try:
            return self._transactions.newest(spark, table.place)
        except AnalysisException:
            return None

    def contents(
        self, spark: SparkSession, table: SparkTable, chosen: Callable[[DataFile], object], most: int
    ) -> list[bytes] | None:
        """The contents of the table's ``chosen`` data files; None if only Spark can read them (`jvm_transaction`)."""
        return self._transactions.contents(spark, table.place, table.name, chosen, most)

    def last_version(self, spark: SparkSession, table: SparkTable, app: str) -> int | None:
        """The last version that an application has committed; None if none.

        Where only Spark reads the log, and Delta itself cannot be asked (on Databricks, with Spark Connect): none
        recently.
        """
        if table.log is not None:  # delta-rs may have written the table before Spark did
            return table.log().versions([app])[app]
        last = self._transactions.last_version(spark, table.place, app)
        if last is not None:
            return last if last >= 0 else None
        notes = [commit.note for commit in spark_log.history(spark, table.in_sql, _RECENT)]
        found = [note.rpartition(" ") for note in notes if note is not None]
        return max((int(version) for who, _, version in found if who == app), default=None)


def _unless_altered(append: Callable[[], _Done]) -> _Done:
    """Append, and again if properties of the table were changed meanwhile: nothing was appended then.

    `maintain` and `erase` change some, and Delta takes any for a conflict.
    """
    for _ in range(_TRIES - 1):
        try:
            return append()
        except Exception as error:  # noqa: PERF203 - a commit takes a tenth of a second
            if _ALTERED not in str(error):
                raise
    return append()
