"""Several gateways: spread over those that answer, on to another when one fails, nothing twice."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from check.servers import unused_url
from checkback.check.circuit_breaker import Limits
from checkback.errors import CheckbackError, SettingsError
from checkback.producer import (
    AsyncTransactionProducer,
    LocalTransactionState,
    Message,
    RetryPolicy,
    SendStatus,
    TransactionProducer,
    gateway_address,
    senders,
)
from checkback.producer.calls import HALVES, MESSAGES, Route
from checkback.producer.gateway_address import Address, Gateway, addresses
from consumer.heard import until
from producer.gateways import BAD_GATEWAY, BROKEN, CUT, DROPPED, FULL, LATE, OK, REFUSED, TORN, UNAVAILABLE, StubGateway
from producer.sending import Listener, message
from support.examples import fewer

if TYPE_CHECKING:
    from collections.abc import Iterator

COMMIT = LocalTransactionState.COMMIT


@pytest.fixture
def two() -> Iterator[tuple[StubGateway, StubGateway]]:
    """Two gateways of the same tables, with a queue each."""
    with StubGateway(queue_id=0) as first, StubGateway(queue_id=1) as second:
        yield first, second


@pytest.fixture(scope="module", autouse=True)
def _soon() -> Iterator[None]:
    """A gateway is left alone for a moment only."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gateway_address, "_LIMITS", Limits(failures=1, pause_s=0.05, trial_s=2.0))
        patch.setattr(senders, "_MOMENT_S", 0.01)
        yield


def committed(*gateways: StubGateway) -> list[str]:
    """The transactions whose half messages have a COMMIT at their place."""
    ops = [op for gateway in gateways for op in (*gateway.ops, *gateway.unverified)]
    places = {(op["queue_id"], op["queue_offset"]) for op in ops if op["state"] == "COMMIT"}
    return [
        half["transaction_id"]
        for gateway in gateways
        for offset, half in enumerate(gateway.halves)
        if (gateway.queue_id, offset) in places
    ]


def test_half_messages_are_spread_and_ops_go_where_they_are(two: tuple[StubGateway, StubGateway]) -> None:
    with TransactionProducer("orders", [one.url for one in two], Listener(lambda *_: COMMIT)) as producer:
        for number in range(20):
            assert producer.send_in_transaction(message(number)).op_sent
    assert all(one.halves for one in two)
    assert sorted(committed(*two)) == sorted(f"t{number}" for number in range(20))
    assert not any(one.unverified for one in two)


#: messages of four kinds in order, in turn, each with its number among its own; the number of each kind's gateway
IN_ORDER: list[tuple[dict[str, Any], int]] = [
    ({"ordering_key": "account-7"}, 1),  # queue 5 of its topic
    ({"ordering_key": "account-0"}, 0),  # queue 38
    ({"properties": {"__SHARDINGKEY": "account-6"}}, 1),  # queue 19
    ({"real_queue_id": 4}, 0),
]


def in_order(number: int) -> Message:
    """One of them."""
    return Message("payments", b"", transaction_id=f"t{number}", **IN_ORDER[number % 4][0])


def assert_in_order(two: tuple[StubGateway, StubGateway], count: int) -> None:
    """Each gateway has its kinds, as they were sent."""
    for kind, (_, home) in enumerate(IN_ORDER):
        mine = [f"t{number}" for number in range(kind, count, 4)]
        found = [half["transaction_id"] for half in two[home].halves if half["transaction_id"] in mine]
        assert found == mine
    assert sum(len(one.halves) for one in two) == count


@pytest.mark.parametrize("way", ["send", "send_in_transaction"])
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_messages_of_a_key_or_queue_are_in_order_at_one_gateway(
    two: tuple[StubGateway, StubGateway], way: str, kind: str
) -> None:
    urls, listener = [one.url for one in two], Listener(lambda *_: COMMIT)
    if kind == "sync":
        with TransactionProducer("orders", urls, listener) as producer:
            for number in range(24):
                getattr(producer, way)(in_order(number)).raise_for_status()
    else:

        async def send() -> None:
            async with AsyncTransactionProducer("orders", urls, listener) as many:
                for number in range(24):
                    (await getattr(many, way)(in_order(number))).raise_for_status()

        asyncio.run(send())
    assert_in_order(two, 24)


