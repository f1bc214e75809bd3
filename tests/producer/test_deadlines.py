"""Many futures, one timer."""

from __future__ import annotations

import asyncio

from checkback.producer.daemon_threads import Deadlines

FAR = 86_400.0
#: for what must come; a test that needs so long has failed
PATIENCE_S = 10


def test_each_is_resolved_at_its_own_time() -> None:
    """Whatever the order in which they come; those that are removed, and those of later, are not."""

    async def run() -> list[bool | None]:
        loop = asyncio.get_running_loop()
        deadlines = Deadlines(loop)
        futures = [loop.create_future() for _ in range(6)]
        for future, seconds in zip(futures, (FAR, 0.02, 0.01, 0.01, 0.03, FAR), strict=True):
            deadlines.add(future, seconds)
        deadlines.remove(futures[3])
        for at in (2, 1, 4):
            assert await futures[at] is False
        return [future.result() if future.done() else None for future in futures]

    assert asyncio.run(asyncio.wait_for(run(), PATIENCE_S)) == [None, False, False, None, False, None]


def test_one_that_comes_after_the_last_was_removed() -> None:
    """The timer of those before does not hold it up, nor do they come back with it."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        deadlines = Deadlines(loop)
        removed, later, sooner = (loop.create_future() for _ in range(3))
        deadlines.add(removed, 0.0)
        deadlines.remove(removed)
        deadlines.add(later, 0.01)
        assert await later is False
        deadlines.add(sooner, 0.0)
        assert await sooner is False
        assert not removed.done()

    asyncio.run(asyncio.wait_for(run(), PATIENCE_S))


def test_answered_or_cancelled_before_its_time() -> None:
    """A future that is done is left as it is."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        deadlines = Deadlines(loop)
        answered, cancelled, last = (loop.create_future() for _ in range(3))
        for future in (answered, cancelled, last):
            deadlines.add(future, 0.0)
        answered.set_result(True)
        cancelled.cancel()
        assert await last is False
        assert (answered.result(), cancelled.cancelled()) == (True, True)

    asyncio.run(asyncio.wait_for(run(), PATIENCE_S))
