"""Listeners that are coroutines: awaited, failed, cancelled, with a loop that ends."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from checkback.consumer import AsyncPushConsumer, ConsumeResult, PushConsumer
from checkback.consumer.group.group_table import GroupTable
from checkback.errors import SettingsError
from consumer.heard import Heard, raising, until
from consumer.test_push_consumer import FAST, dead_letters, start

if TYPE_CHECKING:
    from consumer.published import Published

pytestmark = pytest.mark.slow


def test_a_coroutine_may_shut_its_consumer_down(lake: Published) -> None:
    lake.publish({"pay": [lake.messages(3)]})

    async def run() -> None:
        ended = asyncio.Event()

        async def listen(_: Any) -> ConsumeResult:
            await consumer.shutdown()
            ended.set()
            return ConsumeResult.SUCCESS

        # After 2 s without a sign of life, on a busy machine before its first call, it would be a member no more.
        consumer = AsyncPushConsumer("g", lake.tables.root, listen, **FAST | {"session": 60.0}).subscribe("pay")
        async with consumer:
            await ended.wait()

    asyncio.run(run())
    assert GroupTable(lake.tables, "g").state.members == {}


def test_coroutines_are_awaited_and_failed_ones_again(lake: Published) -> None:
    lake.publish({"pay": [lake.messages(20, range(4))]})
    heard = Heard({7: 2})

    async def run() -> None:
        async with AsyncPushConsumer("g", lake.tables.root, heard.later, **FAST).subscribe("pay"):
            await asyncio.to_thread(heard.wait_for_count, 22)

    asyncio.run(run())
    assert heard.times == Counter([*range(20), 7, 7])
    with pytest.raises(SettingsError, match="thread"):
        AsyncPushConsumer("g", lake.tables.root, heard.later, positions=object())


@pytest.mark.parametrize("error", [SystemExit, GeneratorExit, asyncio.CancelledError, StopIteration])
def test_an_exception_of_any_kind_in_a_coroutine_is_a_failure(lake: Published, error: type[BaseException]) -> None:
    """The event loop, which is the service's, goes on."""
    lake.publish({"pay": [lake.messages(6)]})
    heard = Heard(also=raising(error))

    async def run() -> None:
        async with AsyncPushConsumer("g", lake.tables.root, heard.later, **FAST).subscribe("pay"):
            await asyncio.to_thread(heard.wait_for, *range(6))

    asyncio.run(run())
    assert heard.times == Counter(range(6))


def test_coroutines_whose_loop_has_ended_have_not_failed(lake: Published, running: list[PushConsumer]) -> None:
    """The messages are left to another member."""
    lake.publish({"pay": [lake.messages(3)]})
    heard = Heard()
    made: list[AsyncPushConsumer] = []

    async def run() -> None:
        made.append(AsyncPushConsumer("g", lake.tables.root, heard.later, **FAST | {"max_reconsume_times": 0}))
        await made[0].subscribe("pay").start()
        await asyncio.to_thread(heard.wait_for, 0, 1, 2)

    asyncio.run(run())
    lake.publish({"pay": [lake.messages(2)]})
    until(lambda: made[0].consumer.stopping)
    made[0].consumer.shutdown(20)
    assert dead_letters(lake) == []
    other = Heard()
    start(lake, running, other)
    other.wait_for(3, 4)


def test_a_start_that_was_cancelled_leaves_no_member(lake: Published) -> None:
    lake.publish({"pay": [lake.messages(3)]})

    async def run() -> None:
        consumer = AsyncPushConsumer("g", lake.tables.root, Heard().later, **FAST).subscribe("pay")
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(consumer.start(), 0)
        starting = asyncio.create_task(consumer.start())
        await asyncio.sleep(0)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        await asyncio.to_thread(until, lambda: consumer.consumer.stopping)

    asyncio.run(run())
    until(lambda: GroupTable(lake.tables, "g").state.members == {})
