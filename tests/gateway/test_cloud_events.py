"""CloudEvents that the gateway takes, made by CloudEvents' own SDK, and what it says to what does not fit."""

from __future__ import annotations

import json
import math
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pytest
from cloudevents.core.bindings.http import HTTPMessage, from_http, to_binary_event, to_structured_event
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent
from hypothesis import given
from hypothesis import strategies as st

from checkback.consumer.message import MessageExt
from checkback.gateway.http.cloud_events import EventHead, event_head, halves_of_events
from checkback.gateway.problems import Problem
from checkback.messages.half import Half
from checkback.push.cloud_event import event_of, structured
from gateway.process import TO_TABLE, Gateway, rows

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

WHERE = b"real_topic=payments&producer_group=orders"
NOW = 1_795_227_064_579
EVENT: dict[str, Any] = {"specversion": "1.0", "id": "order-4711", "source": "/shop", "type": "com.example.paid"}


def taken(
    headers: dict[str, str], body: bytes, query: bytes = WHERE, groups: frozenset[str] | None = None
) -> Half | Problem | Sequence[Half | Problem]:
    """What the gateway makes of a request."""
    head = event_head([(name.lower().encode(), value.encode()) for name, value in headers.items()], query)
    assert head is not None
    return halves_of_events(head, body, groups, NOW, True)


def half(message: HTTPMessage) -> Half:
    """The half message of a request that is taken."""
    found = taken(message.headers, message.body)
    assert isinstance(found, Half), found
    return found


def refused(members: dict[str, Any]) -> str:
    """Why an event is refused with 400."""
    found = taken({"Content-Type": "application/cloudevents+json"}, json.dumps(members).encode())
    assert isinstance(found, Problem)
    assert (found.code, found.status) == ("malformed", 400)
    assert found.detail.startswith(f"{found.more['field']}: ")
    return found.detail


def published(one: Half) -> MessageExt:
    """The message as its topic has it."""
    return MessageExt(
        topic=one.real_topic,
        queue_id=one.real_queue_id,
        transaction_id=one.transaction_id,
        producer_group=one.producer_group,
        tags=one.tags,
        keys=one.keys,
        properties=one.properties,
        body=one.body,
        born_timestamp=one.born_timestamp,
        half_queue_id=0,
        half_queue_offset=12,
        published_at=NOW,
        batch_id=1,
    )


def pushed(one: Half) -> list[HTTPMessage]:
    """How it is pushed: in binary and in structured mode."""
    event = event_of(published(one), "application/octet-stream")
    made = [(event.lines(), event.data), structured(event)]
    return [HTTPMessage(dict(line.split(": ", 1) for line in lines if ": " in line), body) for lines, body in made]


FULL = {
    "id": "order-4711",
    "source": "https://shop.example.com/carts",
    "type": "com.example.paid",
    "subject": "carts/größe 7%",
    "time": datetime(2026, 11, 20, 15, 0, 0, 123456, tzinfo=timezone.utc),
    "dataschema": "https://shop.example.com/paid.json",
    "datacontenttype": "application/json",
    "partitionkey": "customer-7",
    "region": 'e"u',
}


@pytest.mark.parametrize("send", [to_binary_event, to_structured_event])
@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("application/json", {"amount": 42, "note": "ä"}),
        ("application/vnd.shop+json", {"amount": 42}),
        ("text/plain", "zwölf"),
        ("application/octet-stream", b"\x00\xff"),
        ("application/json", None),
    ],
)
def test_what_comes_as_an_event_goes_out_as_the_same(send: Any, kind: str, data: Any) -> None:
    """By the SDK on both sides: id, source, type, subject, time, datacontenttype, extensions and data."""
    event = CloudEvent(attributes=FULL | {"datacontenttype": kind}, data=data)
    one = half(send(event))
    assert (one.transaction_id, one.tags, one.keys) == ("order-4711", "com.example.paid", "carts/größe 7%")
    for message in pushed(one):
        out = from_http(message, JSONFormat())
        assert out.get_attributes() == event.get_attributes()
        assert out.get_data() == data


def test_an_event_with_nothing_optional_gets_nothing_more() -> None:
    event = CloudEvent(attributes={"id": "1", "source": "/shop", "type": "paid"}, data=None)
    del event.get_attributes()["time"]
    plain = {name: value for name, value in event.get_attributes().items() if name in EVENT}
    one = half(to_binary_event(CloudEvent(attributes=plain, data=None)))
    for message in pushed(one):
        out = from_http(message, JSONFormat()).get_attributes()
        assert {name: out[name] for name in EVENT} == {name: plain[name] for name in EVENT}
        assert out.keys() - EVENT.keys() <= {"time"}


