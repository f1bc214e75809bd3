"""Schemas of the tables as Spark's StructTypes, with the columns' comments."""

from __future__ import annotations

import json

from pyspark.sql.types import StructType

from checkback.storage.schemas import delta_schema


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
