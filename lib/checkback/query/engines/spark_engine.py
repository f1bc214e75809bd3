"""The questions on Spark: for notebooks, and for tables in a catalog."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import Window
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf

from checkback.errors import SettingsError, StorageError, one_line
from checkback.query.engines.engine import PARAMETER, TOO_LONG_AGO, tables_in
from checkback.query.engines.rejected_names import NAMES, REJECTED_NAMES, rejected_names
from checkback.storage.dataframes import frame
from checkback.storage.horizon import horizon
from checkback.storage.log.commit_reader import Added, CommitReader, added_by
from checkback.storage.spark_schemas import schema_of
from checkback.storage.table_scan import read_table, read_topics
from checkback.storage.valid_texts import NOT_TRIED, python_values

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from checkback.query.engines.engine import Value, Versions
    from checkback.storage.log.snapshot_files import Span
    from checkback.storage.tables import Tables

_ALL = 10_000_000
#: What DuckDB has macros for, and Spark no functions: the error of a check's attempt that was made, the last one first.
_SPARK = {
    "hash64(": "xxhash64(",
    "no_text()": "CAST(array() AS ARRAY<STRING>)",
    "first_error(a.error, a.failed_tries)": "get(filter(concat(array(a.error), "
    f"transform(coalesce(a.failed_tries, array()), one -> one.error)), text -> text NOT LIKE '{NOT_TRIED}%'), 0)",
}
_ACTIONS = (
    "add STRUCT<path: STRING, dataChange: BOOLEAN>, commitInfo STRUCT<timestamp: BIGINT, inCommitTimestamp: BIGINT>"
)


@dataclass(frozen=True)
class History:
    """Versions of a table, with their commit times (ms)."""

    times: Mapping[int, int]

    @property
    def oldest(self) -> int:
        """The first."""
        return min(self.times)

    @property
    def newest(self) -> int:
        """The last."""
        return max(self.times)

    def made_at(self, version: int) -> int:
        """When it was committed (ms)."""
        return self.times[version]


@dataclass(frozen=True)
class SparkEngine:
    """An `engine.Engine` whose rows are DataFrames."""

    spark: SparkSession
    tables: Tables

    @property
    def session(self) -> SparkSession:
        """The session."""
        return self.spark

    def exists(self, name: str) -> bool:
        """True if the table exists."""
        return self.tables.exists(self.spark, name)

    def topics(self) -> list[str]:
        """Names of the topics' tables."""
        found = self.tables.topics(self.spark)
        return list(filter(self._is_topic, found)) if self.tables.by_files else found

    def _is_topic(self, name: str) -> bool:
        try:
            return self.tables.log(name).is_topic()
        except StorageError:  # told to whoever reads it
            return True

    def look(self, *_: Collection[str]) -> Mapping[str, int | None]:
        """Nothing."""
        return {}

    def versions(self, name: str) -> Versions | None:
        """See Engine."""
        if self.tables.by_files:
            return CommitReader.of(self.tables.location(name))
        history = self.tables.history(self.spark, name, _ALL)
        return History(history) if history else None

    def newest(self, name: str) -> int | None:
        """See Engine."""
        if self.tables.by_files:
            versions = self.versions(name)
            return None if versions is None else versions.newest
        return self.tables.newest(self.spark, name)

    def read(
        self,
        name: str,
        version: int | None = None,
        where: str | None = None,
        *,
        file: bool = False,
        within: Span | None = None,  # noqa: ARG002 - Spark skips files by the condition
    ) -> DataFrame:
        """See Engine."""
        rows = self._delta(name, version) if file else self._rows(name, version)
        rows = rows if where is None else rows.alias("rows").where(where)
        if not file:
            return whole_columns(rows, name)
        path = F.element_at(F.split("_metadata.file_path", "/"), -1)
        return whole_columns(rows.select("*", path.alias("_file")), name, "_file").drop("body")

    def _rows(self, name: str, version: int | None) -> DataFrame:
        with suppress(AnalysisException):  # a file is gone: Delta says why
            rows = read_table(self.spark, self.tables, name, version)
            if rows.columns:  # with Spark Connect nothing has been looked for before
                return rows
        return self._delta(name, version)

    def _delta(self, name: str, version: int | None) -> DataFrame:
        try:
            return self.tables.read(self.spark, name, version)
        except AnalysisException as error:
            if "DELETED_FILE_RETENTION" not in (error.getCondition() or ""):
                raise
            # Delta refuses versions whose files VACUUM may have deleted.
            place = self.tables.location(name)
            raise SettingsError(f"is too long ago: {one_line(error)}", place, TOO_LONG_AGO) from error

    def empty(self, name: str, *, file: bool = False) -> DataFrame:
        """See Engine."""
        rows = self.spark.createDataFrame([], schema_of(name))
        return rows.withColumn("_file", F.lit(None).cast("string")).drop("body") if file else rows

    def read_topics(
        self,
        versions: Mapping[str, int | None],
        where: str | None = None,
        within: Span | None = None,  # noqa: ARG002 - as `read`
        *,
        file: bool = False,
    ) -> DataFrame:
        """See Engine."""
        rows = read_topics(self.spark, self.tables, versions, file=file)
        return rows if where is None else rows.alias("rows").where(where)

    def horizon(self, name: str) -> int | None:
        """See Engine."""
        return horizon(self.spark, self.tables, name)

    def offset_cuts(self, rows: DataFrame, brief: bool) -> list[int]:  # noqa: ARG002 - it shuffles and spills
        """None."""
        return []

    def among(self, rows: DataFrame, key: tuple[str, str], transactions: DataFrame) -> DataFrame:
        """See Engine."""
        queue, offset = (
            F.col(f"s.{name}").eqNullSafe(F.col(f"t.{ours}"))
            for name, ours in zip(key, ("queue_id", "queue_offset"), strict=True)
        )
        return rows.alias("s").join(transactions.alias("t"), queue & offset, "left_semi")

    def keep(self, name: str, rows: pa.Table | DataFrame) -> DataFrame:  # noqa: ARG002 - a DataFrame needs none
        """See Engine."""
        return frame(self.spark, rows) if isinstance(rows, pa.Table) else rows

    def added(self, name: str, files: Collection[str]) -> Mapping[str, Added]:
        """See Engine."""
        if self.tables.readable:
            return added_by(self.tables.location(name), files)
        return self._added_in_catalog(name, files)

    def _added_in_catalog(self, name: str, files: Collection[str]) -> Mapping[str, Added]:
        """By a Spark job over the log's files; nothing if the catalog does not reveal the folder."""
        location = self.tables.location(name)
        try:
            row = None if self.tables.local else self.spark.sql(f"DESCRIBE DETAIL {self.tables.in_sql(name)}").first()
        except Exception as error:
            raise StorageError("the table cannot be read", location) from error
        if row is None or not row["location"]:
            return {}
        commits = self.spark.read.schema(_ACTIONS).json(f"{row['location']}/_delta_log/[0-9]*.json")
        version = F.regexp_extract("_metadata.file_path", r"([0-9]{20})\.json$", 1).cast("bigint")
        times = F.coalesce("commitInfo.inCommitTimestamp", "commitInfo.timestamp")
        actions = commits.select(
            version.alias("version"), "add", times.alias("at")
        )  # no window takes an alias of its SELECT
        found = actions.select(
            "version",
            F.max("at").over(Window.partitionBy("version")).alias("committed"),
            F.element_at(F.split("add.path", "/"), -1).alias("file"),
            F.coalesce("add.dataChange", F.lit(True)).alias("exact"),
        ).where(F.col("file").isin(list(files)))
        return {row["file"]: Added(row["version"], row["exact"], row["committed"]) for row in found.collect()}

    def select(self, text: str, tables: Mapping[str, DataFrame]) -> DataFrame:
        """See Engine."""
        return self.query(text, tables, {})

    def query(self, text: str, tables: Mapping[str, DataFrame], values: Mapping[str, Value]) -> DataFrame:
        """See Engine."""
        for ours, theirs in _SPARK.items():
            text = text.replace(ours, theirs)
        if f"{REJECTED_NAMES}(" in text:
            self.spark.udf.register(REJECTED_NAMES, arrow_udf(rejected_names, NAMES))  # type: ignore[call-overload]
        text = PARAMETER.sub(lambda match: _literal(values[match[1]]), text)
        return self.spark.sql(text, None, **{name: tables[name] for name in tables_in(text)})

    def arrow(self, rows: DataFrame) -> pa.Table:
        """See Engine."""
        return python_values(rows.toArrow())


def _literal(value: Value) -> str:
    """A value in SQL. Spark 4.2 does not bind the parameters of a query with nested WITHs."""
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return f"decode(X'{value.encode(errors='replace').hex()}', 'UTF-8')"  # whatever it contains
    return f"CAST({value} AS BIGINT)" if isinstance(value, int) else f"CAST('{value!r}' AS DOUBLE)"


def whole_columns(rows: DataFrame, name: str, *more: str) -> DataFrame:
    """The rows in the table's own columns, in their order, and ``more``."""
    return rows.select(*schema_of(name).names, *more)