def test_a_batch_is_divided_by_gateway_and_its_results_are_in_order(two: tuple[StubGateway, StubGateway]) -> None:
    messages = [in_order(number) for number in range(24)]
    messages[10] = replace(messages[10], tags="refused")
    plain = [replace(message(number), transaction_id=f"u{number}") for number in range(3)]
    with TransactionProducer("orders", [one.url for one in two]) as producer:
        results = producer.send_batch([*messages, *plain])
        assert producer.send_batch([]) == []
    assert [result.transaction_id for result in results] == [one.transaction_id for one in (*messages, *plain)]
    assert [number for number, result in enumerate(results) if result.send_status is SendStatus.REJECTED] == [10]
    assert [result.queue_id for result in results[:4]] == [1, 0, 1, 0]
    assert sum(len(one.requests("/v1/messages")) for one in two) == 3  # one each, and one for the others
    for one in two:
        one.halves[:] = [half for half in one.halves if half["transaction_id"][0] == "t"]
    two[1].halves.insert(5, {"transaction_id": "t10"})  # the one refused
    assert_in_order(two, 24)


def test_a_key_goes_to_another_gateway_only_while_its_own_is_left_alone(
    two: tuple[StubGateway, StubGateway], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_address, "_LIMITS", Limits(failures=1, pause_s=60, trial_s=60))
    two[1]._faults["/v1/halves"] += [FULL]
    with TransactionProducer("orders", [one.url for one in two], sleep=lambda _: None) as producer:
        assert [producer.send(in_order(number)).queue_id for number in (0, 4)] == [0, 0]
        producer._senders._gateways[two[1].url].begin()  # it is left alone no more
        assert [producer.send(in_order(number)).queue_id for number in (8, 12)] == [1, 1]


@pytest.mark.parametrize("others", [HALVES, MESSAGES])
def test_what_waits_for_its_own_gateway_goes_to_another_when_that_one_fails(
    two: tuple[StubGateway, StubGateway], monkeypatch: pytest.MonkeyPatch, others: Route
) -> None:
    """Also if it fails at another route's message."""
    monkeypatch.setattr(gateway_address, "_LIMITS", Limits(failures=1, pause_s=60, trial_s=60))
    two[1].takes_halves.clear()
    two[1]._faults["/v1/halves"] += [FULL, FULL]
    urls, listener = [one.url for one in two], Listener(lambda *_: COMMIT)
    with (
        TransactionProducer("orders", urls, listener, sleep=lambda _: None) as producer,
        ThreadPoolExecutor(3) as pool,
    ):
        send = producer.send_in_transaction if others is HALVES else producer.send
        sent: list[Future[Any]] = [pool.submit(send, in_order(0))]
        sent.append(pool.submit(producer.send_in_transaction, in_order(4)))
        two[1].until(HALVES.path, 1)
        sent.append(pool.submit(producer.send_in_transaction, in_order(8)))
        until(lambda: len(producer._senders._calls[HALVES].waiting) >= 1)
        two[1].takes_halves.set()
        assert [one.result().queue_id for one in sent] == [0, 0, 0]


def test_gateway_that_does_not_answer_is_left_alone(two: tuple[StubGateway, StubGateway]) -> None:
    listener = Listener(lambda *_: COMMIT)
    urls = [unused_url().removesuffix("/check"), two[0].url]
    with TransactionProducer("orders", urls, listener) as producer, ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda n: producer.send_in_transaction(message(n)), range(100)))
    assert {result.send_status for result in results} == {SendStatus.SEND_OK}
    assert len(two[0].halves) == len(two[0].ops) == 100


def test_op_whose_gateway_fails_while_the_producer_is_closed_goes_to_another(
    two: tuple[StubGateway, StubGateway],
) -> None:
    """The other one's thread does not end before the op has: it would wait for its own gateway alone, until the end."""
    lost: list[Any] = []
    for one in two:
        one.takes_ops.clear()
    with TransactionProducer(
        "orders",
        [one.url for one in two],
        Listener(lambda *_: COMMIT),
        retry_policy=RetryPolicy(timeout=timedelta(seconds=0.5)),
        on_op_error=lambda *told: lost.append(told),
    ) as producer:
        place = producer.send_in_transaction(message(0)).queue_id
        holds, other = two if place == 0 else two[::-1]
        holds.until("/v1/ops", 1)
        other.takes_ops.set()
    assert lost == []
    assert [op["transaction_id"] for op in other.unverified] == ["t0"]


