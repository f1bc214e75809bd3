"""Check requests and answers as Arrow: deduplication by key, and lookup of answers recorded already."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import functions as F

from checkback.storage.dataframes import frame
from checkback.storage.files import table_files
from checkback.storage.schemas import arrow_schema, in_schema

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from pyspark.sql import SparkSession

    from checkback.storage.log.snapshot_files import DataFile
    from checkback.storage.tables import Tables

#: identifies a check: a transaction's n-th. After a restore of `half` from a backup, an offset may be reused
KEY = ("queue_id", "queue_offset", "check_times", "producer_group", "transaction_id")
#: tolerated clock skew between machines
SKEW = timedelta(minutes=5)


def key_numbers(*tables: pa.Table) -> list[np.ndarray[Any, Any]]:
    """A number for each row of each table, equal where the KEY is equal."""
    keys = [_codes([table.column(name) for table in tables]) for name in KEY]
    order = np.lexsort(keys)
    other = np.zeros(len(order), bool)
    for key in keys:
        other[1:] |= key[order][1:] != key[order][:-1]
    numbers = np.empty(len(order), np.int64)
    numbers[order] = np.cumsum(other)
    return np.split(numbers, np.cumsum([table.num_rows for table in tables])[:-1])


def _codes(columns: Sequence[pa.ChunkedArray]) -> np.ndarray[Any, Any]:
    """The values of the columns, concatenated; values that are not integers are dictionary-encoded."""
    if all(pa.types.is_integer(column.type) for column in columns):
        return np.concatenate([column.to_numpy() for column in columns])
    values = pa.chunked_array([chunk for column in columns for chunk in column.chunks], columns[0].type)
    coded = values.dictionary_encode().unify_dictionaries().combine_chunks()
    return np.asarray(coded.indices.fill_null(-1))


def deduplicate_requests(requests: pa.Table) -> pa.Table:
    """The newest request of each key. The number of a check that does not count is used again."""
    requests = requests.sort_by([("requested_at", "descending")])
    (number,) = key_numbers(requests)
    _, first = np.unique(number, return_index=True)
    return requests.take(pa.array(np.sort(first)))


def answers_to(requests: pa.Table, answers: pa.Table, own: int | None = None) -> pa.Table:
    """Those of ``answers`` that belong to one of ``requests``.

    An undelivered one may belong to an earlier request with the same number: it counts only if it is not older than the
    request, or is of the batch ``own``: the requests' own batch, if its answers were written before.
    """
    if not requests.num_rows:
        return answers.slice(0, 0)
    asked, answered = key_numbers(requests, answers)
    order = np.argsort(asked)
    at = order[np.minimum(np.searchsorted(asked[order], answered), len(asked) - 1)]
    after = pc.greater_equal(answers.column("answered_at"), requests.column("requested_at").take(pa.array(at)))
    taken = pc.or_(after, answers.column("delivered").fill_null(True))
    if own is not None:  # the clock may have been set back since the request
        taken = pc.or_(taken, pc.equal(answers.column("batch_id"), own).fill_null(False))
    return answers.filter(pc.and_(pa.array(asked[at] == answered), taken))


def recorded_answers(
    spark: SparkSession,
    tables: Tables,
    requests: pa.Table,
    batch_id: int,
    again: bool,
    besides: Collection[str] = (),
    own: int | None = None,
) -> pa.Table:
    """The answers (CHECK_ANSWERS) that ``requests`` (CHECK_REQUESTS) have in `check_answers`.

    Data skipping: no answer predates its request. Answers come in about the order of their requests: once all are
    found, no further file is read, unless the batch may be a replay (``again``). Files of this batch id are never
    skipped. ``besides``: files that need not be read. ``own``: see `answers_to`.
    """
    schema = arrow_schema("check_answers")
    oldest = pc.min(requests.column("requested_at")).as_py()
    since = None if oldest is None else oldest - SKEW
    if not (tables.by_files and tables.log("check_answers").readable()):
        answers = tables.read(spark, "check_answers")
        if since is not None:
            answers = answers.where((F.col("batch_id") == batch_id) | (F.col("answered_at") >= F.lit(since)))
        wanted = frame(spark, requests.select(list(KEY))).distinct()
        answers = answers.join(F.broadcast(wanted), on=list(KEY), how="left_semi")
        return answers_to(requests, answers.select(*schema.names).toArrow().cast(schema), own)
    files = [
        file
        for file in tables.log("check_answers").data_files()
        if file.path not in besides and _may_hold(file.spans, since, batch_id)
    ]
    found, left = [schema.empty_table()], requests
    for file in in_turn(files):
        rows = in_schema(pq.read_table(table_files.source(file.path), coerce_int96_timestamp_unit="us"), schema)
        found.append(answers_to(requests, rows, own))
        asked, answered = key_numbers(left, found[-1])
        left = left.filter(pa.array(~np.isin(asked, answered)))
        if not (left.num_rows or again):
            break
    return pa.concat_tables(found)


def in_turn(files: Sequence[DataFile]) -> list[DataFile]:
    """The files of `check_answers` in the order of time, but those of the last batch first.

    Only that batch's ops may be missing, and an answer to another check with the same number must not hide that. Files
    without statistics come first, too.
    """
    told = [file for file in files if "answered_at" in file.spans and "batch_id" in file.spans]
    if not told:
        return list(files)
    newest = max(told, key=lambda file: file.spans["answered_at"][1])
    since, batch = newest.spans["answered_at"][0] - SKEW, newest.spans["batch_id"][1]

    def turn(file: DataFile) -> tuple[bool, datetime]:
        times, batches = file.spans.get("answered_at"), file.spans.get("batch_id")
        if times is None or batches is None:
            return False, since
        return not (times[1] >= since and batches[0] <= batch <= batches[1]), times[0]

    return sorted(files, key=turn)


def _may_hold(spans: dict[str, tuple[Any, Any]], since: datetime | None, batch_id: int) -> bool:
    times, batches = spans.get("answered_at"), spans.get("batch_id")
    if since is None or times is None or batches is None:
        return True
    return bool(times[1] >= since or batches[0] <= batch_id <= batches[1])
