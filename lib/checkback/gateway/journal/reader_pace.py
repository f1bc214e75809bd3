"""How long flushes wait for their reader: `reconcile` reads the files of each commit, and many small ones hold it up.

With a flush each 20 ms a batch of half a second would find 25 commits of each table, take two seconds for them, and the
next one would find a hundred. So a batch gets only so many; further ones share its time.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

from checkback.errors import StorageError
from checkback.storage.checkpoints.checkpoint import numbers, read_batch
from checkback.storage.files.paths import local_path
from checkback.storage.schemas import SOURCES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from checkback.storage.checkpoints.checkpoint import Batch
    from checkback.storage.tables import Tables

QUERY = "reconcile"
#: unread commits of a table from which on flushes wait, and flushes in the time of a batch then
COMMITS = 4
#: longest pause for the reader's sake (s), also while there is none: the default of gateway.flush
LONGEST_S = 0.5


class ReaderPace:
    """The pause after a flush. No I/O, no clock: times are monotonic, in seconds."""

    def __init__(self, flush_s: float) -> None:
        self._flush_s = flush_s
        self._batch: int | None = None
        self._began = 0.0
        self._took = 0.0

    def pause(self, newest: Batch | None, versions: Mapping[str, int], now: float) -> float:
        """``newest``: the reader's last batch begun; None = none is known. ``versions``: the tables' last ones."""
        batch = None if newest is None else newest.batch_id
        if batch != self._batch:
            self._took = 0.0 if self._batch is None else now - self._began
            self._batch, self._began = batch, now
        if newest is not None and all(at - _seen(newest, name) < COMMITS for name, at in versions.items()):
            return self._flush_s
        since = LONGEST_S * COMMITS if newest is None else max(self._took, now - self._began)
        return max(self._flush_s, min(since / COMMITS, LONGEST_S))


def _seen(batch: Batch, table: str) -> int:
    position = batch.position(SOURCES[QUERY].index(table))
    return -1 if position is None else position.seen


def reader_pause(
    tables: Tables, flush_s: float, clock: Callable[[], float] = time.monotonic
) -> Callable[[Mapping[str, int]], float] | None:
    """The pause (s) after a flush, given the tables' versions.

    None: always ``flush_s``. It is long enough for every reader, or the reader's checkpoint is in no local folder.
    """
    place = local_path(tables.checkpoint(QUERY))
    if flush_s >= LONGEST_S or place is None:
        return None
    pace = ReaderPace(flush_s)
    return lambda versions: pace.pause(_newest(str(place)), versions, clock())


def _newest(place: str) -> Batch | None:
    """The last batch begun of the query whose checkpoint is in a folder; None if that cannot be told."""
    with suppress(StorageError):
        newest = max(numbers(None, f"{place}/offsets"), default=None)
        return None if newest is None else read_batch(None, place, newest)
    return None
