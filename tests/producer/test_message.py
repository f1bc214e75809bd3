"""The JSON of messages: whatever is not validated by parsing would pass, and says what the message says."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from checkback.messages.fields import MessageRejectedError
from checkback.messages.half import CONSUMED, parse_half, real_queue_of
from checkback.messages.limits import BODY_MAX
from checkback.producer.message import Message, half_json

TEXT = st.text(max_size=20) | st.sampled_from(["\ud800", "a" * 20_000, "\x01", "ü" * 9000])
VALUE: st.SearchStrategy[Any] = st.none() | st.booleans() | st.integers(-(2**33), 2**33) | TEXT
TOPIC = st.sampled_from(["payments", "t-1_x", "no topic", "_hidden", "con", "RMQ_SYS_TRANS_HALF_TOPIC", "", "x" * 128])
SPAN = st.timedeltas(timedelta(days=-1), timedelta(days=10)) | st.timedeltas() | st.just(timedelta(seconds=30))
MESSAGES: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {"topic": TOPIC | VALUE, "body": st.binary(max_size=40)},
    optional={
        "tags": VALUE,
        "keys": VALUE,
        "properties": st.dictionaries(
            TEXT | st.sampled_from(["DELAY", "TIMER_DELAY_MS", "CHECK_IMMUNITY_TIME_IN_SECONDS", "__SHARDINGKEY"]),
            TEXT | st.just("3"),
            max_size=3,
        ),
        "check_immunity": VALUE | SPAN,
        "real_queue_id": VALUE,
        "ordering_key": st.none() | VALUE | st.just("k"),
        "delay_level": st.none() | st.integers(-1, 20),
        "delay": st.none() | SPAN,
        "deliver_at": st.none() | st.datetimes() | st.just(datetime(2026, 1, 1, tzinfo=timezone.utc)),
    },
)


class NoZone(tzinfo):
    """A time zone that knows no offset."""

    def utcoffset(self, _: datetime | None, /) -> None:
        return None

    def dst(self, _: datetime | None, /) -> None:
        return None

    def tzname(self, _: datetime | None, /) -> None:
        return None


@given(MESSAGES, TEXT)
@example({"topic": "payments", "body": b"x" * (BODY_MAX + 1)}, "t")
@example({"topic": "payments", "body": b"", "properties": {"p": "x" * 16_400}, "keys": "x" * 16_400}, "t")
def test_message_is_rejected_or_its_json_says_the_same(fields: dict[str, Any], transaction_id: str) -> None:
    message = Message(**fields)
    try:
        sent = half_json("orders", message, transaction_id, 5)
    except MessageRejectedError:
        return
    half = parse_half(json.dumps({**json.loads(sent), "queue_id": 0, "queue_offset": 0}).encode())
    assert (half.transaction_id, half.producer_group, half.born_timestamp) == (transaction_id, "orders", 5)
    assert (half.real_topic, half.tags, half.keys) == (message.topic, message.tags, message.keys)
    kept = {name: text for name, text in message.properties.items() if name not in CONSUMED}
    if message.ordering_key is not None:
        kept["__SHARDINGKEY"] = message.ordering_key
    queue = real_queue_of(kept.get("__SHARDINGKEY") or transaction_id)
    queue = queue if message.real_queue_id is None else message.real_queue_id
    assert (half.body, half.properties, half.real_queue_id) == (message.body, kept, queue)
    if message.check_immunity is not None:
        assert half.check_immunity_s == message.check_immunity.total_seconds()


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"body": "text"}, "body: is str, not bytes"),
        ({"body": None}, "body: is NoneType, not bytes"),
        ({"delay": 5}, "delay: is int, not timedelta"),
        ({"deliver_at": 1795227064579}, "deliver_at: is int, not datetime"),
        ({"delay": timedelta.max}, "delay: '86400000000000000ms' is longer than 36500d"),
        ({"delay": timedelta.min}, "delay: negative"),
        (
            {"deliver_at": datetime.max.replace(tzinfo=timezone(-timedelta(hours=23)))},
            "deliver_at: 253402383600000 is over 253402300799999",
        ),
        (
            {"deliver_at": datetime.min.replace(tzinfo=timezone(timedelta(hours=23)))},
            "deliver_at: -62135679600000 is negative",
        ),
        ({"deliver_at": datetime(2026, 1, 1)}, "deliver_at: without a time zone"),  # noqa: DTZ001
        ({"deliver_at": datetime(2026, 1, 1, tzinfo=NoZone())}, "deliver_at: without a time zone"),
        ({"check_immunity": timedelta(seconds=2**31)}, 'check_immunity: "2147483648s" is over 2147483647s'),
        ({"check_immunity": timedelta(milliseconds=1500)}, 'check_immunity: "1500ms" is not a whole number of seconds'),
        ({"check_immunity": timedelta(seconds=-1)}, "check_immunity: negative"),
        ({"check_immunity": 30}, "check_immunity: is int, not timedelta"),
        ({"check_immunity": float("nan")}, "check_immunity: is float, not timedelta"),
        ({"real_queue_id": float("inf")}, "real_queue_id: is float, not int"),
        ({"real_queue_id": -(10**5000)}, f"real_queue_id: over {2**63 - 1}"),
        ({"delay_level": 10**5000}, f"delay_level: over {2**63 - 1}"),
        ({"tags": b"created"}, "tags: is bytes, not str"),
        ({"ordering_key": 7}, "ordering_key: is int, not str"),
        ({"properties": {"region": b"eu"}}, "properties: is bytes, not str"),
        ({"properties": {7: "eu"}}, "properties: is int, not str"),
        ({"properties": None}, "properties: is NoneType, not dict"),
        ({"properties": [("region", "eu")]}, "properties: is list, not dict"),
        ({"body": memoryview(b"abcd")[::2]}, "body: is a memoryview of bytes that are not side by side"),
        ({"transaction_id": 0}, "transaction_id: is int, not str"),  # not taken for none, and generated
    ],
)
def test_values_of_another_type_are_rejected(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(MessageRejectedError, match=told):
        half_json("orders", Message(**{"topic": "payments", "body": b"", **fields}), "t", 5)


def test_a_body_may_be_any_bytes() -> None:
    for body in (bytearray(b"x"), memoryview(b"x")):
        assert json.loads(half_json("orders", Message("payments", body), "t", 5))["body"] == "eA=="  # type: ignore[arg-type]
