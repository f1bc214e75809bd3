"""The JSON of a check and of its answer; the signature."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from datetime import datetime, timezone
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook, WebhookVerificationError

from check.servers import Server, always, reply, request, says
from checkback.check.client import CheckClient
from checkback.check.endpoint import CheckedGroup
from checkback.check.wire import STATES, Message, NoAnswerError, read_answer, read_retry_after
from checkback.errors import SettingsError
from checkback.signature import Signer

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
NOW = datetime.now(timezone.utc).timestamp()


@given(st.binary(max_size=5000))
def test_answer_any_bytes_never_crash(body: bytes) -> None:
    """Bytes are an answer or NoAnswerError, nothing else."""
    with suppress(NoAnswerError):
        assert read_answer(body, "tx-1", (0, 7))[0] in STATES


@given(st.text() | st.integers().map(str) | st.datetimes().map(format_datetime), st.floats(0, 1e10))
def test_retry_after_any_text_is_seconds_or_nothing(value: str, now: float) -> None:
    """Whatever stands in the header."""
    seconds = read_retry_after(value, now)
    assert seconds is None or 1 <= seconds < 1e12


DATES = ["{huge} Jan 2030 00:00:00 GMT", "01 Jan {huge} 00:00:00 GMT", "01 Jan 2030 {huge}:00:00 GMT"]


@pytest.mark.parametrize("text", [*DATES, "01 Jan 2030 00:00:00 +{huge}", ",", "-"])
def test_retry_after_of_numbers_beyond_any_date_is_nothing(text: str) -> None:
    """Python's datetime takes no such numbers, and says so by other errors than ValueError."""
    assert read_retry_after("Mon, " + text.format(huge="99999999999"), NOW) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["COMMIT", "tx-1"]),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["state", "transaction_id"]) | st.text(), inner),
    max_leaves=6,
)


@given(JSON)
def test_answer_any_json_only_the_contract_is_taken(value: object) -> None:
    """Of all JSON, an object with the transaction's id and a known state; more fields do no harm."""
    valid = isinstance(value, dict) and value.get("transaction_id") == "tx-1" and value.get("state") == "COMMIT"
    try:
        taken, _ = read_answer(json.dumps(value, allow_nan=True).encode(), "tx-1", (0, 7))
    except NoAnswerError:
        assert not valid or "NaN" in json.dumps(value) or "Infinity" in json.dumps(value)
    else:
        assert (taken, valid) == ("COMMIT", True)


@pytest.mark.parametrize(
    ("named", "taken"),
    [
        ({"queue_id": 0, "queue_offset": 7}, True),
        ({"queue_offset": 7}, True),
        ({"queue_id": 0, "queue_offset": 8}, False),
        ({"queue_id": 1, "queue_offset": 7}, False),
        ({"queue_id": None, "queue_offset": None}, True),
        ({"queue_id": None, "queue_offset": 8}, False),
        ({"queue_offset": "7"}, False),
    ],
)
def test_answer_about_another_half_message_of_the_transaction_is_none(named: dict[str, object], taken: bool) -> None:
    """A proxy that confuses answers would have both half messages committed."""
    body = json.dumps({"transaction_id": "tx-1", "state": "COMMIT"} | named).encode()
    if taken:
        assert read_answer(body, "tx-1", (0, 7)) == ("COMMIT", None)
        return
    with pytest.raises(NoAnswerError, match="another half message"):
        read_answer(body, "tx-1", (0, 7))


@pytest.mark.parametrize(
    ("state", "said", "taken"),
    [
        ("UNKNOWN", "listener raised ValueError", True),
        ("UNKNOWN", "listener returned bool", True),
        ("UNKNOWN", "listener raised org.example.SqlException", True),
        ("UNKNOWN", "listener raised ValueError: account 4711 of Mr X", False),
        ("UNKNOWN", "listener raised " + "E" * 81, False),
        ("UNKNOWN", {"type": "ValueError"}, False),
        ("COMMIT", "listener raised ValueError", False),
    ],
)
def test_answer_unknown_may_say_the_type_of_its_error_and_no_more(state: str, said: object, taken: bool) -> None:
    body = json.dumps({"transaction_id": "tx-1", "state": state, "error": said}).encode()
    assert read_answer(body, "tx-1", (0, 7)) == (state, said if taken else None)


