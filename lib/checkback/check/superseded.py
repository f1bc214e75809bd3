"""Superseded check requests, which are not sent: there is a newer one, or the transaction is decided.

After a downtime, a backlog of stale checks is thus not sent. It costs nothing while the check query keeps up: a newer
request comes a check_interval later at the earliest, so the tables are only read for requests older than that.
"""

from __future__ import annotations

from datetime import datetime, timezone
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import functions as F

from checkback.check.recorded_answers import key_numbers
from checkback.check.wire import SKIPPED
from checkback.storage.files import table_files
from checkback.storage.offset_ranges import MAX_RANGES, Box, Range, merge_ranges, within
from checkback.storage.schemas import arrow_schema
from checkback.storage.spark_schemas import CHECK_REQUESTS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import timedelta

    from pyspark.sql import SparkSession

    from checkback.storage.tables import Tables

#: identifies a half message
_HALF = ["queue_id", "queue_offset"]
_SPAN = ("queue_id", "queue_offset_min", "queue_offset_max")
_UTC = pa.timestamp("us", "UTC")
#: what `superseding_rows` returns, without rows
NEWER = pa.table({"queue_id": pa.array([], pa.int32()), "queue_offset": pa.array([], pa.int64())})
NEWER = NEWER.append_column("requested_at", pa.array([], _UTC)).append_column("check_times", pa.array([], pa.int32()))
DECIDED = NEWER.select([0, 1]).append_column("decided_at", pa.array([], _UTC))
DECIDED = DECIDED.append_column("state", pa.array([], pa.string()))
_END = datetime.max.replace(tzinfo=timezone.utc)


def possibly_superseded(requests: pa.Table, now: datetime, check_interval: timedelta) -> pa.Table:
    """Those of ``requests`` (CHECK_REQUESTS) that are old enough to be superseded."""
    return requests.filter(pc.less_equal(requests.column("requested_at"), pa.scalar(now - check_interval, _UTC)))


