"""Check requests joined with their half messages, for the groups with ``include_body``."""

from __future__ import annotations

from functools import reduce
from operator import and_
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from checkback.check.recorded_answers import KEY
from checkback.check.superseded import offset_ranges
from checkback.storage.dataframes import frame
from checkback.storage.offset_ranges import within
from checkback.storage.spark_schemas import CHECK_REQUESTS, HALF

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from checkback.storage.tables import Tables

#: the columns in which a request and its half message are equal
_SAME_HALF = ["queue_id", "queue_offset", "transaction_id", "producer_group", "real_topic", "born_timestamp"]
_MESSAGE = StructType([HALF[name] for name in ("tags", "keys", "properties", "body")])


def wanting(requests: pa.Table, groups: Sequence[str], resumed: Collection[int]) -> pa.Table:
    """Those of ``requests`` (CHECK_REQUESTS) that want their messages: of the ``groups``, or in ``resumed`` queues."""
    of_group = pc.is_in(requests.column("producer_group"), pa.array(groups, pa.string()))
    return requests.filter(pc.or_(of_group, pc.is_in(requests.column("queue_id"), pa.array(list(resumed), pa.int32()))))


def with_messages(
    spark: SparkSession, tables: Tables, requests: pa.Table, groups: Sequence[str], resumed: Collection[int]
) -> DataFrame:
    """``requests`` (CHECK_REQUESTS) as the input of CheckWorker: identity, born_ms, and ``message``.

    ``message``: a struct of tags, keys, properties and body of the half message for the ``groups`` and in the
    ``resumed`` queues, else null.
    """
    rows = frame(spark, requests)
    identity, born = CHECK_REQUESTS.names[:6], F.unix_millis("born_timestamp").alias("born_ms")
    bare = F.lit(None).cast(_MESSAGE).alias("message")
    wanted = F.col("producer_group").isin(list(groups)) | F.col("queue_id").isin(list(resumed))
    wanted = F.coalesce(wanted, F.lit(False))
    ranges = offset_ranges(wanting(requests, groups, resumed))
    half = tables.read(spark, "half").where(within(ranges, "queue_offset"))
    both = rows.where(~wanted).select("*", bare).unionByName(_join(rows.where(wanted), half))
    return both.select(*identity, born, "message")


def _join(requests: DataFrame, half: DataFrame) -> DataFrame:
    """``requests`` with the ``message`` of their half; one row each, even if it landed several times or is gone."""
    messages = half.select(
        *(F.col(name).alias(f"half_{name}") for name in _SAME_HALF), F.struct(*_MESSAGE.names).alias("message")
    )
    same = reduce(and_, (F.col(name).eqNullSafe(F.col(f"half_{name}")) for name in _SAME_HALF))
    return requests.join(messages, same, "left").dropDuplicates(list(KEY)).select(*requests.columns, "message")
