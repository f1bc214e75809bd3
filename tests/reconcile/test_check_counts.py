"""How often a half message was checked, by the tables: what a rebuild goes on from."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from checkback.reconcile.publish.check_counts import checks_so_far
from checkback.storage.dataframes import frame
from checkback.storage.schemas import arrow_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_T = datetime(2026, 1, 1, tzinfo=timezone.utc)
_WHOSE = {"queue_id": 0, "transaction_id": "t", "producer_group": "g"}


@pytest.mark.parametrize(
    ("requested", "received", "undelivered_count", "check_max", "expected"),
    [
        ([], [], True, 3, None),
        ([1, 2], [], True, 3, 2),
        ([1, 2, 3], [], True, 3, 2),  # the last one was sent to nobody, as far as is known
        ([1, 2, 3], [3], True, 3, 3),
        ([1, 2, 3, 3], [], True, 3, 2),
        ([1, 2], [1], True, 1, 1),  # check_max was greater when they were requested
        ([1, 2], [], True, 1, 0),
        ([1, 2, 3], [1], False, 3, 1),
        ([1, 1, 1], [], False, 3, 0),
    ],
)
def test_checks_that_count(
    spark: SparkSession,
    requested: list[int],
    received: list[int],
    undelivered_count: bool,
    check_max: int,
    expected: int | None,
) -> None:
    requests = [
        _WHOSE | {"queue_offset": 0, "check_times": number, "requested_at": _T + timedelta(minutes=place)}
        for place, number in enumerate(requested)
    ]
    ops = [
        _WHOSE
        | {"queue_offset": 0, "state": "COUNTED", "source": "check", "remark": f"check {number}"}
        | {"born_timestamp": _T, "store_timestamp": _T + timedelta(hours=1)}
        for number in received
    ]
    asked, told = (
        frame(spark, pa.Table.from_pylist(rows, arrow_schema(name)))
        for name, rows in (("check_requests", requests), ("op", ops))
    )
    found = checks_so_far(asked, told, undelivered_count, check_max).select("check_times", "requested").collect()
    assert [tuple(row) for row in found] == ([] if expected is None else [(expected, len(requested))])
