"""The rows of all topics' tables as one DataFrame, however many topics there are.

Spark needs a third of a second to read the log of one table, and planning a union of a thousand takes far too long.
Therefore the files of small tables in local folders, which delta-rs lists in milliseconds, are read in one scan.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from checkback.storage.dataframes import union
from checkback.storage.schemas import TOPIC_PREFIX
from checkback.storage.spark_schemas import TOPIC

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

    from checkback.storage.tables import Tables

#: A table with more files is read as a Delta table: reading its log then costs little beside reading its rows.
_FEW_FILES = 16
#: Characters that Spark interprets as a glob in a path.
_PATTERN = re.compile(r"[*?\[\]{}\\]")


def read_topics(spark: SparkSession, tables: Tables, versions: Mapping[str, int]) -> DataFrame:
    """The rows of topics' tables, each at the version that ``versions`` has for its name.

    The columns of TOPIC, and ``topic``, the name as the table spells it. Raises StorageError.
    """
    files: list[str] = []
    parts = []
    for name, version in versions.items():
        plain = tables.log(name).files.plain(version) if tables.by_files and not _PATTERN.search(tables.root) else None
        if plain is not None and len(plain) <= _FEW_FILES:
            files += plain
        else:
            topic = F.lit(name.removeprefix(TOPIC_PREFIX))
            parts.append(tables.read(spark, name, version).select(*TOPIC.names, topic.alias("topic")))
    if files:
        # No partition discovery: a parent folder may contain "=".
        scan = spark.read.schema(TOPIC).option("recursiveFileLookup", "true").parquet(*files)
        folder = F.url_decode(F.element_at(F.split("_metadata.file_path", "/"), -2))
        parts.append(scan.select(*TOPIC.names, folder.alias("topic")))
    return union(parts or [spark.createDataFrame([], TOPIC).select("*", F.lit("").alias("topic"))])
