"""Compares `batches` with the tables that batches write: each batch must have a row there, and each row its batch.

Only the rows of `decisions` and `check_requests` are counted, as these must never be deleted. Rows missing in a topic
table or in `discarded` are found per transaction (`audit_rules`): a message may be published by a later batch than the
one that decided it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from checkback.inspect.batches import APPLICATION, BatchFault, faults, first_intervals
from checkback.inspect.whole_batches import NAME, batch_time
from checkback.storage.dataframes import union
from checkback.storage.schemas import SCHEMAS, TOPIC_PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import Column, DataFrame

    from checkback.inspect.batches import Records
    from checkback.inspect.table_versions import FixedTables

_BATCH = ("batch_id", "ms")
#: count in `batches` -> table and predicate of the rows counted
_COUNTS = {
    "committed": ("decisions", "state = 'COMMIT'"),
    "rolled_back": ("decisions", "state = 'ROLLBACK'"),
    "discarded": ("decisions", "state = 'DISCARD'"),
    "scheduled": ("decisions", "state = 'COMMIT' AND deliver_at IS NOT NULL"),
    "delivered": ("deliveries", "true"),
    "cancelled": ("decisions", "state = 'CANCEL'"),
    "checks": ("check_requests", "true"),
}
_RULES = ("check_interval_ms", "check_max", "reserved_ms", "check_jitter_ms", "count_undelivered")


@dataclass(frozen=True)
class BatchAudit:
    """The result of the comparison. ``found``: by name of a finding, with batches (batch_id, time) as samples.

    ``fixed``: the tables, without the rows of a batch in progress that only its rows reveal. ``past``: whether there
    are rows of the previous release, whose batches have none in `batches`. ``first``: the first batch with a row,
    (batch_id, time).
    """

    found: dict[str, BatchFault]
    fixed: FixedTables
    past: bool
    first: tuple[int, int] | None = None


def audit_batches(fixed: FixedTables, most: int) -> BatchAudit:
    """The comparison, with up to ``most`` samples per finding. Without rows in `batches` nothing is found."""
    batches = fixed.whole.batches
    if not len(batches):
        return BatchAudit({}, fixed, past=True)
    rows = _compared(fixed).persist()
    try:
        begun = [] if fixed.logged else _begun(rows, batches)
        fixed = fixed.without(begun)
        found = _told(rows.select(*_BATCH, _label(fixed).alias("name")), most)
    finally:
        rows.unpersist()
    past, unknown = (found.pop(name, BatchFault(0, ())) for name in ("past", "unknown"))
    found["batches"] = BatchFault(len(batches), ())
    found["batch_not_judged"] = BatchFault(past.number + unknown.number, (*past.samples, *unknown.samples)[:most])
    first = int(batches["batch_id"][0]), int(batches["time"][0])
    return BatchAudit(found | faults(fixed.whole.rows, most), fixed, past.number > 0 or first[0] > 0, first)


def rules(fixed: FixedTables) -> DataFrame:
    """The rules that each batch was decided with, from its row.

    Columns batch_id, ms; turn (increases with time), application (its index); check_interval, check_max, reserved,
    jitter, count_undelivered (null = unknown); first_interval (of the application's first batch: after a rebuild it
    determines when each half message is due again). Times are ms.
    """
    wanted = F.struct("application", *_RULES)
    one = _rows(fixed).groupBy(*_BATCH).agg(F.min_by(wanted, "finished_at").alias("one")).select(*_BATCH, "one.*")
    applications = fixed.whole.applications
    place = (place_of(applications) if applications else F.lit(None)).cast("bigint")
    intervals = first_intervals(fixed.whole.batches)
    first = [F.lit(interval if interval >= 0 else None).cast("bigint") for interval in intervals]
    return one.select(
        *_BATCH,
        (place * APPLICATION + F.col("batch_id")).alias("turn"),
        place.alias("application"),
        F.col("check_interval_ms").alias("check_interval"),
        "check_max",
        F.col("reserved_ms").alias("reserved"),
        F.col("check_jitter_ms").alias("jitter"),
        "count_undelivered",
        F.get(F.array(*first), place.cast("int")).cast("bigint").alias("first_interval"),
    )


def place_of(applications: Iterable[str]) -> Column:
    """Index of the row's application among the applications."""
    pairs = [F.lit(part) for place, name in enumerate(applications) for part in (name, place)]
    return F.element_at(F.create_map(*pairs), F.coalesce("application", F.lit("")))


