"""Ranges of half queue offsets, as a predicate for Delta's data skipping."""

from __future__ import annotations

from functools import reduce
from heapq import heapify, heappop, heappush
from itertools import pairwise
from operator import or_
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql import Column

#: maximum boxes in the data skipping predicate; more make planning slow
MAX_RANGES = 64


class Range(NamedTuple):
    """Offsets ``first`` .. ``last`` of a half queue, both inclusive."""

    queue_id: int
    first: int
    last: int


class Box(NamedTuple):
    """Offsets ``first`` .. ``last`` of the half queues ``first_queue`` .. ``last_queue``, all inclusive."""

    first_queue: int
    last_queue: int
    first: int
    last: int

    @property
    def offsets(self) -> int:
        """Number of offsets in the box."""
        return (self.last_queue - self.first_queue + 1) * (self.last - self.first + 1)

    def joined(self, other: Box) -> Box:
        """The smallest box that covers both."""
        return Box(
            min(self.first_queue, other.first_queue),
            max(self.last_queue, other.last_queue),
            min(self.first, other.first),
            max(self.last, other.last),
        )


def within(boxes: Sequence[Box]) -> Column:
    """Predicate: a row of `half` or `op` lies in one of the boxes."""
    from pyspark.sql import functions as F

    return _any(
        [
            F.col("queue_id").between(box.first_queue, box.last_queue)
            & F.col("queue_offset").between(box.first, box.last)
            for box in boxes
        ]
        or [F.lit(False)]
    )


def _any(conditions: Sequence[Column]) -> Column:
    """Their disjunction, as a balanced tree: Spark's recursion is as deep as the expression."""
    if len(conditions) <= 2:
        return reduce(or_, conditions)
    middle = len(conditions) // 2
    return _any(conditions[:middle]) | _any(conditions[middle:])


def merge_ranges(spans: Iterable[Range], most: int) -> list[Box]:
    """At most ``most`` boxes that cover the spans, for any number of queues.

    Adjacent spans are merged; then, greedily, the two neighbours (by queue and offset) whose joint box adds the fewest
    offsets.
    """
    touching = _touching(spans)
    found: list[Box | None] = [*touching]
    before, after = list(range(-1, len(found) - 1)), [*range(1, len(found)), -1]  # linked list; -1 = end
    merges = [(_growth(one, other), at, at + 1) for at, (one, other) in enumerate(pairwise(touching))]
    heapify(merges)
    for new in range(len(touching), 2 * len(touching) - most):  # each step merges two boxes
        one = other = None
        while one is None or other is None:  # skip stale heap entries: boxes that are merged already
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
    """The spans as sorted single-queue boxes, with adjacent and overlapping ones merged."""
    boxes: list[Box] = []
    for queue_id, first, last in sorted(spans):
        if boxes and boxes[-1].first_queue == queue_id and first <= boxes[-1].last + 1:
            boxes[-1] = boxes[-1]._replace(last=max(boxes[-1].last, last))
        else:
            boxes.append(Box(queue_id, queue_id, first, last))
    return boxes


def _growth(one: Box, other: Box) -> int:
    """Offsets that the joint box adds to those of the two."""
    return one.joined(other).offsets - one.offsets - other.offsets
