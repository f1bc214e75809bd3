"""The reconcile command: the queries `reconcile` and `check` in one Spark application, until stopped or drained."""

from __future__ import annotations

import logging
import time
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import pyarrow as pa

from checkback.application.observability import observed
from checkback.check.checkpoint_reset import renew
from checkback.check.query import check_query, decisive_answers
from checkback.errors import reason
from checkback.reconcile import scheduled_run
from checkback.reconcile.batch_rules import BatchRules, batch_rules, begun_with, group_hash_of, keep
from checkback.reconcile.ownership import NAME, claim
from checkback.reconcile.preconditions import refuse
from checkback.reconcile.query import reconcile_query
from checkback.reconcile.registered_timers import first_timer, timers_of
from checkback.reconcile.start_facts import facts
from checkback.reconcile.wake_timers import WakeTimers
from checkback.spark.shutdown import GracefulShutdown, stop_on_signal
from checkback.storage.dataframes import is_connect
from checkback.storage.lock import exclusive_lock
from checkback.storage.schemas import SCHEMAS, SOURCES, arrow_schema
from checkback.storage.tables import Tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from checkback.observe.observer import Observer
    from checkback.settings import Settings
    from checkback.storage.checkpoint import Checkpoint

_log = logging.getLogger(__name__)
_NO_DATA = "spark.sql.streaming.noDataMicroBatches.enabled"


def reconcile(
    spark: SparkSession,
    settings: Settings,
    available_now: bool,
    meanwhile: Callable[[GracefulShutdown], object] | None = None,
) -> None:
    """Decide, publish, check back and discard. Creates missing tables.

    ``available_now``: process all available rows, including the answers to the checks it sends, and return. Otherwise
    run until SIGTERM or Ctrl-C, finish the batch, and return. ``meanwhile`` is called once a second in the latter mode.

    Raises CheckbackError if a query fails, SettingsError if an endpoint or secret is invalid, FencedError if another
    process reconciles the same tables, StateError if checkpoint and tables do not belong together (`preconditions`).
    """
    tables = Tables.of(settings.storage)
    with exclusive_lock(tables) as lock, stop_on_signal(lock.confirm) as stopper:
        put_right(tables)
        tables.create(spark, *SCHEMAS)
        renew(spark, tables)
        found = facts(spark, settings, tables)
        refuse(found)
        if found.checkpoint is not None:
            claim(spark, tables, found.checkpoint.query_id, settings.reconcile.segment_size)
        with observed(spark, settings, tables) as observer:
            decided = _finish_begun(spark, settings, tables, found.checkpoint, stopper, observer)
            if available_now:
                _drain(spark, settings, tables, decided, stopper, observer)
            elif is_connect(spark):
                # Batches run on the server and report nothing here: Spark's no-data batches fire the timers.
                _run_on(spark, settings, tables, decided, stopper, observer, None, meanwhile)
            else:
                with without_no_data_batches(spark):
                    _run_on(spark, settings, tables, decided, stopper, observer, WakeTimers(), meanwhile)


def put_right(tables: Tables) -> None:
    """Repair torn writes (after a power cut) in the tables and the checkpoints. Raises StorageError."""
    if tables.sync:
        tables.recover()
    for query, sources in SOURCES.items():
        tables.recover_query(query, *sources)


def _finish_begun(
    spark: SparkSession,
    settings: Settings,
    tables: Tables,
    checkpoint: Checkpoint | None,
    stopper: GracefulShutdown,
    observer: Observer,
) -> BatchRules:
    """Finish a batch that began with other rules by those rules, and store the rules of the batches after it.

    Returns the latter. A batch that began with the current rules is replayed when the query starts.
    """
    place, newest = tables.checkpoint(NAME), None if checkpoint is None else checkpoint.newest
    group_hash = group_hash_of(spark, place, None if newest is None else newest.batch_id)
    now = batch_rules(settings, is_connect(spark), group_hash)
    before = None if checkpoint is None else begun_with(spark, tables, checkpoint, now)
    if newest is not None and before is not None:
        _log.warning("batch %s was begun with other settings and is finished by these", newest.batch_id)
        query = reconcile_query(
            spark, settings, tables, available_now=True, decided=before, observer=observer, once=True
        )
        stopper.start(*query)
        stopper.wait()
        if stopper.wanted:  # the batch may be unfinished
            return now
    keep(spark, place, 0 if newest is None else newest.batch_id + 1, now)
    return now


