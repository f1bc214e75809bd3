"""Retention by SQL, for tables that only Spark writes: rows go with DELETE and MERGE, whatever files they are in.

Rows are looked at in slices of time, some million together: columns of their keys only. What is decided of a row is
decided of all that are equal in these columns, by which MERGE finds them.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from checkback.errors import CheckbackError, StorageError
from checkback.maintain.retained_rows import FOLLOWING, Removed, columns_of_group, keyed, place_of, time_column
from checkback.maintain.sql_changes import BusyError, SqlChanges, same
from checkback.messages.half import RESUMED_FROM
from checkback.reconcile.ended_transactions import KEY, last_of_queues
from checkback.reconcile.publish.published_notes import waits
from checkback.storage.batch_runs import runs_of
from checkback.storage.dataframes import frame
from checkback.storage.failure_scope import own_failure
from checkback.storage.horizon import BODIES, HORIZON, versions_of
from checkback.storage.schemas import arrow_schema, in_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from pyspark.sql import Column, DataFrame

    from checkback.maintain.retained_rows import Ranges
    from checkback.reconcile.ended_transactions import Mask

#: rows that are looked at together, unless one minute has more
_TOGETHER = 1_000_000
_MINUTE_US = 60_000_000
#: text of an op that `reconcile` has rejected; of other rows of `rejected` retention does not need it
_OF_OP = "CASE WHEN source = 'op' AND file IS NULL THEN raw END AS raw"
_DIGEST = "xxhash64(raw) AS digest"
_BATCH = ("application", "batch_id", "batch_time", "finished_at")


@dataclass(frozen=True)
class SqlGroup:
    """Rows, see `retained_rows.Group`; ``found``: as they were read; ``span``: of their times, us, without its end."""

    rows: pa.Table
    found: pa.Table
    span: tuple[int, int]


@dataclass(frozen=True)
class RowsInSql:
    """`RetainedRows` of the tables ``names``. ``dry_run``: only count."""

    changes: SqlChanges
    names: Collection[str]
    dry_run: bool
    removed: dict[str, Removed] = field(default_factory=dict)

    def last_batch(self, before: int | None = None) -> int | None:
        """See RetainedRows."""
        if "batches" not in self.names:
            return None
        rows = self._read("batches")
        rows = rows if before is None else rows.where(F.col("batch_time") <= _at(before))
        found: Any = rows.agg(F.unix_millis(F.max("batch_time"))).first()
        return None if found is None else found[0]

    def groups(self, name: str, before: int, where: str = "true", more: Sequence[str] = ()) -> Iterator[SqlGroup]:
        """See RetainedRows. ``more``: expressions, for ``found``."""
        time = time_column(name)
        with self._table(name):
            old = self._read(name).where(F.col(time) < _at(before)).where(where)
            spans = list(_slices(old, time))
        columns = list(columns_of_group(name))
        if name == "rejected":
            columns[columns.index("raw")] = _OF_OP
            columns.append(_DIGEST)
        for span in spans:
            found = old.where(_within(time, span)).selectExpr(*columns, *more).toArrow()
            typed = in_schema(found, pa.schema([arrow_schema(name).field(each) for each in columns_of_group(name)]))
            yield SqlGroup(keyed(name, typed), found, span)

    def rows(self, name: str, columns: Sequence[str], ranges: Ranges | None = None) -> pa.Table:
        """See RetainedRows."""
        schema = pa.schema([arrow_schema(name).field(column) for column in columns])
        if name not in self.names or ranges == {}:
            return schema.empty_table()
        rows = self._read(name)
        if ranges is not None:
            rows = rows.where(_in(ranges, place_of(name)))
        return in_schema(rows.select(*columns).toArrow(), schema)

    def halves(self, ranges: Ranges, columns: Sequence[str]) -> tuple[pa.Table, pa.Table]:
        """See RetainedRows."""
        found = self.rows("half", columns, ranges)
        return (found.slice(0, 0), found) if self.dry_run else (found, found.slice(0, 0))

    def least_since(self, since: int, ranges: Ranges) -> dict[int, int]:
        """See RetainedRows. Where Spark writes `half`, nobody notes whose a queue is."""
        later = self._read("half").where(F.col("store_timestamp") >= _at(since)).where(_in(ranges, KEY))
        return {row[0]: row[1] for row in later.groupBy("queue_id").agg(F.min("queue_offset")).collect()}

    def published_since(self, name: str, since: int, messages: pa.Table) -> pa.Table:
        """See RetainedRows."""
        key = messages.column_names
        with self._table(name):
            rows = self._read(name).where(F.col("published_at") >= _at(since)).select(*key)
            found = rows.join(F.broadcast(frame(self.changes.spark, messages)), key, "left_semi")
            return in_schema(found.toArrow(), messages.schema)

    def resumed(self, queue: int) -> pa.Table:  # noqa: ARG002 - the queues before are not known
        """See RetainedRows."""
        names = [*KEY, "properties"]
        rows = self._read("half").where(F.col("properties").getItem(RESUMED_FROM).isNotNull())
        schema = pa.schema([arrow_schema("half").field(name) for name in names])
        return in_schema(rows.select(*names).toArrow(), schema)

    def waits(self, rows: pa.Table) -> pa.Array:
        """See RetainedRows."""
        return waits(self.changes.spark, self.changes.tables, rows)

    def remove(self, name: str, group: SqlGroup, gone: Mask, horizon: int) -> None:
        """See RetainedRows."""
        number = int(gone.sum())
        if number:
            last = last_of_queues(group.rows, gone) if name == "half" else {}
            versions = versions_of(horizon, {queue: offset + 1 for queue, offset in last.items()})
            self._change(name, versions, number, lambda: self._merge(name, group, gone, "WHEN MATCHED THEN DELETE"))

    def make_runs(self, horizon: int) -> None:
        """See RetainedRows."""
        name, schema = "batches", arrow_schema("batches")
        old = self._read(name).where((F.col("batch_time") < _at(horizon)) & (F.col("finished_at") < _at(horizon)))
        for span in _slices(old, "finished_at"):
            rows = in_schema(old.where(_within("finished_at", span)).select(*schema.names).toArrow(), schema)
            runs = runs_of(rows)
            number = len(rows) - len(runs)
            if 2 * number >= len(rows):
                self._change(name, versions_of(horizon, {}), number, partial(self._replace_batches, rows, runs, span))

    def _replace_batches(self, old: pa.Table, new: pa.Table, span: tuple[int, int]) -> None:
        parts = [rows.append_column("gone", pa.array([gone] * len(rows))) for rows, gone in ((old, True), (new, False))]
        names = ", ".join(f"`{name}`" for name in old.column_names)
        values = ", ".join(f"s.`{name}`" for name in old.column_names)
        then = f"WHEN MATCHED THEN DELETE WHEN NOT MATCHED AND NOT s.gone THEN INSERT ({names}) VALUES ({values})"  # noqa: S608 - the schema's names
        on = f"s.gone AND {_within('t.finished_at', span)} AND {same(_BATCH)}"
        self.changes.merge("batches", pa.concat_tables(parts), on, then)

    def empty_bodies(self, before: int, over: Callable[[pa.Table], Mask]) -> None:
        """See RetainedRows. A dry run counts those of rows, too, that it counts as removed."""
        done = self._done("half")
        for group in self.groups("half", before, "body IS NOT NULL", ["octet_length(body) AS size"]):
            mask = over(group.rows)
            number, empty = int(mask.sum()), "WHEN MATCHED AND t.body IS NOT NULL THEN UPDATE SET body = NULL"
            if number and self._change("half", {BODIES: before}, 0, partial(self._merge, "half", group, mask, empty)):
                done.bodies += number
                done.of_bodies += pc.sum(group.found.column("size").filter(pa.array(mask))).as_py()

    def _change(self, name: str, versions: Mapping[str, int], number: int, act: Callable[[], object]) -> bool:
        """Change a table, which says before which rows are gone; count them. False: others kept it from that."""
        if not self.dry_run:
            try:
                if name in (*FOLLOWING, "ticks", "batches"):
                    self.changes.say("half", {HORIZON: versions[HORIZON]})
                self.changes.say(name, versions)
                act()
            except BusyError as error:
                self._done(name).kept = (str(error),)
                return False
        self._done(name).rows += number
        return True

    def _merge(self, name: str, group: SqlGroup, mask: Mask, then: str) -> None:
        columns = list(columns_of_group(name))
        on = [_within(f"t.{time_column(name)}", group.span)]
        if name == "rejected":
            columns.remove("raw")
            on.append("xxhash64(t.raw) <=> s.digest")
        rows = group.found.filter(pa.array(mask)).select([*columns, *(["digest"] if name == "rejected" else [])])
        rows = rows.group_by(rows.column_names).aggregate([])
        self.changes.merge(name, rows, " AND ".join([*on, same(columns)]), then)

    def _done(self, name: str) -> Removed:
        return self.removed.setdefault(name, Removed())

    def _read(self, name: str) -> DataFrame:
        return self.changes.tables.read(self.changes.spark, name)

    @contextmanager
    def _table(self, name: str) -> Iterator[None]:
        """What a table that cannot be read raises is a StorageError."""
        try:
            yield
        except CheckbackError:
            raise
        except Exception as error:
            raise StorageError(own_failure(error), self.changes.tables.location(name)) from error


def _slices(rows: DataFrame, time: str) -> Iterator[tuple[int, int]]:
    """Spans of time (us, without the end) with some million rows each, in order."""
    minute = F.expr(f"unix_micros({time}) DIV {_MINUTE_US}").alias("minute")
    counted = rows.groupBy(minute).count().toArrow().sort_by("minute")
    first, number, last = None, 0, 0
    for minute_, count in zip(*(counted.column(name).to_pylist() for name in ("minute", "count")), strict=True):
        if first is not None and number + count > _TOGETHER:
            yield first * _MINUTE_US, (last + 1) * _MINUTE_US
            first, number = None, 0
        first, number, last = minute_ if first is None else first, number + count, minute_
    if first is not None:
        yield first * _MINUTE_US, (last + 1) * _MINUTE_US


def _in(ranges: Ranges, place: Sequence[str]) -> str:
    queue, offset = place
    return " OR ".join(
        f"({queue} = {each} AND {offset} BETWEEN {first} AND {last})" for each, (first, last) in ranges.items()
    )


def _within(time: str, span: tuple[int, int]) -> str:
    first, end = span
    return f"{time} >= timestamp_micros({first}) AND {time} < timestamp_micros({end})"


def _at(ms: int) -> Column:
    return F.timestamp_millis(F.lit(ms))
