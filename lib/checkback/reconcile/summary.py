"""What a batch of actions holds, summed up: counts, and the offset ranges that its rows of `half` lie in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from checkback.reconcile.segment import Action

#: most ranges in the predicate that lets Delta skip files; more make planning slow
MAX_RANGES = 64


class Range(NamedTuple):
    """Offsets ``first`` .. ``last`` of a half queue, both included."""

    queue_id: int
    first: int
    last: int


@dataclass(frozen=True)
class Summary:
    """Rows by action, the ranges they lie in, the batch's time (ms), and whether `half` repeats one of its rows."""

    counts: dict[int, int]
    ranges: tuple[Range, ...]
    batch_time: int
    repeated: bool

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Summary:
        """From the rows that `sum_up` makes."""
        counts: dict[int, int] = {}
        for row in rows:
            counts[row["action"]] = counts.get(row["action"], 0) + row["n"]
        return cls(
            counts,
            tuple(merge_ranges((Range(row["queue_id"], row["first"], row["last"]) for row in rows), MAX_RANGES)),
            max((row["batch_time"] for row in rows), default=0),
            any(row["repeated"] for row in rows),
        )

    def count(self, *actions: Action) -> int:
        """Rows of these actions."""
        return sum(self.counts.get(action, 0) for action in actions)

    def covers(self, offset_column: str) -> Column:
        """Does a row of `half` or `op` lie in the ranges? The predicate that Delta skips files by."""
        inside = F.lit(False)
        for queue_id, first, last in self.ranges:
            inside = inside | ((F.col("queue_id") == queue_id) & F.col(offset_column).between(first, last))
        return inside


def sum_up(actions: DataFrame, segment_size: int) -> Summary:
    """The summary of a batch of ACTIONS_SCHEMA: one Spark job, one row a segment and action to the driver."""
    return Summary.of(
        actions.groupBy("action", "queue_id", F.floor(F.col("queue_offset") / segment_size).alias("segment"))
        .agg(
            F.min("queue_offset").alias("first"),
            F.max("queue_offset").alias("last"),
            F.count("*").alias("n"),
            F.max("batch_time").alias("batch_time"),
            F.max("repeated").alias("repeated"),
        )
        .collect()
    )


def merge_ranges(spans: Iterable[Range], most: int) -> list[Range]:
    """Ranges that cover the spans: those that touch are merged, then the nearest of a queue, down to ``most``.

    There are more than ``most`` only when there are more queues than that.
    """
    touching: list[Range] = []
    for span in sorted(spans):
        before = touching[-1] if touching else None
        if before and before.queue_id == span.queue_id and span.first <= before.last + 1:
            touching[-1] = before._replace(last=max(before.last, span.last))
        else:
            touching.append(span)
    gaps = sorted(
        (after.first - before.last, index)
        for index, (before, after) in enumerate(pairwise(touching), start=1)
        if before.queue_id == after.queue_id
    )
    closed = {index for _, index in gaps[: max(0, len(touching) - most)]}
    result: list[Range] = []
    for index, span in enumerate(touching):
        if index in closed:
            result[-1] = result[-1]._replace(last=span.last)
        else:
            result.append(span)
    return result
