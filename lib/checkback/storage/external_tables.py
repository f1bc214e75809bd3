"""Tables in folders or an object store as external tables of a catalog: others find them there by name.

Checkback goes by their paths all the same: a catalog's entry is a name and a location, and each commit is in the
table's own log (https://docs.delta.io/latest/delta-batch.html, "Create a table").
"""

from __future__ import annotations

import logging
import os
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING

from checkback.errors import StorageError, reason
from checkback.storage.catalog_names import table_name
from checkback.storage.failure_scope import own_failure
from checkback.storage.files.object_store import canonical
from checkback.storage.files.paths import for_spark, local_path
from checkback.storage.log import spark_log
from checkback.storage.schemas import TOPIC_PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)
_ELSEWHERE = "DROP the tables of this schema, which leaves their rows; or name another one in storage.register"


def register(spark: SparkSession, schema: str, places: Mapping[str, str]) -> None:
    """Make the tables, their location by name, external tables of ``schema`` (``catalog.schema``), which must exist.

    Those that it has stay as they are. Raises StorageError if that fails, or if these are elsewhere, except for the
    table of a topic: its messages are published without.
    """
    place = ".".join(map(spark_log.quoted, schema.split(".")))
    there: set[str] = set()
    if len(places) > 1:
        with _told(schema):
            there = set(spark_log.names(spark, place, ""))
        own = (name for name in places if table_name(name) in there and not name.startswith(TOPIC_PREFIX))
        for name in islice(own, 1):  # whoever reads by name would read those of another storage.root
            with _told(f"{schema}.{table_name(name)}", _ELSEWHERE):
                found = spark_log.place_of(spark, f"{place}.{spark_log.quoted(table_name(name))}")
            if _same(found) != _same(places[name]):
                what = f"is the table in {found}, not {places[name]}"
                raise StorageError(what, f"{schema}.{table_name(name)}", _ELSEWHERE)
    for name, location in places.items():
        table = table_name(name)
        if table in there:
            continue
        try:
            with _told(f"{schema}.{table}"):
                spark_log.register(spark, f"{place}.{spark_log.quoted(table)}", for_spark(location))
        except Exception as error:  # Spark's own, if the table's log is damaged
            if not name.startswith(TOPIC_PREFIX):
                raise
            _log.warning("%s: %s", location, own_failure(error))


def _same(place: str) -> str:
    """One spelling of a location."""
    path = local_path(place)
    return os.path.realpath(path) if path is not None else canonical(place) or place.rstrip("/")


@contextmanager
def _told(where: str, otherwise: str = "let Checkback create tables there") -> Iterator[None]:
    """Raise Spark's errors as StorageError."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        lacking = error.getCondition() == "SCHEMA_NOT_FOUND"
        fix = "make the schema first: CREATE SCHEMA" if lacking else otherwise
        raise StorageError(f"the table cannot be registered: {reason(error)}", where, fix) from error
