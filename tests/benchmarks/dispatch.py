"""How many checks a second the check query makes over HTTP, of a producer that answers at once."""

from __future__ import annotations

import statistics
import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import functions as F

from benchmarks.processes import GROUP, lake
from benchmarks.report import report, rounded, say, scaled
from check.quick_endpoint import endpoint
from check.started import start_check
from checkback.errors import CheckbackError
from checkback.storage.schemas import arrow_schema

if TYPE_CHECKING:
    from benchmarks.processes import Lakehouse

WARM_UP = 1
ROUNDS = 3
_POLL_S = 0.05


def bench(root: str) -> None:
    """Rounds of 100,000 check requests on a warm check query, from landed to all answers visible; all say COMMIT."""
    n = scaled(100_000, least=200)
    with endpoint() as url, lake(root, producers={GROUP: {"endpoints": [url]}}) as place:
        query = start_check(place.spark, place.settings, place.tables, available_now=False)
        seconds = []
        for number in range(WARM_UP + ROUNDS):
            place.tables.append_arrow(place.spark, check_requests(number * n, n), "check_requests")
            began = time.perf_counter()
            while _answers(place) < (number + 1) * n:
                if not query.isActive:
                    raise CheckbackError(f"the check query has ended: {query.exception()}")
                time.sleep(_POLL_S)
            seconds.append(time.perf_counter() - began)
            say(f"dispatch: {n} checks in {seconds[-1]:.2f} s")
        query.processAllAvailable()
        query.stop()
        prove(place, n * (WARM_UP + ROUNDS))
        counted = seconds[WARM_UP:]
        rate = n / statistics.median(counted)
        concurrency = place.settings.check.concurrency
    report("dispatch", rate, "checks/s", ROUNDS, checks=n, concurrency=concurrency, seconds=rounded(counted))


def check_requests(first: int, n: int) -> pa.Table:
    """Rows of `check_requests`: the first check of each offset."""
    now = pa.repeat(pa.scalar(datetime.now(timezone.utc), pa.timestamp("us", "UTC")), n)
    columns = {
        "queue_id": pa.array(np.zeros(n, np.int32)),
        "queue_offset": pa.array(np.arange(first, first + n)),
        "transaction_id": pa.array([f"FD{offset:030X}" for offset in range(first, first + n)]),
        "producer_group": pa.repeat(GROUP, n),
        "real_topic": pa.repeat("topic_0", n),
        "check_times": pa.array(np.ones(n, np.int32)),
        "born_timestamp": now,
        "requested_at": now,
        "batch_id": pa.array(np.zeros(n, np.int64)),
    }
    return pa.table(columns).cast(arrow_schema("check_requests"))


def _answers(place: Lakehouse) -> int:
    """Rows of `check_answers`, by the statistics of its files."""
    files = DeltaTable(place.tables.location("check_answers")).get_add_actions()
    return sum(pa.table(files).column("num_records").to_pylist())


def prove(place: Lakehouse, n: int) -> None:
    """Raises CheckbackError unless each request has one answer COMMIT, and one op."""
    answers = place.tables.read(place.spark, "check_answers").where("outcome = 'COMMIT'")
    ops = place.tables.read(place.spark, "op")
    for name, rows in (("answers", answers), ("ops", ops)):
        found = rows.agg(F.count("*"), F.countDistinct("queue_offset")).collect()[0]
        if tuple(found) != (n, n):
            raise CheckbackError(f"{found[0]} {name} to {found[1]} checks, instead of {n}", place.root)
    say(f"proof: {n} checks were answered, each once")