def _rows(fixed: FixedTables) -> DataFrame:
    """`batches` with batch_time as ms."""
    rows = fixed.all_rows(NAME).withColumn("ms", F.unix_millis("batch_time"))
    return rows.fillna(0, ["scheduled", "delivered", "cancelled"])  # null in rows of releases without delays


def _compared(fixed: FixedTables) -> DataFrame:
    """One row per batch: batch_id, ms, told (rows in `batches`), and each count as recorded and as found."""
    counted = _rows(fixed).dropDuplicates(["application", *_BATCH]).groupBy(*_BATCH)
    # If a count is unknown in one row, the sum is null.
    sums = (F.when(F.count(name) == F.count("*"), F.sum(name)).alias(f"told_{name}") for name in _COUNTS)
    ruled = F.count("check_interval_ms") == F.count("*")
    told = counted.agg(F.count("*").alias("told"), ruled.alias("ruled"), *sums)
    found = [_counted(fixed.all_rows(name), name) for name in SCHEMAS if batch_time(name)]
    all_found = union([*found, _counted(fixed.all_topic_rows(), TOPIC_PREFIX)])
    by_batch = all_found.groupBy(*_BATCH).agg(*(F.sum(name).alias(name) for name in _COUNTS))
    return told.join(by_batch, on=list(_BATCH), how="full")


def _counted(rows: DataFrame, name: str) -> DataFrame:
    """The rows of a table, or of all topic tables, counted by batch: batch_id, ms, and the counts."""
    counts = (
        (F.expr(f"count_if({which})") if name == table else F.lit(0)).cast("bigint").alias(count)
        for count, (table, which) in _COUNTS.items()
    )
    rows = rows.withColumn("ms", F.unix_millis(str(batch_time(name))))
    return rows.groupBy(*_BATCH).agg(F.count("*").alias("rows"), *counts).drop("rows")


def _begun(rows: DataFrame, batches: Records) -> list[tuple[int, int]]:
    """The batch in progress, as its rows reveal it: it has no row in `batches`, and the next batch id, or 0."""
    last, ms = batches[-1], F.col("ms")
    following = (F.col("batch_id") == int(last["batch_id"]) + 1) & (ms >= int(batches["time"][0]))
    rebuilt = (F.col("batch_id") == 0) & (ms > int(last["time"]))
    there = rows.where(F.col("told").isNull() & (following | rebuilt))
    return [(row["batch_id"], row["ms"]) for row in there.select(*_BATCH).collect()]


def _label(fixed: FixedTables) -> Column:
    """The finding of a row of `_compared`; past: previous release; unknown: counts or rules missing; null: none."""
    first = fixed.whole.batches[0]
    under_way = F.lit(False)
    for batch in fixed.under_way:
        under_way = under_way | ((F.col("batch_id") == batch.batch_id) & (F.col("ms") == batch.time))
    counts = (F.col(f"told_{name}") != F.coalesce(F.col(name), F.lit(0)) for name in _COUNTS)
    differs = reduce(lambda one, other: one | other, (F.coalesce(count, F.lit(False)) for count in counts))
    unknown = reduce(lambda one, other: one | other, (F.col(f"told_{name}").isNull() for name in _COUNTS))
    return (
        F.when(under_way, F.lit(None))
        .when(F.col("told").isNull() & (F.col("ms") < int(first["time"])), "past")
        .when(F.col("told").isNull(), "batch_without_row")
        .when(differs, "batch_differs")
        .when(unknown | ~F.col("ruled"), "unknown")
    )


def _told(labelled: DataFrame, most: int) -> dict[str, BatchFault]:
    """By label: the number of batches, and the first of them."""
    place = F.struct("ms", "batch_id")
    groups = labelled.where("name IS NOT NULL").groupBy("name")
    found = groups.agg(F.count("*").alias("count"), F.min_by(place, place, most).alias("samples"))
    return {
        row["name"]: BatchFault(row["count"], tuple((at["batch_id"], at["ms"]) for at in row["samples"]))
        for row in found.collect()
    }
