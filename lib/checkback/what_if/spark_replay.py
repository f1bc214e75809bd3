"""Replays the segments of large tables, or of tables in a catalog, in Spark's tasks: as `parts`, many at a time."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import datetime
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F

from checkback.errors import SettingsError
from checkback.reconcile.read_ranges import READ
from checkback.storage.log.delta_log import DeltaLog
from checkback.storage.schemas import arrow_schema
from checkback.what_if import batch_history, rows
from checkback.what_if.batch_history import BatchHistory
from checkback.what_if.figures import Figures
from checkback.what_if.origins import origins
from checkback.what_if.parts import Change, Part, Question
from checkback.what_if.records import NEVER, NOT_TOLD
from checkback.what_if.result import WhatIf, begun
from checkback.what_if.timeline import Cadence, Needs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray
    from pyspark.sql import DataFrame, SparkSession

    from checkback.storage.tables import Tables
    from checkback.what_if.origins import Origins

#: offsets of a half queue that a task replays together, about
_TOGETHER = 32_768
_NEEDS = ("due", "answer", "landed")
_NEEDS_SCHEMA = "turn BIGINT, due BIGINT, answer BIGINT, landed BIGINT"
_FOUND_SCHEMA = "producer_group STRING, figures STRING, change STRING"
_TABLE, _PART, _FILE = "_table", "_part", "_file"
_TIMES = ("landed_at", "was_at", "now_at")


def compare_on_spark(
    spark: SparkSession,
    tables: Tables,
    segment_size: int,
    changes: Mapping[str, Any],
    since: int,
    tell: Callable[[Change], object],
) -> WhatIf:
    """As `run.replay`. The driver collects a row a batch, one a part and group, and one a changed transaction."""
    if not tables.exists(spark, "batches"):
        raise SettingsError("there is no such table", tables.location("batches"), "run `checkback reconcile` first")
    batches = tables.read(spark, "batches").select(*batch_history.COLUMNS).toArrow()
    schema = pa.schema([arrow_schema("batches").field(name) for name in batch_history.COLUMNS])
    history = BatchHistory.of(batches.cast(schema), tables.location("batches"))
    question = Question(history, changes, since, segment_size)
    known = _origins(tables, history, max(since, history.begin))
    together = max(1, _TOGETHER // segment_size) * segment_size
    parts = _parts(spark, tables, together, max(since, history.begin)).groupBy(_PART)
    cadence = Cadence.of(
        history.timeline, _needs(parts.applyInArrow(_needs_of(question, known), _NEEDS_SCHEMA), history)
    )
    found = begun(history, changes)
    for row in parts.applyInArrow(_compared(question, known, cadence), _FOUND_SCHEMA).toLocalIterator():
        if row["figures"] is not None:
            found.take({row["producer_group"]: Figures.from_json(row["figures"])}, (), tell)
        else:
            found.take({}, [_change(row["change"])], tell)
    return found


def _parts(spark: SparkSession, tables: Tables, together: int, since: int) -> DataFrame:
    """The rows of all tables, each with its table's name, and its part: queue and range of offsets.

    Of half messages those that landed at or after ``since`` (ms).
    """
    found = []
    for name, columns in rows.COLUMNS.items():
        if not tables.exists(spark, name):
            continue
        offset = F.col(columns[1])
        part = F.concat_ws("/", "queue_id", F.expr(f"{columns[1]} div {together}"))
        read = tables.read(spark, name).where((F.col("queue_id") >= 0) & (offset >= 0))
        if name == "half" and since > 0:
            read = read.where(F.col("store_timestamp") >= F.timestamp_millis(F.lit(since)))
        file = [F.col("_metadata.file_name").alias(_FILE)] if name in READ else []
        found.append(read.select(F.lit(name).alias(_TABLE), part.alias(_PART), *columns, *file))
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), found)


def _origins(tables: Tables, history: BatchHistory, since: int) -> dict[str, Origins]:
    """By source; only Spark reads a catalog's logs, so of its rows it is not known in which commit they landed."""
    if not tables.readable:
        return {}
    first = int(history.timeline.first_turns(np.array([since]))[0])
    return {
        name: origins(name, tables.location(name), read, first)
        for name, read in history.read.items()
        if DeltaLog.exists(tables.location(name))
    }


def _part(table: pa.Table, question: Question, known: Mapping[str, Origins]) -> Part:
    """The rows of one part, by table."""
    names = np.asarray(table.column(_TABLE).to_pylist())
    by_table = {}
    for name, columns in rows.COLUMNS.items():
        schema = pa.schema([arrow_schema(name).field(column) for column in columns])
        there = all(column in table.column_names for column in columns)
        mine = table.filter(pa.array(names == name)).select(list(columns)) if there else schema.empty_table()
        by_table[name] = mine.cast(schema)
        if name in known and there:
            files = table.column(_FILE).filter(pa.array(names == name))
            codes = _codes(by_table[name], files, known[name])
            by_table[name] = by_table[name].append_column(rows.READ_BY, pa.array(codes, pa.int64()))
    queue_id = int(table.column(_PART)[0].as_py().partition("/")[0])
    return Part(queue_id, by_table, question)


def _codes(mine: pa.Table, files: pa.ChunkedArray, known: Origins) -> NDArray[Any]:
    """What is told of these rows, by the files that they are from."""
    found = np.full(mine.num_rows, NOT_TOLD)
    names = np.asarray(files.to_pylist(), object)
    for file in set(names.tolist()):
        here = names == file
        found[here] = known.codes(file, mine.filter(pa.array(here)))
    return found


def _needs_of(question: Question, known: Mapping[str, Origins]) -> Callable[[pa.Table], pa.Table]:
    def needs(table: pa.Table) -> pa.Table:
        found = _part(table, question, known).needs()
        turns = np.flatnonzero(found.first < NEVER)
        columns = {"turn": turns, **{name: getattr(found, name)[turns] for name in _NEEDS}}
        return pa.table({name: pa.array(values, pa.int64()) for name, values in columns.items()})

    return needs


def _needs(found: DataFrame, history: BatchHistory) -> Needs:
    """Those of all parts."""
    needs = Needs.none(len(history.timeline))
    first = found.groupBy("turn").agg(*(F.min(name).alias(name) for name in _NEEDS)).toArrow()
    for name in _NEEDS:
        getattr(needs, name)[first.column("turn").to_numpy()] = first.column(name).to_numpy()
    return needs


def _compared(question: Question, known: Mapping[str, Origins], cadence: Cadence) -> Callable[[pa.Table], pa.Table]:
    def compared(table: pa.Table) -> pa.Table:
        answer = _part(table, question, known).compare(cadence)
        figures = [(group, each.to_json(), None) for group, each in answer.groups.items()]
        told = [*figures, *((None, None, json.dumps(asdict(each), default=str)) for each in answer.changes)]
        names = ("producer_group", "figures", "change")
        return pa.table({name: pa.array([row[at] for row in told], pa.string()) for at, name in enumerate(names)})

    return compared


def _change(text: str) -> Change:
    found: dict[str, Any] = json.loads(text)
    times = {name: datetime.fromisoformat(found[name]) for name in _TIMES if found[name] is not None}
    return Change(**(found | times))
