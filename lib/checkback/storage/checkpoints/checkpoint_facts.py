"""Gathers the facts that `checkpoint_fit` judges, from a query's checkpoint and the tables."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from checkback.errors import StateError
from checkback.storage.checkpoints.batch_plan import plan_recorded, plan_versions
from checkback.storage.checkpoints.checkpoint import last_done, numbers, parse_metadata, parse_time, read_batch
from checkback.storage.checkpoints.checkpoint_fit import Fit, TableLog
from checkback.storage.checkpoints.seen_commits import replaced
from checkback.storage.files import filesystem
from checkback.storage.files.log_files import versions
from checkback.storage.schemas import SOURCES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import SparkSession

    from checkback.storage.checkpoints.checkpoint import StreamPosition
    from checkback.storage.tables import Tables


def fit(spark: SparkSession, tables: Tables, query: str, written: Sequence[str]) -> Fit | None:
    """The facts of a query's checkpoint and the existing tables ``written`` by it; None if there is no checkpoint.

    Its application id in each is ``<query>/<query id>/<table>``, where all landing queries are ``land``. Raises
    StorageError.
    """
    place = tables.checkpoint(query)
    if not filesystem.exists(spark, f"{place}/metadata"):
        return None
    who = f"{query.partition('-')[0]}/{parse_metadata(filesystem.text(spark, f'{place}/metadata'), place)}"
    begun = max(numbers(spark, f"{place}/offsets"), default=-1)
    apps = {name: f"{who}/{name}" for name in written}
    last = [tables.last_version(spark, name, app) for name, app in apps.items()]
    plans = [recorded_plan(tables, name, app) for name, app in apps.items()] if tables.by_files else []
    # not the offsets of file and Kafka sources
    positions = positions_of(spark, tables, query, begun) if query in SOURCES else {}
    starts = positions_of(spark, tables, query, begun - 1) if positions else {}
    return Fit(
        begun=begun,
        done=last_done(spark, place),
        written=max((batch for batch in last if batch is not None), default=None),
        positions=positions,
        starts=starts,
        logs=logs(spark, tables, positions, starts),
        replaced=replaced(spark, tables, query),
        planned=frozenset(time for batch_id, time in filter(None, plans) if batch_id == begun),
        time=None if begun < 0 else parse_time(begun, filesystem.text(spark, f"{place}/offsets/{begun}"), place),
    )


def positions_of(spark: SparkSession, tables: Tables, query: str, number: int) -> dict[str, StreamPosition | None]:
    """Where a batch ends in the query's sources, by name; empty if it is not in the offset log. Raises StorageError."""
    place = tables.checkpoint(query)
    if not filesystem.exists(spark, f"{place}/offsets/{number}"):
        return {}
    return dict(zip(SOURCES[query], read_batch(spark, place, number).positions, strict=False))


def recorded_plan(tables: Tables, name: str, app: str) -> tuple[int, int] | None:
    """`plan_recorded` with a table that is written by files. Raises StorageError."""
    versions = tables.log(name).versions(plan_versions(app, 0, 0))
    return plan_recorded(app, versions.get)


def refuse_newer(tables: Tables, name: str, app: str, batch_id: int, batch_time: int) -> None:
    """Check that what a table has of ``app`` is this batch or an earlier one: a batch that it has is skipped.

    A table that was left as it was while the checkpoint and the other tables were put back has later batches, or
    another one of the same id: this batch's rows would be lost. ``batch_time``: ms. Raises StateError.
    """
    last, planned = tables.log(name).versions([app])[app], recorded_plan(tables, name, app)
    # The last commit with a plan may be that of an earlier batch.
    other = planned is not None and planned[0] >= batch_id and planned != (batch_id, batch_time)
    if other or (last is not None and last > batch_id):
        raise newer(tables.location(name), batch_id)


def newer(place: str, batch_id: int) -> StateError:
    """The table is newer than the checkpoint."""
    return StateError(
        f"the table is newer than the checkpoint and the other tables: it has another batch {batch_id}, or later ones",
        place,
        "put back a copy of it that is as old as they are, or the newest copies of them all",
    )


def logs(
    spark: SparkSession,
    tables: Tables,
    positions: Mapping[str, StreamPosition | None],
    starts: Mapping[str, StreamPosition | None],
) -> dict[str, TableLog]:
    """The logs of these tables, at least back to ``starts``, else to the positions in them. Raises StorageError."""
    if tables.by_files:
        return {name: _log(tables, name) for name in positions}
    with ThreadPoolExecutor() as pool:
        found = pool.map(lambda name: _spark_log(spark, tables, name, starts.get(name) or positions[name]), positions)
        return dict(zip(positions, found, strict=True))


def _spark_log(spark: SparkSession, tables: Tables, name: str, position: StreamPosition | None) -> TableLog:
    """The table's log, back to a position."""
    newest = tables.version(spark, name)
    behind = 1 if position is None else newest - max(position.version, 0) + 1
    oldest = newest if behind <= 1 else min(tables.history(spark, name, behind))
    return TableLog(tables.table_id(spark, name), oldest, newest)


def _log(tables: Tables, name: str) -> TableLog:
    log = tables.log(name)
    there = versions(tables.location(name))
    return TableLog(log.table_id(), oldest=min(there, default=0), newest=max(there, default=0))
