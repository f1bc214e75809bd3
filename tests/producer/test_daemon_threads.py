"""The threads in which a service's code runs for asyncio."""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from checkback.producer import (
    AsyncTransactionProducer,
    LocalTransactionState,
    Message,
    RetryPolicy,
    SendStatus,
    TransactionListener,
    TransactionSendResult,
)
from checkback.producer.daemon_threads import DaemonThreads
from producer.gateways import StubGateway

#: longer than anything here takes, in seconds
DEADLINE = 20
_own: ContextVar[str] = ContextVar("own")


def test_threads_are_used_again() -> None:
    async def run() -> set[int | None]:
        threads = DaemonThreads(20, "own")
        return {(await threads.run(threading.get_ident)).value() for _ in range(20)}

    assert len(asyncio.run(run())) < 20  # one that has told its outcome may not be idle yet when the next call comes


def test_at_most_so_many_run_at_a_time_and_what_is_cancelled_is_not_run() -> None:
    async def run() -> list[str]:
        threads, go_on, ran = DaemonThreads(2, "own"), threading.Event(), list[str]()
        both = threading.Barrier(3)

        def hold() -> None:
            both.wait(DEADLINE)
            go_on.wait(DEADLINE)

        held = [asyncio.create_task(threads.run(hold)) for _ in range(2)]
        await asyncio.to_thread(both.wait, DEADLINE)
        names = ("no", "yes")
        cancelled, waits = (asyncio.create_task(threads.run(partial(ran.append, name))) for name in names)
        await asyncio.sleep(0)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        assert not ran
        go_on.set()
        await asyncio.wait_for(asyncio.gather(*held, waits), DEADLINE)
        return ran

    assert asyncio.run(run()) == ["yes"]


@pytest.mark.parametrize("raised", [StopIteration, SystemExit, asyncio.CancelledError, ValueError])
def test_whatever_is_raised_is_told(raised: type[BaseException]) -> None:
    def call() -> None:
        raise raised

    assert isinstance(asyncio.run(DaemonThreads(1, "own").run(call)).error, raised)


def test_context_is_the_callers() -> None:
    async def run() -> str:
        _own.set("mine")
        return (await DaemonThreads(1, "own").run(_own.get)).value()

    assert asyncio.run(run()) == "mine"


@pytest.mark.processes
def test_child_of_a_fork_has_threads_of_its_own() -> None:
    threads = DaemonThreads(1, "own")
    asyncio.run(threads.run(threading.get_ident))
    child = multiprocessing.get_context("fork").Process(target=lambda: asyncio.run(threads.run(threading.get_ident)))
    child.start()
    child.join(DEADLINE)
    ended = child.exitcode
    child.kill()
    assert ended == 0


class Held(TransactionListener):
    """Local transactions that end when they are let go, as ``said``."""

    def __init__(self, said: Any = LocalTransactionState.COMMIT) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        self._said = said

    def execute_local_transaction(self, *_: Any) -> LocalTransactionState | None:
        self.begun.set()
        self.go_on.wait(DEADLINE * 2)
        if isinstance(self._said, BaseException):
            raise self._said
        return LocalTransactionState(self._said)

    def check_local_transaction(self, check: Any) -> LocalTransactionState | None:
        raise NotImplementedError


def test_stop_iteration_of_a_local_transaction_is_unknown() -> None:
    """No asyncio future takes it: the task would wait for ever."""
    listener = Held(StopIteration())
    listener.go_on.set()

    async def run(url: str) -> TransactionSendResult:
        async with AsyncTransactionProducer("orders", url, listener) as producer:
            return await asyncio.wait_for(producer.send_in_transaction(Message("t", b"1")), DEADLINE)

    with StubGateway() as gateway:
        result = asyncio.run(run(gateway.url))
    assert result.local_transaction_state is LocalTransactionState.UNKNOWN
    assert isinstance(result.local_error, StopIteration)
    assert not gateway.ops


def test_half_message_is_sent_once_there_is_a_thread_for_its_local_transaction() -> None:
    """Those that waited for a thread after it would be checked back, and rolled back, before they had begun."""
    lock, under_way, most = threading.Lock(), list[str](), list[int]()

    class Counting(TransactionListener):
        def execute_local_transaction(self, message: Message, _: Any) -> LocalTransactionState | None:
            with lock:
                most.append(len(gateway.halves) - len(under_way))
                under_way.append(message.transaction_id)
            return LocalTransactionState.COMMIT

        def check_local_transaction(self, check: Any) -> LocalTransactionState | None:
            raise NotImplementedError

    async def run(url: str) -> list[TransactionSendResult]:
        async with AsyncTransactionProducer("orders", url, Counting(), threads=2) as producer:
            return await asyncio.gather(*(producer.send_in_transaction(Message("t", b"1")) for _ in range(40)))

    with StubGateway() as gateway:
        results = asyncio.run(run(gateway.url))
    assert all(result.op_sent for result in results)
    assert len(gateway.ops) == 40
    assert max(most) <= 2


@pytest.mark.parametrize("cancelled", [False, True])
def test_without_a_thread_in_time_nothing_is_sent(cancelled: bool) -> None:
    """So it is while a local transaction goes on whose task has been cancelled."""
    listener = Held()

    async def run(url: str) -> TransactionSendResult:
        retry_policy = RetryPolicy(total_timeout=timedelta(seconds=0.2))
        async with AsyncTransactionProducer("orders", url, listener, threads=1) as holder:
            producer = AsyncTransactionProducer("orders", url, listener, retry_policy=retry_policy)
            producer._threads = holder._threads
            first = asyncio.create_task(holder.send_in_transaction(Message("t", b"1")))
            await asyncio.to_thread(listener.begun.wait, DEADLINE)
            if cancelled:
                first.cancel()
            waiting = asyncio.create_task(holder.send_in_transaction(Message("t", b"1")))
            result = await producer.send_in_transaction(Message("t", b"1"))
            waiting.cancel()
            assert len(gateway.halves) == 1
            listener.go_on.set()
            await asyncio.gather(first, waiting, return_exceptions=True)
            assert (await holder.send_in_transaction(Message("t", b"1"))).op_sent  # the thread is free again
            return result

    with StubGateway() as gateway:
        result = asyncio.run(run(gateway.url))
    assert result.send_status is SendStatus.REJECTED
    assert "no thread was free for its local transaction, for 0.2 s" in str(result.half_error)
    assert len(gateway.halves) == 2


def test_flush_and_close_wait_for_no_thread() -> None:
    """All threads hang: those of the local transactions, and those that asyncio lends."""
    listener = Held()

    async def run(url: str) -> None:
        executor = ThreadPoolExecutor(1)
        asyncio.get_running_loop().set_default_executor(executor)
        executor.submit(listener.go_on.wait, DEADLINE * 2)
        producer = AsyncTransactionProducer("orders", url, listener, threads=2)
        sending = [asyncio.create_task(producer.send_in_transaction(Message("t", b"1"))) for _ in range(4)]
        try:
            while not listener.begun.is_set():
                await asyncio.sleep(0.01)
            assert await asyncio.wait_for(producer.flush(timedelta(seconds=0.1)), DEADLINE)  # none has returned
            await asyncio.wait_for(producer.close(timedelta(seconds=0.1)), DEADLINE)
        finally:
            listener.go_on.set()
        results = await asyncio.gather(*sending)
        assert [result.op_sent for result in results] == [False] * 4

    with StubGateway() as gateway:
        asyncio.run(run(gateway.url))
        assert not gateway.ops