def test_messages_with_one_partition_key_share_a_queue() -> None:
    first, second = (
        half(to_binary_event(CloudEvent(attributes=FULL | {"id": name, "type": "t"}, data=None))) for name in "ab"
    )
    assert first.real_queue_id == second.real_queue_id
    assert published(first).ordering_key == "customer-7"


def test_numbers_and_booleans_become_texts() -> None:
    found = taken(
        {"Content-Type": "application/cloudevents+json; charset=utf-8"},
        json.dumps(EVENT | {"count": 7, "test": True, "unset": None, "data": [1.10]}).encode(),
    )
    assert isinstance(found, Half)
    assert (found.properties["count"], found.properties["test"]) == ("7", "true")
    assert "unset" not in found.properties
    assert found.body == b"[1.1]"
    assert found.properties["CE_contenttype"] == "application/json"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"id": None}, "id: missing"),
        ({"source": ""}, "source: empty"),
        ({"source": "a b"}, 'source: "a b" is not a URI reference'),
        ({"type": 7}, "type: 7 is not a string"),
        ({"specversion": "0.3"}, 'specversion: "0.3" is not 1.0'),
        ({"time": "yesterday"}, 'time: "yesterday" is not a time of RFC 3339'),
        ({"time": "2026-02-30T15:00:00Z"}, 'time: there is no "2026-02-30T15:00:00Z"'),
        ({"time": "2026-02-20T15:00:61Z"}, "time: there is no"),
        ({"dataschema": "paid.json"}, 'dataschema: "paid.json" is not a URI'),
        ({"datacontenttype": "json", "data": "x"}, 'datacontenttype: "json" is not a media type'),
        ({"My_Ext": "x"}, "My_Ext: an attribute's name has lower-case letters and digits only"),
        ({"ext": {"a": 1}}, "ext: an object is not a string, an integer or a boolean"),
        ({"ext": 1.5}, "ext: 1.5 is not a string, an integer or a boolean"),
        ({"ext": "a\nb"}, "ext: it has a control character"),
        ({"data": 1, "data_base64": "AA=="}, "data: data_base64 is there too"),
        ({"data_base64": "?"}, "data_base64: not base64"),
        ({"data": 7, "datacontenttype": "text/plain"}, 'data: not a string, as data of "text/plain" must be'),
        ({"id": "x" * 1025}, "id: 1025 characters, over 1024"),
        ({"partitionkey": "x" * 256}, "partitionkey: 256 characters, over 255"),
        ({"ext": "x" * 40_000}, "properties: "),
    ],
)
def test_what_does_not_fit_is_a_400_that_names_the_attribute(change: dict[str, Any], told: str) -> None:
    assert refused(EVENT | change).startswith(told)


@pytest.mark.parametrize(
    ("query", "told"),
    [
        (b"", "real_topic: missing; the URL names it: ?real_topic=TOPIC&producer_group=GROUP"),
        (b"real_topic=payments", "producer_group: missing"),
        (WHERE + b"&tags=x", "tags: the query takes only real_topic, "),
        (WHERE + b"&real_topic=x", "real_topic: it is there twice"),
        (WHERE + b"&delay=soon", 'delay: "soon" is not a duration'),
        (WHERE + b"&deliver_at=x", 'deliver_at: "x" is not an integer'),
    ],
)
def test_the_query_names_topic_and_group(query: bytes, told: str) -> None:
    found = taken({"Content-Type": "application/cloudevents+json"}, json.dumps(EVENT).encode(), query)
    assert isinstance(found, Problem)
    assert found.detail.startswith(told)


def test_a_token_of_one_group_names_it_and_a_delay_is_taken() -> None:
    kind = {"Content-Type": "application/cloudevents+json"}
    query = b"real_topic=payments&deliver_at=1795227065000"
    found = taken(kind, json.dumps(EVENT).encode(), query, frozenset({"orders"}))
    assert isinstance(found, Half)
    assert (found.producer_group, found.deliver_at) == ("orders", 1_795_227_065_000)