def _run_on(
    spark: SparkSession,
    settings: Settings,
    tables: Tables,
    decided: BatchRules,
    stopper: GracefulShutdown,
    observer: Observer,
    wakes: WakeTimers | None,
    meanwhile: Callable[[GracefulShutdown], object] | None,
) -> None:
    """Run both queries until stopped. With ``wakes``, a row in `ticks` starts a batch when a timer is due."""
    if wakes is not None:
        tick(spark, tables)  # timers that fell due during downtime
    _start(spark, settings, tables, decided, stopper, observer, available_now=False, wakes=wakes)
    stopper.start(*check_query(spark, settings, tables, available_now=False, observer=observer))

    asked = False

    def each_second() -> None:
        nonlocal asked
        if wakes is not None and not asked and wakes.wants_to_know:
            asked = True
            _learn(spark, tables, wakes)
        if wakes is not None and wakes.due(round(time.time() * 1000)):
            tick(spark, tables)
        if meanwhile is not None:
            meanwhile(stopper)

    stopper.wait(each_second)


def _learn(spark: SparkSession, tables: Tables, wakes: WakeTimers) -> None:
    """Load the checkpoint's timers of the last run into ``wakes``. Until then any may be due at any time."""
    try:
        wakes.know(timers_of(spark, tables))
    except Exception as error:  # noqa: BLE001 - costs extra batches only
        _log.warning("a batch is started every second: the checkpoint's timers cannot be read: %s", reason(error))


def _drain(
    spark: SparkSession,
    settings: Settings,
    tables: Tables,
    decided: BatchRules,
    stopper: GracefulShutdown,
    observer: Observer,
) -> None:
    """Reconcile and check in turn, until a round of checks brings no deciding answer.

    Terminates: only deciding answers start another round. DELIVERED (a check was received) is left to the next run.
    """
    with without_no_data_batches(spark):
        tick(spark, tables)
        since = datetime.now(timezone.utc)
        wakes = None if is_connect(spark) else WakeTimers()  # with Connect nothing is deferred: `query`
        while not stopper.wanted:
            _start(spark, settings, tables, decided, stopper, observer, available_now=True, wakes=wakes)
            stopper.wait()
            # Even if some checks were deferred: the others must be sent before they are due again.
            query, batches = check_query(spark, settings, tables, available_now=True, observer=observer)
            # With Spark Connect a copy of ``batches`` runs on the server, and reports nothing here.
            before = decisive_answers(spark, tables, since) if is_connect(spark) else 0
            stopper.start(query, batches)
            stopper.wait()
            decisive = decisive_answers(spark, tables, since) - before if is_connect(spark) else batches.decided
            if wakes is not None and wakes.at_once(round(time.time() * 1000)):
                tick(spark, tables)
            elif not decisive:
                _leave_note(spark, settings, tables, None if wakes is None else wakes.next_try)
                return


def _leave_note(spark: SparkSession, settings: Settings, tables: Tables, next_try: int | None) -> None:
    """Write the time of the next timer for the next scheduled run, so that it can skip starting Spark before then.

    ``next_try``: time of the next retry of a topic table (ms); None = no message waits for one.
    """
    if is_connect(spark) or not tables.by_files:
        return
    try:
        timers = [at for at in (first_timer(spark, tables), next_try) if at is not None]
        scheduled_run.write_note(tables, settings, min(timers, default=None))
    except Exception as error:  # noqa: BLE001 - without the note the next run starts Spark
        _log.warning("the next scheduled run starts Spark, due or not: %s", reason(error))


def _start(
    spark: SparkSession,
    settings: Settings,
    tables: Tables,
    decided: BatchRules,
    stopper: GracefulShutdown,
    observer: Observer,
    available_now: bool,
    wakes: WakeTimers | None = None,
) -> None:
    """Start the query `reconcile`. A new checkpoint gets its query id only now, and with it ownership of the tables.

    If only Spark writes, the first batch claims them: a concurrent claim would make its appends fail.
    """
    query = stopper.start(*reconcile_query(spark, settings, tables, available_now, decided, None, observer, wakes))
    if query is not None and tables.by_files:
        claim(spark, tables, query.id, settings.reconcile.segment_size)


def tick(spark: SparkSession, tables: Tables) -> None:
    """Append a row to `ticks`: timers fire only in a batch, and a batch needs new data."""
    tick = pa.table({"tick_at": [datetime.now(timezone.utc)]}).cast(arrow_schema("ticks"))
    tables.append_arrow(spark, tick, "ticks")


@contextmanager
def without_no_data_batches(spark: SparkSession) -> Iterator[None]:
    """Disable no-data batches: with timers Spark runs one at every trigger, and an available-now query never ends."""
    before = spark.conf.get(_NO_DATA)
    spark.conf.set(_NO_DATA, "false")
    try:
        yield
    finally:
        spark.conf.set(_NO_DATA, before or "true")
