"""Messages as events: whatever a message holds, CloudEvents' SDK reads the same from binary and structured mode."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cloudevents.core.bindings.http import HTTPMessage, from_http
from cloudevents.core.formats.json import JSONFormat
from hypothesis import given
from hypothesis import strategies as st

from checkback.consumer.message import MessageExt
from checkback.push.cloud_event import CloudEvent, batched, event_of, structured
from checkback.push.pushed_group import mark, within

MESSAGE = MessageExt("payments", 3, "tx-1", "orders", "paid", "4711", {}, b"{}", 1_795_227_064_579, 0, 12, 0, 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NAMES = st.sampled_from(["CE_contenttype", "CE_time", "region", "Region", "ID", "data", "__SHARDINGKEY"]) | TEXT


def read(lines: list[str], body: bytes) -> Any:
    """What the SDK reads of a request."""
    headers = dict(line.split(": ", 1) for line in lines if ": " in line)
    headers |= {line[:-1]: "" for line in lines if line.endswith(";") and ":" not in line}  # as libcurl sends it
    return from_http(HTTPMessage(headers, body), JSONFormat())


def attributes(message: MessageExt) -> dict[str, Any]:
    event = event_of(message, "application/json")
    found: dict[str, Any] = dict(event.attributes)
    return found


@given(
    st.builds(
        MESSAGE._replace,
        tags=st.none() | TEXT,
        keys=st.none() | TEXT,
        transaction_id=st.none() | TEXT,
        properties=st.dictionaries(NAMES, TEXT | st.sampled_from(["text/plain", "a\r\nx: y"]), max_size=4),
        body=st.binary(max_size=20) | st.sampled_from([b"[1.10]", b'"\\ud800"', b"NaN", b"\xef\xbb\xbf{}"]),
    )
)
def test_any_message_is_the_same_event_in_both_modes(message: MessageExt) -> None:
    if "CE_time" in message.properties:  # which the SDK parses
        message = message._replace(properties=message.properties | {"CE_time": "2026-11-20T15:00:00Z"})
    event = event_of(message, "application/octet-stream")
    lines = event.lines()
    assert all(line.isprintable() and line.isascii() for line in lines)
    binary, (kind, body) = read(lines, event.data), structured(event)
    members = json.loads(body)
    whole = read(kind, body)
    for name, value in event.attributes.items():
        assert members[name] == value
        assert binary.get_attributes()[name] == whole.get_attributes()[name]
    assert members.get("datacontenttype") == event.content_type
    assert ("data" in members) + ("data_base64" in members) == bool(message.body)


def test_an_event_of_a_message_that_says_nothing() -> None:
    bare = MESSAGE._replace(transaction_id=None, producer_group=None, tags=None, keys=None, body=b"")
    event = event_of(bare, "application/json")
    assert event.attributes == {
        "specversion": "1.0",
        "id": "0/12",
        "source": "/producers/",
        "type": "payments",
        "time": "2026-11-21T02:11:04.579Z",
    }
    assert event.content_type is None


def test_what_a_client_of_rocketmq_makes_by_the_binding_is_the_event() -> None:
    """io.cloudevents:cloudevents-rocketmq, RocketmqMessageWriter: CE_ and the attribute; extensions by their names."""
    properties = {
        "CE_specversion": "1.0",
        "CE_id": "7",
        "CE_source": "/shop",
        "CE_type": "com.example.paid",
        "CE_subject": "carts/7",
        "CE_contenttype": "text/plain",
        "region": "eu",
    }
    event = event_of(MESSAGE._replace(properties=properties, tags=None, keys="k"), "application/json")
    assert event.attributes == {
        "specversion": "1.0",
        "id": "7",
        "source": "/shop",
        "type": "com.example.paid",
        "subject": "carts/7",
        "region": "eu",
    }
    assert event.content_type == "text/plain"


def test_properties_become_extensions() -> None:
    """All of them, but for Checkback's own; of two that are alike one gets a number."""
    properties = {"Region": "us", "region": "eu", "order-ID": "7", "type": "gold", "__SHARDINGKEY": "k", "___": "x"}
    properties |= {"orderId": "7", "empty": "", "CHECKBACK_CLIENT_ID": "host@1"}
    found = attributes(MESSAGE._replace(properties=properties))
    assert (found["region"], found["region2"], found["orderid"], found["propertytype"]) == ("eu", "us", "7", "gold")
    assert found["empty"] == ""
    assert (found["type"], found["partitionkey"]) == ("paid", "k")
    assert len(found) == 6 + 6


def test_thousands_of_properties_that_are_alike_are_each_looked_at_once() -> None:
    """32 KiB of them would take seconds, in which the requests in flight time out."""
    looks = 0

    class Value(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            nonlocal looks
            looks += 1
            return str.__eq__(self, other)

    names = ["a" + "-" * n for n in range(1000)]
    found = attributes(MESSAGE._replace(properties={name: Value(n) for n, name in enumerate(names)}))
    assert [found["a"], found["a2"], found["a1000"]] == ["0", "1", "999"]
    assert looks < 10 * len(names)


@pytest.mark.parametrize(
    ("kind", "body", "member"),
    [
        ("application/json", b'{"a": 1.10}', ("data", {"a": 1.1})),
        ("application/vnd.shop+json; charset=utf-8", b"[]", ("data", [])),
        ("application/json", b"{", ("data_base64", "ew==")),
        ("text/plain", "zwölf".encode(), ("data", "zwölf")),
        ('text/plain; charset="utf-8"', b"x", ("data", "x")),
        ("text/plain; charset=latin-1", b"x", ("data_base64", "eA==")),
        ("text/plain", b"\xff", ("data_base64", "/w==")),
        (None, b"{}", ("data", {})),
    ],
)
def test_data_in_json(kind: str | None, body: bytes, member: tuple[str, Any]) -> None:
    _, one = structured(CloudEvent({"id": "1"}, kind, body))
    assert json.loads(one)[member[0]] == member[1]
    assert json.loads(batched([CloudEvent({"id": "1"}, kind, body)] * 2)[1]) == [json.loads(one)] * 2


def test_what_is_json_stays_as_it_was_written() -> None:
    _, one = structured(CloudEvent({"id": "1"}, "application/json", b'{"amount": 1.10}'))
    assert b'"data":{"amount": 1.10}' in one


@given(st.lists(st.integers(0, 1 << 20), min_size=1, max_size=8))
def test_a_batch_is_as_many_messages_as_fit(sizes: list[int]) -> None:
    class Sized(bytes):
        size = 0

        def __len__(self) -> int:
            return self.size

    def message(size: int) -> MessageExt:
        body = Sized()
        body.size = size
        return MESSAGE._replace(body=body)

    messages = [message(size) for size in sizes]
    count = within(messages)
    assert count == 1 or sum(sizes[:count]) <= 1 << 20
    assert count == len(sizes) or sum(sizes[: count + 1]) > 1 << 20


def test_messages_that_changed_places_in_a_restore_have_other_marks() -> None:
    """Both were born in the same millisecond: rows of an outbox, written by one transaction."""
    assert mark(MESSAGE) != mark(MESSAGE._replace(transaction_id="tx-2"))
