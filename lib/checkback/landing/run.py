"""The landing queries of a run, one a kind: started, drained or watched over, counted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from checkback.landing.batch import Landing
from checkback.stopping import stop_on_signal
from checkback.tables import Tables

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import timedelta

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from checkback.landing.lines import Kind, Reader
    from checkback.settings import Settings


@dataclass(frozen=True)
class Landed:
    """Rows that a run took into `half` and `op`, and inputs that it put into `rejected`."""

    half: int = 0
    op: int = 0
    rejected: int = 0


@dataclass(frozen=True)
class Inlet:
    """A stream to land.

    ``rows`` has line BINARY, file, file_time, file_block, store_timestamp, and what ``reader`` wants besides.
    ``query`` names the query and its checkpoint.
    """

    rows: DataFrame
    query: str
    reader: Reader


def run(
    spark: SparkSession,
    settings: Settings,
    inlets: Mapping[Kind, Inlet],
    available_now: bool,
    meanwhile: Callable[[], object] | None = None,
) -> Landed:
    """Land each stream into the table of its kind, in the order given.

    With ``available_now`` what is there is taken, one stream after the other; else the streams run side by side until
    SIGINT or SIGTERM, which let the running batch finish, and ``meanwhile`` is called once a second.
    Raises CheckbackError when a query fails.
    """
    tables = Tables.of(settings.storage)
    tables.create(spark, *inlets, "rejected")
    for inlet in inlets.values():
        tables.recover_query(inlet.query)
    landings = {
        kind: Landing(tables, kind, inlet.reader, tables.flush_of(inlet.query, "half"))
        for kind, inlet in inlets.items()
    }
    writers = {kind: _writer(inlet, tables) for kind, inlet in inlets.items()}
    with stop_on_signal() as stopper:
        if available_now:
            for kind, writer in writers.items():
                stopper.start(writer.trigger(availableNow=True), landings[kind])
                stopper.wait()
        else:
            for kind, writer in writers.items():
                stopper.start(writer.trigger(processingTime=_interval(settings.reconcile.trigger)), landings[kind])
            stopper.wait(meanwhile=meanwhile)
    taken = {kind: landing.taken for kind, landing in landings.items()}
    return Landed(**taken, rejected=sum(landing.rejected for landing in landings.values()))


def _writer(inlet: Inlet, tables: Tables) -> DataStreamWriter:
    writer = inlet.rows.writeStream.queryName(inlet.query)
    return writer.option("checkpointLocation", tables.checkpoint(inlet.query))


def _interval(trigger: timedelta) -> str:
    return f"{round(trigger.total_seconds() * 1000)} milliseconds"
