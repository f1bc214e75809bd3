"""Ranges of offsets of the half queues: the predicate by which Delta skips files."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql import Column

#: most ranges in the predicate that lets Delta skip files; more make planning slow
MAX_RANGES = 64


class Range(NamedTuple):
    """Offsets ``first`` .. ``last`` of a half queue, both included."""

    queue_id: int
    first: int
    last: int


def within(ranges: Sequence[Range], offset_column: str) -> Column:
    """Does a row of `half` or `op` lie in one of the ranges?"""
    from pyspark.sql import functions as F

    inside = F.lit(False)
    for queue_id, first, last in ranges:
        inside = inside | ((F.col("queue_id") == queue_id) & F.col(offset_column).between(first, last))
    return inside


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