def test_half_message_sent_again_elsewhere_is_known_by_the_place_acknowledged() -> None:
    """The first gateway stores it and does not answer: the listener hears of the second one's place only."""
    with StubGateway([DROPPED] * 9, queue_id=0) as first, StubGateway([DROPPED] * 9, queue_id=1) as second:
        gateways = (first, second)
        listener = Listener(lambda *_: COMMIT)

        def let_answer(_: float) -> None:
            """Between two attempts: the gateway that has not got the half message answers from now on."""
            for one in gateways:
                if not one.halves:
                    one._faults["/v1/halves"].clear()

        with TransactionProducer("orders", [one.url for one in gateways], listener, sleep=let_answer) as producer:
            result = producer.send_in_transaction(message(0))
    assert [len(one.halves) for one in gateways] == [1, 1]
    ((told, _),) = listener.calls
    assert told.place == (result.queue_id, result.queue_offset)
    (op,) = [op for one in gateways for op in one.ops]
    assert (op["queue_id"], op["queue_offset"]) == told.place
    assert committed(*gateways) == ["t0"]


FAULTY = st.lists(
    st.sampled_from([OK, DROPPED, BROKEN, CUT, TORN, UNAVAILABLE, LATE, FULL, BAD_GATEWAY, REFUSED]), max_size=4
)


@pytest.mark.slow
@fewer(4)
@given(halves=st.tuples(FAULTY, FAULTY), ops=st.tuples(FAULTY, FAULTY), kind=st.sampled_from(["sync", "async"]))
def test_transactions_whatever_fails_are_committed_once_at_most(
    halves: tuple[list[str], list[str]], ops: tuple[list[str], list[str]], kind: str
) -> None:
    """The local transaction runs once for each half message that was acknowledged, and its op is that one's."""
    lost: list[str] = []
    listener = Listener(lambda *_: COMMIT)
    options: dict[str, Any] = {"on_op_error": lambda *one: lost.append(one[0])}
    messages = [message(number) for number in range(3)]
    with StubGateway(halves[0], ops[0], queue_id=0) as first, StubGateway(halves[1], ops[1], queue_id=1) as second:
        urls = [first.url, second.url]
        if kind == "sync":
            with TransactionProducer("orders", urls, listener, sleep=lambda _: None, **options) as producer:
                results = [producer.send_in_transaction(one) for one in messages]
        else:

            async def send() -> list[Any]:
                async with AsyncTransactionProducer("orders", urls, listener, pause=lambda _: None, **options) as many:
                    return await asyncio.gather(*(many.send_in_transaction(one) for one in messages))

            results = asyncio.run(send())
    stored = [result for result in results if result.send_status is SendStatus.SEND_OK]
    assert sorted(called.transaction_id for called, _ in listener.calls) == sorted(
        result.transaction_id for result in stored
    )
    assert {called.place for called, _ in listener.calls} == {(one.queue_id, one.queue_offset) for one in stored}
    found = committed(first, second)
    assert len(found) == len(set(found))
    assert {one.transaction_id for one in stored} - set(lost) <= set(found) <= {one.transaction_id for one in stored}
    for result in results:
        if result.send_status is SendStatus.REJECTED:
            sent = {half["transaction_id"] for one in (first, second) for half in one.halves}
            assert result.transaction_id not in sent


def test_message_whose_reply_a_proxy_has_lost_is_sent_to_no_other_gateway() -> None:
    with (
        StubGateway([UNAVAILABLE], queue_id=0) as first,
        StubGateway([UNAVAILABLE], queue_id=1) as second,
        TransactionProducer("orders", [first.url, second.url]) as producer,
    ):
        assert producer.send(message(0)).send_status is SendStatus.SEND_OK
    assert sorted([len(first.halves), len(second.halves)]) == [0, 1]


@pytest.mark.slow
@fewer(4)
@given(FAULTY, FAULTY)
def test_messages_without_a_transaction_whatever_fails_are_stored_once_at_most(
    one: list[str], other: list[str]
) -> None:
    """Nobody is asked about them: one that may be stored at a gateway is not sent to another."""
    with (
        StubGateway(one, queue_id=0) as first,
        StubGateway(other, queue_id=1) as second,
        TransactionProducer("orders", [first.url, second.url], sleep=lambda _: None) as producer,
    ):
        results = [producer.send(message(number)) for number in range(3)]
    stored = [half["transaction_id"] for gateway in (first, second) for half in gateway.halves]
    assert len(stored) == len(set(stored))
    for result in results:
        assert result.send_status is not SendStatus.SEND_OK or result.transaction_id in stored
        assert result.send_status is not SendStatus.REJECTED or result.transaction_id not in stored


