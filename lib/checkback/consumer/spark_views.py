"""Topics as views for SQL (docs/consumer.md)."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from checkback.errors import StorageError
from checkback.storage.catalog_names import TABLE_PREFIX, table_name
from checkback.storage.log.spark_log import quoted
from checkback.storage.schemas import TOPIC_PREFIX
from checkback.storage.tables import Tables

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import SparkSession

    from checkback.settings import Settings

_BATCHES = "batches"


def create_views(spark: SparkSession, settings: Settings, database: str | None = None) -> dict[str, str]:
    """Create or replace a view of each topic that has a table; by topic the view's name as SQL takes it.

    ``database``: None = temporary views of this session, named as the topics; otherwise lasting views in this schema
    (``schema`` or ``catalog.schema``), which is created if it does not exist. Their names: `view_names`. Columns: those
    of ``topics/<topic>`` (docs/tables.md), and ``body_text`` (string): the body if it is UTF-8, else null.

    A view shows the messages of batches that have their row in `batches`, at the time of each query, and reads that
    table for it. A topic that comes later has a view after the next call. Raises StorageError if there is no table
    `batches`.
    """
    tables = Tables.of(settings.storage)
    if not tables.exists(spark, _BATCHES):
        raise StorageError("there is no such table", tables.location(_BATCHES), "run `checkback reconcile` first")
    place, kind = "", "TEMPORARY VIEW"
    if database is not None:
        schema = ".".join(quoted(part) for part in database.split("."))
        if not spark.catalog.databaseExists(schema):
            spark.sql(f"CREATE SCHEMA IF NOT EXISTS {schema}")
        place, kind = f"{schema}.", "VIEW"
    topics = [name.removeprefix(TOPIC_PREFIX) for name in tables.topics(spark)]
    made = {}
    for topic, name in view_names(topics, lasting=database is not None).items():
        made[topic] = place + quoted(name)
        body = _select(tables.in_sql(TOPIC_PREFIX + topic), tables.in_sql(_BATCHES))
        spark.sql(f"CREATE OR REPLACE {kind} {made[topic]} AS {body}")
    return made


def view_names(topics: Iterable[str], lasting: bool) -> dict[str, str]:
    """The views' names by topic; unique if case is ignored, as Spark does.

    Temporary: the topic, except for topics that differ in case only, or have ``__``. Those, and names of ``lasting``
    views, have the form of tables in a catalog (`catalog_names`) without the prefix: of lower-case letters, digits and
    underscores. Two such names differ, and all but plain topics' have ``__``.
    """
    topics = list(topics)
    alike = Counter(topic.casefold() for topic in topics)
    return {
        topic: table_name(TOPIC_PREFIX + topic).removeprefix(TABLE_PREFIX)
        if lasting or alike[topic.casefold()] > 1 or "__" in topic
        else topic
        for topic in topics
    }


def _select(topic: str, batches: str) -> str:
    """The query of a view; both are identifiers in SQL."""
    return f"""
        SELECT message.*, try_validate_utf8(CAST(message.body AS STRING)) AS body_text
        FROM {topic} AS message
        WHERE EXISTS (
            SELECT 1 FROM {batches} AS whole
            WHERE whole.batch_id = message.batch_id AND whole.batch_time = message.committed_at
        )"""  # noqa: S608 - quoted names
