"""What else a catalog's schema has: two topics of one name's hash, views, tables of other formats."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from checkback.errors import StorageError
from checkback.storage.catalog_names import table_name
from checkback.storage.tables import Tables

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SCHEMA = "catalog_topics_test"
#: found among half a million spellings of one name: ten digits are 40 bits
SAME_HASH = ("cusToMer-oRderS-paYmeNtS-ACcOUNTs-eVEnTS", "cUSTOMeR-orders-pAYmeNts-AccoUNTS-EVENTs")


@pytest.fixture
def tables(spark: SparkSession, tmp_path: Path) -> Iterator[Tables]:
    spark.sql(f"CREATE SCHEMA spark_catalog.{SCHEMA}")
    try:
        yield Tables(catalog="spark_catalog", schema=SCHEMA, checkpoints=str(tmp_path))
    finally:
        spark.sql(f"DROP SCHEMA spark_catalog.{SCHEMA} CASCADE")


def test_a_topic_gets_no_other_topic_s_table(spark: SparkSession, tables: Tables) -> None:
    """Messages of both in one table would be read as each one's."""
    first, second = (f"topics/{topic}" for topic in SAME_HASH)
    assert table_name(first) == table_name(second)
    for _ in range(2):
        tables.create(spark, first)
    with pytest.raises(StorageError, match=f"{SAME_HASH[1]} and {SAME_HASH[0]} have the same hash"):
        tables.create(spark, second)
    assert tables.topics(spark) == [first]


def test_a_view_or_another_format_s_table_is_none_of_ours(spark: SparkSession, tables: Tables) -> None:
    """`maintain` asks of each whether it exists, and ended at such a one."""
    tables.create(spark, "topics/orders")
    spark.sql(f"CREATE VIEW spark_catalog.{SCHEMA}.topic_latest AS SELECT 1 AS n")
    spark.sql(f"CREATE TABLE spark_catalog.{SCHEMA}.topic_raw (n INT) USING parquet")
    there = [name for name in tables.topics(spark) if tables.exists(spark, name)]
    assert there == ["topics/orders"]
