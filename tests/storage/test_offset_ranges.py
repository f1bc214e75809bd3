"""Boxes of offsets that files are skipped by."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkback.storage.offset_ranges import MAX_RANGES, Box, Range, merge_ranges, within

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

spans = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 200), st.integers(0, 20)).map(lambda s: Range(s[0], s[1], s[1] + s[2]))
)


@given(spans, st.integers(1, 5))
def test_boxes_cover_all_and_stay_few(content: list[Range], most: int) -> None:
    """Every span lies in a box, and there are never more of them than asked for, however many queues there are."""
    merged = merge_ranges(content, most)
    assert uncovered(content, merged) == []
    assert len(merged) <= most


def uncovered(content: Sequence[Range], boxes: Sequence[Box]) -> list[Range]:
    """The spans that lie in no box."""
    return [
        span
        for span in content
        if not any(
            box.first_queue <= span.queue_id <= box.last_queue and box.first <= span.first and span.last <= box.last
            for box in boxes
        )
    ]


def test_nearest_ranges_are_merged_first() -> None:
    """The gap that costs least is read."""
    content = [Range(0, 0, 9), Range(0, 100, 109), Range(0, 112, 119), Range(1, 0, 5)]
    assert merge_ranges(content, 3) == [Box(0, 0, 0, 9), Box(0, 0, 100, 119), Box(1, 1, 0, 5)]
    assert merge_ranges(content, 4) == [Box(queue, queue, first, last) for queue, first, last in content]


def test_queues_are_merged_where_it_costs_least() -> None:
    """Those with the same offsets next to one another; a queue far away keeps its own box."""
    content = [*(Range(queue, 5, 9) for queue in range(3000)), Range(9000, 10**9, 10**9)]
    assert merge_ranges(content, 2) == [Box(0, 2999, 5, 9), Box(9000, 9000, 10**9, 10**9)]


def test_touching_ranges_are_one() -> None:
    """No gap, no second range."""
    assert merge_ranges([Range(0, 10, 19), Range(0, 0, 9), Range(0, 5, 12)], 9) == [Box(0, 0, 0, 19)]


@pytest.mark.spark
def test_predicate_holds_for_rows_of_the_boxes(spark: SparkSession) -> None:
    """And for no other row."""
    from pyspark.sql import functions as F

    rows = spark.range(4000).select((F.col("id") % 4).cast("int").alias("queue_id"), F.col("id").alias("queue_offset"))
    found = rows.where(within([Box(1, 2, 10, 19), Box(3, 3, 100, 103)])).collect()
    assert sorted((row["queue_id"], row["queue_offset"]) for row in found) == [
        (1, 13),
        (1, 17),
        (2, 10),
        (2, 14),
        (2, 18),
        (3, 103),
    ]
    assert rows.where(within([])).isEmpty()
    many = [Box(2, 2, at, at) for at in range(MAX_RANGES)]
    assert rows.where(within(many)).count() == MAX_RANGES // 4
