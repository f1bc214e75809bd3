"""The reconcile command: the queries `reconcile` and `check` in one Spark application, until stopped or drained."""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import pyarrow as pa

from checkback.check.checkpoint_reset import renew
from checkback.check.query import CheckBatches, check_query, decisive_ops
from checkback.errors import CheckbackError, StateError, missing_module, reason
from checkback.observe.counts import PendingCount
from checkback.observe.listener import listening
from checkback.observe.observer import Observer
from checkback.observe.progress import Lag
from checkback.reconcile.checkpoint_owner import NAME, claim
from checkback.reconcile.checkpointed_rules import BatchRules, batch_rules, begun_with, keep
from checkback.reconcile.query import reconcile_query
from checkback.reconcile.records.actions import Actions
from checkback.reconcile.start import idle_run
from checkback.reconcile.start.preconditions import refuse
from checkback.reconcile.start.start_facts import facts
from checkback.reconcile.state.registered_timers import timers_of
from checkback.reconcile.state.wake_timers import WakeTimers
from checkback.spark.connect import parallelism
from checkback.spark.shutdown import GracefulShutdown, stop_on_signal
from checkback.storage import external_tables
from checkback.storage.crash_recovery import recover_tables, torn_query
from checkback.storage.dataframes import is_connect, without_codegen
from checkback.storage.horizon import refuse_older_half
from checkback.storage.lock import exclusive_lock
from checkback.storage.schemas import SCHEMAS, arrow_schema
from checkback.storage.tables import Tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from checkback.settings import Settings
    from checkback.storage.checkpoints.checkpoint import Checkpoint


def _seed(spark: SparkSession, settings: Settings, pending: PendingCount) -> None:
    """Initialise ``pending`` from the state store: batches report only the segments that they touch."""
    from checkback.query.state_store import state_segments

    try:
        told = state_segments(spark, settings).toArrow()
    except CheckbackError as error:  # first start: no completed batch yet
        _log.debug("what is pending is not known before its segments' next batch: %s", error)
        return
    except Exception as error:  # noqa: BLE001 - metrics are best effort: a failure must not stop the application
        _log.warning("what is pending is not known before its segments' next batch: %s", reason(error))
        return
    actions, segments = Actions.of(told)
    pending.update(segments, actions.pending)


@contextmanager
def observed(
    spark: SparkSession, settings: Settings, tables: Tables, serves: Callable[[], object] | None = None
) -> Iterator[Observer]:
    """An application's observer, registered as a listener; serves metrics if ``metrics.port`` is set.

    ``serves`` is called before, to free the port. Raises SettingsError if the port is in use or prometheus-client is
    missing.
    """
    pending = PendingCount(tuple(settings.producers))
    with ExitStack() as stack:
        metrics = None
        if settings.metrics.port is not None:
            try:
                from checkback.observe.metrics import Metrics
            except ModuleNotFoundError as error:
                raise missing_module(error, "metrics", "metrics.port") from error
            metrics = Metrics(Lag.of(tables), pending, tuple(settings.producers))
            if serves is not None:
                serves()
            stack.enter_context(metrics.served(settings.metrics.host, settings.metrics.port))
            _seed(spark, settings, pending)  # it takes as long as the state is large: probes are answered meanwhile
        observer = Observer(metrics, pending)
        stack.enter_context(listening(spark, observer))
        yield observer


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
        run(spark, settings, tables, stopper, available_now, meanwhile)


def run(
    spark: SparkSession,
    settings: Settings,
    tables: Tables,
    stopper: GracefulShutdown,
    available_now: bool,
    meanwhile: Callable[[GracefulShutdown], object] | None = None,
    serves: Callable[[], object] | None = None,
) -> None:
    """`reconcile` by whoever holds the tables' lock, until ``stopper`` ends it. ``serves``: see `observed`."""
    put_right(tables)
    tables.create(spark, *SCHEMAS)
    if tables.register:  # topics that were there before the setting
        places = {name: tables.location(name) for name in tables.topics(spark)}
        external_tables.register(spark, tables.register, places)  # a damaged one stops no other
    found = facts(spark, settings, tables)
    refuse(found)
    refuse_older_half(spark, tables)
    renew(spark, tables)  # not before: the checkpoints may be those of other tables
    if found.checkpoint is not None:
        claim(spark, tables, found.checkpoint.query_id, settings.reconcile.segment_size)
    with observed(spark, settings, tables, serves) as observer:
        queries = Queries(spark, settings, tables, stopper, observer, found.partitions)
        decided = queries.finish_begun(found.checkpoint)
        if available_now:
            queries.drain(decided)
        elif is_connect(spark):
            # Batches run on the server and report nothing here: Spark's no-data batches fire the timers.
            queries.run_on(decided, None, meanwhile)
        else:
            with without_no_data_batches(spark):
                queries.run_on(decided, WakeTimers(), meanwhile)


def put_right(tables: Tables) -> None:
    """Repair torn commits (after a power cut) of the tables. Raises StateError for a torn checkpoint, StorageError."""
    if tables.sync:
        recover_tables(tables)
    if (why := torn_query(tables, NAME)) is not None:
        raise StateError(why, tables.checkpoint(NAME), "run `checkback rebuild`: it goes by the tables")


