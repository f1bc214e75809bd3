"""Starts and stops metrics and listeners around an application."""

from __future__ import annotations

import logging
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from checkback.errors import CheckbackError, missing_module, reason
from checkback.observe.lag import Lag
from checkback.observe.listener import listening
from checkback.observe.observer import Observer
from checkback.observe.pending import PendingCount
from checkback.reconcile.records.actions import Actions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from checkback.settings import Settings
    from checkback.storage.tables import Tables


_log = logging.getLogger(__name__)


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
def observed(spark: SparkSession, settings: Settings, tables: Tables) -> Iterator[Observer]:
    """An application's observer, registered as a listener; serves metrics if ``metrics.port`` is set.

    Raises SettingsError if the port is in use or prometheus-client is missing.
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
            _seed(spark, settings, pending)
            stack.enter_context(metrics.served(settings.metrics.host, settings.metrics.port))
        observer = Observer(metrics, pending)
        stack.enter_context(listening(spark, observer))
        yield observer
