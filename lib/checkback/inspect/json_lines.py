"""Rows as lines of JSON, as the commands print them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Spark writes the JSON: a timestamp collected to Python would be in the local time zone.
_OPTIONS = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSXXX", "timeZone": "UTC", "ignoreNullFields": "false"}


def json_lines(rows: DataFrame) -> DataFrame:
    """One column `line`: each row as a JSON object; timestamps are UTC, ISO 8601, milliseconds."""
    return rows.select(F.to_json(F.struct(*rows.columns), _OPTIONS).alias("line"))
