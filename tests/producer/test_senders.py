"""What threads have is sent together, ops behind them; deadlines and interrupts."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from check.servers import Received, Server, Wire, unused_url
from checkback.errors import SettingsError
from checkback.producer import LocalTransactionState, RetryPolicy, SendStatus, TransactionProducer
from checkback.producer.calls import HALVES
from checkback.producer.producer import _Waiter
from consumer.heard import until
from producer.gateways import BAD_GATEWAY, BROKEN, FULL, LATE, NONSENSE, OK, StubGateway, ids, problem
from producer.sending import Listener, Lost, message

COMMIT = LocalTransactionState.COMMIT


def test_what_threads_have_goes_into_one_request(gateway: StubGateway) -> None:
    """While a request is on its way, the next one gathers; each thread gets its own place."""
    gateway.takes_halves.clear()
    with (
        TransactionProducer("orders", gateway.url, Listener(lambda *_: COMMIT)) as producer,
        ThreadPoolExecutor(9) as pool,
    ):
        first = pool.submit(producer.send_in_transaction, message(0))
        gateway.until("/v1/halves", 1)
        others = [pool.submit(producer.send_in_transaction, message(number)) for number in range(1, 9)]
        until(lambda: len(producer._senders._calls[HALVES].waiting) == 8)
        gateway.takes_halves.set()
        results = [sending.result() for sending in (first, *others)]
    requests = ids(gateway, "/v1/halves", "messages")
    assert [len(one) for one in requests] == [1, 8]
    assert {connection.connection for connection in gateway.requests("/v1/halves")} == {1}
    for number, result in enumerate(results):
        assert gateway.halves[result.queue_offset or 0]["transaction_id"] == f"t{number}"
    assert len(gateway.ops) == 9


def test_op_is_sent_behind_and_flush_waits_for_it(gateway: StubGateway) -> None:
    gateway.takes_ops.clear()
    with TransactionProducer("orders", gateway.url, Listener(lambda *_: COMMIT)) as producer:
        assert producer.flush(timedelta(seconds=0))
        result = producer.send_in_transaction(message(0))
        assert result.op_sent
        gateway.until("/v1/ops", 1)
        assert not producer.flush(timedelta(seconds=0))
        assert not gateway.ops
        gateway.takes_ops.set()
        assert producer.flush()
        assert len(gateway.ops) == 1


def test_ops_of_a_moment_go_into_one_request(gateway: StubGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for an op; flush and close do not wait for the moment to end."""
    monkeypatch.setattr("checkback.producer.senders._LINGER_S", RetryPolicy().total_timeout.total_seconds())
    with TransactionProducer("orders", gateway.url, Listener(lambda *_: COMMIT)) as producer:
        for number in range(3):
            producer.send_in_transaction(message(number))
        assert producer.flush()
        producer.send_in_transaction(message(3))
    assert ids(gateway, "/v1/ops", "ops") == [["t0", "t1", "t2"], ["t3"]]


def test_ops_are_sent_in_order_whatever_fails() -> None:
    with StubGateway(ops=[FULL, BROKEN]) as gateway:
        gateway.takes_ops.clear()
        lost: Lost = []
        with TransactionProducer(
            "orders",
            gateway.url,
            Listener(lambda *_: COMMIT),
            sleep=lambda _: None,
            on_op_error=lambda *one: lost.append(one),
        ) as producer:
            for number in range(6):
                producer.send_in_transaction(message(number))
            gateway.takes_ops.set()
            assert producer.flush()
        assert [op["transaction_id"] for op in gateway.ops] == [f"t{number}" for number in range(6)]
        assert not lost


@pytest.mark.parametrize(("said", "kept"), [(FULL, True), (LATE, False), (BAD_GATEWAY, False), (NONSENSE, False)])
def test_connection_ends_with_a_reply_that_is_not_the_gateways_to_this_request(said: str, kept: bool) -> None:
    """A proxy's 504, and then the gateway's reply: that would be taken for the next request's, and so on for ever."""
    with (
        StubGateway([OK, said]) as gateway,
        TransactionProducer("orders", gateway.url, sleep=lambda _: None) as producer,
    ):
        for number in range(3):
            producer.send(message(number))
    first, second, third, *_ = [one.connection for one in gateway.requests("/v1/messages")]
    assert first == second
    assert (second == third) == kept


