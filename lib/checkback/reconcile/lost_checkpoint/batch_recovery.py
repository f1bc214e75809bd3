"""Completing an interrupted batch without its checkpoint: a crash may come between the commits of a batch's tables.

With its checkpoint the query replays the batch. If the checkpoint is lost, the tables tell what is missing: every
message that is published, unpublished or discarded has a decision, and every decision its message. One query for each
table tells which rows it lacks, one over all topics which messages; only topics that lack some cost a job each.
"""

from __future__ import annotations

import uuid
from collections import Counter
from contextlib import contextmanager
from enum import Enum
from functools import partial, reduce
from operator import or_
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from checkback.errors import StateError
from checkback.reconcile.lost_checkpoint.interrupted_batch import with_unconcluded
from checkback.reconcile.publish import published_notes, unpublished
from checkback.reconcile.publish.batch_row import TABLE as BATCHES
from checkback.reconcile.publish.topic_tables import TopicTables
from checkback.reconcile.records.segment_records import LONGEST_DELAY
from checkback.storage.failure_scope import own_failure
from checkback.storage.horizon import BODIES, horizon, since_horizon
from checkback.storage.schemas import TOPIC_PREFIX
from checkback.storage.spark_schemas import DECISIONS, DELIVERIES, DISCARDED, TOPIC, UNPUBLISHED
from checkback.storage.table_scan import read_table, read_topics

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from pyspark.sql import Column, DataFrame, SparkSession

    from checkback.reconcile.lost_checkpoint.interrupted_batch import InterruptedBatch
    from checkback.storage.tables import Tables

KEY = ["queue_id", "queue_offset"]
IDENTITY = [*KEY, "transaction_id", "producer_group"]
#: IDENTITY and batch_id in topic tables and in `unpublished`, where queue_id is the real queue's
_OF_MESSAGE = [*(f"half_{name}" for name in KEY), *IDENTITY[2:], "batch_id"]


class Deleted(Enum):
    """What to do with decided messages that are in no table although their batch is complete: they were deleted."""

    REFUSE = "refuse"
    LEAVE_OUT = "leave out"
    PUBLISH_AGAIN = "publish again"


def finish(
    spark: SparkSession,
    tables: Tables,
    interrupted: InterruptedBatch | None,
    deleted: Deleted = Deleted.REFUSE,
    changing: Callable[[], object] = bool,
) -> dict[str, int]:
    """Append the missing rows; returns their number by table. Idempotent: if interrupted, run it again.

    ``interrupted``: the batch that may be incomplete (`interrupted_batch.find`); rows that other batches lack were
    ``deleted``. ``changing`` is called before rows are appended. A topic table that cannot be read or written does not
    stop the others: the messages it may lack go to `unpublished`. No other process may write the tables meanwhile.
    Raises StorageError, StateError if rows were deleted and ``deleted`` is REFUSE, or some were whose bodies retention
    has removed from `half` and it is PUBLISH_AGAIN, or if a table that cannot be read has messages of a batch that was
    not concluded: they may have no decision yet, and would be published again.
    """
    topics = tables.topics(spark)
    try:
        return _finish(spark, tables, interrupted, topics, {}, deleted, changing)
    except Exception as error:
        own_failure(error)
        broken = _unreadable(spark, tables, topics)
        if not broken:
            raise
        if unseen := with_unconcluded(spark, tables, broken):
            raise StateError(
                "cannot be read, and the batch that was interrupted has written messages to it, which may have no "
                f"decision yet: {broken[unseen[0]]}",
                unseen[0],
                "put its files back and run this again; if it is moved out of the topics' tables, they are published "
                "again, in a new one",
            ) from error
    readable = [name for name in topics if name not in broken]
    return _finish(spark, tables, interrupted, readable, broken, deleted, changing)


