"""The lineage of a transaction: everything that the tables record of it, in chronological order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from checkback.errors import StorageError
from checkback.inspect.pending_transactions import KEY
from checkback.inspect.view import View
from checkback.storage.dataframes import union
from checkback.storage.schemas import TOPIC_PREFIX

if TYPE_CHECKING:
    from datetime import datetime

    from pyspark.sql import Column, DataFrame, SparkSession

    from checkback.settings import Settings

COLUMNS = (
    "at",
    "event",
    "table",
    "table_version",
    "version_exact",
    "committed_at",
    "batch_id",
    *KEY,
    "producer_group",
    "detail",
)
#: events with equal times, in causal order
_ORDER = (
    *("HALF", "RESUMED", "OP", "CHECK", "ANSWER"),
    *("DECISION", "DELIVERED", "UNPUBLISHED", "PUBLISHED", "DISCARDED", "REJECTED", "OPERATION"),
)
_ACTIONS = (
    "add STRUCT<path: STRING, dataChange: BOOLEAN>, commitInfo STRUCT<timestamp: BIGINT, inCommitTimestamp: BIGINT>"
)


def lineage(
    spark: SparkSession,
    settings: Settings,
    transaction_id: str,
    group: str | None = None,
    as_of: datetime | str | None = None,
) -> DataFrame:
    """Everything that the tables record of a transaction id, in chronological order, of one group or of all.

    Columns: at TIMESTAMP; event (HALF; RESUMED: a half message that an operator created from a discarded one; OP,
    CHECK, ANSWER, DECISION; DELIVERED: a scheduled message; UNPUBLISHED: it waits for its topic's table; PUBLISHED,
    DISCARDED, REJECTED, OPERATION); table; table_version BIGINT (Delta version that added the row, null = not in the
    log), version_exact BOOLEAN (false: OPTIMIZE has rewritten the file, the row was added in that version or an earlier
    one), committed_at (of that version); batch_id; queue_id, queue_offset, producer_group; detail (a text, without
    body, properties and keys).

    Scans every table for the id, topics included: there are no file statistics for it. Spark also reads the tables'
    logs. Raises as `pending`.
    """
    view = View.of(spark, settings, as_of)
    halves = _of(view.read("half"), transaction_id, group).select(*KEY, F.col("producer_group").alias("_group"))
    places = F.broadcast(halves.groupBy(*KEY).agg(F.min("_group").alias("_group")))
    read = {name: view.read_with_file(name) for name in (*_TABLES, *view.topics()) if view.version(name) is not None}
    tables = {name: _of(rows, transaction_id, group) for name, rows in read.items() if name not in _SEARCHED}
    for name, of in _SEARCHED.items():
        if name in read:
            tables[name] = of(read[name], places, transaction_id, group)
    events = [_events(name, rows) for name, rows in tables.items()]
    found = _with_versions(view, union(events), list(tables))
    order = F.array_position(F.array(*map(F.lit, _ORDER)), F.col("event"))
    return found.orderBy("at", order, *KEY).select(*COLUMNS)


def _of(rows: DataFrame, transaction_id: str, group: str | None) -> DataFrame:
    found = rows.where(F.col("transaction_id") == transaction_id)
    return found if group is None else found.where(F.col("producer_group") == group)


def _ops(op: DataFrame, places: DataFrame, transaction_id: str, group: str | None) -> DataFrame:
    """Ops that name the transaction, and all others at its offsets: batched ones, or those of other transactions."""
    rows = op.withColumnRenamed("half_offset", "queue_offset").join(places, on=KEY, how="left")
    named = F.col("transaction_id") == transaction_id
    if group is not None:
        named = named & (F.col("producer_group") == group)
    return rows.where(named | F.col("_group").isNotNull()).drop("_group")


def _rejected(rejected: DataFrame, places: DataFrame, transaction_id: str, group: str | None) -> DataFrame:
    """Inputs that name the transaction or one of its offsets, if they can be parsed."""
    raw = F.from_json("raw", _RAW)
    offset = F.coalesce("_raw.queue_offset", "_raw.half_offset")
    rows = rejected.withColumn("_raw", raw).select(
        "*",
        F.col("_raw.queue_id").alias("queue_id"),
        offset.alias("queue_offset"),
        F.col("_raw.producer_group").alias("producer_group"),
        F.col("_raw.transaction_id").alias("transaction_id"),
    )
    named = F.col("transaction_id") == transaction_id
    if group is not None:
        named = named & (F.col("producer_group") == group)
    found = rows.join(places, on=KEY, how="left").where(named | F.col("_group").isNotNull())
    return found.drop("_raw", "_group")


#: tables searched by more than the id
_SEARCHED = {"op": _ops, "rejected": _rejected}
_TABLES = (
    *("half", "decisions", "deliveries", "discarded", "check_requests", "check_answers", "operations", "unpublished"),
    *_SEARCHED,
)
_RAW = "queue_id INT, queue_offset BIGINT, half_offset BIGINT, producer_group STRING, transaction_id STRING"


def _events(name: str, rows: DataFrame) -> DataFrame:
    """The rows of a table as events, with the name of the file that contains each."""
    kind = TOPIC_PREFIX if name.startswith(TOPIC_PREFIX) else name
    event, at, detail = _EVENTS[kind]
    columns = set(rows.columns)
    place = ("half_queue_id", "half_queue_offset") if kind in (TOPIC_PREFIX, "unpublished") else KEY
    return rows.select(
        F.col(at).alias("at"),
        event().alias("event"),
        F.lit(name).alias("table"),
        (F.col("batch_id") if "batch_id" in columns else F.lit(None).cast("bigint")).alias("batch_id"),
        *(F.col(column).alias(alias) for column, alias in zip(place, KEY, strict=True)),
        "producer_group",
        detail().alias("detail"),
        "_file",
    )


def _text(*parts: str | Column) -> Column:
    """The non-null parts, separated by spaces."""
    return F.concat_ws(" ", *(F.lit(part) if isinstance(part, str) else part for part in parts))


def _after(word: str, column: str) -> Column:
    """A word and a value; null without a value."""
    return F.concat(F.lit(f"{word} "), F.col(column).cast("string"))


def _time(column: str) -> Column:
    return F.date_format(column, "yyyy-MM-dd HH:mm:ss.SSS")


def _half_event() -> Column:
    return F.when(F.col("properties")["CHECKBACK_RESUMED_FROM"].isNotNull(), "RESUMED").otherwise("HALF")


def _half_detail() -> Column:
    resumed = F.concat(F.lit(", resumed from "), F.col("properties")["CHECKBACK_RESUMED_FROM"])
    by = F.concat(F.lit(" by "), F.col("properties")["CHECKBACK_RESUMED_BY"])
    immunity = F.concat(F.lit(", immunity "), F.col("check_immunity_s").cast("string"), F.lit(" s"))
    born = F.concat(F.lit(", born "), _time("born_timestamp"))
    delay = F.coalesce(
        F.concat(F.lit(", to be delivered at "), _time("deliver_at")),
        F.concat(F.lit(", delay "), (F.col("delay_ms") / 1000).cast("string"), F.lit(" s")),
    )
    alone = F.when(F.col("committed"), F.lit(", without a transaction"))
    parts = (F.lit("for "), F.col("real_topic"), born, immunity, delay, alone, resumed, by)
    return F.concat_ws("", *parts)


_EVENTS = {
    "half": (_half_event, "store_timestamp", _half_detail),
    "op": (
        lambda: F.lit("OP"),
        "store_timestamp",
        lambda: _text(F.col("state"), _after("by", "source"), _after("of", "transaction_id"), _after("-", "remark")),
    ),
    "check_requests": (lambda: F.lit("CHECK"), "requested_at", lambda: _after("check", "check_times")),
    "check_answers": (
        lambda: F.lit("ANSWER"),
        "answered_at",
        lambda: _text(
            _after("check", "check_times"),
            F.col("outcome"),
            _after("from", "endpoint"),
            F.concat(F.lit("("), F.col("error"), F.lit(")")),
            F.when(F.size("failed_tries") > 0, F.concat(F.lit("after "), F.size("failed_tries"), F.lit(" in vain"))),
            F.when(~F.col("delivered"), F.lit("reached nobody")),
        ),
    ),
    "decisions": (
        lambda: F.lit("DECISION"),
        "decided_at",
        lambda: _text(
            F.col("state"),
            _after("by", "source"),
            F.col("reason"),
            F.concat(F.lit("after "), F.col("check_times"), F.lit(" checks")),
            F.when(F.col("state") == "COMMIT", F.concat(F.lit("scheduled for "), _time("deliver_at"))),
        ),
    ),
    "deliveries": (
        lambda: F.lit("DELIVERED"),
        "delivered_at",
        lambda: F.concat(F.lit("was scheduled for "), _time("deliver_at")),
    ),
    "discarded": (lambda: F.lit("DISCARDED"), "discarded_at", lambda: _text("kept in discarded:", F.col("reason"))),
    "rejected": (
        lambda: F.lit("REJECTED"),
        "rejected_at",
        lambda: _text(F.col("source"), "not taken:", F.col("reason"), _after("in", "file")),
    ),
    "operations": (
        lambda: F.lit("OPERATION"),
        "at",
        lambda: _text(
            F.col("action"),
            _after("by", "actor"),
            F.concat(F.lit("as "), F.col("new_queue_id"), F.lit("/"), F.col("new_queue_offset")),
            _after("-", "reason"),
        ),
    ),
    "unpublished": (
        lambda: F.lit("UNPUBLISHED"),
        "unpublished_at",
        lambda: _text("waits for the table of", F.coalesce("real_topic", F.lit("no topic")), _after("-", "reason")),
    ),
    TOPIC_PREFIX: (
        lambda: F.lit("PUBLISHED"),
        "committed_at",
        lambda: F.concat(F.lit("in queue "), F.coalesce(F.col("queue_id").cast("string"), F.lit("-"))),
    ),
}


# Versions


def _with_versions(view: View, events: DataFrame, names: list[str]) -> DataFrame:
    """The events with their tables' versions: a row's file is looked up in the table's log.

    An appended file appears in the commit that added its rows, a file written by OPTIMIZE (no dataChange) in a later
    one.
    """
    logs = [log for name in names if (log := _log(view, name)) is not None]
    if not logs:
        nothing = F.lit(None)
        columns = {"table_version": nothing.cast("bigint"), "version_exact": nothing.cast("boolean")}
        return events.withColumns(columns | {"committed_at": nothing.cast("timestamp")})
    added = union(logs)
    return events.join(added, on=["table", "_file"], how="left")


def _log(view: View, name: str) -> DataFrame | None:
    """The files added by a table's commits: table, _file, table_version, version_exact, committed_at."""
    place = _folder(view, name)
    if place is None:
        return None
    commits = view.spark.read.schema(_ACTIONS).json(f"{place}/_delta_log/[0-9]*.json")
    version = F.regexp_extract("_metadata.file_path", r"([0-9]{20})\.json$", 1).cast("bigint")
    rows = commits.select(version.alias("table_version"), "add", "commitInfo")
    about = rows.groupBy("table_version").agg(
        F.timestamp_millis(F.max(F.coalesce("commitInfo.inCommitTimestamp", "commitInfo.timestamp"))).alias(
            "committed_at"
        )
    )
    path = F.element_at(F.split("add.path", "/"), -1)
    files = rows.where("add IS NOT NULL").select(
        F.lit(name).alias("table"),
        path.alias("_file"),
        "table_version",
        F.coalesce("add.dataChange", F.lit(True)).alias("version_exact"),
    )
    return files.join(about, on="table_version", how="left")


def _folder(view: View, name: str) -> str | None:
    """The folder of a table; None if its catalog does not reveal it."""
    if not view.tables.catalog:
        return view.tables.location(name)
    try:
        row = view.spark.sql(f"DESCRIBE DETAIL {view.tables.location(name)}").first()
    except Exception as error:
        raise StorageError("the table cannot be read", view.tables.location(name)) from error
    return None if row is None or not row["location"] else str(row["location"])
