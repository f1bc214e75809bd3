"""Forwards what the queries do to the log, and to the metrics if enabled. Never raises."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from checkback.observe import counts as batches
from checkback.observe.counts import PendingCount
from checkback.observe.logs import event
from checkback.observe.progress import progress

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa

    from checkback.observe.metrics import Metrics
    from checkback.reconcile.records.actions import Actions
    from checkback.reconcile.records.segment_records import Records

_log = logging.getLogger(__name__)
#: most groups that a batch of checks logs, one line each
_GROUPS = 100


class Observer:
    """Receives an application's events. All methods are thread-safe."""

    def __init__(self, metrics: Metrics | None = None, pending: PendingCount | None = None) -> None:
        self._metrics = metrics
        self._pending = pending or PendingCount()

    def __reduce__(self) -> tuple[type[Observer], tuple[()]]:
        """Unpickled in another process (Spark Connect runs batch functions in its own), it only logs: no metrics."""
        return Observer, ()

    def published(self, actions: Actions, batch_id: int, segments: Records) -> None:
        """A batch of `reconcile` is committed. ``segments``: SEGMENT records of those it touched."""
        with _harmless("batch_published"):
            counts = batches.counts(actions)
            self._pending.update(segments, actions.pending)
            if self._metrics is not None:
                self._metrics.published(actions)
            if any(counts.values()):
                event("batch_published", batch_id=batch_id, batch_time=actions.batch_time, **counts)

    def behind(self, batch_id: int) -> None:
        """A batch of `reconcile` may leave ops unread."""
        with _harmless("batch_behind"):
            event("batch_behind", batch_id=batch_id)

    def waiting(self, rows: int) -> None:
        """Number of committed messages that wait for their topic's table."""
        with _harmless("waiting"):
            if self._metrics is not None:
                self._metrics.waiting(rows)

    def asked(self, answers: pa.Table, batch_id: int) -> None:
        """A batch of checks is committed: its CHECK_ANSWERS."""
        with _harmless("checks_done"):
            found = batches.outcomes(answers)
            if self._metrics is not None:
                self._metrics.asked(found)
            for group, counts in sorted(batches.by_group(found, _GROUPS).items()):
                mine = {outcome.lower(): count for outcome, count in counts.items()}
                event("checks_done", batch_id=batch_id, producer_group=group, **mine)

    def started(self, query: str) -> None:
        """A query has started."""
        with _harmless("query_started"):
            if self._metrics is not None:
                self._metrics.started(query)
            event("query_started", query=query)

    def progressed(self, told: Mapping[str, Any]) -> None:
        """A batch is done: Spark's progress, parsed from JSON."""
        with _harmless("batch_done"):
            found = progress(told)
            if self._metrics is not None:
                self._metrics.progressed(found)
            if found.dropped:
                event("rows_dropped", logging.ERROR, query=found.query, batch_id=found.batch_id, rows=found.dropped)
            event("batch_done", **found.fields)

    def ended(self, query: str, failed: bool) -> None:
        """A query has ended. The command reports the error: Spark's text may be long."""
        with _harmless("query_ended"):
            if self._metrics is not None:
                self._metrics.ended(query, failed)
            event("query_ended", logging.ERROR if failed else logging.INFO, query=query, failed=failed)


@contextmanager
def _harmless(name: str) -> Iterator[None]:
    """Log any exception, and suppress it."""
    try:
        yield
    except Exception:  # noqa: BLE001 - observability must not fail a batch
        _log.warning("%s could not be reported", name, exc_info=_log.isEnabledFor(logging.DEBUG))