def _finish(
    spark: SparkSession,
    tables: Tables,
    interrupted: InterruptedBatch | None,
    topics: Collection[str],
    broken: Mapping[str, str],
    deleted: Deleted,
    changing: Callable[[], object],
) -> dict[str, int]:
    """``topics``: the readable topic tables. ``broken``: the unreadable ones, with the reason."""
    added, gone = Counter[str](), Counter[str]()
    removes_bodies = horizon(spark, tables, of=BODIES) is not None

    @contextmanager
    def missing(rows: DataFrame, name: Column) -> Iterator[tuple[DataFrame, dict[str, int]]]:
        """The rows to append, and their number by ``name``; in one job, which also counts deleted rows in ``gone``."""
        rows = rows.persist()
        taken = F.col("interrupted")
        if deleted is Deleted.PUBLISH_AGAIN:
            lost = removes_bodies and "body" in rows.columns
            taken |= ~(F.col("body").isNull() & F.col("erased_at").isNull()) if lost else F.lit(True)
        try:
            counts = Counter[str]()
            for row in rows.groupBy(name.alias("name"), taken.alias("taken")).count().collect():
                if row["taken"]:
                    counts[row["name"]] += row["count"]
                elif deleted is not Deleted.LEAVE_OUT:
                    gone[row["name"]] += row["count"]
            if counts:
                changing()
            yield rows.where(taken), counts
        finally:
            rows.unpersist()

    # Decisions first: the missing ones follow from the messages, and the missing messages from all decisions.
    steps: tuple[tuple[str, Callable[[], DataFrame]], ...] = (
        ("decisions", lambda: _decisions(spark, tables, topics)),
        ("deliveries", lambda: _deliveries(spark, tables, topics)),
        ("discarded", lambda: _undiscarded(spark, tables, _decided(spark, tables, interrupted))),
    )
    for table, lacking in steps:
        with missing(lacking(), F.lit(table)) as (rows, counts):
            if counts:
                tables.append(rows.drop("interrupted"), table)
                added += counts
    messages = _messages(spark, tables, _to_publish(spark, tables, interrupted, topics), topics, broken)
    with missing(messages, F.concat(F.lit(TOPIC_PREFIX), "real_topic")) as (rows, counts):
        waiting = _publish(spark, tables, rows, counts, broken)
        added += Counter({name: count for name, count in counts.items() if name not in waiting})
        if waiting:
            tables.append(_unpublished(rows, waiting), unpublished.TABLE)
            added[unpublished.TABLE] = sum(counts[name] for name in waiting)
    if gone:
        number = ", ".join(f"{name} lacks {count}" for name, count in sorted(gone.items()))
        if deleted is Deleted.PUBLISH_AGAIN:
            raise StateError(
                f"deleted messages cannot be written again, `half` has no bodies of them (retention.bodies): {number}",
                fix="put the tables back from a backup, or `checkback rebuild --leave-out` leaves these deleted",
            )
        raise StateError(
            f"somebody has deleted messages of batches that were whole: {number}",
            fix="`checkback rebuild --leave-out` leaves them deleted, "
            "`checkback rebuild --publish-again` writes them again",
        )
    return dict(added)


def _decided(spark: SparkSession, tables: Tables, interrupted: InterruptedBatch | None) -> DataFrame:
    """The decisions, with ``interrupted`` BOOLEAN: whether their batch may be incomplete."""
    return _with_interrupted(read_table(spark, tables, "decisions"), interrupted)


def _with_interrupted(decisions: DataFrame, interrupted: InterruptedBatch | None) -> DataFrame:
    if interrupted is None:
        return decisions.withColumn("interrupted", F.lit(False))
    same_time = F.unix_millis("decided_at") == interrupted.rows.time
    return decisions.withColumn("interrupted", (F.col("batch_id") == interrupted.rows.batch_id) & same_time)


def _to_publish(
    spark: SparkSession, tables: Tables, interrupted: InterruptedBatch | None, topics: Collection[str]
) -> DataFrame:
    """The COMMITs of messages published at once, and the deliveries of scheduled ones as such: by publishing batch.

    Columns: IDENTITY, real_topic, decided_at, batch_id, interrupted.
    """
    names = [*IDENTITY, "real_topic", "decided_at", "batch_id"]
    decided = _decided(spark, tables, interrupted)
    at_once = decided.where((F.col("state") == "COMMIT") & F.col("deliver_at").isNull()).select(*names, "interrupted")
    deliveries = read_table(spark, tables, "deliveries").withColumn("decided_at", F.col("delivered_at"))
    found = at_once.unionByName(_with_interrupted(deliveries.select(*names), interrupted))
    # A topic's messages may be kept for less long than the history.
    removed = {name.removeprefix(TOPIC_PREFIX): horizon(spark, tables, name) for name in topics}
    old = reduce(
        or_,
        (
            F.col("real_topic").eqNullSafe(F.lit(topic)) & (F.unix_millis("decided_at") < at)
            for topic, at in removed.items()
            if at is not None
        ),
        F.lit(False),
    )
    return since_horizon(found, "decided_at", horizon(spark, tables)).where(~old)


