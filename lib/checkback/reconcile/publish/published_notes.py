"""Notes of what was published late, stored with the table `unpublished`: the last batch by application and topic.

The topic table's transaction versions tell the same, but it may be moved away and recreated. In local folders and
object stores a note is a Delta transaction identifier. SQL cannot read these: elsewhere, and if delta-rs may not commit
to `unpublished`, it is a property of that table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from checkback.reconcile.publish.unpublished import TABLE
from checkback.storage.dataframes import frame
from checkback.storage.log import spark_log

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from checkback.storage.tables import Tables

#: a topic, and the application that left its messages unpublished
Key = tuple[str, str]


def note(spark: SparkSession, tables: Tables, published: Mapping[Key, int]) -> None:
    """Store that the rows of `unpublished` up to these batches are published, in one commit without rows.

    No other process may append to the table meanwhile. Raises FencedError, StorageError.
    """
    if not published:
        return
    if tables.readable and tables.log(TABLE).appendable():
        log, versions = tables.log(TABLE), {_app(key): last for key, last in published.items()}
        found = log.versions(versions)
        if found != versions:
            log.commit_after([], found, versions)
    else:
        tables.refuse_spark(TABLE)
        properties = {_property(key): str(last) for key, last in published.items()}
        spark_log.set_properties(spark, tables.in_sql(TABLE), properties)


def read_notes(spark: SparkSession, tables: Tables, rows: DataFrame) -> dict[Key, int]:
    """The last published batch, by topic and application, of the rows of `unpublished`. Raises StorageError."""
    pairs = rows.select("real_topic", "application").where("real_topic IS NOT NULL AND application IS NOT NULL")
    return notes_of(spark, tables, [(row[0], row[1]) for row in pairs.distinct().collect()])


def notes_of(spark: SparkSession | None, tables: Tables, keys: Sequence[Key]) -> dict[Key, int]:
    """The last published batch of these. ``spark``: needed if only Spark can read the logs. Raises StorageError."""
    versions: dict[str, int | None] = {}
    if tables.readable or spark is None:
        log = tables.log(TABLE)
        versions, properties = log.versions(map(_app, keys)), log.properties()
    else:
        properties = spark_log.properties(spark, tables.in_sql(TABLE))
    found: dict[Key, int] = {}
    for key in keys:
        # There are both if delta-rs temporarily could not commit to the table.
        both = versions.get(_app(key)), properties.get(_property(key))
        last = max((int(one) for one in both if one is not None), default=None)
        if last is not None:
            found[key] = last
    return found


def waits(spark: SparkSession | None, tables: Tables, rows: pa.Table) -> pa.Array:
    """Mask of the rows of `unpublished` that wait there. Columns: real_topic, application, batch_id.

    ``spark``: needed if only Spark can read the logs. Raises StorageError.
    """
    whose = list(
        zip(*(rows.column(name).to_pylist() for name in ("real_topic", "application", "batch_id")), strict=True)
    )
    keys = sorted({(topic, application) for topic, application, _ in whose if None not in (topic, application)})
    notes = notes_of(spark, tables, keys) if keys else {}
    return pa.array([batch is None or batch > notes.get((topic, app), -1) for topic, app, batch in whose], pa.bool_())


def without_noted(rows: DataFrame, notes: Mapping[Key, int]) -> DataFrame:
    """The rows of `unpublished` that are not noted as published."""
    if not notes:
        return rows
    from pyspark.sql import functions as F

    topics, applications = zip(*notes, strict=True)
    last = pa.table({"real_topic": topics, "application": applications, "_last": pa.array(notes.values(), pa.int64())})
    noted = F.broadcast(frame(rows.sparkSession, last))
    left = rows.join(noted, on=["real_topic", "application"], how="left")
    return left.where("_last IS NULL OR batch_id > _last").select(*rows.columns)


def _app(key: Key) -> str:
    topic, application = key
    return f"published/{application}/{topic}"


def _property(key: Key) -> str:
    topic, application = key
    return f"checkback.published.{application}/{topic}"
