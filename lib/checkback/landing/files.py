"""Files of JSON lines -> `half` and `op`: one streaming query a kind, each file taken once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from checkback.errors import SettingsError
from checkback.landing.batch import Landing
from checkback.landing.source import Source, check_all
from checkback.stopping import stop_on_signal
from checkback.tables import Tables

if TYPE_CHECKING:
    from datetime import timedelta

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from checkback.landing.lines import Kind
    from checkback.settings import Settings


@dataclass(frozen=True)
class Landed:
    """Rows that a run took into `half` and `op`, and lines that it put into `rejected`."""

    half: int = 0
    op: int = 0
    rejected: int = 0


def land(spark: SparkSession, settings: Settings, half: str | None, op: str | None, available_now: bool) -> Landed:
    """Take the JSON lines of files into `half` and `op`, and what is no message into `rejected`.

    ``half`` and ``op`` are each a file, a folder (with its subfolders) or a glob, local or a URI. ``.gz`` is unpacked.
    Files and subfolders whose names begin with ``_`` or ``.`` are passed over: a file is read once, so write it under
    such a name and rename it when it is whole. With ``available_now`` what is there is taken, and the function
    returns; else the paths are watched until SIGINT or SIGTERM, which let the running batch finish.

    A file is known by its path in the checkpoints ``land-half`` and ``land-op``, however it was named here.
    Raises SettingsError when a path is not there, CheckbackError when it or a table cannot be read or written.
    """
    # Ops first: an op without its half waits, a half without its op may be checked for nothing.
    paths: list[tuple[Kind, str | None]] = [("op", op), ("half", half)]
    sources = {kind: Source.find(spark, path) for kind, path in paths if path}
    if not sources:
        raise SettingsError("no files to land", fix="give --half PATH, --op PATH or both")
    tables = Tables.of(settings.storage)
    tables.create(spark, *sources, "rejected")
    landings = {kind: Landing(tables, kind) for kind in sources}
    writers = {kind: _writer(spark, source, tables, kind) for kind, source in sources.items()}
    with stop_on_signal() as stopper:
        if available_now:
            for kind, writer in writers.items():
                stopper.start(writer.trigger(availableNow=True), landings[kind])
                stopper.wait()
        else:
            for kind, writer in writers.items():
                stopper.start(writer.trigger(processingTime=_interval(settings.reconcile.trigger)), landings[kind])
            stopper.wait(meanwhile=lambda: check_all(spark, sources.values()))
    taken = {kind: landing.taken for kind, landing in landings.items()}
    return Landed(**taken, rejected=sum(landing.rejected for landing in landings.values()))


def _writer(spark: SparkSession, source: Source, tables: Tables, kind: Kind) -> DataStreamWriter:
    name = f"land-{kind}"
    return source.lines(spark).writeStream.queryName(name).option("checkpointLocation", tables.checkpoint(name))


def _interval(trigger: timedelta) -> str:
    return f"{round(trigger.total_seconds() * 1000)} milliseconds"
