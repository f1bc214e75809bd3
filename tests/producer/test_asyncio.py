"""What only asyncio can do: many transactions at once in one loop, and tasks that are cancelled."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from checkback.producer import (
    AsyncTransactionListener,
    AsyncTransactionProducer,
    CheckRequest,
    LocalTransactionState,
    Message,
)
from producer.gateways import StubGateway


class Together(AsyncTransactionListener):
    """Ends no local transaction until ``count`` have begun."""

    def __init__(self, count: int) -> None:
        self.seen: list[tuple[Message, Any]] = []
        self._count = count
        self.begun = asyncio.Event()
        self.go_on = asyncio.Event()

    async def execute_local_transaction(self, message: Message, arg: Any) -> LocalTransactionState | None:
        self.seen.append((message, arg))
        if len(self.seen) == self._count:
            self.begun.set()
        await asyncio.wait_for(self.go_on.wait(), 20)
        return LocalTransactionState.COMMIT

    async def check_local_transaction(self, check: CheckRequest) -> LocalTransactionState | None:
        raise NotImplementedError


def test_local_transactions_run_side_by_side() -> None:
    async def run(url: str) -> int:
        listener = Together(50)
        async with AsyncTransactionProducer("orders", url, listener) as producer:
            sending = asyncio.gather(*(producer.send_in_transaction(Message("t", b"1")) for _ in range(50)))
            await asyncio.wait_for(listener.begun.wait(), 20)
            listener.go_on.set()
            return sum(result.op_sent for result in await sending)

    with StubGateway() as gateway:
        assert asyncio.run(run(gateway.url)) == 50
        assert len(gateway.ops) == 50


def test_task_cancelled_in_its_local_transaction_sends_no_op() -> None:
    """Nobody knows what became of it: the check-back asks."""

    async def run(url: str) -> None:
        listener = Together(1)
        async with AsyncTransactionProducer("orders", url, listener) as producer:
            sending = asyncio.create_task(producer.send_in_transaction(Message("t", b"1")))
            await asyncio.wait_for(listener.begun.wait(), 20)
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending

    with StubGateway() as gateway:
        asyncio.run(run(gateway.url))
        assert len(gateway.halves) == 1
        assert not gateway.ops


def test_what_tasks_have_goes_into_one_request() -> None:
    async def run(gateway: StubGateway) -> list[int | None]:
        listener = Together(1)
        listener.go_on.set()
        async with AsyncTransactionProducer("orders", gateway.url, listener) as producer:
            first = asyncio.create_task(producer.send_in_transaction(Message("t", b"1")))
            await asyncio.to_thread(gateway.until, "/v1/halves", 1)
            others = [asyncio.create_task(producer.send_in_transaction(Message("t", b"1"))) for _ in range(20)]
            await asyncio.sleep(0)
            gateway.takes_halves.set()
            return [(await task).queue_offset for task in (first, *others)]

    with StubGateway() as gateway:
        gateway.takes_halves.clear()
        assert asyncio.run(run(gateway)) == list(range(21))
        assert [len(received.json["messages"]) for received in gateway.requests("/v1/halves")] == [1, 20]
        assert len(gateway.ops) == 21


def test_task_cancelled_while_it_waits_sends_nothing() -> None:
    """Its half message is not sent if it was not yet; the others' results come."""

    async def run(gateway: StubGateway) -> None:
        listener = Together(1)
        listener.go_on.set()
        async with AsyncTransactionProducer("orders", gateway.url, listener) as producer:
            names = ("on its way", "cancelled", "behind")
            first, second, third = (
                asyncio.create_task(producer.send_in_transaction(Message("t", b"1", transaction_id=name)))
                for name in names
            )
            await asyncio.to_thread(gateway.until, "/v1/halves", 1)
            second.cancel()
            with pytest.raises(asyncio.CancelledError):
                await second
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            gateway.takes_halves.set()
            assert (await third).op_sent
            assert [message.transaction_id for message, _ in listener.seen] == ["behind"]

    with StubGateway() as gateway:
        gateway.takes_halves.clear()
        asyncio.run(run(gateway))
        assert {half["transaction_id"] for half in gateway.halves} <= {"on its way", "behind", "cancelled"}
        assert [op["transaction_id"] for op in gateway.ops] == ["behind"]


def test_producer_serves_one_loop_after_another() -> None:
    listener = Together(1)
    listener.go_on.set()
    with StubGateway() as gateway:
        producer = AsyncTransactionProducer("orders", gateway.url, listener)
        for _ in range(2):
            assert asyncio.run(producer.send_in_transaction(Message("t", b"1"))).op_sent
        asyncio.run(producer.close())
        assert len(gateway.ops) == 2
