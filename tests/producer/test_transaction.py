"""Both producers against a real HTTP server: the order of half, local transaction and op, whatever fails."""

from __future__ import annotations

import base64
import logging
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from check.servers import SHORT, Received, Server, Wire, always, late, reply, unused_url
from checkback.errors import SettingsError
from checkback.messages.fields import MessageRejectedError
from checkback.producer import GatewayError, LocalTransactionState, Message, RetryPolicy, SendStatus
from checkback.producer.gateway_address import Address
from producer.gateways import (
    BAD_GATEWAY,
    BROKEN,
    CUT,
    DROPPED,
    FAULTS,
    FULL,
    LATE,
    NONSENSE,
    OK,
    REDIRECT,
    REFUSED,
    TORN,
    UNAVAILABLE,
    StubGateway,
)
from producer.sending import BORN, MESSAGE, SENDERS, TRIES, Sender

if TYPE_CHECKING:
    from collections.abc import Callable

COMMIT, ROLLBACK, UNKNOWN = LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK, LocalTransactionState.UNKNOWN
ERROR = RuntimeError("INSERT ... amount 42")
AGAIN = {DROPPED, BROKEN, CUT, TORN, UNAVAILABLE, LATE, FULL, BAD_GATEWAY}
RESET = {DROPPED, BROKEN}
OF_PROXY = {UNAVAILABLE, LATE, BAD_GATEWAY}


@pytest.fixture(params=SENDERS)
def sender(request: pytest.FixtureRequest) -> Sender:
    return Sender(request.param)


def saying(said: object) -> Callable[[Message, Any], Any]:
    def local(message: Message, arg: Any) -> Any:
        if isinstance(said, Exception):
            raise said
        return said

    return local


def told(faults: list[str], kept: bool) -> list[str]:
    """What the SDK hears of these faults, ``kept``: over the connection of an answered request to begin with.

    If a kept connection is reset before anything came, libcurl sends the request again at once by a new one
    (Curl_retry_request): it might have been closed while it was idle. After a proxy's reply the SDK closes it: the
    gateway's own reply may follow.
    """
    heard = []
    for fault in faults:
        if not (kept and fault in RESET):
            heard.append(fault)
        kept = fault not in {*RESET, *OF_PROXY, CUT, TORN}
    return heard


def final(faults: list[str], kept: bool = False) -> str:
    """The fault that ends the tries of a request, or OK; ``kept`` as in `told`."""
    return next((fault for fault in told(faults, kept) if fault not in AGAIN), OK)


#: fewer than there is time for
FAULTY = st.lists(st.sampled_from(FAULTS), max_size=8)
SAID = st.sampled_from([COMMIT, ROLLBACK, UNKNOWN, None, ERROR, True, "COMMIT"])


@pytest.mark.slow
@pytest.mark.parametrize("kind", SENDERS)
@given(halves=FAULTY, ops=FAULTY, said=SAID)
@example(halves=[*[DROPPED] * 4, FULL, DROPPED], ops=[], said=COMMIT)
@example(halves=[], ops=[*[BROKEN, FULL] * 4], said=ROLLBACK)
@example(halves=[], ops=[DROPPED] * 6, said=COMMIT)
@example(halves=[*[DROPPED] * 4, UNAVAILABLE, DROPPED], ops=[], said=COMMIT)
@example(halves=[], ops=[*[DROPPED] * 4, UNAVAILABLE, DROPPED], said=COMMIT)
def test_transaction_whatever_fails_keeps_its_promises(kind: str, halves: list[str], ops: list[str], said: Any) -> None:
    """The local transaction runs once, after the half is stored, or not at all; its op is what the listener said."""
    with StubGateway(halves, ops) as gateway:
        stored_when_called: list[int] = []

        def local(message: Message, arg: Any) -> Any:
            stored_when_called.append(len(gateway.halves))
            return saying(said)(message, arg)

        sender = Sender(kind)
        result, _ = sender.send(gateway.url, local)
    state = said if isinstance(said, LocalTransactionState) else UNKNOWN
    stored = final(halves) == OK
    # However often it was sent, the half landed once.
    assert len(gateway.halves) <= 1
    assert len(gateway.requests("/v1/halves")) <= TRIES + _sent_again(halves, kept=False)
    assert len({received.body for received in gateway.requests("/v1/halves")}) == 1
    # The local transaction: once, and only after its half.
    assert stored_when_called == ([1] if stored else [])
    assert (result.send_status is SendStatus.SEND_OK) == stored
    if not stored:
        assert result.local_transaction_state is ROLLBACK
        assert not gateway.requests("/v1/ops")
        # REJECTED is a promise: nothing landed. NO_ANSWER is none.
        assert result.send_status is not SendStatus.REJECTED or not gateway.halves
        with pytest.raises(GatewayError):
            result.raise_for_status()
        return
    # The op: what the listener said, or none.
    assert result.raise_for_status().local_transaction_state is state
    assert (result.queue_id, result.queue_offset) == (3, 0)
    assert result.local_error is (said if isinstance(said, Exception) else None)
    assert {op["state"] for op in gateway.ops} <= {state.value}
    assert len(gateway.ops) <= 1
    if state is UNKNOWN:
        assert not gateway.requests("/v1/ops")
        assert not result.op_sent
        assert not sender.lost
    else:
        # It is handed over; that it does not land is told.
        assert result.op_sent
        assert result.op_error is None
        assert [lost[:2] for lost in sender.lost] == [(result.transaction_id, state)][: len(sender.lost)]
        # Whether its first try goes over the half's connection is libcurl's choice.
        assert (not sender.lost) in {final(ops, kept) == OK for kept in (True, False)}
        assert sender.lost or len(gateway.ops) == 1
        assert len(gateway.requests("/v1/ops")) <= TRIES + _sent_again(ops, kept=True)


