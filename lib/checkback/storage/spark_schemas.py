"""Schemas of the tables as Spark's StructTypes, with the columns' comments, and what is read of a table by them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

from checkback.storage.schemas import arrow_schema, delta_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def schema_of(name: str) -> StructType:
    """A table's schema by name: one of SCHEMAS, or ``topics/<topic>``."""
    return StructType.fromJson(json.loads(delta_schema(name)))


HALF = schema_of("half")
OP = schema_of("op")
TOPIC = schema_of("topics/")
DECISIONS = schema_of("decisions")
DELIVERIES = schema_of("deliveries")
DISCARDED = schema_of("discarded")
CHECK_REQUESTS = schema_of("check_requests")
UNPUBLISHED = schema_of("unpublished")


def own_columns(rows: DataFrame, name: str) -> DataFrame:
    """The rows without columns that somebody has added, whose names a query may use for something else."""
    there, names = rows.columns, arrow_schema(name).names
    own = [column for column in there if column in names]
    return rows.select(*own) if len(own) < len(there) else rows