def test_thread_that_cannot_be_started_once_is_started_later(
    two: tuple[StubGateway, StubGateway], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a container's limit of processes is reached for a moment: failover goes on working."""
    start, started = threading.Thread.start, list[str]()

    def second_fails(thread: threading.Thread) -> None:
        if thread.name.startswith("checkback-v1-messages"):
            started.append(thread.name)
            if len(started) == 2:
                raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", second_fails)
    with TransactionProducer(
        "orders", [each.url for each in two], retry_policy=RetryPolicy(timedelta(seconds=0.5), timedelta(seconds=2))
    ) as producer:
        with pytest.raises(CheckbackError, match="no thread can be started"):
            producer.send(Message("payments", b"1"))
        two[0].takes_halves.clear()  # it hangs
        found = [producer.send(Message("payments", b"1")).send_status for _ in range(3)]
        assert SendStatus.SEND_OK in found
        assert len(started) == 3
        assert two[1].halves
        two[0].takes_halves.set()


def test_gateway_that_is_back_is_used_again() -> None:
    port = int(unused_url().rsplit(":", 1)[1].removesuffix("/check"))
    with StubGateway(queue_id=1) as second:
        listener = Listener(lambda *_: COMMIT)
        with TransactionProducer("orders", [f"http://127.0.0.1:{port}", second.url], listener) as producer:
            for number in range(4):
                assert producer.send_in_transaction(message(number)).op_sent
            with StubGateway(queue_id=0, port=port) as first:
                number = 4
                while not first.halves:
                    assert producer.send_in_transaction(message(number)).op_sent
                    number += 1
            assert producer.flush()
    assert len(committed(first, second)) == number


def test_ops_of_a_gateway_that_fails_are_given_to_another() -> None:
    lost: list[Any] = []
    options: dict[str, Any] = {"on_op_error": lambda *one: lost.append(one), "sleep": lambda _: None}
    with (
        StubGateway(ops=[BROKEN] * 99, queue_id=0) as first,
        StubGateway(queue_id=1) as second,
        TransactionProducer("orders", [first.url, second.url], Listener(lambda *_: COMMIT), **options) as producer,
    ):
        for number in range(20):
            assert producer.send_in_transaction(message(number)).op_sent
        assert producer.flush()
    assert not lost
    assert first.halves
    assert len(second.unverified) == len(first.halves)
    assert len(committed(first, second)) == 20


def test_nothing_is_sent_while_no_gateway_answers_and_the_end_is_told() -> None:
    """The first of them is tried at each; what comes later is certainly not stored."""
    urls = [unused_url().removesuffix("/check") for _ in range(2)]
    listener = Listener(lambda *_: COMMIT)
    retry_policy = RetryPolicy(total_timeout=timedelta(seconds=0.5))
    with TransactionProducer("orders", urls, listener, retry_policy=retry_policy) as producer:
        first, second = (producer.send_in_transaction(message(number)) for number in range(2))
    assert first.send_status is SendStatus.NO_ANSWER
    assert second.send_status is SendStatus.REJECTED
    assert not listener.calls


def test_circuit_opens_at_a_failure_and_closes_with_an_answered_probe() -> None:
    now, pause_s = 100.0, 0.1
    address = Address("orders", "http://127.0.0.1:1")
    one, only = (Gateway(address, only=alone, timer=lambda: now) for alone in (False, True))
    only.failed()
    assert not only.is_left_alone()
    assert not one.is_left_alone()
    one.failed()
    assert one.is_left_alone()
    assert one.probe_due() is None
    now += pause_s
    turn = one.probe_due()
    assert turn is not None
    assert one.probe_due() is None  # one at a time
    one.failed(turn)
    assert one.probe_due() is None
    now += pause_s
    turn = one.probe_due()
    assert turn is not None
    one.answered(turn)
    assert not one.is_left_alone()


@pytest.mark.parametrize("urls", [[], ["http://h", "no url"], [""]])
def test_list_of_urls_not_fit_is_refused(urls: list[str]) -> None:
    with pytest.raises(SettingsError):
        TransactionProducer("orders", urls)


def test_url_named_twice_is_one_gateway() -> None:
    assert len(addresses("orders", ["http://h", "http://h"], None)) == 1
