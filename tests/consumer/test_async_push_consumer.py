"""Listeners that are coroutines: awaited, failed, cancelled, with a loop that ends."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from checkback.consumer import AsyncPushConsumer, ConsumeResult, PushConsumer
from checkback.consumer.group.group_table import GroupTable
from checkback.consumer.listener_calls import ListenerGoneError
from checkback.errors import SettingsError
from consumer.heard import Heard, raising, until
from consumer.test_push_consumer import FAST, dead_letters, start

if TYPE_CHECKING:
    from collections.abc import Callable

    from consumer.published import Published

pytestmark = pytest.mark.slow


def test_a_coroutine_may_shut_its_consumer_down(lake: Published) -> None:
    lake.publish({"pay": [lake.messages(3)]})

    async def run() -> None:
        ended = asyncio.Event()

        async def listen(_: Any) -> ConsumeResult:
            await consumer.close()
            ended.set()
            return ConsumeResult.SUCCESS

        # After 2 s without a sign of life, on a busy machine before its first call, it would be a member no more.
        consumer = AsyncPushConsumer(
            "g", lake.tables.root, listen, **FAST | {"session_timeout": timedelta(seconds=60.0)}
        ).subscribe("pay")
        async with consumer:
            await ended.wait()

    asyncio.run(run())
    assert GroupTable(lake.tables, "g").state.members == {}


@pytest.mark.parametrize("how", [asyncio.create_task, asyncio.gather])
def test_a_coroutine_may_shut_its_consumer_down_in_another_task(lake: Published, how: Callable[..., Any]) -> None:
    """As `wait_for` does before Python 3.12. What the call leaves behind waits for the end, as any other task."""
    lake.publish({"pay": [lake.messages(1)]})

    async def run() -> None:
        heard: asyncio.Future[asyncio.Task[None]] = asyncio.get_running_loop().create_future()
        returned = asyncio.Event()

        async def later() -> None:
            await returned.wait()
            await consumer.close()
            assert GroupTable(lake.tables, "g").state.members == {}

        async def listen(_: Any) -> ConsumeResult:
            await how(consumer.close())
            heard.set_result(asyncio.create_task(later()))
            return ConsumeResult.SUCCESS

        consumer = AsyncPushConsumer(
            "g", lake.tables.root, listen, **FAST | {"session_timeout": timedelta(seconds=60.0)}
        ).subscribe("pay")
        await consumer.start()
        behind = await asyncio.wait_for(heard, 30)
        await asyncio.to_thread(until, lambda: consumer.consumer.consumed)
        returned.set()
        await behind

    asyncio.run(run())


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
    made[0].consumer.close(timedelta(seconds=20))
    assert dead_letters(lake) == []
    other = Heard()
    start(lake, running, other)
    other.wait_for(3, 4)


def _cancelled() -> None:
    raise asyncio.CancelledError


def _failed() -> None:
    raise OSError("the connection was closed")


@pytest.mark.parametrize("then", [_cancelled, _failed])
def test_coroutines_cancelled_as_their_loop_ends_have_not_failed(
    lake: Published, running: list[PushConsumer], then: Callable[[], None]
) -> None:
    """By the service's own error. Whatever the listener makes of it, the messages are left to another member."""
    lake.publish({"pay": [lake.messages(3)]})
    made: list[AsyncPushConsumer] = []

    async def run() -> None:
        called = asyncio.Event()

        async def listen(_: Any) -> ConsumeResult:
            called.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                then()
            return ConsumeResult.SUCCESS

        made.append(AsyncPushConsumer("g", lake.tables.root, listen, **FAST | {"max_reconsume_times": 0}))
        await made[0].subscribe("pay").start()
        await called.wait()
        raise RuntimeError("the service's own")

    with pytest.raises(RuntimeError, match="own"):
        asyncio.run(run())
    until(lambda: made[0].consumer.stopping)
    made[0].consumer.close(timedelta(seconds=20))
    assert (made[0].consumer.failed, dead_letters(lake)) == (0, [])
    other = Heard()
    start(lake, running, other)
    other.wait_for(0, 1, 2)
    assert {message.reconsume_times for message in other.messages} == {0}


def test_a_loop_ends_with_a_later_message_consumed(lake: Published, running: list[PushConsumer]) -> None:
    """The earlier one can be finished no more: the member leaves, and another one gets both."""
    lake.publish({"pay": [lake.messages(1), lake.messages(1)]})
    made: list[AsyncPushConsumer] = []

    async def run() -> None:
        async def listen(message: Any) -> ConsumeResult:
            if message.half_queue_offset == 0:
                await asyncio.Event().wait()
            return ConsumeResult.SUCCESS

        made.append(AsyncPushConsumer("g", lake.tables.root, listen, **FAST).subscribe("pay"))
        await made[0].start()
        await asyncio.to_thread(until, lambda: made[0].consumer.consumed)
        raise RuntimeError("the service's own")

    with pytest.raises(RuntimeError, match="own"):
        asyncio.run(run())
    until(lambda: made[0].consumer.stopping)
    ending = threading.Thread(target=made[0].consumer.close, daemon=True)
    ending.start()
    ending.join(10)
    assert not ending.is_alive()
    other = Heard()
    start(lake, running, other)
    other.wait_for(0, 1)


def test_a_loop_that_is_closed_just_before_a_call(lake: Published) -> None:
    class Closing(asyncio.SelectorEventLoop):
        def call_soon_threadsafe(self, *arguments: Any, **options: Any) -> asyncio.Handle:  # type: ignore[override]
            self.close()
            return super().call_soon_threadsafe(*arguments, **options)

    consumer = AsyncPushConsumer("g", lake.tables.root, Heard().later).subscribe("pay")
    consumer._loop = Closing()
    with pytest.raises(ListenerGoneError):
        consumer._listen(None)
    assert consumer.consumer.stopping


def test_a_coroutine_that_cancels_itself_has_failed(lake: Published) -> None:
    lake.publish({"pay": [lake.messages(2)]})
    heard = Heard()

    async def listen(message: Any) -> ConsumeResult:
        if message.half_queue_offset == 0 and not message.reconsume_times:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)
        return heard(message)

    async def run() -> None:
        async with AsyncPushConsumer("g", lake.tables.root, listen, **FAST).subscribe("pay") as consumer:
            await asyncio.to_thread(heard.wait_for, 0, 1)
            assert consumer.consumer.failed == 1

    asyncio.run(run())


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