@pytest.mark.parametrize(
    ("headers", "told"),
    [
        ({"ce-datacontenttype": "text/plain"}, "datacontenttype: it is no header of binary mode"),
        ({"ce-my-ext": "x"}, "my-ext: an attribute's name"),
        ({"ce-subject": "%ff"}, "subject: not UTF-8, percent-encoded"),
        ({"ce-subject": "a%0d%0ab"}, "subject: it has a control character"),
        ({"ce-specversion": "2.0"}, 'specversion: "2.0" is not 1.0'),
    ],
)
def test_headers_that_do_not_fit(headers: dict[str, str], told: str) -> None:
    found = taken({f"ce-{name}": value for name, value in EVENT.items()} | headers, b"")
    assert isinstance(found, Problem)
    assert found.detail.startswith(told)


def test_quoted_and_encoded_header_values() -> None:
    headers = {f"ce-{name}": value for name, value in EVENT.items()} | {"ce-subject": r'"a \"b\" %C3%A4"'}
    found = taken(headers, b"")
    assert isinstance(found, Half)
    assert found.keys == 'a "b" ä'


@given(
    st.dictionaries(st.sampled_from([*EVENT, "subject", "time", "data", "data_base64", "ext"]), st.from_type(object)),
    st.binary(max_size=50),
)
def test_nothing_else_comes_of_any_json(members: dict[str, Any], garbage: bytes) -> None:
    """A half message or a 400, and no error."""
    plain = {name: value for name, value in members.items() if isinstance(value, str | int | float | None)}
    plain = {
        name: value for name, value in plain.items() if not (isinstance(value, float) and not math.isfinite(value))
    }
    for body in (json.dumps(EVENT | plain).encode(), garbage, json.dumps([plain]).encode()):
        for kind in ("application/cloudevents+json", "application/cloudevents-batch+json", "text/plain"):
            head = EventHead([(b"content-type", kind.encode())], WHERE, kind)
            found = halves_of_events(head, body, None, NOW, None)
            for one in found if isinstance(found, list) else [found]:
                assert isinstance(one, Half) or (isinstance(one, Problem) and one.status == 400)


@pytest.mark.processes
@pytest.mark.spine("events through a gateway")
def test_events_land_in_the_tables(tmp_path: Path) -> None:
    """In every mode, by the SDK; a batch is 200 only if all of it was taken; a retry is stored once."""
    with Gateway(tmp_path, TO_TABLE) as gateway:

        def post(path: str, message: HTTPMessage) -> Any:
            url = f"{gateway.url}{path}?{WHERE.decode()}"
            return gateway.session.post(url, data=message.body, headers=message.headers, timeout=30)

        def event(name: str) -> CloudEvent:
            return CloudEvent(attributes=FULL | {"id": name}, data={"amount": 42})

        assert post("/v1/message", to_binary_event(event("a"))).json()["queue_offset"] == 0
        assert post("/v1/half", to_structured_event(event("b"))).json()["queue_offset"] == 1
        assert post("/v1/half", to_structured_event(event("b"))).json()["queue_offset"] == 1
        batch = [json.loads(to_structured_event(event(name)).body) for name in "cd"]
        kind = {"Content-Type": "application/cloudevents-batch+json"}
        answer = post("/v1/message", HTTPMessage(kind, json.dumps(batch).encode()))
        assert [each["queue_offset"] for each in answer.json()["results"]] == [2, 3]
        wrong = [*batch, EVENT | {"type": ""}, "no object"]
        answer = post("/v1/message", HTTPMessage(kind, json.dumps(wrong).encode()))
        assert (answer.status_code, answer.json()["field"]) == (400, "type")
        assert [each["status"] for each in answer.json()["results"]] == [200, 200, 400, 400]
        assert post("/v1/message", HTTPMessage(kind, b"[]")).json() == {"results": []}
        assert post("/v1/message", HTTPMessage({"Content-Type": "application/cloudevents+xml"}, b"")).status_code == 415
        assert post("/v1/message", to_binary_event(CloudEvent(FULL | {"id": "a"}, None))).status_code == 409
        traced = to_binary_event(event("t"))
        trace = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
        assert post("/v1/message", HTTPMessage(traced.headers | trace, traced.body)).status_code == 200
        zipped = to_binary_event(event("z"))
        assert post("/v1/half", HTTPMessage(zipped.headers | {"Content-Encoding": "gzip"}, b"")).status_code == 415
    found = rows(tmp_path, "half")
    assert [(row["transaction_id"], row["committed"]) for row in found] == [
        ("a", True),
        ("b", None),
        ("c", True),
        ("d", True),
        ("t", True),
    ]
    assert dict(found[-1]["properties"])["traceparent"] == trace["traceparent"]
    assert all(json.loads(row["body"]) == {"amount": 42} for row in found)
