"""Ops that wait to be sent: bounded, and whoever handed one over is told what could not be; close."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from datetime import timedelta
from typing import Any

import pytest

from check.servers import unused_url
from checkback.producer import (
    AsyncTransactionProducer,
    GatewayError,
    LocalTransactionState,
    RetryPolicy,
    SendStatus,
    TransactionProducer,
    TransactionSendResult,
)
from checkback.producer.calls import MESSAGES, Op
from checkback.producer.retry import Attempts
from checkback.producer.senders import _RUNNING
from consumer.heard import until
from producer.gateways import REFUSED, StubGateway
from producer.sending import SENDERS, Listener, Lost, message

COMMIT, ROLLBACK = LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK


def test_waiting_ops_are_bounded(gateway: StubGateway) -> None:
    """A transaction waits before it begins while as many ops wait as may."""
    gateway.takes_ops.clear()
    listener = Listener(lambda *_: COMMIT)
    with (
        TransactionProducer("orders", gateway.url, listener, max_waiting_ops=2) as producer,
        ThreadPoolExecutor(8) as pool,
    ):
        for number in range(2):
            assert producer.send_in_transaction(message(number)).op_sent
        others = [pool.submit(producer.send_in_transaction, message(number)) for number in range(2, 10)]
        assert not producer.flush(timedelta(seconds=0.1))
        assert len(gateway.halves) == 2
        gateway.takes_ops.set()
        assert all(sending.result().op_sent for sending in others)
    assert len(gateway.halves) == len(gateway.ops) == 10


@pytest.mark.parametrize("kind", SENDERS)
def test_transaction_for_whose_op_there_is_no_room_in_time_is_refused(gateway: StubGateway, kind: str) -> None:
    retry_policy = RetryPolicy(total_timeout=timedelta(seconds=0.1))
    listener = Listener(lambda *_: COMMIT)
    options: dict[str, Any] = {"max_waiting_ops": 1, "retry_policy": retry_policy}
    if kind == "sync":
        with TransactionProducer("orders", gateway.url, listener, **options) as producer:
            producer._senders.outstanding.add(Op("stuck", b"", Attempts(retry_policy, 0), COMMIT))
            result = producer.send_in_transaction(message(0))
    else:

        async def send() -> TransactionSendResult:
            async with AsyncTransactionProducer("orders", gateway.url, listener, **options) as producer:
                producer._senders.outstanding.add(Op("stuck", b"", Attempts(retry_policy, 0), COMMIT))
                return await producer.send_in_transaction(message(0))

        result = asyncio.run(send())
    assert result.send_status is SendStatus.REJECTED
    assert "too many ops" in str(result.half_error)
    assert not gateway.halves


@pytest.mark.parametrize("error", [RuntimeError, SystemExit, KeyboardInterrupt])
def test_on_op_error_that_fails_holds_up_no_other(caplog: pytest.LogCaptureFixture, error: type[BaseException]) -> None:
    with StubGateway(ops=[REFUSED]) as gateway:

        def fail(*_: object) -> None:
            raise error

        with TransactionProducer("orders", gateway.url, Listener(lambda *_: COMMIT), on_op_error=fail) as producer:
            producer.send_in_transaction(message(0))
            assert producer.flush()
            producer.send_in_transaction(message(1))
        assert [op["transaction_id"] for op in gateway.ops] == ["t1"]
    assert f"on_op_error raised {error.__name__}" in caplog.text


@pytest.mark.parametrize("with_asyncio", [False, True])
def test_flush_returns_when_on_op_error_has_been_told(with_asyncio: bool) -> None:
    """Not while it is being told. In ``on_op_error`` itself nothing is waited for that is."""
    telling, go_on, told = threading.Event(), threading.Event(), list[Any]()

    def tell(transaction_id: str, *_: object) -> None:
        telling.set()
        assert go_on.wait(10)
        told.append((transaction_id, producer._senders.flush(10)))

    async def sent() -> None:
        assert isinstance(producer, AsyncTransactionProducer)
        await producer.send_in_transaction(message(0))
        assert await asyncio.to_thread(telling.wait, 10)
        assert not await producer.flush(timedelta(seconds=0.01))
        go_on.set()
        assert await producer.flush()
        assert told == [("t0", True)]
        await producer.close()

    producer: AsyncTransactionProducer | TransactionProducer
    with StubGateway(ops=[REFUSED]) as gateway:
        if with_asyncio:
            producer = AsyncTransactionProducer("orders", gateway.url, Listener(lambda *_: COMMIT), on_op_error=tell)
            asyncio.run(sent())
            return
        with TransactionProducer("orders", gateway.url, Listener(lambda *_: COMMIT), on_op_error=tell) as producer:
            producer.send_in_transaction(message(0))
            assert telling.wait(10)
            assert not producer.flush(timedelta(seconds=0.01))
            go_on.set()
            assert producer.flush()
            assert told == [("t0", True)]


@pytest.mark.parametrize("with_asyncio", [False, True])
@pytest.mark.parametrize("took_s", [0.5, 90])
@pytest.mark.parametrize("decided", [COMMIT, ROLLBACK])
def test_late_op_is_asked_about_once_more(
    gateway: StubGateway,
    monkeypatch: pytest.MonkeyPatch,
    decided: LocalTransactionState,
    took_s: float,
    with_asyncio: bool,
) -> None:
    """A check may have decided otherwise before the op was read: the gateway knows it only later."""
    monkeypatch.setattr("checkback.producer.senders.AGAIN_S", 0.0)
    gateway.decisions[0] = decided.value
    now, told = 0.0, list[tuple[str, LocalTransactionState, str | None]]()

    def local(*_: object) -> LocalTransactionState:
        nonlocal now
        now += took_s
        return COMMIT

    def tell(transaction_id: str, state: LocalTransactionState, error: GatewayError) -> None:
        told.append((transaction_id, state, error.code))

    options: dict[str, Any] = {"on_op_error": tell, "timer": lambda: now}

    async def send() -> AsyncTransactionProducer:
        producer = AsyncTransactionProducer("orders", gateway.url, Listener(local), **options)
        assert (await producer.send_in_transaction(message(0))).op_sent
        return producer

    producer: AsyncTransactionProducer | TransactionProducer
    if with_asyncio:
        producer = asyncio.run(send())
    else:
        producer = TransactionProducer("orders", gateway.url, Listener(local), **options)
        assert producer.send_in_transaction(message(0)).op_sent
    asked = 2 if took_s > 1 else 1
    gateway.until("/v1/ops", asked)
    assert producer._senders.flush(10)
    producer._senders.close(10)
    assert len(gateway.requests("/v1/ops")) == asked
    assert told == ([("t0", COMMIT, "contradiction")] if asked == 2 and decided is ROLLBACK else [])


def test_op_whose_reply_cannot_be_judged_is_told(gateway: StubGateway) -> None:
    """It is no longer outstanding: there would soon be no room for others."""
    lost: list[str] = []

    def timer() -> float:
        if threading.current_thread().name == "checkback-v1-ops":
            raise ValueError
        return time.monotonic()

    with TransactionProducer(
        "orders", gateway.url, Listener(lambda *_: COMMIT), on_op_error=lambda *one: lost.append(one[0]), timer=timer
    ) as producer:
        for number in range(2):
            producer.send_in_transaction(message(number))
        assert producer.flush()
    assert sorted(lost) == ["t0", "t1"]


def test_close_tells_of_ops_that_are_not_sent_in_time(gateway: StubGateway) -> None:
    """One is on its way, one waits: both are told, once, and close does not wait longer."""
    gateway.takes_ops.clear()
    lost: Lost = []
    producer = TransactionProducer(
        "orders", gateway.url, Listener(lambda *_: ROLLBACK), on_op_error=lambda *one: lost.append(one)
    )
    producer.send_in_transaction(message(0))
    gateway.until("/v1/ops", 1)
    producer.send_in_transaction(message(1))
    producer.close(timedelta(seconds=0.1))
    assert [(one, state) for one, state, _ in lost] == [("t0", ROLLBACK), ("t1", ROLLBACK)]
    assert "no answer came" in str(lost[0][2])
    assert "it was not sent" in str(lost[1][2])
    gateway.takes_ops.set()
    producer.close()
    assert len(lost) == 2


def test_close_in_on_op_error_sends_what_waits() -> None:
    """It does not wait for its own thread; it is called for each op that fails, and one thread waits for the rest."""
    with StubGateway(ops=[REFUSED]) as gateway:
        lost: list[str] = []

        def close(transaction_id: str, *_: object) -> None:
            lost.append(transaction_id)
            producer.close()
            producer.close()

        producer = TransactionProducer("orders", gateway.url, Listener(lambda *_: COMMIT), on_op_error=close)
        gateway.takes_ops.clear()
        producer.send_in_transaction(message(0))
        gateway.until("/v1/ops", 1)
        for number in (1, 2):
            producer.send_in_transaction(message(number))
        gateway.takes_ops.set()
        until(lambda: producer._senders not in _RUNNING)
        assert [op["transaction_id"] for op in gateway.ops] == ["t1", "t2"]
        assert lost == ["t0"]


@pytest.mark.parametrize("where", ["handing over an op", "adding a message"])
def test_close_by_a_signal_s_handler_waits_for_nothing_that_it_holds_up(gateway: StubGateway, where: str) -> None:
    """It may interrupt the main thread while that holds a lock: here as soon as the call is looked at, under it."""
    ended: list[object] = []

    class Interrupted(Op):
        @property
        def number(self) -> int:
            return 0

        @number.setter
        def number(self, _: int) -> None:
            if where == "handing over an op":
                producer.close()

        @property
        def pinned(self) -> str | None:
            if where == "adding a message":
                producer.close()
            return None

        @pinned.setter
        def pinned(self, _: str | None) -> None: ...

    producer = TransactionProducer("orders", gateway.url, Listener(lambda *_: COMMIT))
    producer.send_in_transaction(message(0))
    ((_, json),) = producer._call(message(1)).messages

    def interrupted() -> None:
        call = Interrupted("t1", json, Attempts(RetryPolicy(), time.monotonic()), COMMIT)
        if where == "handing over an op":
            ended.append(producer._senders.hand_over(call))
        else:
            ended.append(producer._senders.add(MESSAGES, call))

    main = threading.Thread(target=interrupted, daemon=True)
    main.start()
    main.join(20)
    assert ended, "it waits for itself"
    until(lambda: producer._senders not in _RUNNING)
    assert [op["transaction_id"] for op in gateway.ops] == ["t0"]


def test_second_close_waits_as_well(gateway: StubGateway) -> None:
    """Of two that close the producer at once, none returns before the ops have landed."""
    gateway.takes_ops.clear()
    producer = TransactionProducer("orders", gateway.url, Listener(lambda *_: COMMIT))
    producer.send_in_transaction(message(0))
    gateway.until("/v1/ops", 1)
    with ThreadPoolExecutor(2) as threads:
        closed = [threads.submit(producer.close) for _ in range(2)]
        until(lambda: producer._senders._ops.waiting._closed)
        assert not wait(closed, 0.2, FIRST_COMPLETED).done
        gateway.takes_ops.set()
    assert [op["transaction_id"] for op in gateway.ops] == ["t0"]


def test_threads_end_when_the_last_call_is_withdrawn(gateway: StubGateway) -> None:
    """A message that only a dead gateway may have, given up after the producer was closed."""
    dead = unused_url()
    producer = TransactionProducer(
        "orders", [dead, gateway.url], retry_policy=RetryPolicy(total_timeout=timedelta(seconds=60))
    )
    senders = producer._senders
    sender = senders._calls[MESSAGES]
    senders._gateways[dead].failed()
    call = producer._call(message(0))
    call.pinned = dead
    assert senders.add(MESSAGES, call)
    sender.waiting.close()
    until(lambda: sender.waiting._arrived._waiters)  # type: ignore[attr-defined]  # the other gateway's, once more
    assert senders.withdraw(MESSAGES, call)
    until(lambda: not any(thread.is_alive() for thread in sender._threads))
    producer.close()


def test_after_close_nothing_is_sent_and_nothing_is_silent(gateway: StubGateway) -> None:
    """Also the op of a local transaction that still ran when the producer was closed."""
    lost: Lost = []

    def local(*_: Any) -> LocalTransactionState:
        producer.close()
        return COMMIT

    producer = TransactionProducer("orders", gateway.url, Listener(local), on_op_error=lambda *one: lost.append(one))
    result = producer.send_in_transaction(message(0))
    assert not result.op_sent
    assert result.op_error is not None
    assert [one for one, _, _ in lost] == ["t0"]
    again = producer.send_in_transaction(message(1))
    assert again.send_status is SendStatus.REJECTED
    assert "closed" in str(again.half_error)
    assert [half["transaction_id"] for half in gateway.halves] == ["t0"]
    assert not gateway.ops
