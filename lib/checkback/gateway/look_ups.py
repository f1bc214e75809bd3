"""Look-ups of half messages for ops, in a thread: one at a time, each with all that has come since the one before."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from concurrent.futures import ThreadPoolExecutor

    from checkback.gateway.deduplication.history import Place
    from checkback.gateway.deduplication.landed_halves import CachedHalf


class LookedUp(NamedTuple):
    """What the tables have. ``awaited``: places in another gateway's queue at which a half message may land yet."""

    halves: dict[Place, CachedHalf]
    awaited: set[Place]


class LookUps:
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
