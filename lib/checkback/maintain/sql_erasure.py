"""Erasure by SQL, for tables that only Spark writes: MERGE empties the messages' rows, table by table, `half` last.

The selection is the same function as by files, in the tasks that read the rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F

from checkback.maintain.erasure import TOPIC_OF, Erasure, span_of, that_hold
from checkback.maintain.erasure_selection import SELECTED_BY, WHO, named
from checkback.maintain.retained_rows import place_of
from checkback.maintain.sql_changes import SqlChanges, same
from checkback.messages.half import FIRST_PLACE, RESUMED_FROM
from checkback.reconcile.publish.published_notes import waits
from checkback.storage.dataframes import frame
from checkback.storage.schemas import SCHEMAS, TOPIC_PREFIX, arrow_schema, in_schema
from checkback.storage.timestamps import us_of
from checkback.storage.valid_texts import valid_texts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from datetime import datetime

    from pyspark.sql import Column, DataFrame, SparkSession

    from checkback.maintain.erasure_selection import Mask

_REJECTED = ("source", "file", "reason", "rejected_at")
#: of the properties what says of which discarded message this one was made, as `erasure_selection.erased`
_ORIGIN = f"""map_filter(t.properties, (name, text) -> name IN ('{RESUMED_FROM}', '{FIRST_PLACE}')
    AND text RLIKE '^[0-9]{{1,10}}/[0-9]{{1,19}}$')"""
#: a reason may quote the message, unless it only names an offset (`ended_transactions.REPEATED`)
_REASON = """reason = CASE WHEN t.reason RLIKE
    '^repeated .queue_id, queue_offset. [0-9]{1,9}/[0-9]{1,18}$' THEN t.reason ELSE 'erased' END"""


@dataclass(frozen=True)
class SqlErasure(Erasure):
    """An erasure of the messages of a selection. Raises StorageError, BusyError, and pyspark's errors."""

    spark: SparkSession

    def __post_init__(self) -> None:
        """SQL changes any table."""

    def names(self) -> list[str]:
        """See Erasure."""
        own = [name for name in SCHEMAS if self.tables.exists(self.spark, name)]
        return that_hold([*own, *self.tables.topics(self.spark)])

    def selected(self, name: str) -> Iterator[pa.Table]:
        """See Erasure."""
        place = place_of(name)
        topic = F.col(TOPIC_OF[name]) if name in TOPIC_OF else F.lit(name.removeprefix(TOPIC_PREFIX))
        rows = self._left(name).select(*place, *SELECTED_BY, topic.alias("_topic"))
        wanted = self.selection
        if wanted.transaction is not None:
            rows = rows.where(F.col("transaction_id") == wanted.transaction)
        if wanted.group is not None:
            rows = rows.where(F.col("producer_group") == wanted.group)
        found = rows.mapInArrow(_keeping(wanted.mask), rows.schema)
        columns = [
            *(F.col(each).alias(who) for each, who in zip((*place, *WHO[2:]), WHO, strict=True)),
            F.col("_topic"),
        ]
        yield found.select(*columns).distinct().toArrow().rename_columns([*WHO, "real_topic"])

    def rows(self, name: str, messages: pa.Table) -> Iterator[pa.Table]:
        """The rows of a table to erase: one table, WHO as `named`, or of `rejected` what tells its rows apart."""
        if name == "rejected":
            rows = self._left(name).select(*_REJECTED, "raw", "erased_at", F.xxhash64("raw").alias("digest"))
            found = rows.mapInArrow(_keeping(partial(self.selection.mask_rejected, messages=messages)), rows.schema)
            yield found.select(*_REJECTED, "digest").toArrow()
        elif len(messages):
            first, last = span_of(messages)
            offset = place_of(name)[1]
            rows = self._left(name).where(F.col(offset).between(first, last) | F.col(offset).isNull())
            rows = rows.select(*(column.alias(who) for column, who in zip(_named(name), WHO, strict=True)))
            wanted = frame(self.spark, named(messages).group_by(list(WHO)).aggregate([]))
            yield rows.join(F.broadcast(wanted), list(WHO), "left_semi").toArrow()

    def count(self, found: Sequence[pa.Table]) -> int:
        """See Erasure."""
        return sum(map(len, found))

    def who(self, found: Sequence[pa.Table]) -> pa.Table:
        """See Erasure."""
        schema = pa.schema([arrow_schema("half").field(name) for name in WHO])
        return pa.concat_tables([schema.empty_table(), *(in_schema(rows, schema) for rows in found)])

    def of_offsets(self, name: str, columns: Sequence[str], messages: pa.Table) -> pa.Table:
        """See Erasure."""
        keys = frame(self.spark, messages.select(list(WHO[:2])).group_by(list(WHO[:2])).aggregate([]))
        rows = self.tables.read(self.spark, name).select(*columns)
        return self._typed(name, columns, rows.join(F.broadcast(keys), list(WHO[:2]), "left_semi").select(*columns))

    def all_of(self, name: str, columns: Sequence[str]) -> pa.Table:
        """See Erasure."""
        return self._typed(name, columns, self.tables.read(self.spark, name).select(*columns))

    def waits(self, rows: pa.Table) -> pa.Array:
        """See Erasure."""
        return waits(self.spark, self.tables, rows)

    def empty(self, name: str, found: Sequence[pa.Table], at: datetime) -> None:
        """See Erasure."""
        changes = SqlChanges(self.spark, self.tables)
        time = f"erased_at = timestamp_micros({us_of(at)})"
        rows = pa.concat_tables(found)
        if not len(rows):
            return
        rows = rows.group_by(rows.column_names).aggregate([])
        if name == "rejected":
            on, what = f"{same(_REJECTED)} AND xxhash64(t.raw) <=> s.digest", f"raw = NULL, {_REASON}"
        else:
            place, (first, last) = place_of(name), span_of(rows)
            on = " AND ".join(f"{_filled(column, who)} = s.{who}" for column, who in zip(_who(name), WHO, strict=True))
            on += f" AND (t.{place[1]} BETWEEN {first} AND {last} OR t.{place[1]} IS NULL)"
            what = (
                f"tags = NULL, keys = NULL, body = NULL, properties = CASE WHEN size({_ORIGIN}) > 0 THEN {_ORIGIN} END"
            )
            what += f", {_REASON}" if name == "unpublished" else ""
        try:
            changes.merge(name, rows, on, f"WHEN MATCHED AND t.erased_at IS NULL THEN UPDATE SET {what}, {time}")
            changes.purge(name)
        finally:
            changes.settle([name])

    def _left(self, name: str) -> DataFrame:
        return self.tables.read(self.spark, name).where("erased_at IS NULL")

    def _typed(self, name: str, columns: Sequence[str], rows: DataFrame) -> pa.Table:
        return in_schema(rows.toArrow(), pa.schema([arrow_schema(name).field(column) for column in columns]))


def _who(name: str) -> tuple[str, ...]:
    """The columns of WHO in a table."""
    return (*place_of(name), *WHO[2:])


def _filled(column: str, who: str) -> str:
    """A column of the table `t` as `named` has it."""
    return f"coalesce(t.{column}, {-1 if who in WHO[:2] else repr('')})"


def _named(name: str) -> list[Column]:
    return [
        F.coalesce(F.col(column), F.lit(-1 if who in WHO[:2] else ""))
        for column, who in zip(_who(name), WHO, strict=True)
    ]


def _keeping(mask: Callable[[pa.Table], Mask]) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for mapInArrow that keeps the rows of a mask."""

    def keep(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = pa.Table.from_batches([batch])
            kept: Any = rows.filter(pa.array(mask(valid_texts(rows))))
            yield from kept.to_batches()

    return keep
