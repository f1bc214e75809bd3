"""Transaction queries, with their own lookups in the tables: a slow one delays other queries, never ops."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from checkback.errors import CheckbackError
from checkback.gateway.deduplication.history import DeduplicationHistory, Place, TransactionEnd, reread
from checkback.gateway.deduplication.remembered_half import RememberedHalf, name_of
from checkback.gateway.problems import Answer, Problem
from checkback.storage.timestamps import iso

if TYPE_CHECKING:
    from collections.abc import Sequence

    from checkback.gateway.authentication import BearerTokens, Groups
    from checkback.gateway.deduplication.cache import DeduplicationCache
    from checkback.gateway.health import HealthState

#: a half message, how its transaction ended, and when it was delivered if it had a delay (ms)
_Described = tuple[RememberedHalf, TransactionEnd, int | None]
#: Limit of waiting queries. Each may search all of `half`, and continues even if its client disconnects.
#: The share of one token leaves capacity to others.
WAITING_MAX = 16
WAITING_SHARE = 12


class TransactionQueries:
    """Answers queries one after the other, in its own thread. Belongs to one event loop."""

    def __init__(
        self,
        history: DeduplicationHistory,
        cache: DeduplicationCache,
        tokens: BearerTokens,
        health: HealthState,
        window_ms: int,
    ) -> None:
        """``history``: not shared with ops. ``window_ms``: gateway.dedup_window."""
        self._history, self._cache, self._tokens, self._health = history, cache, tokens, health
        self._window_ms = window_ms
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="questions")
        self._asked: dict[asyncio.Future[_Described | int | None], Groups] = {}

    async def transaction(
        self, transaction_id: str, producer_group: str, groups: Groups, place: Place | None = None
    ) -> Answer:
        """The state of a transaction. ``place``: queue and offset of its half message; None = it is searched for."""
        problem = self._tokens.refused(producer_group, groups) or self._refusal(groups)
        if problem is not None:
            return problem
        name = name_of(producer_group, transaction_id)
        known = self._cache.named(name) if place is None else self._cache.at(*place)
        if known is not None and known.name != name:
            known = None
        look = partial(reread, partial(self._described, known, producer_group, transaction_id, place))
        work = asyncio.get_running_loop().run_in_executor(self._thread, look)
        self._asked[work] = groups
        work.add_done_callback(self._asked.pop)
        await asyncio.wait((work,))
        if work.cancelled():
            return _STOPPING
        try:
            found = work.result()
        except (CheckbackError, OSError) as error:
            return self._health.unread(error)
        if not isinstance(found, tuple):
            return Problem("unknown_transaction", _UNKNOWN if found is None else f"{_UNKNOWN}{_REMOVED % iso(found)}")
        half, ended, delivered_at = found
        return {
            "transaction_id": transaction_id,
            "producer_group": producer_group,
            "real_topic": half.real_topic,
            "queue_id": half.queue_id,
            "queue_offset": half.queue_offset,
            "state": ended.state,
            "reason": ended.reason,
            "check_times": ended.check_times,
            "born_timestamp": half.born_timestamp,
            "decided_at": ended.decided_at,
            "deliver_at": ended.deliver_at,
            "delivered_at": delivered_at,
        }

    def close(self) -> None:
        """Answer waiting queries that the gateway is stopping, and abandon their lookups."""
        self._history.closed = True
        for work in tuple(self._asked):
            work.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _refusal(self, groups: Groups) -> Problem | None:
        if self._health.stopping:
            return _STOPPING
        mine = sum(asked == groups for asked in self._asked.values()) if groups is not None else 0
        if len(self._asked) >= WAITING_MAX or mine >= WAITING_SHARE:
            return Problem("queue_full", f"{len(self._asked)} questions wait to be answered; ask again")
        return None

    def _described(
        self, known: RememberedHalf | None, group: str, transaction_id: str, place: Place | None
    ) -> _Described | int | None:
        """A half message that was committed, if there is one; else the newest. Without any, the horizon of `half` (ms).

        One in memory that is pending is not compared with others, and one that has ended only with those that landed
        within the window before it, or since: a copy at another gateway, or a resumed one.
        """
        found = [] if known is None else self._ends([known])
        if place is not None:
            if known is None:
                found = self._ends(self._history.at(place, group, transaction_id))
        elif not {ended.state for _, ended in found} & {"COMMIT", "PENDING"}:
            since = float("-inf")
            if known is not None:  # a start may have shifted its time in memory
                there = self._history.at((known.queue_id, known.queue_offset), group, transaction_id)
                since = min(half.stored for half in (known, *there)) - self._window_ms
            for halves in self._history.named(group, transaction_id, since):
                found += self._ends(halves)
                if any(ended.state == "COMMIT" for _, ended in found):
                    break
        if not found:
            return self._history.horizon()
        half, ended = max(found, key=lambda one: (one[1].state == "COMMIT", one[0].stored))
        if ended.decided_at is None:
            ended = replace(ended, check_times=self._history.check_times(half))
        if ended.deliver_at is None or ended.state == "CANCEL":
            return half, ended, None
        return half, ended, self._history.delivered(half)

    def _ends(self, halves: Sequence[RememberedHalf]) -> list[tuple[RememberedHalf, TransactionEnd]]:
        places = [(half.queue_id, half.queue_offset) for half in halves]
        journaled = [self._cache.ended_with(*place) for place in places]  # before the table, which may have it later
        ended = self._history.ended(halves)
        return [
            (half, ended.get(place) or TransactionEnd(half.state or state or "PENDING"))
            for half, place, state in zip(halves, places, journaled, strict=True)
        ]


_UNKNOWN = "the group has sent no half message of this transaction_id"
_REMOVED = "; what ended before %s was removed by retention"
_STOPPING = Problem("stopping", "the gateway is to end; ask again")
