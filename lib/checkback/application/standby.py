"""The second `reconcile`: waits with Spark started until the first one is gone, and takes its place."""

from __future__ import annotations

import logging
import tempfile
import time
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import TYPE_CHECKING

from checkback.application.queries import run
from checkback.application.small_run import land
from checkback.check.query import CheckBatches
from checkback.errors import FencedError, missing_module, reason
from checkback.observe.logs import EVENTS
from checkback.reconcile.start.start_facts import facts
from checkback.settings import Settings
from checkback.spark.connect import parallelism
from checkback.spark.hadoop_settings import FILE_MANAGER
from checkback.spark.session import LOCAL_CHECKPOINTS
from checkback.spark.shutdown import stop_on_signal
from checkback.storage.files.object_store import is_registered
from checkback.storage.lock import exclusive_lock, lock_is_held
from checkback.storage.schemas import SCHEMAS
from checkback.storage.tables import Tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from checkback.spark.shutdown import GracefulShutdown
    from checkback.storage.lock import Lock

#: seconds between looks at a lock's file, and at a lease, each of which is a request
_LOOK_S, _LOOK_STORE_S = 0.2, 2.0
_log = logging.getLogger(__name__)


def stand_by(spark: SparkSession, settings: Settings) -> None:
    """As `reconcile` without ``available_now``, once no other process works on the tables.

    Until then it answers probes on metrics.port. Returns when SIGTERM or Ctrl-C ends it, before that time or after.
    Raises as `reconcile`; of settings that cannot work at once.
    """
    tables = Tables.of(settings.storage)
    CheckBatches(tables, settings, parallelism(spark))  # refuses invalid endpoints and secrets
    locks: list[Lock] = []

    def confirm() -> None:
        for lock in locks:
            lock.confirm()

    with ExitStack() as held, stop_on_signal(confirm) as stopper, ExitStack() as waiting:
        waiting.enter_context(_probes(settings))
        _warm_up(spark, stopper)
        if not stopper.wanted:
            _read(spark, settings)
        lock = _turn(tables, held, stopper)
        if lock is not None:
            locks.append(lock)
            run(spark, settings, tables, stopper, available_now=False, serves=waiting.close)


def _turn(tables: Tables, held: ExitStack, stopper: GracefulShutdown) -> Lock | None:
    """The lock, as soon as nobody has it; None: a stop was requested before."""
    look_s = _LOOK_STORE_S if is_registered(tables.root) else _LOOK_S
    told = None
    while not stopper.wanted:
        holder = lock_is_held(tables)
        if not holder:
            try:
                lock = held.enter_context(exclusive_lock(tables))
            except FencedError as error:  # another one that stood by
                holder = str(error)
            else:
                if told:
                    _log.warning("takes over from %s", told)
                return lock
        if holder != told:
            _log.warning("stands by while %s works on these tables", holder)
            told = holder
        time.sleep(look_s)
    return None


def _warm_up(spark: SparkSession, stopper: GracefulShutdown) -> None:
    """Run a few transactions in a folder of their own: a JVM's first batches take seconds.

    Not on a cluster, whose workers do not see the folder.
    """
    if not getattr(getattr(spark, "_sc", None), "master", "").startswith("local"):
        return
    _log.info("runs a few transactions in a folder of its own, then stands by")
    manager = spark.conf.get(FILE_MANAGER, None)
    try:
        spark.conf.set(FILE_MANAGER, LOCAL_CHECKPOINTS[FILE_MANAGER])  # an object store's writes to no folder
        EVENTS.disabled = True  # they would be taken for those of the tables
        with tempfile.TemporaryDirectory(prefix="checkback-standby-") as folder:
            settings = Settings.model_validate({"storage": {"root": folder, "sync": False}})
            tables = Tables.of(settings.storage)
            land(spark, tables)
            with stop_on_signal() as own:  # one that fails is not to stop what comes after it
                run(spark, settings, tables, own, available_now=True)
                if own.wanted:
                    stopper.stop()
    except Exception as error:  # noqa: BLE001 - without it the first batch takes longer
        _log.warning("the first batch will take longer: %s", reason(error))
    finally:
        EVENTS.disabled = False
        if manager is None:
            spark.conf.unset(FILE_MANAGER)
        else:
            spark.conf.set(FILE_MANAGER, manager)


def _read(spark: SparkSession, settings: Settings) -> None:
    """Read the tables once, as a start does: a JVM's first requests to an object store take seconds."""
    tables = Tables.of(settings.storage)  # of its own: nothing that is read now is known later
    try:
        facts(spark, settings, tables)
        for name in SCHEMAS:
            tables.read(spark, name).limit(1).collect()
    except Exception as error:  # noqa: BLE001 - there may be none yet; what is wrong stops it when it takes over
        _log.debug("the tables were not read: %s", reason(error))


def _probes(settings: Settings) -> AbstractContextManager[object]:
    """`/healthz` and `/readyz` for the time of waiting: it is ready to take over. Raises SettingsError."""
    if settings.metrics.port is None:
        return nullcontext()
    try:
        from prometheus_client import CollectorRegistry

        from checkback.observe.metrics_server import served
    except ModuleNotFoundError as error:
        raise missing_module(error, "metrics", "metrics.port") from error
    fix = "choose a free port in metrics.port, and an address of this machine in metrics.host"
    return served(CollectorRegistry(), settings.metrics.host, settings.metrics.port, fix, lambda: None)
