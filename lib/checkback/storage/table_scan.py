"""The rows of tables without a Delta scan of each, where their files tell the same.

Spark needs a third of a second and some jobs to read the log of one table, and planning a union of a thousand takes far
too long. Therefore the files of small tables, which delta-rs lists in milliseconds, are read as Parquet; those of all
topics in one scan.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from checkback.errors import StorageError
from checkback.storage.dataframes import frame, union
from checkback.storage.files.paths import for_spark
from checkback.storage.schemas import TOPIC_PREFIX, arrow_schema
from checkback.storage.spark_schemas import TOPIC, schema_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from checkback.storage.tables import Tables

#: A table with more files is read as a Delta table: reading its log then costs little beside reading its rows.
_FEW_FILES = 16
#: Characters that Spark interprets as a glob in a path.
_PATTERN = re.compile(r"[*?\[\]{}\\]")


def read_table(spark: SparkSession, tables: Tables, name: str, version: int | None = None) -> DataFrame:
    """The rows that the table has now, or at ``version``; without files no job reads it.

    Unlike `Tables.read` the DataFrame never has rows that are committed after this call. Raises StorageError.
    """
    with suppress(StorageError):  # a log that only Spark can read
        files = _few_files(tables, name, version)
        if files:
            return _scan(spark, schema_of(name), files)
        if files is not None:
            return frame(spark, arrow_schema(name).empty_table())
    return tables.read(spark, name, version)


def read_topics(
    spark: SparkSession,
    tables: Tables,
    versions: Mapping[str, int | None],
    columns: Sequence[str] = tuple(TOPIC.names),
    *,
    file: bool = False,
) -> DataFrame:
    """The rows of topics' tables, each at the version that ``versions`` has for its name; None = as it is now.

    These ``columns`` of TOPIC, and ``topic``, the name as the table spells it; ``file``: and `_file`, the name of the
    file that contains the row. Raises StorageError.
    """
    path = F.split("_metadata.file_path", "/")
    more = [F.element_at(path, -1).alias("_file")] if file else []
    files: list[str] = []
    parts = []
    for name, version in versions.items():
        few = _few_files(tables, name, version)
        if few is not None:
            files += few
        else:
            topic = F.lit(name.removeprefix(TOPIC_PREFIX))
            parts.append(tables.read(spark, name, version).select(*columns, *more, topic.alias("topic")))
    if files:
        folder = F.url_decode(F.element_at(path, -2))
        parts.append(_scan(spark, TOPIC, files).select(*columns, *more, folder.alias("topic")))
    if not parts:
        nothing = [F.lit("").alias(name) for name in (*(["_file"] if file else []), "topic")]
        parts = [frame(spark, arrow_schema(TOPIC_PREFIX).empty_table()).select(*columns, *nothing)]
    return union(parts)


def _few_files(tables: Tables, name: str, version: int | None) -> list[str] | None:
    """The files that, read as Parquet, yield the table's rows; None = it must be read as a Delta table."""
    if not tables.by_files or _PATTERN.search(tables.root):
        return None
    log = tables.log(name)
    files = log.files.plain(log.refresh() if version is None else version)
    return files if files is not None and len(files) <= _FEW_FILES else None


def _scan(spark: SparkSession, schema: StructType, files: list[str]) -> DataFrame:
    # No partition discovery: a parent folder may contain "=".
    return spark.read.schema(schema).option("recursiveFileLookup", "true").parquet(*map(for_spark, files))
