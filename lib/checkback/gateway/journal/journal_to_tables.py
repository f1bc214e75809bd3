"""Commits the journal's records to the tables, half messages first; exactly once, by the position in the journal."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from checkback.errors import CheckbackError, StorageError, reason
from checkback.gateway.health import now_ms, steady_ms
from checkback.gateway.journal.commit_loop import closing_thread
from checkback.gateway.journal.group_commit import COMMIT_BYTES, COMMIT_ROWS
from checkback.gateway.journal.record import Kind, rows_of
from checkback.storage.log.delta_log import ReplacedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from checkback.gateway.appender import Appender
    from checkback.gateway.health import HealthState
    from checkback.gateway.journal.journal import Journal
    from checkback.gateway.journal.record import Record, Unflushed
    from checkback.gateway.metrics import Metrics

#: a flush takes more than a commit of the tables alone: it is not waited for
_ROWS = 10 * COMMIT_ROWS
#: longest pause after a flush that failed (s)
_PAUSE_MAX_S = 10.0


class JournalToTables:
    """Commits the journal's records to `half` and `op`. Its blocking methods belong to one thread.

    Step 1: read the journal's oldest records that are not in the tables.
    Step 2: commit their half messages to `half`, with the last record's position.
    Step 3: commit their ops to `op`, likewise: no op is in the table before its half message.
    Step 4: the journal may delete the records.

    After a crash in between, the position in each table shows which records it has.
    """

    def __init__(self, journal: Journal, half: Appender, op: Appender, metrics: Metrics) -> None:
        """``half``, ``op``: know the journal's positions (`Appender.use`)."""
        self._journal = journal
        self._tables = {Kind.HALF: half, Kind.OP: op}
        self._metrics = metrics
        journal.begin(half.position, op.position)

    def has(self, record: Record | Unflushed) -> bool:
        """Is the record in its table?"""
        return record.position <= self._tables[record.kind].position

    def flush(self) -> list[Unflushed]:
        """One commit to each table. Returns the records that are in the tables now; empty if there were none.

        Raises what `Appender.append` raises, and StorageError if the journal cannot be read.
        """
        self._journal.make_room(time.monotonic())
        for table in self._tables.values():
            table.settle()
        # Step 1
        records = self._journal.read(COMMIT_BYTES, _ROWS)
        if not records:
            return []
        position = records[-1].position
        left = [record for record in records if not self.has(record)]
        halves, ops = rows_of(left, now_ms())
        # Steps 2 and 3
        for name, kind, parts in (("half", Kind.HALF, halves), ("op", Kind.OP, ops)):
            if parts:
                with self._metrics.commit(name, sum(part.num_rows for part in parts)):
                    self._tables[kind].append(*parts, position=position)
        # Step 4
        return self._journal.flushed(position)

    @property
    def versions(self) -> dict[str, int]:
        """The versions of the tables as of the last flush."""
        return {kind.name.lower(): table.log.seen_version for kind, table in self._tables.items()}

    @property
    def behind(self) -> bool:
        """True if the journal has at least half of a flush, or half of its maximum."""
        journal = self._journal
        return journal.rows >= _ROWS // 2 or journal.size >= COMMIT_BYTES // 2 or journal.half_full

    def drain(self) -> int:
        """Flush all that the journal has; returns how many messages and ops the tables lacked. Raises as `flush`."""
        count = sum(record.rows for record in self._journal.unflushed() if not self.has(record))
        while self._journal.rows:
            self.flush()
        return count


class JournalToTablesLoop:
    """Commits the journal every ``interval_s``, without a pause while it lags; after `close` the remaining records.

    Belongs to one event loop.
    """

    def __init__(
        self,
        to_tables: JournalToTables,
        journal: Journal,
        interval_s: float,
        health: HealthState,
        flushed: Callable[[Sequence[Unflushed]], None],
        reader_pause: Callable[[Mapping[str, int]], float] | None = None,
    ) -> None:
        """``flushed`` is called with the records of each flush; with none if it failed.

        ``reader_pause``: the pause after a flush, given the tables' versions; None = ``interval_s``.
        """
        self._to_tables = to_tables
        self._journal = journal
        self._interval_s = interval_s
        self._health = health
        self._flushed = flushed
        self._reader_pause = reader_pause
        self._closed = False
        self._failed = False
        #: set when the next flush is not to wait
        self._hurried = asyncio.Event()

    async def run(self) -> None:
        """Flush until `close`, then until nothing is left.

        Raises StorageError if a flush that began after `close` fails: the next start commits what is left.
        """
        loop = asyncio.get_running_loop()
        pause = self._interval_s
        with closing_thread("flush") as thread:
            while not self._closed or self._journal.rows:
                began = loop.time()
                # a flush that began before `close` may have failed for a reason that is gone: another follows
                last = self._closed
                try:
                    due = self._journal.rows or self._journal.due(time.monotonic())
                    records = await loop.run_in_executor(thread, self._to_tables.flush) if due else []
                    pause = self._interval_s
                    if self._reader_pause is not None:
                        versions = self._to_tables.versions
                        pause = await loop.run_in_executor(thread, self._reader_pause, versions)
                except Exception as error:
                    self._failed = True
                    self._flushed(())
                    if self._health.flush_failed(error) or last:
                        raise self._left(error) from error
                    pause = min(2 * max(pause, self._interval_s), max(_PAUSE_MAX_S, self._interval_s))
                else:
                    self._failed = False
                    self._health.flushed()
                    self._flushed(records)
                    pause = 0.0 if self._to_tables.behind else pause
                if not self._closed:
                    self._hurried.clear()
                    with suppress(asyncio.TimeoutError):
                        await asyncio.wait_for(self._hurried.wait(), max(0.0, began + pause - loop.time()))

    def hurry(self) -> None:
        """The next flush does not wait, unless the one before has failed."""
        if not self._failed:
            self._hurried.set()

    def close(self) -> None:
        """Nothing more is added to the journal: `run` ends when it is in the tables."""
        self._closed = True
        self._hurried.set()

    def _left(self, error: Exception) -> CheckbackError:
        why = str(CheckbackError(error.what, error.where)) if isinstance(error, CheckbackError) else reason(error)
        what = f"{self._journal.rows} messages are acknowledged and in the journal, not in the tables yet: {why}"
        fix = error.fix if isinstance(error, CheckbackError) and error.fix else "repair that"
        if isinstance(error, ReplacedError):  # the journal belongs to the previous table
            fix = "restore the previous table"
        return StorageError(what, self._journal.path, f"{fix}, then start again: the start commits them")


def behind_s(journal: Journal) -> float:
    """Age of the oldest message that is in the journal only (s)."""
    oldest = journal.oldest
    return 0.0 if oldest is None else (steady_ms() - oldest.at) / 1000
