"""Whether a query's checkpoint and the tables are consistent: `fit` gathers the facts, `misfit` judges them.

If only one of them was restored from a backup, it is older than the other: the query would treat batches as committed
that never were, or skip rows. A query is not started on an inconsistent checkpoint.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from checkback.errors import StateError
from checkback.storage.checkpoints.checkpoint import (
    last_done,
    numbers,
    parse_metadata,
    parse_time,
    plan_recorded,
    plan_versions,
    read_batch,
)
from checkback.storage.checkpoints.seen_commits import replaced
from checkback.storage.files import filesystem
from checkback.storage.files.table_files import versions
from checkback.storage.schemas import SOURCES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import SparkSession

    from checkback.storage.checkpoints.checkpoint import StreamPosition
    from checkback.storage.tables import Tables


#: fix for a table that is older than the versions the checkpoint has seen
PUT_BACK = "put its newest state back"
#: what is wrong with an entry of the offset log that is another one than the tables were written by (`plan_versions`)
OTHER_PLAN = (
    "the tables were written by another batch {} than the checkpoint has: "
    "a process that had been stopped has replaced it"
)


@dataclass(frozen=True)
class TableLog:
    """A table's log: Delta's table id, the oldest version that can still be streamed from, the newest version."""

    table: str
    oldest: int
    newest: int


@dataclass(frozen=True)
class Fit:
    """The state of a query's checkpoint and tables.

    ``begun``: the newest batch in the offset log; ``done``: the newest in the commit log; -1 = none. ``written``: the
    newest batch of the query in any table; ``concluded``: the newest in the table to which each batch commits last;
    None = none, or unknown. ``positions``: the sources' end offsets of the newest batch; ``starts``: those of the one
    before, from which on Spark lists commits on start; ``logs``: the sources' logs, as far as they were read.
    ``replaced``: how a table differs from what the checkpoint has seen. ``time``: of the newest batch (ms);
    ``planned``: its times by which the tables were written (`plan_versions`).
    """

    begun: int = -1
    done: int = -1
    written: int | None = None
    concluded: int | None = None
    positions: Mapping[str, StreamPosition | None] = field(default_factory=dict)
    starts: Mapping[str, StreamPosition | None] = field(default_factory=dict)
    logs: Mapping[str, TableLog] = field(default_factory=dict)
    replaced: str | None = None
    time: int | None = None
    planned: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Misfit:
    """Why checkpoint and tables are inconsistent, and what to restore; empty if nothing can be."""

    what: str
    fix: str = ""


def misfit(fit: Fit) -> Misfit | None:
    """The first reason why the query must not resume from this checkpoint; None if it may."""
    if fit.written is not None and fit.written > fit.begun:
        return Misfit(
            f"the checkpoint is older than the tables: it knows {fit.begun} as the last batch, they hold {fit.written}",
            "put the newest checkpoint back",
        )
    if fit.concluded is not None and fit.concluded < fit.done:
        return Misfit(
            f"the tables are older than the checkpoint: batch {fit.done} is done, they end with {fit.concluded}",
            "put the newest tables back",
        )
    if fit.planned.difference([fit.time]):
        return Misfit(OTHER_PLAN.format(fit.begun))
    for name, log in fit.logs.items():
        position = fit.positions.get(name)
        found = None if position is None else _misread(name, position, fit.starts.get(name) or position, log)
        if found is not None:
            return found
    if fit.replaced is not None:
        return Misfit(fit.replaced, PUT_BACK)
    return None


def _misread(name: str, position: StreamPosition, start: StreamPosition, log: TableLog) -> Misfit | None:
    if position.table != log.table:
        return Misfit(f"the table {name} is another one than the checkpoint was made with", "put the table back")
    if position.seen > log.newest:
        return Misfit(
            f"the table {name} ends with version {log.newest}, the checkpoint goes on from {position.version}",
            "the table was restored to an older state: restore the newest one",
        )
    if start.version < log.oldest:
        return Misfit(
            f"the log of {name} begins with version {log.oldest}, the checkpoint goes on from {start.version}: "
            "the query was stopped for longer than delta.logRetentionDuration"
        )
    return None


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