def superseding_rows(spark: SparkSession, tables: Tables, requests: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Candidates (newer requests, decisions) for ``requests`` (CHECK_REQUESTS), read with data skipping.

    Columns: queue_id, queue_offset, requested_at, check_times; queue_id, queue_offset, decided_at, state. Includes rows
    of other transactions.
    """
    ranges = offset_ranges(requests)
    oldest = pc.min(requests.column("requested_at")).as_py()
    newer = _rows(spark, tables, "check_requests", ranges, "requested_at", oldest, "check_times")
    return newer, _rows(spark, tables, "decisions", ranges, "decided_at", oldest, "state")


def superseded_by(requests: pa.Table, newer: pa.Table, decisions: pa.Table) -> pa.ChunkedArray:
    """By what each of ``requests`` (CHECK_REQUESTS) is superseded, as text; null = it must be sent.

    By the newest request of its half among ``requests`` and ``newer``, or by a decision made at its time or later.
    The newest is the one with the greatest requested_at: a rebuild resets check_times.
    """
    both = pa.concat_tables([table.select(newer.column_names) for table in (requests, newer)])
    by_request = _later(requests, both, "requested_at", "check_times", "overtaken by check ", pc.greater)
    by_decision = _later(requests, decisions, "decided_at", "state", "overtaken by the decision ", pc.greater_equal)
    return pc.coalesce(by_decision, by_request)


def undecided(spark: SparkSession, tables: Tables, requests: pa.Table, answers: pa.Table) -> pa.Table:
    """Those of ``answers`` (CHECK_ANSWERS) to ``requests`` whose transactions were not decided since the request."""
    if not answers.num_rows:
        return answers
    wanted, answered = key_numbers(requests, answers)
    asked = requests.filter(pa.array(np.isin(wanted, answered)))
    oldest = pc.min(asked.column("requested_at")).as_py()
    decisions = _rows(spark, tables, "decisions", offset_ranges(asked), "decided_at", oldest, "state")
    decided = asked.filter(pc.is_valid(_later(asked, decisions, "decided_at", "state", "", pc.greater_equal)))
    ended, answered = key_numbers(decided, answers)
    return answers.filter(pa.array(~np.isin(answered, ended)))


def not_sent(
    requests: pa.Table, why: pa.ChunkedArray, now: datetime, batch_id: int, outcome: str = SKIPPED
) -> pa.Table:
    """Rows of `check_answers` for ``requests`` (CHECK_REQUESTS) that are not sent; ``why``: their errors."""
    schema = arrow_schema("check_answers")
    rows = requests.num_rows
    same: dict[str, Any] = {"outcome": outcome, "latency_ms": 0, "answered_at": now}
    same |= {"batch_id": batch_id, "delivered": False}
    identity = {name: requests.column(name) for name in CHECK_REQUESTS.names[:6]}
    scalars = {name: pa.scalar(value, schema.field(name).type) for name, value in same.items()}
    columns = identity | {"error": why} | {name: pa.repeat(value, rows) for name, value in scalars.items()}
    tried = schema.field("failed_tries").type
    none = pa.ListArray.from_arrays(pa.array(np.zeros(rows + 1, np.int32)), pa.nulls(0, tried.value_type))
    columns["failed_tries"] = none  # a list scalar cannot be repeated
    return pa.table(
        {
            field.name: pa.nulls(rows, field.type)
            if field.name not in columns
            else columns[field.name].cast(field.type)
            for field in schema
        },
        schema=schema,
    )


def offset_ranges(requests: pa.Table) -> list[Box]:
    """Boxes that contain the requests: at most one range per queue."""
    of_queue = requests.group_by("queue_id").aggregate([("queue_offset", "min"), ("queue_offset", "max")])
    spans = zip(*(of_queue.column(name).to_pylist() for name in _SPAN), strict=True)
    return merge_ranges((Range(*span) for span in spans), MAX_RANGES)


def _later(
    requests: pa.Table, rows: pa.Table, time: str, detail: str, words: str, is_later: Callable[[Any, Any], Any]
) -> pa.ChunkedArray:
    """For each request, ``words`` and the detail of the newest of ``rows`` if ``is_later`` holds; else null."""
    last = rows.sort_by(time).group_by(_HALF, use_threads=False).aggregate([(time, "last"), (detail, "last")])
    asked = requests.select([*_HALF, "requested_at"]).append_column("row", pa.array(np.arange(requests.num_rows)))
    found = asked.join(last, _HALF, join_type="left outer").sort_by("row")
    later = is_later(found.column(f"{time}_last"), found.column("requested_at"))
    text = pc.binary_join_element_wise(words, found.column(f"{detail}_last").cast(pa.string()), "")
    return pc.if_else(later, text, pa.scalar(None, pa.string()))


def _rows(
    spark: SparkSession, tables: Tables, name: str, ranges: Sequence[Box], time: str, oldest: datetime, detail: str
) -> pa.Table:
    """Rows of a table within the ranges and not older than ``oldest``; maybe others."""
    names = [*_HALF, time, detail]
    schema = pa.schema([arrow_schema(name).field(column) for column in names])
    if tables.by_files and tables.log(name).readable():
        box = reduce(Box.joined, ranges)
        since: Mapping[str, tuple[Any, Any]] = {
            "queue_id": (box.first_queue, box.last_queue),
            "queue_offset": (box.first, box.last),
            time: (oldest, _END),
        }
        found = [
            pq.read_table(
                table_files.source(file.path), columns=names, partitioning=None, coerce_int96_timestamp_unit="us"
            ).cast(schema)
            for file in tables.log(name).data_files(since)
        ]
        return pa.concat_tables([schema.empty_table(), *found])
    table = tables.read(spark, name).where(within(ranges) & (F.col(time) >= F.lit(oldest)))
    return table.select(*names).toArrow().cast(schema)
