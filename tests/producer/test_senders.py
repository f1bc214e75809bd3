"""What threads have is sent together, ops behind them; and what happens at deadlines, interrupts, close, fork, exit."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from check.servers import Received, Server, Wire, unused_url
from checkback.errors import SettingsError
from checkback.producer import (
    AsyncTransactionProducer,
    GatewayError,
    LocalTransactionState,
    Message,
    Patience,
    SendStatus,
    TransactionProducer,
    TransactionSendResult,
)
from checkback.producer.calls import HALVES, MESSAGES, Op
from checkback.producer.producer import _Waiter
from checkback.producer.retry import Attempts
from checkback.producer.senders import _RUNNING
from producer.gateways import BROKEN, FULL, REFUSED, StubGateway, problem
from producer.sending import SENDERS, Listener

if TYPE_CHECKING:
    from collections.abc import Iterator

COMMIT, ROLLBACK = LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK
Lost = list[tuple[str, LocalTransactionState, GatewayError]]


@pytest.fixture
def gateway() -> Iterator[StubGateway]:
    with StubGateway() as running:
        yield running


def message(number: int) -> Message:
    return Message("payments", b"%d" % number, transaction_id=f"t{number}")


def ids(gateway: StubGateway, path: str, member: str) -> list[list[str]]:
    return [[one["transaction_id"] for one in received.json[member]] for received in gateway.requests(path)]


def until(met: Any) -> None:
    pause = threading.Event()
    for _ in range(2000):
        if met():
            return
        pause.wait(0.01)
    raise AssertionError("it never came")


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
        assert producer.flush(0)
        result = producer.send_in_transaction(message(0))
        assert result.op_sent
        gateway.until("/v1/ops", 1)
        assert not producer.flush(0)
        assert not gateway.ops
        gateway.takes_ops.set()
        assert producer.flush()
        assert len(gateway.ops) == 1


def test_ops_of_a_moment_go_into_one_request(gateway: StubGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for an op; flush and close do not wait for the moment to end."""
    monkeypatch.setattr("checkback.producer.senders._LINGER_S", Patience().total_timeout_s)
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
    patience = Patience(timeout_s=5, total_timeout_s=0.3, retries=5)
    listener = Listener(lambda *_: COMMIT)
    with (
        TransactionProducer("orders", gateway.url, listener, patience=patience) as producer,
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
    patience, heard = Patience(total_timeout_s=60.0), threading.Event()
    listener = Listener(lambda *_: COMMIT)
    with TransactionProducer("orders", gateway.url, listener, patience=patience, max_waiting_ops=1) as producer:
        producer.send_in_transaction(message(0))
        wait = producer.flush if waits == "flush" else partial(producer.send_in_transaction, message(1))

        def interrupt() -> None:
            until(lambda: len(producer._senders.outstanding._changed._waiters))  # type: ignore[attr-defined]
            os.kill(os.getpid(), signal.SIGINT)
            heard.wait(2)
            gateway.takes_ops.set()  # else it would wait until its patience is over

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
        assert not producer.flush(0.1)
        assert len(gateway.halves) == 2
        gateway.takes_ops.set()
        assert all(sending.result().op_sent for sending in others)
    assert len(gateway.halves) == len(gateway.ops) == 10


@pytest.mark.parametrize("kind", SENDERS)
def test_transaction_for_whose_op_there_is_no_room_in_time_is_refused(gateway: StubGateway, kind: str) -> None:
    patience = Patience(total_timeout_s=0.1)
    listener = Listener(lambda *_: COMMIT)
    options: dict[str, Any] = {"max_waiting_ops": 1, "patience": patience}
    if kind == "sync":
        with TransactionProducer("orders", gateway.url, listener, **options) as producer:
            producer._senders.outstanding.add(Op("stuck", b"", Attempts(patience, 0), COMMIT))
            result = producer.send_in_transaction(message(0))
    else:

        async def send() -> TransactionSendResult:
            async with AsyncTransactionProducer("orders", gateway.url, listener, **options) as producer:
                producer._senders.outstanding.add(Op("stuck", b"", Attempts(patience, 0), COMMIT))
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
        assert not await producer.flush(0.01)
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
            assert not producer.flush(0.01)
            go_on.set()
            assert producer.flush()
            assert told == [("t0", True)]


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
    producer.close(0.1)
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
    producer = TransactionProducer("orders", [dead, gateway.url], patience=Patience(total_timeout_s=60))
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


PROCESS = """
import os, sys, threading
from checkback.producer import LocalTransactionState, Message, Patience, TransactionListener, TransactionProducer

class Listener(TransactionListener):
    def execute_local_transaction(self, message, arg):
        return LocalTransactionState.COMMIT

    def check_local_transaction(self, check):
        raise NotImplementedError

def lost(transaction_id, state, error):
    print("lost", transaction_id, flush=True)

def send(name):
    result = producer.send_in_transaction(Message("payments", b"1", transaction_id=name))
    assert result.raise_for_status().op_sent, result

producer = TransactionProducer("orders", sys.argv[1], Listener(), on_op_error=lost, patience=Patience(timeout_s=20))
"""


def run(url: str, code: str, said: str = "") -> str:
    """What a process with a producer writes to stdout; ``said``: to stderr."""
    ended = subprocess.run(
        [sys.executable, "-c", PROCESS + code, url], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, said)
    return ended.stdout


@pytest.mark.slow
def test_json_without_orjson(gateway: StubGateway) -> None:
    code = "import sys; sys.modules['orjson'] = None" + PROCESS + "send('1'); producer.close()"
    subprocess.run([sys.executable, "-c", code, gateway.url], check=True, timeout=60)
    assert [op["state"] for op in gateway.ops] == ["COMMIT"]
    assert gateway.halves[0]["body"] == "MQ=="


@pytest.mark.slow
def test_end_of_the_interpreter_sends_what_waits(gateway: StubGateway) -> None:
    """Without close, and also when a thread sends until then."""
    out = run(
        gateway.url,
        """
send("main")
threading.Thread(target=send, args=("thread",)).start()
""",
    )
    assert out == ""
    assert {op["transaction_id"] for op in gateway.ops} == {"main", "thread"}


@pytest.mark.slow
def test_end_of_the_interpreter_tells_of_what_it_cannot_send(gateway: StubGateway) -> None:
    gateway.takes_ops.clear()
    said = (
        "transaction first: COMMIT did not land: no answer came before the producer was closed; "
        "the check-back resolves it\n"
        "transaction second: COMMIT did not land: it was not sent before the producer was closed; "
        "the check-back resolves it\n"
    )
    code = """
import time
import checkback.producer.senders
checkback.producer.senders._EXIT_S = 0.2
send("first")
while not producer._senders.outstanding._ops[1].taken:
    time.sleep(0.01)
send("second")
"""
    assert run(gateway.url, code, said) == "lost first\nlost second\n"


@pytest.mark.slow
def test_end_of_a_process_of_multiprocessing_sends_what_waits(gateway: StubGateway) -> None:
    code = """
import multiprocessing
send("parent")
child = multiprocessing.get_context("fork").Process(target=send, args=("child",))
child.start()
child.join()
assert child.exitcode == 0
"""
    assert run(gateway.url, code) == ""
    assert {op["transaction_id"] for op in gateway.ops} == {"parent", "child"}


@pytest.mark.slow
def test_forked_child_shares_neither_connection_nor_what_waits(gateway: StubGateway) -> None:
    """The fork comes while an op and a half message of the parent wait for their answers: they are the parent's."""
    gateway.takes_ops.clear()
    code = """
send("before")  # its op is on its way
pid = os.fork()
if pid == 0:
    send("child")
    sys.exit()
send("parent")
print("sent", flush=True)
_, status = os.waitpid(pid, 0)
assert status == 0, status
send("after")
"""

    def let_go() -> None:
        gateway.until("/v1/ops", 2)  # the parent's first, the child's
        gateway.takes_ops.set()

    with ThreadPoolExecutor(1) as pool:
        letting_go = pool.submit(let_go)
        assert run(gateway.url, code) == "sent\n"
        letting_go.result()
    assert sorted(op["transaction_id"] for op in gateway.ops) == ["after", "before", "child", "parent"]
    assert sum(map(len, ids(gateway, "/v1/ops", "ops"))) == 4
    by_connection = {
        received.connection: {one["transaction_id"] for one in received.json["messages"]}
        for received in gateway.requests("/v1/halves")
    }
    (child,) = [names for names in by_connection.values() if "child" in names]
    assert child == {"child"}


def test_patience_may_have_no_end(gateway: StubGateway) -> None:
    endless = Patience(timeout_s=float("inf"), total_timeout_s=float("inf"))
    with TransactionProducer("orders", gateway.url, Listener(lambda *_: COMMIT), patience=endless) as producer:
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
