"""The rows of the tables that a batch of actions becomes: joins to `half` and `op`, DataFrame in, DataFrame out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from checkback import tables
from checkback.reconcile.segment import NOT_STATED, Action, Reason, Source

if TYPE_CHECKING:
    from checkback.reconcile.summary import Summary

#: most actions whose integers are broadcast to the executors (about 50 bytes each)
MAX_BROADCAST = 4_000_000

DECISIONS = (Action.COMMIT, Action.ROLLBACK, Action.DISCARD)
#: actions that are about a pending half message, and so about one row of `half`
ACTED_ON = (*DECISIONS, Action.CHECK)

_ROW = ["queue_id", "queue_offset", "store_us"]
_ROW_AND_IDENTITY = [*_ROW, "group_hash", "transaction_hash"]

REJECTION = {
    Reason.WRONG_GROUP: "wrong producer_group: not that of the half message",
    Reason.WRONG_TRANSACTION_ID: "wrong transaction_id: not that of the half message",
    Reason.NO_HALF: "no half message with this offset came within transaction.reserved",
    Reason.UNKNOWN_STATE: "unknown state: neither COMMIT nor ROLLBACK",
}


def identity_columns() -> tuple[Column, Column]:
    """The 64-bit hashes of producer_group and transaction_id, as the segments compare them."""
    transaction = F.when(F.col("transaction_id").isNull(), F.lit(NOT_STATED)).otherwise(F.xxhash64("transaction_id"))
    return F.xxhash64("producer_group").alias("group_hash"), transaction.cast("bigint").alias("transaction_hash")


def store_us() -> Column:
    """store_timestamp in microseconds: with the offset it names one row of `half`."""
    return F.coalesce(F.unix_micros("store_timestamp"), F.lit(0)).alias("store_us")


def half_events(half: DataFrame) -> DataFrame:
    """Rows of `half` as EVENT_COLUMNS."""
    group, transaction = identity_columns()
    return half.select(
        "queue_id",
        F.col("queue_offset").alias("offset"),
        F.lit(0).cast("tinyint").alias("kind"),
        F.lit(0).cast("tinyint").alias("source"),
        F.coalesce(F.unix_millis("born_timestamp"), F.unix_millis("store_timestamp"), F.lit(0)).alias("born"),
        store_us().alias("store"),
        F.coalesce(F.col("check_immunity_s").cast("bigint") * 1000, F.lit(-1)).alias("immunity"),
        group.alias("group"),
        transaction.alias("transaction"),
    )


def op_events(op: DataFrame) -> DataFrame:
    """Rows of `op` as EVENT_COLUMNS."""
    group, transaction = identity_columns()
    kind = F.when(F.col("state") == "ROLLBACK", 1).when(F.col("state") == "COMMIT", 2).otherwise(3)
    source = F.when(F.col("source") == "check", 1).when(F.col("source") == "operator", 2).otherwise(0)
    return op.select(
        "queue_id",
        F.col("half_offset").alias("offset"),
        kind.cast("tinyint").alias("kind"),
        source.cast("tinyint").alias("source"),
        F.coalesce(F.unix_millis("born_timestamp"), F.unix_millis("store_timestamp"), F.lit(0)).alias("born"),
        store_us().alias("store"),
        F.lit(-1).cast("bigint").alias("immunity"),
        group.alias("group"),
        transaction.alias("transaction"),
    )


def acted_on(half: DataFrame, actions: DataFrame, summary: Summary) -> DataFrame:
    """The rows of ``half`` that the actions are about, with action, check_times, detail and batch_time.

    One pass serves all tables: the rows come sorted by action and topic, so that each table's write then reads its own
    blocks of the cache only. body is null where nobody needs it, and not even read when nobody does.
    """
    half = half.withColumn("store_us", store_us())
    on = _ROW
    if summary.repeated:
        half, on = _one_of_each(half), _ROW_AND_IDENTITY
    wanted = actions.where(F.col("action").isin([int(action) for action in ACTED_ON]))
    wanted = wanted.select(*on, "action", "check_times", "detail", "batch_time")
    if summary.count(*ACTED_ON) <= MAX_BROADCAST:
        wanted = F.broadcast(wanted)
    found = half.join(wanted, on=on, how="inner")
    body = F.lit(None).cast("binary")
    if summary.count(Action.COMMIT, Action.DISCARD):
        body = F.when(F.col("action").isin(int(Action.COMMIT), int(Action.DISCARD)), F.col("body"))
    names = [*tables.HALF.names, "action", "check_times", "detail", "batch_time"]
    return found.select(*(body.alias(name) if name == "body" else F.col(name) for name in names)).sortWithinPartitions(
        "action", "real_topic"
    )


def _one_of_each(half: DataFrame) -> DataFrame:
    names = [name for name in half.columns if name != "store_us"]
    half = half.select("*", *identity_columns())
    order = Window.partitionBy(*_ROW_AND_IDENTITY).orderBy(F.xxhash64(F.to_json(F.struct(*names))))
    return half.withColumn("_n", F.row_number().over(order)).where(F.col("_n") == 1).drop("_n")


def topic_rows(messages: DataFrame, topic: str, batch_id: int) -> DataFrame:
    """Rows of a topic table from the messages that were committed."""
    committed = (F.col("action") == Action.COMMIT) & (F.col("real_topic") == topic)
    return messages.where(committed).select(
        F.col("queue_id").alias("half_queue_id"),
        F.col("queue_offset").alias("half_queue_offset"),
        F.col("real_queue_id").alias("queue_id"),
        "transaction_id",
        "producer_group",
        "tags",
        "keys",
        "properties",
        "body",
        "born_timestamp",
        F.col("store_timestamp").alias("half_store_timestamp"),
        _time_of_batch().alias("committed_at"),
        F.lit(batch_id).cast("bigint").alias("batch_id"),
    )


def decision_rows(messages: DataFrame, batch_id: int) -> DataFrame:
    """Rows of `decisions`."""
    discard = F.col("action") == Action.DISCARD
    return messages.where(F.col("action") <= Action.DISCARD).select(
        "queue_id",
        "queue_offset",
        "transaction_id",
        "producer_group",
        "real_topic",
        _name_of(F.col("action"), [Action.COMMIT, Action.ROLLBACK, Action.DISCARD]).alias("state"),
        F.when(discard, F.lit(Source.CHECKBACK.name.lower()))
        .otherwise(F.lower(_name_of(F.col("detail"), list(Source))))
        .alias("source"),
        F.when(discard, _reason()).alias("reason"),
        "check_times",
        _time_of_batch().alias("decided_at"),
        F.lit(batch_id).cast("bigint").alias("batch_id"),
    )


def discarded_rows(messages: DataFrame, batch_id: int) -> DataFrame:
    """Rows of `discarded` from the messages that were given up."""
    return messages.where(F.col("action") == Action.DISCARD).select(
        *tables.HALF.names,
        "check_times",
        _reason().alias("reason"),
        _time_of_batch().alias("discarded_at"),
        F.lit(batch_id).cast("bigint").alias("batch_id"),
    )


def request_rows(messages: DataFrame, batch_id: int) -> DataFrame:
    """Rows of `check_requests`."""
    return messages.where(F.col("action") == Action.CHECK).select(
        "queue_id",
        "queue_offset",
        "transaction_id",
        "producer_group",
        "real_topic",
        "check_times",
        "born_timestamp",
        _time_of_batch().alias("requested_at"),
        F.lit(batch_id).cast("bigint").alias("batch_id"),
    )


def rejected_ops(actions: DataFrame, op: DataFrame, half: DataFrame) -> DataFrame:
    """Rows of `rejected` for the ops that were not obeyed.

    An op whose half is decided already (LATE_OP) is a harmless repeat if it is the half's own; only if it is not, it
    is rejected. The state has forgotten whose the half was: `half` knows.
    """
    about = actions.where(F.col("action").isin(int(Action.REJECT_OP), int(Action.LATE_OP)))
    about = about.select(*_ROW_AND_IDENTITY, "action", "detail", "batch_time").distinct()
    ops = op.withColumnRenamed("half_offset", "queue_offset").select("*", store_us(), *identity_columns())
    found = ops.join(F.broadcast(about), on=_ROW_AND_IDENTITY, how="inner")
    owner = half.groupBy("queue_id", "queue_offset").agg(
        F.min_by(F.struct(*identity_columns()), store_us()).alias("owner"),
    )
    judged = found.join(owner, on=["queue_id", "queue_offset"], how="left")
    late = F.col("action") == Action.LATE_OP
    stated = F.col("transaction_hash") != NOT_STATED
    other_group = late & (F.col("owner.group_hash") != F.col("group_hash"))
    other_id = late & stated & (F.col("owner.transaction_hash") != F.col("transaction_hash"))
    reason = (
        F.when(other_group, F.lit(REJECTION[Reason.WRONG_GROUP]))
        .when(other_id, F.lit(REJECTION[Reason.WRONG_TRANSACTION_ID]))
        .when(~late, _name_of(F.col("detail"), list(Reason), REJECTION))
    )
    original = F.struct(
        "queue_id",
        F.col("queue_offset").alias("half_offset"),
        "transaction_id",
        "producer_group",
        "state",
        "source",
        "remark",
        F.unix_millis("born_timestamp").alias("born_timestamp"),
    )
    return judged.select(
        F.lit("op").alias("source"),
        F.to_json(original).alias("raw"),
        reason.alias("reason"),
        F.lit(None).cast("string").alias("file"),
        _time_of_batch().alias("rejected_at"),
    ).where(F.col("reason").isNotNull())


def rejected_halves(actions: DataFrame, half: DataFrame) -> DataFrame:
    """Rows of `rejected` for the half messages whose offset was taken before. Without the body."""
    about = actions.where(F.col("action") == Action.REJECT_HALF).select(*_ROW_AND_IDENTITY, "batch_time").distinct()
    rows = half.select("*", store_us(), *identity_columns())
    found = rows.join(F.broadcast(about), on=_ROW_AND_IDENTITY, how="inner").dropDuplicates(_ROW_AND_IDENTITY)
    names = [name for name in tables.HALF.names if name != "body"]
    offset = F.concat_ws("/", "queue_id", "queue_offset")
    return found.select(
        F.lit("half").alias("source"),
        F.to_json(F.struct(*names)).alias("raw"),
        F.concat(F.lit("repeated (queue_id, queue_offset) "), offset).alias("reason"),
        F.lit(None).cast("string").alias("file"),
        _time_of_batch().alias("rejected_at"),
    )


def _time_of_batch() -> Column:
    return F.timestamp_millis("batch_time")


def _reason() -> Column:
    return _name_of(F.col("detail"), [Reason.CHECK_MAX, Reason.EXPIRED])


def _name_of(code: Column, members: list[Action] | list[Source] | list[Reason], texts: object = None) -> Column:
    """A code as its name, or as its text."""
    named = F.lit(None).cast("string")
    for member in members:
        text = texts.get(member) if isinstance(texts, dict) else member.name
        named = F.when(code == int(member), F.lit(text)).otherwise(named)
    return named
