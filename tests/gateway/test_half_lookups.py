"""Look-ups for ops share what waits: one after the other they would take as long as there are ops."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from checkback.errors import StorageError
from checkback.gateway.half_lookups import HalfLookups, LookedUp
from gateway.process import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Collection

    from checkback.gateway.deduplication.history import Place


class Slow:
    """A look-up that takes until ``go_on``; the places of each."""

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.asked: list[set[Place]] = []

    def __call__(self, places: Collection[Place]) -> LookedUp:
        self.asked.append(set(places))
        self.begun.set()
        assert self.go_on.wait(PATIENCE_S)
        if (9, 9) in places:
            raise StorageError("cannot be read", "half")
        return LookedUp({}, set(places))


def test_what_comes_meanwhile_shares_the_next_one() -> None:
    """And a failure is that of those who share it."""

    async def run() -> None:
        slow = Slow()
        with ThreadPoolExecutor(1) as thread:
            look_ups = HalfLookups(thread, slow)
            first = asyncio.ensure_future(look_ups.of({(0, 0)}))
            await asyncio.to_thread(slow.begun.wait, PATIENCE_S)
            others = [asyncio.ensure_future(look_ups.of({(1, offset)})) for offset in range(50)]
            await asyncio.sleep(0)
            others[0].cancel()
            slow.go_on.set()
            assert (await first).awaited == {(0, 0)}
            everything = {(1, offset) for offset in range(50)}
            assert [one.awaited for one in await asyncio.gather(*others[1:])] == [everything] * 49
            assert slow.asked == [{(0, 0)}, everything]
            with pytest.raises(StorageError):
                await look_ups.of({(9, 9)})
            assert (await look_ups.of({(0, 1)})).awaited == {(0, 1)}

    asyncio.run(asyncio.wait_for(run(), PATIENCE_S))
