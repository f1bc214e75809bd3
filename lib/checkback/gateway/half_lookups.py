"""Look-ups of half messages for ops, in a thread: one at a time, each with all that has come since the one before."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from checkback.errors import CheckbackError
from checkback.gateway.deduplication.history import reread
from checkback.gateway.health import steady_ms
from checkback.gateway.problems import Problem
from checkback.messages.limits import BATCH_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from concurrent.futures import ThreadPoolExecutor

    from checkback.gateway.authentication import Groups
    from checkback.gateway.deduplication.cache import DeduplicationCache
    from checkback.gateway.deduplication.history import DeduplicationHistory, Place
    from checkback.gateway.deduplication.remembered_half import RememberedHalf
    from checkback.gateway.health import HealthState
    from checkback.gateway.unverified_ops import UnverifiedOps


class LookedUp(NamedTuple):
    """What the tables have. ``awaited``: places in another gateway's queue at which a half message may land yet."""

    halves: dict[Place, RememberedHalf]
    awaited: set[Place]


class HalfLookups:
    """Belongs to one event loop. A look-up of one place takes about as long as one of a hundred."""

    def __init__(self, thread: ThreadPoolExecutor, look_up: Callable[[Collection[Place]], LookedUp]) -> None:
        """``look_up`` blocks; it runs in the thread."""
        self._thread, self._look_up = thread, look_up
        self._one_at_a_time = asyncio.Lock()
        self._places: set[Place] = set()
        self._next: asyncio.Task[LookedUp] | None = None

    async def of(self, places: Collection[Place]) -> LookedUp:
        """What there is at these places, as of now or later, and maybe at others. Raises what ``look_up`` does."""
        self._places.update(places)
        if self._next is None:
            self._next = asyncio.ensure_future(self._run())
        return await asyncio.shield(self._next)

    async def _run(self) -> LookedUp:
        async with self._one_at_a_time:
            places, self._places, self._next = self._places, set(), None
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._look_up, places)


class OlderHalves:
    """The half messages of ops that the cache has forgotten, or that other gateways have. Belongs to one event loop.

    They are cached only once an op of theirs is committed: one without an op may be discarded at any time, and a
    refused op must not put a stale entry into the cache.
    """

    def __init__(
        self,
        thread: ThreadPoolExecutor,
        history: DeduplicationHistory,
        cache: DeduplicationCache,
        unverified: UnverifiedOps,
        health: HealthState,
        most: int,
    ) -> None:
        """``history``: used in ``thread`` only; ``most``: looked up at a time."""
        self._find, self._last_offsets, self._cache, self._most = history.find, history.last_offsets, cache, most
        self._lookups = HalfLookups(thread, self._look_up)
        self._unverified = unverified
        self._health = health
        #: For each running lookup, the state of its half messages if it was set since: the lookup may have read `op`
        #: before that.
        self._running: list[dict[Place, str | None]] = []
        #: By token: a client with many lookups delays others by at most one request.
        self._number: Counter[Groups] = Counter()

    async def of(
        self, forgotten: Sequence[Place], remembered: Mapping[Place, RememberedHalf], groups: Groups
    ) -> LookedUp | Problem:
        """What the tables have at the ``forgotten`` places, and of those ``remembered`` what they have become."""
        number, share = self._number[groups], self._most if groups is None else BATCH_MAX
        if number + len(forgotten) > share:
            return Problem("queue_full", f"{number} older half messages are being looked up; send it again")
        self._number[groups] += len(forgotten)
        unverified = self._unverified.to_look_up(groups)
        ended: dict[Place, str | None] = dict.fromkeys([*forgotten, *remembered])
        self._running.append(ended)
        try:
            found, awaited = await self._lookups.of({*forgotten, *unverified})
        except (CheckbackError, OSError) as error:
            return self._health.unread(error)
        finally:
            self._number[groups] -= len(forgotten)
            self._running = [one for one in self._running if one is not ended]
        self._unverified.looked_up(groups, unverified, found, steady_ms())
        halves = {
            place: half if half.state else replace(half, state=state)
            for place, state in ended.items()
            if (half := found.get(place) or remembered.get(place)) is not None
        }
        return LookedUp(halves, awaited)

    @property
    def running(self) -> bool:
        """Whether any is being looked up, so that `ended` has something to do."""
        return bool(self._running)

    def ended(self, state_at: Callable[[Place], str | None]) -> None:
        """Ops were committed: ``state_at`` is the state of the half message at a place, None if it is not of these."""
        for ended in self._running:
            ended |= {place: state for place in ended if (state := state_at(place)) is not None}

    def _look_up(self, places: Collection[Place]) -> LookedUp:
        """Blocks; raises StorageError."""
        others = {queue_id for queue_id, _ in places}.difference(self._cache.queues)
        # Before the half messages: one that lands in between is found.
        last = self._last_offsets(others) if others else {}
        known = [place for place in places if place[0] in last or place[0] not in others]
        found = reread(lambda: self._find(known)) if known else {}
        awaited = {place for place in known if place[0] in last and place[1] > last[place[0]]}
        return LookedUp(found, awaited)
