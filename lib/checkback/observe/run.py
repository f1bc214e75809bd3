"""Starts and ends the telling, around an application."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from checkback.errors import SettingsError
from checkback.observe.backlog import Backlog
from checkback.observe.listener import listening
from checkback.observe.observer import Observer
from checkback.observe.pending import PendingCount

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from checkback.settings import Settings
    from checkback.tables import Tables


@contextmanager
def observed(spark: SparkSession, settings: Settings, tables: Tables) -> Iterator[Observer]:
    """The observer of an application, listening; with ``metrics.port`` its metrics are served.

    Raises SettingsError when the port is taken, or prometheus-client is missing.
    """
    pending = PendingCount()
    with ExitStack() as stack:
        metrics = None
        if settings.metrics.port is not None:
            try:
                from checkback.observe.metrics import Metrics
            except ModuleNotFoundError as error:
                fix = "install checkback[metrics], or leave metrics.port unset"
                raise SettingsError(f"the Python module {error.name} is missing", "metrics.port", fix) from error
            metrics = Metrics(Backlog.of(tables), pending, tuple(settings.producers))
            stack.enter_context(metrics.served(settings.metrics.host, settings.metrics.port))
        observer = Observer(metrics, pending)
        stack.enter_context(listening(spark, observer))
        yield observer