def _sent_again(faults: list[str], kept: bool) -> int:
    return len(faults) - len(told(faults, kept))


def test_half_and_op_are_what_the_contract_says(sender: Sender) -> None:
    with StubGateway() as gateway:
        result, listener = sender.send(gateway.url, saying(COMMIT), arg=["the", "order"], token="s3cret")
    (half,) = gateway.halves
    assert half == {
        "transaction_id": result.transaction_id,
        "producer_group": "orders",
        "real_topic": "payments",
        "real_queue_id": 2,
        "tags": "created",
        "keys": "4711",
        "properties": {"region": "eu"},
        "body": base64.b64encode(MESSAGE.body).decode(),
        "born_timestamp": int(BORN * 1000),
        "check_immunity": "30s",
    }
    (op,) = gateway.ops
    assert op == {
        "queue_id": 3,
        "queue_offset": 0,
        "transaction_id": result.transaction_id,
        "producer_group": "orders",
        "state": "COMMIT",
        "born_timestamp": int(BORN * 1000),
    }
    for received in gateway.server.received:
        assert received.headers["authorization"] == "Bearer s3cret"
        assert received.headers["content-type"] == "application/json"
    ((message, arg),) = listener.calls
    assert (message.transaction_id, message.body, arg) == (result.transaction_id, MESSAGE.body, ["the", "order"])


def test_transaction_ids_are_unique_or_the_senders_own(sender: Sender) -> None:
    """The same message sent twice is two transactions, unless it names its transaction: then it lands once."""
    own = Message("payments", b"1", transaction_id="order-4711")
    with StubGateway() as gateway:
        ids = [sender.send(gateway.url, saying(COMMIT))[0].transaction_id for _ in range(3)]
        places = [sender.send(gateway.url, saying(COMMIT), own)[0].queue_offset for _ in range(3)]
    assert len(set(ids)) == 3
    assert places == [3, 3, 3]
    assert len(gateway.halves) == len(gateway.ops) == 4


@pytest.mark.parametrize(("faults", "least"), [([FULL], 1.0), ([BROKEN], 0.0), ([BAD_GATEWAY] * 3, 0.0)])
def test_retry_waits_as_long_as_it_is_asked_to(sender: Sender, faults: list[str], least: float) -> None:
    with StubGateway(faults) as gateway:
        result, _ = sender.send(gateway.url, saying(COMMIT))
    assert result.send_status is SendStatus.SEND_OK
    assert len(sender.slept) == len(faults)
    assert sender.slept[0] == least
    assert sender.slept == sorted(sender.slept)


@pytest.mark.parametrize(
    ("faults", "status", "http", "code"),
    [
        ([REFUSED], SendStatus.REJECTED, 422, "bad_topic"),
        ([FULL] * TRIES, SendStatus.REJECTED, 429, "queue_full"),
        ([DROPPED, REFUSED], SendStatus.NO_ANSWER, 422, "bad_topic"),
        ([DROPPED] + [FULL] * TRIES, SendStatus.NO_ANSWER, 429, "queue_full"),
        ([DROPPED] * TRIES, SendStatus.NO_ANSWER, None, None),
        ([REDIRECT], SendStatus.NO_ANSWER, 307, None),
        ([NONSENSE], SendStatus.NO_ANSWER, 200, None),
    ],
)
def test_half_not_stored_says_why_and_what_is_certain(
    sender: Sender, faults: list[str], status: SendStatus, http: int | None, code: str | None
) -> None:
    with StubGateway(faults) as gateway:
        result, listener = sender.send(gateway.url, saying(COMMIT))
    assert not listener.calls
    assert result.send_status is status
    assert result.half_error is not None
    assert (result.half_error.status, result.half_error.code) == (http, code)
    assert "amount" not in str(result.half_error)
    assert "\n" not in str(result.half_error)


