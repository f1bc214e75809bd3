"""Ranges of offsets of the half queues: the predicate by which Delta skips files."""

from __future__ import annotations

from functools import reduce
from heapq import heapify, heappop, heappush
from itertools import pairwise
from operator import or_
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql import Column

#: most boxes in the predicate that lets Delta skip files; more make planning slow
MAX_RANGES = 64


class Range(NamedTuple):
    """Offsets ``first`` .. ``last`` of a half queue, both included."""

    queue_id: int
    first: int
    last: int


class Box(NamedTuple):
    """Offsets ``first`` .. ``last`` of the half queues ``first_queue`` .. ``last_queue``, all included."""

    first_queue: int
    last_queue: int
    first: int
    last: int

    @property
    def offsets(self) -> int:
        """How many offsets lie in it."""
        return (self.last_queue - self.first_queue + 1) * (self.last - self.first + 1)

    def joined(self, other: Box) -> Box:
        """The least box that covers both."""
        return Box(
            min(self.first_queue, other.first_queue),
            max(self.last_queue, other.last_queue),
            min(self.first, other.first),
            max(self.last, other.last),
        )


def within(boxes: Sequence[Box], offset_column: str) -> Column:
    """Does a row of `half` or `op` lie in one of the boxes?"""
    from pyspark.sql import functions as F

    return _any(
        [
            F.col("queue_id").between(box.first_queue, box.last_queue)
            & F.col(offset_column).between(box.first, box.last)
            for box in boxes
        ]
        or [F.lit(False)]
    )


def _any(conditions: Sequence[Column]) -> Column:
    """Is one of them true? As a balanced tree: Spark's recursion is as deep as the expression."""
    if len(conditions) <= 2:
        return reduce(or_, conditions)
    middle = len(conditions) // 2
    return _any(conditions[:middle]) | _any(conditions[middle:])


def merge_ranges(spans: Iterable[Range], most: int) -> list[Box]:
    """At most ``most`` boxes that cover the spans, however many queues there are.

    Spans that touch are merged, then of all neighbours, in the order of queues and offsets, always the two whose box
    has the fewest offsets besides theirs.
    """
    touching = _touching(spans)
    found: list[Box | None] = [*touching]
    before, after = list(range(-1, len(found) - 1)), [*range(1, len(found)), -1]  # -1: there is none
    merges = [(_growth(one, other), at, at + 1) for at, (one, other) in enumerate(pairwise(touching))]
    heapify(merges)
    for new in range(len(touching), 2 * len(touching) - most):  # each makes one of two
        one = other = None
        while one is None or other is None:  # else one of them is merged already
            _, first, second = heappop(merges)
            one, other = found[first], found[second]
        merged = one.joined(other)
        found[first] = found[second] = None
        found.append(merged)
        before.append(before[first])
        after.append(after[second])
        if (at := before[new]) >= 0 and (neighbour := found[at]) is not None:
            after[at] = new
            heappush(merges, (_growth(neighbour, merged), at, new))
        if (at := after[new]) >= 0 and (neighbour := found[at]) is not None:
            before[at] = new
            heappush(merges, (_growth(merged, neighbour), new, at))
    return sorted(box for box in found if box is not None)


def _touching(spans: Iterable[Range]) -> list[Box]:
    """The spans as boxes of one queue each, in order; those that touch are one."""
    boxes: list[Box] = []
    for queue_id, first, last in sorted(spans):
        if boxes and boxes[-1].first_queue == queue_id and first <= boxes[-1].last + 1:
            boxes[-1] = boxes[-1]._replace(last=max(boxes[-1].last, last))
        else:
            boxes.append(Box(queue_id, queue_id, first, last))
    return boxes


def _growth(one: Box, other: Box) -> int:
    """Offsets that the box of both has besides theirs."""
    return one.joined(other).offsets - one.offsets - other.offsets