def _publish(
    spark: SparkSession, tables: Tables, rows: DataFrame, names: Iterable[str], broken: Mapping[str, str]
) -> dict[str, str]:
    """Append the messages to these topic tables. Returns the reasons of those that cannot take them."""
    known = TopicTables(tables)
    unpublished_topics = known.unpublished_topics(spark, "")
    waiting: dict[str, str] = {}
    for name in names:
        topic = name.removeprefix(TOPIC_PREFIX)
        mine = rows.where(F.col("real_topic") == F.lit(topic)).select(*TOPIC.names)
        why = broken.get(name) or unpublished_topics.reason(topic)
        why = why or known.attempt(spark, name, partial(tables.append, mine, name))
        if why is not None:
            waiting[name] = why
    return waiting


def _unpublished(rows: DataFrame, waiting: Mapping[str, str]) -> DataFrame:
    """The messages of these topic tables as rows of `unpublished`, with an application id used only for them."""
    reason = F.lit(None).cast("string")
    for name, why in waiting.items():
        topic = F.lit(name.removeprefix(TOPIC_PREFIX))
        reason = F.when(F.col("real_topic") == topic, F.lit(why)).otherwise(reason)
    mine = rows.withColumns(
        {"reason": reason, "application": F.lit(f"rebuild/{uuid.uuid4()}"), "unpublished_at": F.col("published_at")}
    )
    return mine.where(F.col("reason").isNotNull()).select(*UNPUBLISHED.names)


def _unreadable(spark: SparkSession, tables: Tables, topics: Collection[str]) -> dict[str, str]:
    """The topic tables that cannot be read, with the reason."""

    def fault(name: str) -> str | None:
        try:
            published(spark, tables, [name]).agg(F.max(F.xxhash64("*"))).collect()
        except Exception as error:  # noqa: BLE001 - re-raised unless the table's own
            return own_failure(error)
        return None

    return {name: why for name in topics if (why := fault(name)) is not None}


def published(spark: SparkSession, tables: Tables, topics: Collection[str], outstanding: bool = False) -> DataFrame:
    """The rows of these topics and of `unpublished` since the horizon: IDENTITY, real_topic, decided_at, batch_id.

    ``outstanding``: of `unpublished` only those that are not noted as published: the others must be in their topic.
    """
    waiting = _outstanding(spark, tables) if outstanding else read_table(spark, tables, unpublished.TABLE)
    found = _waiting(waiting).unionByName(_in_topics(spark, tables, topics))
    return since_horizon(found, "decided_at", horizon(spark, tables))


def _outstanding(spark: SparkSession, tables: Tables) -> DataFrame:
    """The rows of `unpublished` that are not noted as published."""
    rows = read_table(spark, tables, unpublished.TABLE)
    return published_notes.without_noted(rows, published_notes.read_notes(spark, tables, rows))


def _waiting(rows: DataFrame) -> DataFrame:
    return _as_message(rows, "real_topic", "unpublished_at")


def _in_topics(spark: SparkSession, tables: Tables, topics: Collection[str]) -> DataFrame:
    columns = [*_OF_MESSAGE, "published_at"]
    return _as_message(read_topics(spark, tables, dict.fromkeys(topics), columns), "topic", "published_at")


def _as_message(rows: DataFrame, topic: str, time: str) -> DataFrame:
    rows = rows.select(*_OF_MESSAGE, F.col(topic).alias("real_topic"), F.col(time).alias("decided_at"))
    names = [*IDENTITY, "real_topic", "decided_at", "batch_id"]
    return rows.withColumnsRenamed({f"half_{name}": name for name in KEY}).select(*names)


