"""Futures that are waited for no longer than until a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable


class Deadlines:
    """Futures of an event loop, each resolved with False unless it is removed in time.

    One timer for all of them: one each takes a tenth of a transaction's time.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._until: dict[asyncio.Future[bool], float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, future: asyncio.Future[bool], seconds: float) -> None:
        """Resolve the future after so long."""
        self._until[future] = until = self.loop.time() + seconds
        if self._timer is None or until < self._timer.when():
            self._start(until)

    def remove(self, future: asyncio.Future[bool]) -> None:
        """The future is waited for no more. The timer runs on: the next one is due later, mostly."""
        self._until.pop(future, None)

    def _start(self, until: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_at(until, self._look)

    def _look(self) -> None:
        now, self._timer = self.loop.time(), None
        resolve([future for future, until in self._until.items() if until <= now], False)
        if left := [until for until in self._until.values() if until > now]:
            self._start(min(left))


def resolve(futures: Iterable[asyncio.Future[bool]], answered: bool) -> None:
    """Resolve those that are neither resolved nor cancelled."""
    for future in futures:
        if not future.done():
            future.set_result(answered)