def test_local_transaction_does_not_run_before_its_half_is_acknowledged(gateway: StubGateway) -> None:
    gateway.takes_halves.clear()
    listener = Listener(lambda *_: COMMIT)
    with TransactionProducer("orders", gateway.url, listener) as producer, ThreadPoolExecutor(1) as pool:
        sending = pool.submit(producer.send_in_transaction, message(0))
        gateway.until("/v1/halves", 1)
        assert not listener.calls
        gateway.takes_halves.set()
        assert sending.result().send_status is SendStatus.SEND_OK
    assert len(listener.calls) == 1


def test_request_refused_for_one_callers_sake_is_sent_again_in_halves() -> None:
    """Larger than the gateway takes, say: the others' messages land all the same."""
    large = {"t3", "t6"}

    def refuse(received: Received, wire: Wire) -> bool:
        names = [one["transaction_id"] for one in received.json.get("messages", ())]
        if not large.isdisjoint(names):
            wire.send(problem(413, "body_too_large"))
            return True
        return stub._handle(received, wire)

    with StubGateway() as stub, Server(refuse) as server:
        stub.takes_halves.clear()
        listener = Listener(lambda *_: COMMIT)
        with TransactionProducer("orders", server.address, listener) as producer, ThreadPoolExecutor(9) as pool:
            sending = [pool.submit(producer.send_in_transaction, message(0))]
            stub.until("/v1/halves", 1)
            sending += [pool.submit(producer.send_in_transaction, message(number)) for number in range(1, 9)]
            until(lambda: len(producer._senders._calls[HALVES].waiting) == 8)
            stub.takes_halves.set()
            results = {one.result().transaction_id: one.result() for one in sending}
    refused = {name for name, result in results.items() if result.send_status is SendStatus.REJECTED}
    assert refused == large
    assert {half["transaction_id"] for half in stub.halves} == set(results) - large


def test_deadline_is_each_callers_own(gateway: StubGateway) -> None:
    """One that waits behind a request without an answer gives up in time, and is not sent later."""
    gateway.takes_halves.clear()
    retry_policy = RetryPolicy(timeout=timedelta(seconds=5), total_timeout=timedelta(seconds=0.3))
    listener = Listener(lambda *_: COMMIT)
    with (
        TransactionProducer("orders", gateway.url, listener, retry_policy=retry_policy) as producer,
        ThreadPoolExecutor(1) as pool,
    ):
        first = pool.submit(producer.send_in_transaction, message(0))
        gateway.until("/v1/halves", 1)
        second = producer.send_in_transaction(message(1))
        assert first.result().send_status is SendStatus.NO_ANSWER
        assert second.send_status in {SendStatus.NO_ANSWER, SendStatus.REJECTED}
        gateway.takes_halves.set()
    assert not listener.calls
    sent = [one for request in ids(gateway, "/v1/halves", "messages") for one in request]
    assert second.send_status is SendStatus.NO_ANSWER or "t1" not in sent


@pytest.mark.parametrize("raised", [KeyboardInterrupt, SystemExit])
def test_interrupt_in_the_local_transaction_ends_it_without_an_op(
    gateway: StubGateway, raised: type[BaseException]
) -> None:
    """Nobody knows what became of it: the check-back asks."""

    def local(*_: Any) -> None:
        raise raised

    with TransactionProducer("orders", gateway.url, Listener(local)) as producer, pytest.raises(raised):
        producer.send_in_transaction(message(0))
    assert len(gateway.halves) == 1
    assert not gateway.ops


