"""Topics' tables in a catalog: their names, and which there are.

A catalog ignores case and allows fewer characters in names than RocketMQ does in topics.
A topic of lower-case letters, digits and single underscores is ``topic_<topic>``. In any other, invalid characters
become underscores, and ``__`` with ten digits of the topic's SHA-256 is appended: `Orders`, `orders` and `orders-` are
three tables, ``topic_orders__b7e8acdd52``, ``topic_orders`` and ``topic_orders___3cd3259874``. Such a table stores its
topic in the property ``checkback.topic``.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

from checkback.errors import StorageError
from checkback.storage.failure_scope import own_failure
from checkback.storage.log import spark_log
from checkback.storage.schemas import TOPIC_PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import DataFrame, SparkSession


#: prefix of topic tables' names
TABLE_PREFIX = "topic_"
#: property of a topic table: the topic's exact name
TOPIC_PROPERTY = "checkback.topic"
_PLAIN = re.compile(r"(?!.*__)[a-z0-9_]+")
_OTHER = re.compile(r"[^a-z0-9_]")
#: maximum length of the topic part, for the catalogs' limits (Hive: 128)
_LENGTH = 100


def table_name(name: str) -> str:
    """The catalog name of the table ``name``: one of SCHEMAS, or ``topics/<topic>``."""
    if not name.startswith(TOPIC_PREFIX):
        return name
    topic = name.removeprefix(TOPIC_PREFIX)
    if is_plain(topic):
        return TABLE_PREFIX + topic
    digits = hashlib.sha256(topic.encode()).hexdigest()[:10]
    return f"{TABLE_PREFIX}{_OTHER.sub('_', topic.lower())[:_LENGTH]}__{digits}"


def is_plain(topic: str) -> bool:
    """True if the topic table's name is TABLE_PREFIX and the unchanged topic."""
    return len(topic) <= _LENGTH and _PLAIN.fullmatch(topic) is not None


def whose_folder(topic: str, listed: Iterable[str]) -> str | None:
    """The topic that owns the folder to which ``topic`` resolves; None if there is no such folder.

    ``listed``: the folder names as listed. On a case-insensitive file system `Orders` resolves to a folder listed as
    `orders`; it belongs to the topic that came first.
    """
    names = set(listed)
    if topic in names:
        return topic
    return min((name for name in names if name.casefold() == topic.casefold()), default=None)


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
