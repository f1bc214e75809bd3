"""The topics whose tables a catalog has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from checkback.errors import StorageError
from checkback.storage.catalog_names import TABLE_PREFIX, TOPIC_PROPERTY, is_plain, table_name
from checkback.storage.log import spark_log
from checkback.storage.own_failure import own_failure
from checkback.storage.schemas import TOPIC_PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession


def topics_of(spark: SparkSession, catalog: str, schema: str, half: Callable[[], DataFrame]) -> list[str]:
    """The topics; ``half``: reads that table, if a topic table's own properties cannot be read. Raises StorageError."""
    place = ".".join(map(spark_log.quoted, (catalog, schema)))
    tables = spark_log.names(spark, place, TABLE_PREFIX)
    return [_topic(spark, spark_log.CatalogName(catalog, schema, table), half) for table in tables]


def _topic(spark: SparkSession, name: spark_log.CatalogName, half: Callable[[], DataFrame]) -> str:
    topic = name.table.removeprefix(TABLE_PREFIX)
    if is_plain(topic):
        return topic
    try:
        return spark_log.properties(spark, str(name)).get(TOPIC_PROPERTY, topic)
    except Exception as error:  # noqa: BLE001 - re-raised unless the table's own
        return _topic_of_half(name, half(), own_failure(error))


def _topic_of_half(name: spark_log.CatalogName, half: DataFrame, fault: str) -> str:
    """The topic of a table whose properties cannot be read, found among those of `half`.

    Without it its messages would seem to be unpublished. Raises StorageError if no topic of `half` has the table.
    """
    topics = half.select("real_topic").dropna().distinct().collect()
    found = [topic for (topic,) in topics if table_name(TOPIC_PREFIX + topic) == name.table]
    if len(found) != 1:
        fix = "put its log back; if the table is none of Checkback's, rename it"
        raise StorageError(f"nobody knows which topic's table it is: {fault}", str(name), fix)
    return str(found[0])
