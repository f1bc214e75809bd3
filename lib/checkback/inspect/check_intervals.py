"""Checks and discards of each transaction in order, each with the rules of its batch (`batch_audit.rules`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyspark.sql import Window
from pyspark.sql import functions as F

from checkback.reconcile.event_columns import identity_columns
from checkback.reconcile.records import PENDING
from checkback.reconcile.segment import CHECKS_AT_LEAST, jitter

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import Column, DataFrame

_KEY = ("queue_id", "queue_offset")


@dataclass(frozen=True)
class RulesHistory:
    """Whether transaction.check_jitter was ever above 0, and whether check.count_undelivered was ever false."""

    jitter: bool = False
    uncounted: bool = False

    @classmethod
    def of(cls, rules: DataFrame) -> RulesHistory:
        """From the rules of all batches: a small Spark job."""
        row = rules.select(F.max("jitter").alias("jitter"), F.min("count_undelivered").alias("counted")).first()
        return cls() if row is None else cls(bool(row["jitter"]), row["counted"] is False)


def timed(requests: DataFrame, decisions: DataFrame, rules: DataFrame, ever: RulesHistory) -> DataFrame:
    """One row per check and per DISCARD.

    Columns queue_id, queue_offset, discard (BOOLEAN), reason, number (check_times), ms (time), turn; slack (ms since it
    was due according to the previous check: negative is too early; null = unknown), due (of a check: when the next one
    is due, ms), over (number exceeds check_max), again (an earlier check had this number, and counted), all_uncounted
    (so far only received checks counted), needed (of a discard: checks that its reason requires), asked (checks before
    it), landed_before (of a discard EXPIRED: a half that landed then or later was too young, ms).

    Rules 5 to 7 and 9 of docs/protocol.md, as implemented in `reconcile.segment`. Null = unknown.
    """
    end = decisions.where("state = 'DISCARD'")
    rows = _events(requests, "requested_at", discard=False).unionByName(_events(end, "decided_at", discard=True))
    rows = rows.join(rules, on=["batch_id", "ms"], how="left")
    order = Window.partitionBy(*_KEY).orderBy("turn", "number", "ms", "discard")
    before = order.rowsBetween(Window.unboundedPreceding, -1)
    check = ~F.col("discard")
    rows = rows.withColumns(
        {
            "asked": F.count_if(check).over(before).cast("int"),
            # The previous release may have counted checks differently: the jitter cannot be derived from them.
            "all_known": F.count_if(check & F.col("check_interval").isNull()).over(before) == 0,
            "by_receipt": ~F.col("count_undelivered"),
            "uncounted": ~F.col("count_undelivered") | (F.col("number") >= F.col("check_max")),
        }
    )
    rows = _with_jitter(rows) if ever.jitter else rows.withColumn("own_jitter", F.lit(0).cast("bigint"))
    own = F.when(F.col("all_known"), F.col("own_jitter")).otherwise(0)
    rows = rows.withColumn("due", F.when(check, F.col("ms") + F.col("check_interval") + own))
    last = F.lag(F.struct("discard", "application", "ms", "due")).over(order)
    same = Window.partitionBy(*_KEY, "number", "discard").orderBy("turn", "ms")
    twin = F.lag(F.struct("application", "uncounted")).over(same)
    all_uncounted = F.count_if(~F.coalesce("by_receipt", F.lit(False))).over(order) == 0
    rows = rows.withColumns({"last": last, "twin": twin, "all_uncounted": all_uncounted})
    interval = F.col("check_interval")
    landed_before = F.col("last.due") - interval - F.col("reserved")
    expired = F.col("discard") & (F.col("reason") == "EXPIRED")
    return rows.select(
        *_KEY,
        "discard",
        "reason",
        "number",
        "ms",
        "turn",
        F.when(~F.col("last.discard"), F.col("ms") - _due_since()).alias("slack"),
        "due",
        (check & (F.col("number") > F.col("check_max"))).alias("over"),
        (check & _counted_before(ever.uncounted)).alias("again"),
        "all_uncounted",
        F.when(expired, _enough()).when(F.col("discard"), F.col("check_max")).alias("needed"),
        "asked",
        F.when(expired & _same_application(), landed_before).alias("landed_before"),
    )


def _events(rows: DataFrame, time: str, discard: bool) -> DataFrame:
    _, transaction = identity_columns()
    return rows.select(
        *_KEY,
        transaction,
        F.lit(discard).alias("discard"),
        (F.col("reason") if discard else F.lit(None).cast("string")).alias("reason"),
        F.col("check_times").alias("number"),
        F.unix_millis(time).alias("ms"),
        "batch_id",
    )


def _same_application() -> Column:
    return F.coalesce(F.col("last.application") == F.col("application"), F.lit(False))


def _due_since() -> Column:
    """Since when it was due. A rebuild resets this by the rules of its first batch: then the earlier of both."""
    anew = F.col("last.ms") + F.col("first_interval")
    rebuilt = F.when(F.col("last.due").isNotNull() & anew.isNotNull(), F.least("last.due", anew))
    return F.when(_same_application(), F.col("last.due")).otherwise(rebuilt)


def _counted_before(uncounted: bool) -> Column:
    """Whether there was a check of this number, and both counted when they were requested.

    If checks were ever not counted (``uncounted``), a rebuild may have lost some: then only within one application.
    """
    counted = ~F.coalesce("uncounted", F.lit(False)) & ~F.coalesce("twin.uncounted", F.lit(False))
    other = F.coalesce(F.col("twin.application") != F.col("application"), F.lit(False)) if uncounted else F.lit(False)
    return F.col("twin").isNotNull() & counted & ~other


def _enough() -> Column:
    """Checks required before EXPIRED (rule 7)."""
    interval = F.greatest(F.col("check_interval"), F.lit(1))
    by_time = F.floor(F.col("reserved") / interval) + 1
    enough = F.least(F.col("check_max"), F.lit(CHECKS_AT_LEAST), by_time.cast("int"))
    return F.when(F.col("check_interval").isNotNull(), enough)


def _with_jitter(rows: DataFrame) -> DataFrame:
    """The rows with own_jitter: what transaction.check_jitter added to the interval after a check, in ms."""
    names = ("transaction_hash", "queue_offset", "asked", "jitter")

    def add(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            transaction, offset, asked, most = (
                batch.column(name).fill_null(0).to_numpy(zero_copy_only=False) for name in names
            )
            records = np.zeros(batch.num_rows, PENDING)
            records["transaction"], records["offset"] = transaction, offset
            records["asked"] = asked + 1
            found = pa.array(jitter(records, np.maximum(most, 0)))
            yield pa.RecordBatch.from_arrays(
                [*batch.columns, found], schema=batch.schema.append(pa.field("own_jitter", pa.int64()))
            )

    schema = rows.select("*", F.lit(0).cast("bigint").alias("own_jitter")).schema
    return rows.mapInArrow(add, schema)
