"""Throughput of `land --table --outbox`: an outbox's rows that land; and how fast plain Spark copies them."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from benchmarks.processes import lake
from benchmarks.report import report, rounded, say, scaled
from checkback.errors import CheckbackError
from checkback.landing.table_query import TableOptions, land

if TYPE_CHECKING:
    from benchmarks.processes import Lakehouse

ROWS, BODY_BYTES = 500_000, 256
WARM_UP, ROUNDS = 2, 3


def bench(root: str) -> None:
    """Rounds of half a million rows, each beside those that have landed; then the same rows copied by plain Spark."""
    with lake(f"{root}/lake") as place:
        figures(place, scaled(ROWS, least=1_000))


def figures(place: Lakehouse, n: int) -> None:
    """The figure and its floor. Raises CheckbackError when a row is lost or doubled."""
    outbox, seconds, floors = f"{place.root}_outbox", [], []
    for number in range(WARM_UP + ROUNDS):
        _insert(place, outbox, number * n, n)
        began = time.perf_counter()
        landed = land(place.spark, place.settings, TableOptions(outbox=outbox), available_now=True)
        seconds.append(time.perf_counter() - began)
        if (landed.half, landed.rejected) != (n, 0):
            raise CheckbackError(f"of {n} rows {landed.half} have landed, and {landed.rejected} are rejected")
        floors.append(_copied(place, outbox, number * n, n))
        say(f"land_table: {n} rows in {seconds[-1]:.2f} s, copied in {floors[-1]:.2f} s")
    half = place.tables.read(place.spark, "half")
    found = half.agg(F.count("*"), F.countDistinct("transaction_id"), F.max("queue_offset")).first()
    everything = (WARM_UP + ROUNDS) * n
    if found is None or tuple(found) != (everything, everything, everything - 1):
        raise CheckbackError(f"{everything} rows have become {found}")
    rate, floor = (n / statistics.median(times[WARM_UP:]) for times in (seconds, floors))
    shape = {"rows": n, "body_bytes": BODY_BYTES}
    report("land_table", rate, "rows/s", ROUNDS, **shape, seconds=rounded(seconds[WARM_UP:]))
    report("land_table_floor", floor, "rows/s", ROUNDS, **shape, seconds=rounded(floors[WARM_UP:]))
    report("land_table_floor_ratio", rate / floor, "ratio", ROUNDS)


def _insert(place: Lakehouse, outbox: str, first: int, n: int) -> None:
    number = F.col("id")
    rows = place.spark.range(first, first + n, 1, 4).select(
        F.expr("uuid()").alias("id"),
        F.concat(F.lit("topic_"), number % 4).alias("aggregatetype"),
        (number % 1000).cast("string").alias("aggregateid"),
        F.lit("created").alias("type"),
        F.substring(F.hex(F.randstr(F.lit(BODY_BYTES), 7)), 1, BODY_BYTES).alias("payload"),
        F.timestamp_millis(F.lit(1_700_000_000_000) + number).alias("timestamp"),
        number.alias("number"),
    )
    rows.write.format("delta").mode("append").save(outbox)


def _copied(place: Lakehouse, outbox: str, first: int, n: int) -> float:
    """Seconds in which plain Spark appends the round's rows to a table of its own."""
    began = time.perf_counter()
    rows = place.spark.read.format("delta").load(outbox).where(f"number BETWEEN {first} AND {first + n - 1}")
    rows.write.format("delta").mode("append").save(f"{outbox}_floor")
    return time.perf_counter() - began