def test_gateway_silent_is_no_answer_in_time(sender: Sender) -> None:
    """A reply that comes too late is none; a try is bounded as a whole."""
    retry_policy = RetryPolicy(timeout=timedelta(seconds=SHORT), total_timeout=timedelta(seconds=2 * SHORT))
    with Server(late) as server:
        result, listener = sender.send(server.url, saying(COMMIT), retry_policy=retry_policy)
    assert result.send_status is SendStatus.NO_ANSWER
    assert "timed out" in str(result.half_error) or "TimeoutError" in str(result.half_error)
    assert not listener.calls


def test_gateway_dripping_is_cut_off(sender: Sender) -> None:
    """A byte now and then keeps no thread waiting."""

    def drip(received: Received, wire: Wire) -> bool:
        wire.drip(reply(b" " * 400 + b"{}"))
        return False

    with Server(drip) as server:
        result, _ = sender.send(server.url, saying(COMMIT), retry_policy=RetryPolicy(*[timedelta(seconds=SHORT)] * 2))
    assert result.send_status is SendStatus.NO_ANSWER


def test_reply_too_long_is_not_read_to_its_end(sender: Sender) -> None:
    with Server(always(reply(b'{"a": "' + b"x" * 10_000_000 + b'"}'))) as server:
        result, _ = sender.send(server.url, saying(COMMIT))
    assert result.send_status is SendStatus.NO_ANSWER


def test_gateway_gone_is_no_answer(sender: Sender) -> None:
    result, listener = sender.send(unused_url(), saying(COMMIT))
    assert result.send_status is SendStatus.NO_ANSWER
    assert not listener.calls
    assert len(sender.slept) == TRIES - 1


def test_listener_that_fails_is_logged_without_its_text(sender: Sender, caplog: pytest.LogCaptureFixture) -> None:
    """The text of an error may hold the message: SQL parameters, say."""
    caplog.set_level(logging.INFO)
    with StubGateway() as gateway:
        result, _ = sender.send(gateway.url, saying(ERROR))
    assert result.local_error is ERROR
    assert "execute_local_transaction raised RuntimeError at " in caplog.text
    assert result.transaction_id in caplog.text
    assert "amount" not in caplog.text


def test_op_lost_is_told_and_logged_and_not_raised(sender: Sender, caplog: pytest.LogCaptureFixture) -> None:
    with StubGateway(ops=[REFUSED]) as gateway:
        result, _ = sender.send(gateway.url, saying(ROLLBACK))
    assert result.send_status is SendStatus.SEND_OK
    ((transaction_id, state, error),) = sender.lost
    assert (transaction_id, state) == (result.transaction_id, ROLLBACK)
    assert (error.status, error.code) == (422, "bad_topic")
    assert f"{result.transaction_id}: ROLLBACK did not land" in caplog.text


BAD_MESSAGES = [
    Message("no topic!", b""),
    Message("RMQ_SYS_TRANS_HALF_TOPIC", b""),
    Message("t", b"x" * (4 * 1024 * 1024 + 1)),
    Message("t", b"", properties={"p": "x" * 40_000}),
    Message("t", b"", transaction_id="x" * 1025),
    Message("t", b"", real_queue_id=-1),
]


@pytest.mark.parametrize("message", BAD_MESSAGES, ids=range(len(BAD_MESSAGES)))
def test_message_not_fit_is_refused_before_it_is_sent(sender: Sender, message: Message) -> None:
    with StubGateway() as gateway, pytest.raises(MessageRejectedError):
        sender.send(gateway.url, saying(COMMIT), message)
    assert not gateway.server.received


@pytest.mark.parametrize(
    "url",
    [
        *("", "localhost:80", "ftp://host", "http://u:p@host", "http://host/#a", "http://host?q=1", "http://h st"),
        *("http://*", "http://.h", "http://[::1", "http://h:99999", "http://h:0"),
    ],
)
def test_url_not_fit_is_refused(sender: Sender, url: str) -> None:
    with pytest.raises(SettingsError):
        sender.send(url, saying(COMMIT))


def test_url_that_is_not_ascii_is_sent_encoded() -> None:
    """As that of an endpoint; libcurl takes no other."""
    assert Address("orders", "http://b\u00fccher.example/\u00e4/").url("/v1/ops") == (
        "http://xn--bcher-kva.example/%C3%A4/v1/ops"
    )


def test_host_that_cannot_be_looked_up_is_no_answer(sender: Sender) -> None:
    result, _ = sender.send("http://a..b", saying(COMMIT))
    assert result.send_status is SendStatus.NO_ANSWER


@pytest.mark.parametrize("token", ["", " ", "a\x01b", "\u00fc"])
def test_token_not_fit_is_refused_and_not_quoted(sender: Sender, token: str) -> None:
    with pytest.raises(SettingsError) as refused:
        sender.send("http://127.0.0.1:1", saying(COMMIT), token=token)
    assert not token.strip() or token not in str(refused.value)


def test_group_not_fit_is_refused(sender: Sender) -> None:
    with pytest.raises(MessageRejectedError):
        sender.send("http://127.0.0.1:1", saying(COMMIT), group="no group")