@pytest.mark.parametrize("blocked", [(), (signal.SIGINT,)])
def test_interrupt_while_waiting_ends_the_wait_alone(gateway: StubGateway, blocked: tuple[signal.Signals, ...]) -> None:
    """Ctrl-C in one thread: its local transaction does not run; the others' results come.

    Also if the system gives the signal to another thread, as here where the waiting one blocks it, or to this one just
    before it waits: then nothing interrupts the waiting.
    """
    gateway.takes_halves.clear()
    listener = Listener(lambda *_: COMMIT)
    with TransactionProducer("orders", gateway.url, listener) as producer, ThreadPoolExecutor(2) as pool:
        other = pool.submit(producer.send_in_transaction, message(0))
        gateway.until("/v1/halves", 1)

        def interrupt() -> None:
            until(lambda: len(producer._senders._calls[HALVES].waiting))
            os.kill(os.getpid(), signal.SIGINT)

        pool.submit(interrupt)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
        try:
            with pytest.raises(KeyboardInterrupt):
                producer.send_in_transaction(message(1))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        gateway.takes_halves.set()
        assert other.result().send_status is SendStatus.SEND_OK
    assert [half["transaction_id"] for half in gateway.halves] == ["t0"]
    assert [called.transaction_id for called, _ in listener.calls] == ["t0"]


@pytest.mark.parametrize("waits", ["flush", "room"])
def test_interrupt_that_another_thread_gets_ends_the_wait_for_ops(gateway: StubGateway, waits: str) -> None:
    gateway.takes_ops.clear()
    retry_policy, heard = RetryPolicy(total_timeout=timedelta(seconds=60.0)), threading.Event()
    listener = Listener(lambda *_: COMMIT)
    with TransactionProducer("orders", gateway.url, listener, retry_policy=retry_policy, max_waiting_ops=1) as producer:
        producer.send_in_transaction(message(0))
        wait = producer.flush if waits == "flush" else partial(producer.send_in_transaction, message(1))

        def interrupt() -> None:
            until(lambda: len(producer._senders.outstanding._changed._waiters))  # type: ignore[attr-defined]
            os.kill(os.getpid(), signal.SIGINT)
            heard.wait(2)
            gateway.takes_ops.set()  # else it would wait until its retries are over

        with ThreadPoolExecutor(1) as pool:
            pool.submit(interrupt)
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                with pytest.raises(KeyboardInterrupt):
                    wait()
                assert not gateway.takes_ops.is_set()
            finally:
                heard.set()
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert [half["transaction_id"] for half in gateway.halves] == ["t0"]


def test_patience_may_have_no_end(gateway: StubGateway) -> None:
    endless = RetryPolicy(timeout=timedelta.max, total_timeout=timedelta.max)
    with TransactionProducer("orders", gateway.url, Listener(lambda *_: COMMIT), retry_policy=endless) as producer:
        assert producer.send_in_transaction(message(0)).op_sent
        assert producer.flush()


@pytest.mark.parametrize("option", ["connections", "max_waiting_ops"])
def test_number_not_possible_is_refused(option: str) -> None:
    options: dict[str, Any] = {option: 0}
    with pytest.raises(SettingsError, match=option):
        TransactionProducer("orders", "http://127.0.0.1:1", **options)


def test_threads_begin_with_the_first_message() -> None:
    before = threading.enumerate()
    with TransactionProducer("orders", unused_url(), Listener(lambda *_: COMMIT)):
        assert set(before).issuperset(threading.enumerate())  # some of other tests may end


@given(st.lists(st.booleans(), min_size=1, max_size=8))
def test_each_that_waits_is_woken_whoever_has_given_up(given_up: list[bool]) -> None:
    """They wake one another in turn; one that is too late breaks no chain."""
    waiters = [_Waiter() for _ in given_up]
    for waiter, behind in pairwise(waiters):
        waiter.behind = behind
    for waiter, gone in zip(waiters, given_up, strict=True):
        if gone:
            assert not waiter.wait(0)
    waiters[0].wake()
    for waiter, gone in zip(waiters, given_up, strict=True):
        assert gone or waiter.wait(0)
