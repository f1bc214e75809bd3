"""Duplicates in a batch of inputs: half messages whose (queue_id, queue_offset) is taken, and copies of ops.

Half messages are compared on a projection of narrow columns, so that no body is shuffled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from checkback.storage.offset_ranges import Box, within

if TYPE_CHECKING:
    from collections.abc import Sequence


_KEY = ("queue_id", "queue_offset")
#: The first duplicate wins: the older file, then by path, then by position.
_ORDER = ("file_time", "file", "file_block", "row")
#: the order of an outbox table's rows in a batch: that of the mapping, of commits, of the rows in them
PLACED = ("file_block", "file_time", "file", "row")
#: Offsets that are sent to every task; more are joined by a shuffle.
_BROADCAST_MAX = 4_000_000
_OP_KEY = ("queue_id", "queue_offset", "transaction_id", "producer_group", "state")
#: Copies of an op that one batch lands. Producers retry an op without an answer; a compressed file of a few KB can have
#: millions, and `reconcile` reads all available ops into its next batch.
COPIES_MAX = 8
#: prefix of the reason that reports the other copies
SURPLUS = "repeated:"
#: Most ranges of queues: what is collected must not grow with the batch.
_RANGES = 64


class BatchSummary(NamedTuple):
    """Counts of a parsed batch: good rows, distinct keys among them, and rejected lines; and the ranges of its keys."""

    good: int
    keys: int
    rejected: int
    queues: frozenset[int]
    ranges: Sequence[Box]


class OpSummary(NamedTuple):
    """Counts of a parsed batch of ops: good rows, rejected lines, and the most copies of one op."""

    good: int
    rejected: int
    copies: int
    queues: Sequence[int]


def summarize(parsed: DataFrame) -> BatchSummary:
    """Count a batch of half rows in one pass."""
    keys = parsed.groupBy(*_KEY).agg(F.count("*").alias("rows"), F.count("reason").alias("rejected"))
    groups = (
        keys.groupBy((F.col("queue_id") % _RANGES).alias("range"))
        .agg(
            F.sum("rows").alias("rows"),
            F.count("*").alias("keys"),
            F.sum("rejected").alias("rejected"),
            F.min("queue_id").alias("first_queue"),
            F.max("queue_id").alias("last_queue"),
            F.min("queue_offset").alias("first"),
            F.max("queue_offset").alias("last"),
            F.collect_set("queue_id").alias("queues"),
        )
        .collect()
    )
    ranges = [group for group in groups if group["range"] is not None]  # rejected rows have no key
    return BatchSummary(
        good=sum(group["rows"] for group in ranges),
        keys=sum(group["keys"] for group in ranges),
        rejected=sum(group["rejected"] for group in groups),
        queues=frozenset(queue for group in ranges for queue in group["queues"]),
        ranges=[Box(*(group[name] for name in Box._fields)) for group in ranges],
    )


class IdSummary(NamedTuple):
    """Counts of a parsed batch: good rows, distinct transaction ids among them, and rejected rows; the span of the ids.

    ``first`` and ``last`` are None without good rows.
    """

    good: int
    ids: int
    rejected: int
    first: str | None
    last: str | None


def summarize_ids(parsed: DataFrame) -> IdSummary:
    """Count a batch of rows of an outbox table in one pass."""
    ids = parsed.groupBy("transaction_id").agg(F.count("*").alias("rows"), F.count("reason").alias("rejected"))
    good = F.col("rows") - F.col("rejected")
    named = F.min("transaction_id"), F.max("transaction_id")
    found = ids.agg(F.sum(good), F.count("transaction_id"), F.sum("rejected"), *named).first()
    rows, distinct, rejected, first, last = found or (0, 0, 0, None, None)
    return IdSummary(rows or 0, distinct, rejected or 0, first, last)


def find_repeated_ids(parsed: DataFrame, summary: IdSummary, half: DataFrame) -> DataFrame | None:
    """The good rows of a batch whose transaction id an earlier row or ``half`` has: row, transaction_id, file, digest.

    ``half``: the half messages of the outbox table's queue, without rows of the batch. None if there are none.
    """
    if summary.first is None or summary.last is None:
        return None
    # The span prunes row groups where ids ascend.
    stored = half.where(F.col("transaction_id").between(summary.first, summary.last)).select("transaction_id")
    narrow = parsed.where(F.col("reason").isNull()).select("transaction_id", *PLACED, "digest")
    if summary.good == summary.ids and narrow.join(stored, on="transaction_id", how="left_semi").isEmpty():
        return None
    known = stored.distinct().withColumn("known", F.lit(True))
    turn = F.row_number().over(Window.partitionBy("transaction_id").orderBy(*PLACED))
    return (
        narrow.withColumn("turn", turn)
        .join(known, on="transaction_id", how="left")
        .where(F.col("known") | (F.col("turn") > 1))
        .select("row", "transaction_id", "file", "digest")
    )


def numbered(good: DataFrame, first: int, number: int) -> DataFrame:
    """The rows with ascending queue_offsets from ``first`` on, in the order of PLACED. ``number``: of the rows."""
    # One task sorts narrow rows; the bodies stay where they are.
    turn = F.row_number().over(Window.partitionBy("queue_id").orderBy(*PLACED))  # it has one; without, Spark warns
    places = good.select("queue_id", *PLACED).select(
        "row", (turn + F.lit(first - 1)).cast("bigint").alias("queue_offset")
    )
    places = F.broadcast(places) if number <= _BROADCAST_MAX else places
    return good.drop("queue_offset").join(places, on="row", how="inner")


def find_repeats(parsed: DataFrame, census: BatchSummary, half: DataFrame) -> DataFrame | None:
    """The good rows of a batch whose key an earlier row or the table has: row, queue_id, queue_offset, file, digest.

    ``half``: the table, without rows of the batch. None if there are none, which costs one read of the table with data
    skipping by offset.
    """
    if not census.ranges:
        return None
    stored = half.where(within(census.ranges)).select(*_KEY)
    narrow = parsed.where(F.col("reason").isNull()).select(*_KEY, *_ORDER, "digest")
    if census.good == census.keys and (
        stored.isEmpty() or narrow.join(stored, on=list(_KEY), how="left_semi").isEmpty()
    ):
        return None
    place = F.row_number().over(Window.partitionBy(*_KEY).orderBy(*_ORDER))
    known = stored.distinct().withColumn("known", F.lit(True))
    return (
        narrow.withColumn("place", place)
        .join(known, on=list(_KEY), how="left")
        .where(F.col("known") | (F.col("place") > 1))
        .select("row", *_KEY, "file", "digest")
    )


def summarize_ops(parsed: DataFrame) -> OpSummary:
    """Count a batch of op rows in one pass."""
    ops = parsed.groupBy(*_OP_KEY).agg(F.count("*").alias("rows"), F.count("reason").alias("rejected"))
    good = F.col("rows") - F.col("rejected")
    counts = ops.agg(F.sum(good), F.sum("rejected"), F.max(good), F.collect_set("queue_id")).first()
    good_rows, rejected, copies, queues = counts or (0, 0, 0, [])
    return OpSummary(good_rows or 0, rejected or 0, copies or 0, queues)


def split_copies(good: DataFrame) -> tuple[DataFrame, DataFrame]:
    """The ops, at most COPIES_MAX copies of each; and rows that report the surplus: row, file, digest, reason.

    The copies born first are kept, so no decision changes (docs/protocol.md, rule 1). The surplus is reported in one
    row for each line that has the first copy of such an op: the number of rows must not grow with that of copies.
    """
    turn = F.row_number().over(Window.partitionBy(*_OP_KEY).orderBy("born_timestamp", *_ORDER))
    numbered = good.withColumn("turn", turn)
    kept = numbered.where(F.col("turn") <= COPIES_MAX).drop("turn")
    first = F.struct(*_ORDER)
    surplus = numbered.groupBy(*_OP_KEY).agg(
        F.min_by(F.struct("row", "file", "digest"), first).alias("line"),
        F.count_if(F.col("turn") > COPIES_MAX).alias("left"),
    )
    lines = surplus.where("left > 0").groupBy("line").agg(F.sum("left").alias("left"))
    reason = F.format_string(f"{SURPLUS} %d ops of the batch that come after {COPIES_MAX} like them", "left")
    return kept, lines.select("line.*", reason.alias("reason"))
