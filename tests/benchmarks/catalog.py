"""A warm batch on tables in a folder, in a folder and registered in a catalog, and in a catalog where Spark commits."""

from __future__ import annotations

import statistics

from benchmarks.load import Load
from benchmarks.processes import Lakehouse, lake
from benchmarks.proof import prove
from benchmarks.report import report, rounded, say, scaled
from benchmarks.stepper import Stepper

WARM_UP, ROUNDS = 5, 10
SCHEMA = "bench"


def bench(root: str) -> None:
    """Batches of 1,000 transactions to four topics; the schema is one of Spark's own catalog, in memory."""
    n = scaled(1_000, least=20)
    warehouse = {"spark.sql.warehouse.dir": f"{root}/warehouse"}
    with lake(f"{root}/folder", spark=warehouse) as place:
        place.spark.sql(f"CREATE SCHEMA spark_catalog.{SCHEMA}")
        found = {"folder": _batches(place, place.root, n)}
        registered = {"root": f"{root}/registered", "register": f"spark_catalog.{SCHEMA}"}
        with lake(f"{root}/registered", storage=registered, spark=warehouse) as external:
            found["registered"] = _batches(external, external.root, n)
        place.spark.sql(f"CREATE SCHEMA spark_catalog.{SCHEMA}_managed")
        managed = {"catalog": "spark_catalog", "schema": f"{SCHEMA}_managed", "checkpoints": f"{root}/checkpoints"}
        with lake(f"{root}/unused", storage=managed, spark=warehouse) as catalog:
            about = catalog.spark.sql(f"DESCRIBE DETAIL {catalog.tables.in_sql('half')}")
            half = str(about.select("location").collect()[0][0]).removeprefix("file:")
            found["catalog"] = _batches(catalog, half.rpartition("/")[0], n)
    for kind, seconds in found.items():
        report(
            f"catalog_batch_{kind}", statistics.median(seconds), "s", ROUNDS, transactions=n, seconds=rounded(seconds)
        )


def _batches(place: Lakehouse, root: str, n: int) -> list[float]:
    """The seconds of each warm batch. ``root``: the parent of the folders of `half` and `op`."""
    load, seconds = Load(root), []
    with Stepper(place) as stepper:
        for number in range(WARM_UP + ROUNDS):
            seconds.append(stepper.step(lambda: load.land(number * n, n), n))  # noqa: B023 - called at once
            say(f"catalog: {place.root}: {n} transactions in {seconds[-1]:.2f} s")
    prove(place, (WARM_UP + ROUNDS) * n, 0)
    return seconds[WARM_UP:]
