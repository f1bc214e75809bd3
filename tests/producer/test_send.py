"""Messages without a transaction, singly and in batches, by both producers against a real HTTP server."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from check.servers import unused_url
from checkback.errors import CheckbackError
from checkback.messages.fields import MessageRejectedError
from checkback.producer import GatewayError, Message, SendResult, SendStatus, TransactionProducer
from producer.gateways import DROPPED, FAULTS, OK, REFUSED, StubGateway
from producer.sending import MESSAGE, TRIES, Sender

KINDS = ("sync", "async")


def numbered(number: int) -> list[Message]:
    return [replace(MESSAGE, transaction_id=f"t{each}") for each in range(number)]


@pytest.mark.parametrize("kind", KINDS)
def test_message_is_stored_once_also_when_the_reply_was_lost(kind: str) -> None:
    with StubGateway([DROPPED]) as gateway:
        (result,) = Sender(kind).send_batch(gateway.url, numbered(1))
    assert [half["transaction_id"] for half in gateway.halves] == ["t0"]
    assert result == SendResult(SendStatus.SEND_OK, "t0", 3, 0)
    assert {received.path for received in gateway.server.received} == {"/v1/messages"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@given(faults=st.lists(st.sampled_from(FAULTS), max_size=8), full=st.lists(st.integers(0, 6), max_size=4))
def test_batch_whatever_fails_stores_each_message_at_most_once(kind: str, faults: list[str], full: list[int]) -> None:
    """A result in order for each; SEND_OK and REJECTED are promises."""
    messages = [*numbered(4), replace(MESSAGE, transaction_id="bad", tags="refused"), replace(MESSAGE, topic="other")]
    with StubGateway(faults, full=full) as gateway:
        results = Sender(kind).send_batch(gateway.url, messages)
    ids = [half["transaction_id"] for half in gateway.halves]
    assert len(ids) == len(set(ids))
    assert [result.transaction_id for result in results[:5]] == ["t0", "t1", "t2", "t3", "bad"]
    assert len(results) == 6
    for result in results:
        if result.send_status is SendStatus.SEND_OK:
            assert ids[result.queue_offset or 0] == result.raise_for_status().transaction_id
        else:
            assert result.send_status is SendStatus.NO_ANSWER or result.transaction_id not in ids
            with pytest.raises(GatewayError):
                result.raise_for_status()


@pytest.mark.parametrize("kind", KINDS)
def test_messages_for_which_there_was_no_room_are_sent_again(kind: str) -> None:
    sender = Sender(kind)
    with StubGateway(full=[1, 0]) as gateway:
        results = sender.send_batch(gateway.url, numbered(3))
    assert [len(received.json["messages"]) for received in gateway.server.received] == [3, 1, 1]
    assert [(result.transaction_id, result.queue_offset) for result in results] == [("t0", 0), ("t1", 2), ("t2", 1)]
    assert len(sender.slept) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_room_that_never_comes_is_an_error_of_its_message_alone(kind: str) -> None:
    with StubGateway(full=[1] + [0] * TRIES) as gateway:
        results = Sender(kind).send_batch(gateway.url, numbered(3))
    assert [result.send_status.value for result in results] == ["SEND_OK", "REJECTED", "SEND_OK"]
    assert results[1].error is not None
    assert results[1].error.code == "queue_full"
    assert len(gateway.server.received) == TRIES


@pytest.mark.parametrize("kind", KINDS)
def test_large_batch_is_several_requests(kind: str) -> None:
    large = [*numbered(2003), *(replace(MESSAGE, body=bytes(3 << 20)) for _ in range(2))]
    with StubGateway() as gateway:
        results = Sender(kind).send_batch(gateway.url, large)
    assert [len(received.json["messages"]) for received in gateway.server.received] == [1000, 1000, 3, 1, 1]
    assert [result.queue_offset for result in results] == list(range(2005))


@pytest.mark.parametrize("kind", KINDS)
def test_after_a_request_without_an_answer_the_rest_is_not_sent(kind: str) -> None:
    results = Sender(kind).send_batch(unused_url(), numbered(1500))
    assert {result.send_status.value for result in results[:1000]} == {"NO_ANSWER"}
    assert {result.send_status.value for result in results[1000:]} == {"REJECTED"}
    assert "not sent" in str(results[1400].error)


@pytest.mark.parametrize("kind", KINDS)
def test_after_a_request_that_was_refused_the_rest_is_sent(kind: str) -> None:
    with StubGateway([REFUSED, OK]) as gateway:
        results = Sender(kind).send_batch(gateway.url, numbered(1500))
    assert [result.send_status.value for result in results] == ["REJECTED"] * 1000 + ["SEND_OK"] * 500


@pytest.mark.parametrize("kind", KINDS)
def test_invalid_message_stops_a_batch_before_anything_is_sent(kind: str) -> None:
    with StubGateway() as gateway, pytest.raises(MessageRejectedError, match="real_topic"):
        Sender(kind).send_batch(gateway.url, [*numbered(2), replace(MESSAGE, topic="no topic")])
    assert not gateway.server.received


def test_empty_batch_is_no_request() -> None:
    with StubGateway() as gateway:
        assert Sender("sync").send_batch(gateway.url, []) == []
    assert not gateway.server.received


def test_transaction_needs_a_listener() -> None:
    with (
        StubGateway() as gateway,
        TransactionProducer("orders", gateway.url) as producer,
        pytest.raises(CheckbackError, match="send_in_transaction: the producer has no listener"),
    ):
        producer.send_in_transaction(MESSAGE)
    assert not gateway.server.received
