"""Converts rows of `half` and `op` to the integers of EVENT records with Spark columns: no string reaches Python."""

from __future__ import annotations

from functools import reduce
from operator import and_
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from checkback.messages.limits import MS_MAX
from checkback.reconcile.records.segment_records import LONGEST_DELAY, NOT_STATED, Kind

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def identity_columns() -> tuple[Column, Column]:
    """The 64-bit hashes of producer_group and transaction_id that segments compare.

    A group whose name collides with another's could end that group's transactions. xxhash64 alone is no protection: a
    colliding name can be computed. Of the name's SHA-1 in hexadecimal finding one takes about 2^64 attempts.
    Transaction ids are only compared within a group: a producer that forges a collision harms only itself.
    """
    group, stated = F.xxhash64(F.sha1("producer_group")), F.xxhash64("transaction_id")
    transaction = F.when(F.col("transaction_id").isNull(), F.lit(NOT_STATED)).otherwise(
        F.when(stated == NOT_STATED, F.lit(~NOT_STATED)).otherwise(stated)
    )
    return group.alias("group_hash"), transaction.cast("bigint").alias("transaction_hash")


def is_cancel() -> Column:
    """True for a row of `op` that cancels a scheduled message: of an operator, or of its producer."""
    found = (F.col("state") == "CANCEL") & F.col("source").isin("operator", "producer")
    return F.coalesce(found, F.lit(False))


def store_us() -> Column:
    """store_timestamp in microseconds: with the offset it identifies a row of `half`."""
    return F.coalesce(F.unix_micros("store_timestamp"), F.lit(0)).alias("store_us")


def _has_place() -> Column:
    """True if queue id and offset are valid."""
    return (F.col("queue_id") >= 0) & (F.col("queue_offset") >= 0)


def half_events(half: DataFrame) -> DataFrame:
    """Rows of `half` as EVENT_COLUMNS.

    Skips invalid rows, which only another writer can have appended: queue id or offset null or negative, or without
    transaction id, group or topic. They can be neither checked nor published.
    """
    group, transaction = identity_columns()
    named = [F.col(name).isNotNull() for name in ("transaction_id", "producer_group", "real_topic")]
    return half.where(reduce(and_, named, _has_place())).select(
        "queue_id",
        F.col("queue_offset").alias("offset"),
        F.when(F.col("committed"), int(Kind.MESSAGE)).otherwise(int(Kind.HALF)).cast("tinyint").alias("kind"),
        F.lit(0).cast("tinyint").alias("source"),
        F.coalesce(F.unix_millis("born_timestamp"), F.unix_millis("store_timestamp"), F.lit(0)).alias("born"),
        store_us().alias("store"),
        F.coalesce(F.col("check_immunity_s").cast("bigint") * 1000, F.lit(-1)).alias("immunity"),
        group.alias("group"),
        transaction.alias("transaction"),
        delay_column().alias("delay"),
        F.lit(-1).alias("check"),
    )


def delay_column() -> Column:
    """The field delay of an EVENT. Within limits, so that no sum overflows: another writer may have set none."""
    # Never before its time: rounded up to ms. A time before 1970 is past, as 1 is. least and greatest skip nulls.
    at = F.greatest(F.expr(f"(least(unix_micros(deliver_at), {MS_MAX * 1000}) + 999) div 1000"), F.lit(1))
    after = -F.least(F.greatest("delay_ms", F.lit(0)), F.lit(LONGEST_DELAY))
    return F.when(F.col("deliver_at").isNotNull(), at).otherwise(after).cast("bigint")


def op_events(op: DataFrame) -> DataFrame:
    """Rows of `op` as EVENT_COLUMNS.

    COUNTED is only accepted from the check query. Skips invalid rows, which only another writer can have appended:
    queue id or offset null or negative, or without group.
    """
    group, transaction = identity_columns()
    counted = (F.col("source") == "check") & (F.col("state") == "COUNTED")
    kind = F.when(F.col("state") == "ROLLBACK", int(Kind.ROLLBACK)).when(F.col("state") == "COMMIT", int(Kind.COMMIT))
    kind = kind.when(counted, int(Kind.COUNTED)).when(is_cancel(), int(Kind.CANCEL)).otherwise(int(Kind.UNKNOWN))
    source = F.when(F.col("source") == "check", 1).when(F.col("source") == "operator", 2).otherwise(0)
    number = F.regexp_extract("remark", "^check ([0-9]{1,9})$", 1).try_cast("int")
    check = F.when((source == 1) & (kind != int(Kind.UNKNOWN)), number)
    return op.where(_has_place() & F.col("producer_group").isNotNull()).select(
        "queue_id",
        F.col("queue_offset").alias("offset"),
        kind.cast("tinyint").alias("kind"),
        source.cast("tinyint").alias("source"),
        F.coalesce(F.unix_millis("born_timestamp"), F.unix_millis("store_timestamp"), F.lit(0)).alias("born"),
        store_us().alias("store"),
        F.lit(-1).cast("bigint").alias("immunity"),
        group.alias("group"),
        transaction.alias("transaction"),
        F.lit(0).cast("bigint").alias("delay"),
        F.coalesce(check, F.lit(-1)).alias("check"),
    )