def test_request_any_text_is_ascii_json() -> None:
    """What is signed is what is sent, whatever a transaction's id holds."""
    text = request(transaction_id='ü"\\\n\u2028😀').to_json()
    assert text.isascii()
    assert json.loads(text)["transaction_id"] == 'ü"\\\n\u2028😀'


MESSAGE = Message(body=b"\x00\xff", tags="t", keys="k", properties={"a": "1"})


def test_body_only_for_groups_that_want_it() -> None:
    with Server(always(reply(says("COMMIT")))) as server:
        groups = {"orders": CheckedGroup((server.url,)), "with_body": CheckedGroup((server.url,), include_body=True)}
        with CheckClient(groups, 5) as client:
            client.ask(request(message=MESSAGE))
            client.ask(request(message=MESSAGE, group="with_body"))
            client.ask(request(group="with_body"))
    plain, full, gone = (received.json for received in server.received)
    extra = {"body": "AP8=", "tags": "t", "keys": "k", "properties": {"a": "1"}}
    assert full.keys() - plain.keys() == extra.keys()
    assert {name: full[name] for name in extra} == extra
    assert {name: gone[name] for name in extra} == dict.fromkeys(extra)


def test_trace_context_of_the_message_is_the_requests() -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    given = Message(properties={"traceparent": parent, "tracestate": "a=b\r\nX-Injected: 1"})
    with (
        Server(always(reply(says("COMMIT")))) as server,
        CheckClient({"orders": CheckedGroup((server.url,), SECRET, include_body=True)}, 5) as client,
    ):
        client.ask(request(message=given))
        client.ask(request())
    first, second = ({name.lower(): value for name, value in one.headers.items()} for one in server.received)
    assert first["traceparent"] == parent
    assert not {"tracestate", "x-injected"} & first.keys()
    assert "traceparent" not in second


def test_signature_verifies_and_is_of_the_body() -> None:
    """The producer's side is the library's own verification; each try is signed, a check keeps its id."""
    with (
        Server(always(reply(says("COMMIT")))) as server,
        CheckClient({"orders": CheckedGroup((server.url,), SECRET)}, 5) as client,
    ):
        for times in (2, 2, 3):
            client.ask(request(times=times))
    first, again, other = server.received
    for received in server.received:
        Webhook(SECRET).verify(received.body, received.headers)
    assert first.headers["webhook-id"] == again.headers["webhook-id"] == "chk_0_7_2"
    assert other.headers["webhook-id"] == "chk_0_7_3"
    assert first.headers["webhook-signature"] != other.headers["webhook-signature"]
    with pytest.raises(WebhookVerificationError, match="No matching signature"):
        Webhook(SECRET).verify(other.body, first.headers)


def test_signature_depends_on_secret_body_id_and_time() -> None:
    signatures = {
        Signer(secret).headers(message_id, timestamp, body)["webhook-signature"]
        for secret, message_id, timestamp, body in [
            (SECRET, "a", NOW, "{}"),
            ("whsec_" + "A" * 32, "a", NOW, "{}"),
            (SECRET, "b", NOW, "{}"),
            (SECRET, "a", NOW + 1, "{}"),
            (SECRET, "a", NOW, "{ }"),
        ]
    }
    assert len(signatures) == 5


@pytest.mark.parametrize("secret", ["c2VjcmV0LXNlY3JldC1zZWNyZXQtMzItYnl0ZXMhISE=", "c2VjcmV0LTE"])
def test_secret_padded_or_not_is_the_librarys_key(secret: str) -> None:
    # Now, not when this file was read: the library goes by its own clock.
    headers = Signer(secret).headers("a", time.time(), "{}")
    Webhook(secret).verify("{}", headers)


@pytest.mark.parametrize("secret", ["", "whsec_", "====", "p@ss-word", "pässword", "A", "whsec_!"])
def test_secret_unfit_is_refused_and_not_quoted(secret: str) -> None:
    with pytest.raises(SettingsError, match=r"^producers\.orders\.secret: ") as caught:
        CheckClient({"orders": CheckedGroup(("http://127.0.0.1/",), secret)}, 5)
    assert not secret.strip("whsec_=A!") or secret not in str(caught.value)


def test_secret_is_in_no_repr() -> None:
    group = CheckedGroup(("http://127.0.0.1/",), SECRET)
    assert SECRET.removeprefix("whsec_") not in repr((group, Signer(SECRET), CheckClient({"orders": group}, 5)))


def test_webhook_id_names_the_check() -> None:
    assert request(queue_id=3, offset=1234567890123, times=15).webhook_id == "chk_3_1234567890123_15"
