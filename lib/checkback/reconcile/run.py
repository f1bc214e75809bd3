"""The reconcile command: the queries `reconcile` and `check` in one Spark application, until stopped or drained."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import pyarrow as pa

from checkback.check.dispatch import check_query, decisive_answers
from checkback.connect import is_connect
from checkback.fence import only_one
from checkback.observe.run import observed
from checkback.reconcile.claims import claim, facts
from checkback.reconcile.guards import refuse
from checkback.reconcile.query import reconcile_query
from checkback.schemas import SCHEMAS, arrow_schema
from checkback.stopping import Stopper, stop_on_signal
from checkback.tables import Tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from checkback.observe.observer import Observer
    from checkback.settings import Settings

_NO_DATA = "spark.sql.streaming.noDataMicroBatches.enabled"


def reconcile(
    spark: SparkSession,
    settings: Settings,
    available_now: bool,
    meanwhile: Callable[[Stopper], object] | None = None,
) -> None:
    """Decide, publish, check back and discard. Makes the tables that are missing.

    ``available_now``: drain what is there, with the answers that its own checks bring, and return. Otherwise run
    until SIGTERM or Ctrl-C, finish the batch, and return. ``meanwhile`` is called once a second while it runs on.

    Raises CheckbackError when a query fails, SettingsError when an endpoint or secret is not fit, FencedError when
    another process reconciles the same tables, StateError when the checkpoint and the tables do not belong together
    (`guards`).
    """
    tables = Tables.of(settings.storage)
    with only_one(tables), stop_on_signal() as stopper:
        tables.create(spark, *SCHEMAS)
        found = facts(spark, settings, tables)
        refuse(found)
        if found.checkpoint is not None:
            claim(spark, tables, found.checkpoint.query_id, settings.reconcile.segment_size)
        if available_now:
            with observed(spark, settings, tables) as observer:
                _drain(spark, settings, tables, stopper, observer)
            return
        with observed(spark, settings, tables) as observer:
            _start(spark, settings, tables, stopper, observer, available_now=False)
            stopper.start(*check_query(spark, settings, tables, available_now=False, observer=observer))
            stopper.wait(None if meanwhile is None else lambda: meanwhile(stopper))


def _drain(spark: SparkSession, settings: Settings, tables: Tables, stopper: Stopper, observer: Observer) -> None:
    """Reconcile and check in turn, until the checks have nothing more to ask.

    It ends: a round follows only on answers that decide. That a check reached nobody (UNDELIVERED) the next run reads.
    """
    with without_no_data_batches(spark):
        tick(spark, tables)
        since = datetime.now(timezone.utc)
        while not stopper.wanted:
            _start(spark, settings, tables, stopper, observer, available_now=True)
            stopper.wait()
            query, dispatch = check_query(spark, settings, tables, available_now=True, observer=observer)
            # On Spark Connect the batches are done elsewhere, by a copy that tells nothing.
            before = decisive_answers(spark, tables, since) if is_connect(spark) else 0
            stopper.start(query, dispatch)
            stopper.wait()
            decided = decisive_answers(spark, tables, since) - before if is_connect(spark) else dispatch.decided
            if not decided:
                return


def _start(
    spark: SparkSession,
    settings: Settings,
    tables: Tables,
    stopper: Stopper,
    observer: Observer,
    available_now: bool,
) -> None:
    """Start the query `reconcile`. A new checkpoint has its query's id only now: from here on it owns the tables.

    Where only Spark writes, the first batch says so: written down beside it, it would make its appends fail.
    """
    query = stopper.start(*reconcile_query(spark, settings, tables, available_now, observer=observer))
    if query is not None and tables.by_files:
        claim(spark, tables, query.id, settings.reconcile.segment_size)


def tick(spark: SparkSession, tables: Tables) -> None:
    """Append a row to `ticks`: a scheduled run fires its timers only in a batch, and a batch needs a new row."""
    tick = pa.table({"tick_at": [datetime.now(timezone.utc)]}).cast(arrow_schema("ticks"))
    tables.append_arrow(spark, tick, "ticks")


@contextmanager
def without_no_data_batches(spark: SparkSession) -> Iterator[None]:
    """With a processing-time operator an available-now query would go on making empty batches for ever."""
    before = spark.conf.get(_NO_DATA)
    spark.conf.set(_NO_DATA, "false")
    try:
        yield
    finally:
        spark.conf.set(_NO_DATA, before or "true")