def _decisions(spark: SparkSession, tables: Tables, topics: Collection[str]) -> DataFrame:
    """The decisions of messages that are published, unpublished or discarded without one. Columns: its, interrupted."""
    decided = read_table(spark, tables, "decisions").select(*KEY)
    lacking = published(spark, tables, topics).join(decided, on=KEY, how="left_anti")
    lacking = _in_own_topic(lacking, read_table(spark, tables, "half"))
    lacking = lacking.join(_check_times(spark, tables), on=IDENTITY, how="left")
    lacking = lacking.join(_whose_commit(spark, tables), on=IDENTITY, how="left")
    committed = _as_scheduled(spark, tables, lacking).withColumns(
        {
            "state": F.lit("COMMIT"),
            "source": F.coalesce("source", F.lit("producer")),
            "reason": F.lit(None).cast("string"),
            "check_times": F.coalesce("check_times", F.lit(0)),
        }
    )
    cancelled = F.col("reason") == "CANCELLED"
    kept = since_horizon(read_table(spark, tables, "discarded"), "discarded_at", horizon(spark, tables))
    of_cancel = read_table(spark, tables, "decisions").where("state = 'CANCEL'").select(*IDENTITY)
    discarded = (
        kept.where(~cancelled)
        .join(decided, on=KEY, how="left_anti")
        .union(kept.where(cancelled).join(of_cancel, on=IDENTITY, how="left_anti"))
        .withColumns(
            {
                "state": F.when(cancelled, "CANCEL").otherwise("DISCARD"),
                "source": F.when(cancelled, "operator").otherwise("checkback"),
                "reason": F.when(~cancelled, F.col("reason")),
                "decided_at": F.col("discarded_at"),
                "deliver_at": F.lit(None).cast("timestamp"),
            }
        )
    )
    found = committed.select(*DECISIONS.names).unionByName(discarded.select(*DECISIONS.names))
    return found.withColumn("interrupted", F.lit(True))


def _in_own_topic(messages: DataFrame, half: DataFrame) -> DataFrame:
    """Of each published message the first row that is in the topic of its half message, or any if that is gone.

    Other rows say nothing: somebody has copied or moved a topic's table to that name.
    """
    half = half.select(*IDENTITY, F.struct("real_topic").alias("own"))
    found = messages.join(half, on=IDENTITY, how="left")
    found = found.where(F.col("own").isNull() | F.col("own.real_topic").eqNullSafe(F.col("real_topic")))
    others = [name for name in messages.columns if name not in IDENTITY]
    return found.groupBy(*IDENTITY).agg(F.min(F.struct(*others)).alias("first")).select(*IDENTITY, "first.*")


def _as_scheduled(spark: SparkSession, tables: Tables, committed: DataFrame) -> DataFrame:
    """The committed messages with ``deliver_at``: of one that was delivered, whose COMMIT is that of an earlier batch.

    That batch was when the delay began to count, or else the first one after message and op (``op_landed``) had landed.
    """
    deliveries = read_table(spark, tables, "deliveries").select(*IDENTITY, "deliver_at").dropDuplicates(IDENTITY)
    delay = F.when(F.col("deliver_at").isNull(), F.least("delay_ms", F.lit(LONGEST_DELAY))).alias("delay")
    half = read_table(spark, tables, "half").select(*IDENTITY, F.col("store_timestamp").alias("landed"), delay)
    found = committed.join(deliveries, on=IDENTITY, how="left")
    later = found.where("deliver_at IS NOT NULL").join(half, on=IDENTITY, how="left")
    began = F.expr("timestamp_millis(unix_millis(deliver_at) - delay)")
    later = later.withColumn("since", F.coalesce(began, F.greatest("landed", "op_landed"), F.lit(0).cast("timestamp")))
    batches = read_table(spark, tables, BATCHES).select(
        F.col("batch_time").alias("since"), F.struct("batch_time", "batch_id").alias("batch")
    )
    following = Window.partitionBy(F.lit(0)).orderBy("since", F.col("batch").isNotNull())
    following = following.rowsBetween(Window.currentRow, Window.unboundedFollowing)
    later = (
        later.unionByName(batches, allowMissingColumns=True)
        .withColumn("of", F.first("batch", ignorenulls=True).over(following))
        .where(F.col("batch").isNull())
        .dropDuplicates([*IDENTITY, "real_topic"])
    )
    earlier = F.when(F.col("of.batch_time") < F.col("deliver_at"), F.col("of.batch_time"))
    before = F.expr("timestamp_millis(unix_millis(deliver_at) - 1)")
    later = later.withColumn("decided_at", F.coalesce(began, earlier, before))
    own = F.when(F.col("of.batch_time") == F.col("decided_at"), F.col("of.batch_id"))
    later = later.withColumn("batch_id", F.coalesce(own, "batch_id"))
    return found.where("deliver_at IS NULL").unionByName(later.select(*found.columns))


