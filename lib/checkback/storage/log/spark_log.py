"""A Delta table's log through Spark: SQL only, which is the same for paths, catalogs and Spark Connect.

``table`` is a table identifier in SQL: a quoted name, or delta.`<path>`. Delta's Python API (DeltaTable) accepts no
three-level names outside Databricks, and on Spark Connect it needs a server plugin besides Delta itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeVar

from checkback.errors import StorageError
from checkback.storage.log.compatibility import refuse_format
from checkback.storage.schemas import FORMAT_PROPERTY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession

_Told = TypeVar("_Told")
#: Spark's and Delta's error conditions for a missing table; a view, or a table of another format, is none of ours
_MISSING = frozenset(
    {
        "DELTA_MISSING_DELTA_TABLE",
        "DELTA_ONLY_OPERATION",
        "DELTA_PATH_DOES_NOT_EXIST",
        "DELTA_TABLE_ONLY_OPERATION",
        "DELTA_TABLE_NOT_FOUND",
        "EXPECT_TABLE_NOT_VIEW",
        "PATH_NOT_FOUND",
        "SCHEMA_NOT_FOUND",
        "TABLE_OR_VIEW_NOT_FOUND",
    }
)


class CatalogName(NamedTuple):
    """A table's name in a catalog; as text it is quoted."""

    catalog: str
    schema: str
    table: str

    def __str__(self) -> str:
        """The identifier in SQL."""
        return ".".join(map(quoted, self))


class CommitInfo(NamedTuple):
    """A version of a table, its commit timestamp (ms), and its userMetadata."""

    version: int
    made: int
    note: str | None


def create(spark: SparkSession, table: str, name: str, wanted: Mapping[str, str]) -> dict[str, str]:
    """Create the table ``name`` (`schema_of`) with the properties ``wanted`` if it does not exist; its properties.

    Raises StorageError if that fails, or the table is of another format.
    """
    from pyspark.errors import AnalysisException

    from checkback.storage.spark_schemas import schema_of

    columns = ", ".join(
        f"`{field.name}` {field.dataType.simpleString()} COMMENT {_text(field.metadata.get('comment', ''))}"
        for field in schema_of(name).fields
    )
    statement = f"CREATE TABLE IF NOT EXISTS {table} ({columns}) USING delta {_with(wanted)}"
    try:
        spark.sql(statement)
    except AnalysisException as error:
        lacking = error.getCondition() == "SCHEMA_NOT_FOUND"
        fix = "make the schema first: CREATE SCHEMA" if lacking else ""
        raise StorageError(f"the table cannot be created: {str(error).splitlines()[0]}", table, fix) from error
    found = properties(spark, table)
    refuse_format(found.get(FORMAT_PROPERTY), table)
    return found


def register(spark: SparkSession, table: str, place: str) -> None:
    """Make the Delta table in a folder an external table of a catalog, if this has none of the name."""
    spark.sql(f"CREATE TABLE IF NOT EXISTS {table} USING delta LOCATION {_text(place)}")


def place_of(spark: SparkSession, table: str) -> str:
    """The folder or URI of a catalog's table."""
    return str(spark.sql(f"DESCRIBE DETAIL {table}").select("location").collect()[0][0])


def history_if_any(spark: SparkSession, table: str, commits: int) -> list[CommitInfo] | None:
    """As `history`; None if the table does not exist."""
    return _if_any(lambda: history(spark, table, commits))


def _if_any(look: Callable[[], _Told]) -> _Told | None:
    from pyspark.errors import AnalysisException

    try:
        return look()
    except AnalysisException as error:
        if (error.getCondition() or "").partition(".")[0] in _MISSING:
            return None
        raise


def history(spark: SparkSession, table: str, commits: int) -> list[CommitInfo]:
    """The table's last ``commits`` that are still in its log, newest first."""
    rows = spark.sql(f"DESCRIBE HISTORY {table} LIMIT {commits}")
    rows = rows.selectExpr("version", "unix_millis(timestamp) AS made", "userMetadata")
    return sorted((CommitInfo(*row) for row in rows.collect()), reverse=True)


def table_id(spark: SparkSession, table: str) -> str:
    """Delta's table id: a table recreated in the same place has a different one."""
    return str(spark.sql(f"DESCRIBE DETAIL {table}").select("id").collect()[0][0])


def properties(spark: SparkSession, table: str) -> dict[str, str]:
    """The table's properties."""
    return {row["key"]: row["value"] for row in spark.sql(f"SHOW TBLPROPERTIES {table}").collect()}


def properties_if_any(spark: SparkSession, table: str) -> dict[str, str] | None:
    """As `properties`; None if the table does not exist."""
    return _if_any(lambda: properties(spark, table))


def set_properties(spark: SparkSession, table: str, values: Mapping[str, str]) -> None:
    """Set properties. Concurrent appends fail: Delta treats the change as a metadata conflict."""
    spark.sql(setting(table, values))


def setting(table: str, values: Mapping[str, str]) -> str:
    """The statement of `set_properties`."""
    return f"ALTER TABLE {table} SET {_with(values)}"


def names(spark: SparkSession, schema: str, prefix: str) -> Iterator[str]:
    """Names of the tables, not the session's temporary views, of a schema (quoted, with its catalog), by ``prefix``."""
    # Not LIKE: catalogs differ in what an underscore in the pattern matches.
    found: DataFrame = spark.sql(f"SHOW TABLES IN {schema}")
    tables = (row["tableName"] for row in found.collect() if not row["isTemporary"])
    yield from (name for name in tables if name.startswith(prefix))


def quoted(name: str) -> str:
    """A name or path as a quoted SQL identifier."""
    return "`" + name.replace("`", "``") + "`"


def _with(properties: Mapping[str, str]) -> str:
    return f"TBLPROPERTIES ({', '.join(f'{_text(key)} = {_text(value)}' for key, value in properties.items())})"


def _text(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