@dataclass(frozen=True)
class Queries:
    """The queries `reconcile` and `check` of one run. ``observer`` is notified of their batches.

    ``partitions``: of `reconcile`'s state, see `start_facts`.
    """

    spark: SparkSession
    settings: Settings
    tables: Tables
    stopper: GracefulShutdown
    observer: Observer
    partitions: int

    def finish_begun(self, checkpoint: Checkpoint | None) -> BatchRules:
        """Finish a batch that began with other rules by those rules, and store the rules of the batches after it.

        Returns the latter. A batch that began with the current rules is replayed when the query starts.
        """
        place, newest = self.tables.checkpoint(NAME), None if checkpoint is None else checkpoint.newest
        now = batch_rules(self.settings, self.partitions, is_connect(self.spark))
        before = None if checkpoint is None else begun_with(self.spark, self.tables, checkpoint, now)
        if newest is not None and before is not None:
            _log.warning("batch %s was begun with other settings and is finished by these", newest.batch_id)
            query = reconcile_query(
                self.spark,
                self.settings,
                self.tables,
                available_now=True,
                decided=before,
                observer=self.observer,
                once=True,
            )
            self.stopper.start(*query)
            self.stopper.wait()
            if self.stopper.wanted:  # the batch may be unfinished
                return now
        self.tables.guard.confirm()  # the rules of a successor are not to be replaced
        keep(self.spark, place, 0 if newest is None else newest.batch_id + 1, now)
        return now

    def run_on(
        self,
        decided: BatchRules,
        wakes: WakeTimers | None,
        meanwhile: Callable[[GracefulShutdown], object] | None,
    ) -> None:
        """Run both queries until stopped. With ``wakes``, a row in `ticks` starts a batch when a timer is due."""
        if wakes is not None:
            tick(self.spark, self.tables)  # timers that fell due during downtime
        self._start(decided, available_now=False, wakes=wakes)
        self._start_check(available_now=False)

        asked = False

        def each_second() -> None:
            nonlocal asked
            if wakes is not None and not asked and wakes.wants_to_know:
                asked = True
                self._learn(wakes)
            if meanwhile is not None:
                meanwhile(self.stopper)

        def wake() -> None:
            if wakes is not None and wakes.due(round(time.time() * 1000)):
                tick(self.spark, self.tables)

        self.stopper.wait(each_second, often=wake)

    def _learn(self, wakes: WakeTimers) -> None:
        """Load the checkpoint's timers of the last run into ``wakes``. Until then any may be due at any time."""
        try:
            wakes.know(timers_of(self.spark, self.tables))
        except Exception as error:  # noqa: BLE001 - costs extra batches only
            _log.warning("a batch is started every second: the checkpoint's timers cannot be read: %s", reason(error))

    def drain(self, decided: BatchRules) -> None:
        """Reconcile and check in turn, until a round of checks brings no deciding answer.

        Terminates: only deciding answers start another round. COUNTED (a check counts) is left to the next run.
        """
        with without_no_data_batches(self.spark):
            tick(self.spark, self.tables)
            wakes = None if is_connect(self.spark) else WakeTimers()  # with Connect nothing is deferred: `query`
            if wakes is not None and (noted := idle_run.noted_timers(self.tables)) is not None:
                wakes.know(noted)
            while not self.stopper.wanted:
                self._start(decided, available_now=True, wakes=wakes)
                self.stopper.wait()
                # Even if some checks were deferred: the others must be sent before they are due again.
                decisive = self._check()
                if wakes is not None and wakes.at_once(round(time.time() * 1000)):
                    tick(self.spark, self.tables)
                elif not decisive:
                    self._leave_note(wakes)
                    return

    def _check(self) -> int:
        """Run `check` on the available requests, if there are any; the number of deciding answers."""
        if idle_run.nothing_to_check(self.tables):
            CheckBatches(self.tables, self.settings, parallelism(self.spark))  # refuses invalid settings
            return 0
        since = datetime.now(timezone.utc)
        # With Spark Connect a copy of the batch function runs on the server, and reports nothing here.
        before = decisive_ops(self.spark, self.tables, since) if is_connect(self.spark) else 0
        batches = self._start_check(available_now=True)
        self.stopper.wait()
        if is_connect(self.spark):
            return decisive_ops(self.spark, self.tables, since) - before
        return batches.decided

    def _leave_note(self, wakes: WakeTimers | None) -> None:
        """Write the timers for the next scheduled run, so that it can skip starting Spark before the first of them."""
        if wakes is None or not self.tables.by_files:
            return
        try:
            if wakes.timers is None:  # reading them takes Spark a second in an object store
                wakes.know(timers_of(self.spark, self.tables))
            now = round(time.time() * 1000)
            idle_run.write_note(self.tables, self.settings, wakes.timers or (), wakes.next_try, now)
        except Exception as error:  # noqa: BLE001 - without the note the next run starts Spark
            _log.warning("the next scheduled run starts Spark, due or not: %s", reason(error))

    def _start(self, decided: BatchRules, available_now: bool, wakes: WakeTimers | None) -> None:
        """Start the query `reconcile`. A new checkpoint gets its query id, and owns the tables, only now.

        If only Spark writes, the first batch claims them: a concurrent claim would make its appends fail.
        """
        writer, publisher = reconcile_query(
            self.spark, self.settings, self.tables, available_now, decided, None, self.observer, wakes
        )
        with without_codegen(self.spark):  # the query's own session is a clone: `Publisher` goes on
            query = self.stopper.start(writer, publisher)
        if query is not None and self.tables.by_files:
            claim(self.spark, self.tables, query.id, self.settings.reconcile.segment_size)

    def _start_check(self, available_now: bool) -> CheckBatches:
        """Start the query `check`; returns its batch function."""
        query, batches = check_query(self.spark, self.settings, self.tables, available_now, observer=self.observer)
        self.stopper.start(query, batches)
        return batches


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