def _deliveries(spark: SparkSession, tables: Tables, topics: Collection[str]) -> DataFrame:
    """The deliveries of scheduled messages that are published or unpublished without one. Columns: its, interrupted."""
    there = read_table(spark, tables, "deliveries").select(*IDENTITY)
    scheduled = read_table(spark, tables, "decisions").where("state = 'COMMIT' AND deliver_at IS NOT NULL")
    scheduled = scheduled.select(*IDENTITY, "real_topic", "deliver_at").join(there, on=IDENTITY, how="left_anti")
    mine = [*IDENTITY, "real_topic"]
    messages = published(spark, tables, topics).dropDuplicates(mine)
    found = messages.join(scheduled, on=mine, how="inner").withColumnRenamed("decided_at", "delivered_at")
    return found.select(*DELIVERIES.names, F.lit(True).alias("interrupted"))


def _undiscarded(spark: SparkSession, tables: Tables, decided: DataFrame) -> DataFrame:
    """The messages with a decision DISCARD or CANCEL that are not in `discarded`: its columns, and interrupted."""
    cancelled = F.col("state") == "CANCEL"
    gone = decided.where(cancelled | (F.col("state") == "DISCARD"))
    gone = since_horizon(gone, "decided_at", horizon(spark, tables), horizon(spark, tables, "discarded"))
    gone = gone.withColumn("reason", F.when(cancelled, "CANCELLED").otherwise(F.col("reason"))).drop("deliver_at")
    gone = gone.join(read_table(spark, tables, "discarded").select(*IDENTITY), on=IDENTITY, how="left_anti")
    rows = _of_half(spark, tables, gone).withColumn("discarded_at", F.col("decided_at"))
    return rows.select(*DISCARDED.names, "interrupted")


def _messages(
    spark: SparkSession, tables: Tables, to_publish: DataFrame, topics: Collection[str], broken: Mapping[str, str]
) -> DataFrame:
    """The messages to publish (`_to_publish`) that are neither published nor unpublished.

    Columns: those of TOPIC, real_topic, interrupted. Of unreadable topic tables only those of the interrupted batch.
    """
    lacking = to_publish
    if broken:
        unknown = F.col("real_topic").isin([name.removeprefix(TOPIC_PREFIX) for name in broken])
        lacking = lacking.where(~F.coalesce(unknown, F.lit(False)) | F.col("interrupted"))
    there = published(spark, tables, topics, outstanding=True).select(*KEY, F.col("real_topic").alias("_topic"))
    same = [*(lacking[name] == there[name] for name in KEY), F.col("real_topic").eqNullSafe(F.col("_topic"))]
    lacking = lacking.join(there, on=same, how="left_anti")
    rows = _of_half(spark, tables, lacking).withColumns(
        {
            "half_queue_id": F.col("queue_id"),
            "half_queue_offset": F.col("queue_offset"),
            "half_store_timestamp": F.col("store_timestamp"),
            "published_at": F.col("decided_at"),
        }
    )
    return rows.withColumn("queue_id", F.col("real_queue_id")).select(*TOPIC.names, "real_topic", "interrupted")


def _of_half(spark: SparkSession, tables: Tables, decisions: DataFrame) -> DataFrame:
    """The decisions with the columns of their half messages; of duplicates the first to land."""
    half = read_table(spark, tables, "half").drop("real_topic")
    found = decisions.join(half, on=IDENTITY, how="inner")
    first = F.row_number().over(Window.partitionBy(*KEY).orderBy(_order(found)))
    return found.withColumn("_n", first).where(F.col("_n") == 1).drop("_n")


def _order(rows: DataFrame) -> Column:
    return F.struct("store_timestamp", F.xxhash64(*(name for name in rows.columns if name != "properties")))


def _check_times(spark: SparkSession, tables: Tables) -> DataFrame:
    return read_table(spark, tables, "check_requests").groupBy(*IDENTITY).agg(F.max("check_times").alias("check_times"))


def _whose_commit(spark: SparkSession, tables: Tables) -> DataFrame:
    """The first COMMIT of each half message: its source, and when it landed (``op_landed``)."""
    op = read_table(spark, tables, "op").where(F.col("state") == "COMMIT")
    first = F.min_by("source", F.struct("store_timestamp", "born_timestamp")).alias("source")
    return op.groupBy(*IDENTITY).agg(first, F.min("store_timestamp").alias("op_landed"))
