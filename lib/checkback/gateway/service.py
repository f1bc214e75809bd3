"""The gateway's service: half messages, ops and transaction queries. Belongs to one event loop."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from msgspec.structs import replace

from checkback.gateway.authentication import BearerTokens
from checkback.gateway.deduplication import DeduplicationCache
from checkback.gateway.deduplication_history import DeduplicationHistory
from checkback.gateway.half_messages import HalfMessageWriter
from checkback.gateway.health import HealthState, steady_ms
from checkback.gateway.ops import OpWriter
from checkback.gateway.tables import Appender, claim, tables_of
from checkback.gateway.transaction_queries import TransactionQueries
from checkback.gateway.unverified_ops import UnverifiedOps
from checkback.storage.delta_log import DeltaLog
from checkback.storage.queue_owners import QueueOwner as OwnerDoor
from checkback.storage.queue_owners import refuse_foreign
from checkback.storage.timestamps import LEAST

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from checkback.errors import CheckbackError
    from checkback.gateway.deduplication import CachedHalf
    from checkback.gateway.metrics import Metrics
    from checkback.settings import Gateway, Settings

_FORGET_EVERY_S = 1.0
_EPOCH = datetime.fromtimestamp(0, timezone.utc)


class GatewayService:
    """The logic behind the HTTP routes. The constructor claims the queues; ``run`` commits until ``close``."""

    def __init__(self, settings: Settings, metrics: Metrics, stop: Callable[[CheckbackError], None]) -> None:
        """Blocks: creates the tables, claims the queues, reads recent half messages into the cache.

        ``stop`` is called with the error if this gateway must stop. Raises SettingsError, StorageError, FencedError.
        """
        gateway, tables = settings.gateway, tables_of(settings.storage)
        half, op = (Appender(tables.root, name, gateway.queues, tables.sync) for name in ("half", "op"))
        log = DeltaLog("half", half.place, tables.sync)
        refuse_foreign(log, gateway.queues, OwnerDoor.GATEWAY, "gateway.queues")
        # Claimed first: from here on no other process assigns offsets, so what is read next cannot become stale.
        claim(half, op)
        history = DeduplicationHistory(tables.root, tables.sync)
        others = history.others(gateway.queues)
        next_offsets = {queue_id: history.next_offset(queue_id) for queue_id in gateway.queues}
        self.cache = DeduplicationCache(next_offsets, settings.producers)
        self._remember_ms = gateway.remember // timedelta(milliseconds=1)
        self.cache.landed(self._remembered(history, [*gateway.queues, *others], gateway))
        self.tokens = BearerTokens(settings.producers)
        self.health = HealthState(stop)
        self._remember_max = gateway.remember_max
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="older")
        self.halves = HalfMessageWriter(
            gateway, self.tokens, self.cache, half, metrics, self.health, settings.delay.max
        )
        unverified = UnverifiedOps(settings.transaction.reserved // timedelta(milliseconds=1))
        self.ops = OpWriter(
            gateway, self.tokens, self.cache, op, metrics, self.health, history, self._thread, unverified
        )
        self.questions = TransactionQueries(
            DeduplicationHistory(tables.root, tables.sync), self.cache, self.tokens, self.health
        )
        metrics.watch(
            {"half": lambda: self.halves.commits.waiting, "op": lambda: self.ops.commits.waiting},
            lambda: len(self.cache),
        )
        for queue_id in self.cache.queues:
            metrics.last_offset(queue_id, self.cache.next_offset(queue_id) - 1)

    def _remembered(
        self, history: DeduplicationHistory, queues: Sequence[int], gateway: Gateway
    ) -> Iterable[CachedHalf]:
        """What landed within gateway.remember before the last half message of the owned queues, shifted to now.

        The clock may have been set forward since. The last is the one with the greatest offset, which is independent of
        clocks.
        """
        now = steady_ms()
        last = history.last_stored(gateway.queues)
        behind = 0 if last is None else max(0, now - last)
        since = max(now - behind - self._remember_ms, LEAST // 1000)
        found = history.recent(queues, _EPOCH + timedelta(milliseconds=since), gateway.remember_max)
        return (replace(half, stored=min(half.stored + behind, now)) for half in found)

    async def run(self) -> None:
        """Commit messages and evict old cache entries until ``close``."""
        forgetting = asyncio.create_task(self._forget())
        try:
            await asyncio.gather(self.halves.commits.run(), self.ops.commits.run())
        finally:
            forgetting.cancel()
            self._thread.shutdown(wait=False)

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
        self.cache.forget(steady_ms() - self._remember_ms, self._remember_max)

    async def _forget(self) -> None:
        while True:
            await asyncio.sleep(_FORGET_EVERY_S)
            self.forget()
