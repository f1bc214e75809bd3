"""The gateway's service: half messages, ops and transaction queries. Belongs to one event loop."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from checkback.gateway.appender import Appender, tables_of
from checkback.gateway.authentication import BearerTokens
from checkback.gateway.deduplication.cache import DeduplicationCache
from checkback.gateway.deduplication.history import DeduplicationHistory
from checkback.gateway.half_messages import HalfMessageWriter
from checkback.gateway.health import HealthState, steady_ms
from checkback.gateway.journal.commit_loop import InLoop, JournalIntake, drive, to_journal, to_table
from checkback.gateway.journal.journal_to_tables import JournalToTables, JournalToTablesLoop, behind_s
from checkback.gateway.journal.reader_pace import reader_pause
from checkback.gateway.journal.recovery import open_journal, own_queues, recover, refuse_missing_tables
from checkback.gateway.ops import OpWriter
from checkback.gateway.ownership import first_app
from checkback.gateway.problems import Problem
from checkback.gateway.transaction_queries import TransactionQueries
from checkback.gateway.unverified_ops import UnverifiedOps
from checkback.storage.files.object_store import concurrently
from checkback.storage.half_restored import refuse_half_restored
from checkback.storage.queue_owners import QueueOwner, refuse_foreign
from checkback.storage.timestamps import time_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from checkback.errors import CheckbackError
    from checkback.gateway.deduplication.remembered_half import RememberedColumns
    from checkback.gateway.journal.group_commit import GroupCommit
    from checkback.gateway.journal.journal import Journal
    from checkback.gateway.journal.record import Unflushed
    from checkback.gateway.metrics import Metrics
    from checkback.settings import Gateway, Settings

_FORGET_EVERY_S = _FOLLOW_EVERY_S = 1.0


class GatewayService:
    """The logic behind the HTTP routes. The constructor claims the queues; ``run`` commits until ``close``."""

    def __init__(
        self,
        settings: Settings,
        metrics: Metrics,
        stop: Callable[[CheckbackError], None],
        take_over: bool = False,
    ) -> None:
        """Blocks: creates the tables, commits what a journal has, claims the queues, reads recent half messages.

        ``stop`` is called with the error if this gateway must stop. ``take_over``: claim queues even if another
        gateway's journal may have messages for them. Raises SettingsError, StorageError, FencedError.
        """
        refuse_missing_tables(settings)
        gateway, tables = settings.gateway, tables_of(settings.storage)
        refuse_half_restored(tables.root)

        history = DeduplicationHistory(tables.root, tables.sync)

        def appender(name: str) -> Appender:
            opened = Appender(tables.root, name, gateway.queues, tables.sync)
            opened.epoch()  # all applications' versions are read now, not one table's after the other's
            return opened

        # In an object store side by side: each takes some dozen requests.
        steps: list[Callable[[], Any]] = [partial(appender, "half"), partial(appender, "op"), history.open]
        half, op, _ = concurrently(tables.root, lambda step: step(), steps)
        refuse_foreign(half.log, gateway.queues, QueueOwner.GATEWAY, "gateway.queues")
        self.journal = open_journal(settings, half, op)
        try:
            to_tables = None if self.journal is None else JournalToTables(self.journal, half, op, metrics)
            self.recovered = recover(self.journal, to_tables, history)
            self.journal = own_queues(self.journal, settings, half, op, history, take_over)
            #: how often a gateway has started on these queues
            self.starts = half.epoch()
            #: of `half`
            self.table_id = half.table_id()
            others = history.others(gateway.queues)
            # Claimed: from here on no other process assigns offsets, so what is read next cannot become stale.
            firsts = half.versions(map(first_app, gateway.queues))
            next_offsets = {
                queue_id: max(history.next_offset(queue_id), firsts[first_app(queue_id)] or 0)
                for queue_id in gateway.queues
            }
            self.cache = DeduplicationCache(next_offsets, settings.producers)
            self._dedup_window_ms = gateway.dedup_window // timedelta(milliseconds=1)
            self.cache.remember(self._remembered(history, [*gateway.queues, *others], gateway))
            for decided in history.decided(self.cache.first_offsets()):
                self.cache.decided(*decided)
        except BaseException:
            if self.journal is not None:
                self.journal.close()
            raise
        self.tokens = BearerTokens(settings.producers)
        self.health = HealthState(stop)
        self._dedup_max = gateway.dedup_max
        self._linger_s = gateway.linger.total_seconds()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="older")
        self._history = history
        self._metrics = metrics
        self._intake: JournalIntake | None = None
        self._flushing: JournalToTablesLoop | None = None
        if self.journal is not None and to_tables is not None:
            flush_s = gateway.flush.total_seconds()
            self._flushing = JournalToTablesLoop(
                *(to_tables, self.journal, flush_s, self.health, self._on_flush),
                reader_pause=reader_pause(tables, flush_s),
            )
            self._intake = JournalIntake(self.journal, self._flushing.hurry)
            journal = self.journal
            metrics.watch_journal(
                messages=lambda: journal.rows, bytes=lambda: journal.size, behind_seconds=lambda: behind_s(journal)
            )
        self.halves = HalfMessageWriter(
            gateway, self.tokens, self.cache, half, metrics, self.health, settings.delay.max, self._intake
        )
        unverified = UnverifiedOps(settings.transaction.max_age // timedelta(milliseconds=1))
        self.ops = OpWriter(
            gateway, self.tokens, self.cache, op, metrics, self.health, history, self._thread, unverified, self._intake
        )
        self.questions = TransactionQueries(
            DeduplicationHistory(tables.root, tables.sync), self.cache, self.tokens, self.health, self._dedup_window_ms
        )
        metrics.watch(
            {"half": lambda: self.halves.commits.waiting, "op": lambda: self.ops.commits.waiting},
            lambda: len(self.cache),
            lambda: len(unverified),
            lambda: self.unready() is None,
        )
        for queue_id in self.cache.queues:
            metrics.last_offset(queue_id, self.cache.next_offset(queue_id) - 1)

    def _remembered(self, history: DeduplicationHistory, queues: Sequence[int], gateway: Gateway) -> RememberedColumns:
        """What landed within gateway.dedup_window before the last half message of the owned queues, shifted to now.

        The clock may have been set forward since. The last is the one with the greatest offset, which is independent of
        clocks.
        """
        now = steady_ms()
        last = history.last_stored(gateway.queues)
        behind = 0 if last is None else max(0, now - last)
        since = now - behind - self._dedup_window_ms
        found = history.recent(queues, time_of(since), gateway.dedup_max)
        return replace(found, stored=np.minimum(found.stored + behind, now))

    async def run(self) -> None:
        """Commit messages and evict old cache entries until ``close``.

        Raises StorageError if the journal has messages that cannot be committed to the tables.
        """
        forgetting, following = asyncio.create_task(self._forget()), asyncio.create_task(self._follow())
        try:
            if self.journal is None or self._flushing is None:
                await asyncio.gather(
                    drive("commit-half", [self.halves.commits], to_table, self._linger_s),
                    drive("commit-op", [self.ops.commits], to_table, self._linger_s),
                )
            else:
                await self._run_with_journal(self.journal, self._flushing)
        finally:
            forgetting.cancel()
            following.cancel()
            self._thread.shutdown(wait=False)

    async def _run_with_journal(self, journal: Journal, flushing: JournalToTablesLoop) -> None:
        queues: list[GroupCommit[Any]] = [self.halves.commits, self.ops.commits]
        flush = asyncio.create_task(flushing.run())
        commit = asyncio.create_task(drive("journal", queues, to_journal(journal), in_loop=InLoop()))
        try:
            await asyncio.wait((flush, commit), return_when=asyncio.FIRST_COMPLETED)
            self.close()  # it may be that the tables can never be written again
            await commit
            flushing.close()
            await flush
        finally:
            journal.close()

    def _on_flush(self, records: Sequence[Unflushed]) -> None:
        now = steady_ms()
        for record in records:
            self.cache.flushed_ops(record.places)
            self._metrics.in_journal((now - record.at) / 1000)
        if self._intake is not None:
            self._intake.look()

    def unready(self) -> Problem | None:
        """Why it takes no messages now; None: it does."""
        if self.health.stopping:
            return Problem("stopping", "the gateway is to end, or cannot go on")
        if not self.health.ready:
            return Problem("storage_unavailable", "a commit has failed a moment ago: the gateway's log says why")
        return None if self._intake is None else self._intake.look()

    def hurry(self) -> None:
        """Answer waiting requests as soon as possible: the process is stopping."""
        self.health.stopping = True
        self.questions.close()
        self.halves.commits.hurry()
        self.ops.commits.hurry()

    def close(self) -> None:
        """Accept nothing more; ``run`` returns when what was accepted is committed."""
        self.health.stopping = True
        self.halves.commits.close()
        self.ops.commits.close()

    def forget(self) -> None:
        """Evict old cache entries, by a monotonic clock."""
        kept = self.journal.unflushed_offsets() if self.journal is not None else {}
        for queue_id, offset in self.ops.first_offsets().items():
            kept[queue_id] = min(offset, kept.get(queue_id, offset))
        self.cache.forget(steady_ms() - self._dedup_window_ms, self._dedup_max, kept)

    async def follow(self) -> None:
        """Take over what `reconcile` has decided since the last call, also against an op that came too late."""
        loop, history = asyncio.get_running_loop(), self._history

        def decided(firsts: dict[int, int]) -> list[Any]:
            return list(history.decided(firsts))

        try:
            for piece in await loop.run_in_executor(self._thread, decided, self.cache.first_offsets()):
                self.cache.decided(*piece)
                await asyncio.sleep(0)
        except Exception as error:  # noqa: BLE001 - the task must go on, unless it ends the gateway
            self.health.unread(error)

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(_FOLLOW_EVERY_S)
            await self.follow()

    async def _forget(self) -> None:
        while True:
            await asyncio.sleep(_FORGET_EVERY_S)
            self.forget()
