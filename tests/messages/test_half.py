"""The rules of a half message, case by case."""

from __future__ import annotations

import base64
import binascii
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkback.messages.delay import delay_of
from checkback.messages.half import CONSUMED, Half, parse_half
from checkback.messages.limits import BODY_MAX
from checkback.messages.names import SYSTEM_TOPICS
from support.message_lines import ABSENT, HALF, line, reason_of


def properties_of(size: int, **others: str) -> dict[str, str]:
    """Properties that RocketMQ encodes to so many bytes: name, separator, value, separator."""
    return others | {"p": "x" * (size - 3 - sum(len(name) + len(value) + 2 for name, value in others.items()))}


def test_half_has_every_field() -> None:
    assert parse_half(line(HALF)) == Half(
        3, 12, "7F000001", "orders", "orders_created", 1, "new", "o-1", {"region": "eu"}, b"hi", 1_700_000_000_000, 30
    )


ACCEPTED_HALVES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"tags": ABSENT, "keys": None, "properties": None}, {"tags": None, "keys": None, "properties": {}}),
    ({"properties": ABSENT}, {"properties": {}}),
    ({"queue_id": 2**31 - 1, "queue_offset": 2**63 - 1, "real_queue_id": 2**31 - 1}, {"queue_offset": 2**63 - 1}),
    ({"born_timestamp": 0}, {"born_timestamp": 0}),
    ({"born_timestamp": 253_402_300_799_999}, {"born_timestamp": 253_402_300_799_999}),
    ({"transaction_id": "\U0001f600" * 1024}, {"transaction_id": "\U0001f600" * 1024}),
    ({"producer_group": "g" * 120, "real_topic": "t" * 127}, {"real_topic": "t" * 127}),
    ({"real_topic": "rmq_sysadmin"}, {"real_topic": "rmq_sysadmin"}),
    *(
        ({"real_topic": topic}, {"real_topic": topic})
        for topic in ("delta_log", "a_", "-", "com", "com0", "com10", "nul-1")
    ),
    ({"producer_group": "_orders"}, {"producer_group": "_orders"}),
    ({"body": ""}, {"body": b""}),
    ({"body": base64.b64encode(bytes(BODY_MAX)).decode()}, {"body": bytes(BODY_MAX)}),
    ({"tags": None, "keys": None, "properties": properties_of(32768)}, {"properties": properties_of(32768)}),
    # TAGS and KEYS are properties too, here "TAGS\1new\2KEYS\1o-1\2".
    ({"properties": properties_of(32768 - 18)}, {"properties": properties_of(32768 - 18)}),
    ({"check_immunity": "0s"}, {"check_immunity_s": 0}),
    ({"check_immunity": "2m"}, {"check_immunity_s": 120}),
    ({"check_immunity": "5000ms"}, {"check_immunity_s": 5}),
    ({"check_immunity": None}, {"check_immunity_s": None}),
    ({"check_immunity": f"{2**31 - 1}s"}, {"check_immunity_s": 2**31 - 1}),
]


@pytest.mark.parametrize(("changes", "expected"), ACCEPTED_HALVES)
def test_half_is_taken(changes: dict[str, Any], expected: dict[str, Any]) -> None:
    parsed = parse_half(line(HALF, **changes))._asdict()
    assert {name: parsed[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10", 10),
        ("+10", 10),
        ("0", 0),
        ("-0", 0),
        ("0" * 5000 + "7", 7),
        ("0" * 30000, 0),
        ("0" * 30000 + "x", None),
        ("-" + "0" * 5000, 0),
        ("-" + "0" * 5000 + "1", None),
        ("0" * 9 + "9223372036854775808", None),
        ("4294967296", 2**31 - 1),
        ("9223372036854775807", 2**31 - 1),
        ("9223372036854775808", None),
        ("9" * 5000, None),
        ("-1", None),
        ("-5", None),
        ("", None),
        (" 10", None),
        ("10s", None),
        ("1e3", None),
        ("\u0661", None),
    ],
)
def test_immunity_property_is_read_as_rocketmq_reads_it(text: str, seconds: int | None) -> None:
    properties = {"CHECK_IMMUNITY_TIME_IN_SECONDS": text}
    assert parse_half(line(HALF, check_immunity=ABSENT, properties=properties)).check_immunity_s == seconds
    assert parse_half(line(HALF, check_immunity=None, properties=properties)).check_immunity_s == seconds
    assert parse_half(line(HALF, check_immunity="5s", properties=properties)).check_immunity_s == 5


@given(st.dictionaries(st.sampled_from([*sorted(CONSUMED), "region", "DELAYED", "delay"]), st.sampled_from("0135")))
def test_properties_for_checkback_are_not_kept(properties: dict[str, str]) -> None:
    """Their columns have what they say: a message that is forwarded with its properties has none of it again."""
    plain = {name: text for name, text in properties.items() if name not in CONSUMED}
    first = parse_half(line(HALF, check_immunity=ABSENT, properties=properties))
    assert first.properties == plain
    assert (first.delay_ms, first.deliver_at) == delay_of({}, properties)
    again = parse_half(line(HALF, check_immunity=ABSENT, properties=first.properties))
    assert again == parse_half(line(HALF, check_immunity=ABSENT, properties=plain))
    assert (again.delay_ms, again.deliver_at, again.check_immunity_s) == (None, None, None)


NO_QUEUE = {name: value for name, value in HALF.items() if name != "real_queue_id"}
KEYS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=255)


@given(KEYS, KEYS, KEYS)
def test_same_key_same_queue(key: str, first: str, second: str) -> None:
    """By the CRC-32 of its UTF-8, in the field or in RocketMQ's property, whatever the rest of the message is."""
    queue = binascii.crc32(key.encode()) % 64
    said: list[dict[str, Any]] = [
        {"ordering_key": key, "real_queue_id": None},
        {"properties": {"a": "b", "__SHARDINGKEY": key}},
        {"ordering_key": key, "properties": {"__SHARDINGKEY": "another"}},
    ]
    found = [parse_half(line(NO_QUEUE, transaction_id=name, **one)) for name in (first, second) for one in said]
    assert {half.real_queue_id for half in found} == {queue}
    assert {half.properties["__SHARDINGKEY"] for half in found} == {key}


@given(KEYS)
def test_message_without_key_goes_by_its_transaction_id(name: str) -> None:
    queue = binascii.crc32(name.encode()) % 64
    for more in ({}, {"ordering_key": None}, {"properties": {"__SHARDINGKEY": ""}}):
        assert parse_half(line(NO_QUEUE, transaction_id=name, **more)).real_queue_id == queue
    stated = parse_half(line(HALF, real_queue_id=70, properties={"__SHARDINGKEY": name}))
    assert (stated.real_queue_id, stated.properties) == (70, {"__SHARDINGKEY": name})


def test_messages_are_spread_over_the_queues() -> None:
    """Each two members of a group have work, whatever the ids are numbered by."""
    for ids in ([f"order-{n}" for n in range(640)], [f"{2**100 + n:032x}" for n in range(640)]):
        counts = Counter(parse_half(line(NO_QUEUE, transaction_id=name)).real_queue_id for name in ids)
        assert (len(counts), max(counts.values())) <= (64, 25)
        assert len(counts) == 64


REJECTED_HALVES: list[tuple[dict[str, Any], str]] = [
    *(
        ({name: ABSENT}, f"{name}: missing")
        for name in HALF
        if name not in ("tags", "keys", "properties", "check_immunity", "real_queue_id")
    ),
    ({"surprise": [1, {"a": None}]}, "surprise: no such field"),
    ({"tag": None}, "tag: no such field, did you mean tags?"),
    ({"key": "4711"}, "key: no such field, did you mean keys?"),
    ({"delay_s": 10}, "delay_s: no such field, did you mean delay?"),
    (
        {"producerGroup": "orders", "producer_group": ABSENT},
        "producerGroup: no such field, did you mean producer_group?",
    ),
    ({"t" * 41: 1}, "a field: no such field"),
    ({"queue_id": -1}, "queue_id: -1 is negative"),
    ({"queue_id": 2**31}, "queue_id: 2147483648 is over 2147483647"),
    ({"queue_id": True}, "queue_id: true is not an integer"),
    ({"queue_id": None}, "queue_id: null is not an integer"),
    ({"queue_id": [1]}, "queue_id: an array is not an integer"),
    ({"queue_offset": 1.0}, "queue_offset: 1.0 is not an integer"),
    ({"queue_offset": "12"}, 'queue_offset: "12" is not an integer'),
    ({"queue_offset": 2**63}, "queue_offset: 9223372036854775808 is over 9223372036854775807"),
    ({"queue_offset": 10**100}, "queue_offset: an integer is over 9223372036854775807"),
    ({"real_queue_id": -1}, "real_queue_id: -1 is negative"),
    ({"ordering_key": "k"}, "ordering_key: real_queue_id is there too, only one of them may be"),
    ({"ordering_key": "", "real_queue_id": ABSENT}, "ordering_key: empty"),
    ({"ordering_key": 7, "real_queue_id": ABSENT}, "ordering_key: an integer, not a string"),
    ({"ordering_key": "k" * 256, "real_queue_id": ABSENT}, "ordering_key: 256 characters, over 255"),
    (
        {"ordering_key": "k", "real_queue_id": ABSENT, "properties": properties_of(32768 - 18)},
        "properties: 32784 bytes with tags and keys, over 32 KiB",
    ),
    ({"transaction_id": ""}, "transaction_id: empty"),
    ({"transaction_id": 7}, "transaction_id: an integer, not a string"),
    ({"transaction_id": "x" * 1025}, "transaction_id: 1025 characters, over 1024"),
    ({"producer_group": ""}, "producer_group: empty"),
    ({"producer_group": "g" * 121}, "producer_group: 121 characters, over 120"),
    ({"producer_group": "a b"}, 'producer_group: "a b" has characters other than a-z, A-Z, 0-9, _ and -'),
    ({"producer_group": "grüße"}, 'producer_group: "gr\\u00fc\\u00dfe" has characters other than'),
    ({"producer_group": "orders\n"}, 'producer_group: "orders\\n" has characters other than'),
    ({"real_topic": "t" * 128}, "real_topic: 128 characters, over 127"),
    ({"real_topic": "%RETRY%orders"}, 'real_topic: "%RETRY%orders" has characters other than'),
    ({"real_topic": "../../etc"}, 'real_topic: "../../etc" has characters other than'),
    ({"real_topic": "é" * 100}, "real_topic: a string has characters other than"),
    *(({"real_topic": topic}, f'real_topic: "{topic}" is a system topic') for topic in sorted(SYSTEM_TOPICS)),
    *(
        ({"real_topic": topic}, f'real_topic: "{topic}" begins with _ or a dot, as what Delta and Spark keep')
        for topic in ("_delta_log", "_DELTA_LOG", "_change_data", "_checkpoints", "__", "_a")
    ),
    *(
        ({"real_topic": topic}, f'real_topic: "{topic}" is a device\'s name on Windows')
        for topic in ("con", "CON", "Prn", "aux", "nul", "com1", "LPT9")
    ),
    ({"real_topic": "RMQ_SYS_TRANS_HALF_TOPIC"}, 'real_topic: "RMQ_SYS_TRANS_HALF_TOPIC" is a system topic'),
    ({"real_topic": "rmq_sys_x"}, 'real_topic: "rmq_sys_x" is a system topic'),
    ({"tags": 1}, "tags: an integer, not a string"),
    ({"keys": ["a"]}, "keys: an array, not a string"),
    ({"properties": "a=b"}, "properties: a string, not an object"),
    ({"properties": {"a": 1}}, "properties: a is an integer, not a string"),
    ({"properties": {"a b": None}}, "properties: one value is null, not a string"),
    (
        {"properties": properties_of(32769), "tags": None, "keys": None},
        "properties: 32769 bytes with tags and keys, over 32 KiB",
    ),
    ({"properties": properties_of(32768 - 17)}, "properties: 32769 bytes with tags and keys, over 32 KiB"),
    ({"properties": {"ü" * 10: "ü" * 20000}}, "properties: 40040 bytes with tags and keys, over 32 KiB"),
    ({"body": None}, "body: null, not a string"),
    ({"body": "aGk"}, "body: not base64: 3 characters are no multiple of 4"),
    ({"body": "aG k"}, "body: not base64"),
    ({"body": "aGk=aGk="}, "body: not base64"),
    ({"body": "===="}, "body: not base64"),
    ({"body": "aG\n="}, "body: not base64"),
    ({"body": "äöüß"}, "body: not base64"),
    ({"body": "a-_="}, "body: not base64"),
    ({"body": base64.b64encode(bytes(BODY_MAX + 1)).decode()}, "body: 4194305 bytes, over 4 MiB"),
    ({"body": "!" * (12 * 1024 * 1024)}, "body: 9437184 bytes, over 4 MiB"),
    ({"born_timestamp": -1}, "born_timestamp: -1 is negative"),
    ({"born_timestamp": 253_402_300_800_000}, "born_timestamp: 253402300800000 is over 253402300799999"),
    ({"born_timestamp": "2026-01-01"}, 'born_timestamp: "2026-01-01" is not an integer'),
    ({"delay": 1.5}, "delay: 1.5 is not a duration such as 500ms, 30s"),
    ({"delay": True}, "delay: true is not a duration such as 500ms, 30s"),
    ({"delay": ["1s"]}, "delay: an array is not a duration such as 500ms, 30s"),
    ({"delay": 30000}, "delay: 30000 is not a duration such as 500ms, 30s"),
    ({"delay": "30000"}, 'delay: "30000" is not a duration such as 500ms, 30s'),
    ({"delay": "-1s"}, 'delay: "-1s" is not a duration such as 500ms, 30s'),
    ({"delay": "soon" * 100_000}, "delay: a string is not a duration such as 500ms, 30s"),
    ({"delay": "1s\n"}, "delay: '1s\\n' is not a duration"),
    ({"delay": "36501d"}, "delay: '36501d' is longer than 36500d"),
    ({"delay_level": "3"}, 'delay_level: "3" is not an integer'),
    ({"deliver_at": -1}, "deliver_at: -1 is negative"),
    ({"deliver_at": 253_402_300_800_000}, "deliver_at: 253402300800000 is over 253402300799999"),
    ({"committed": 1}, "committed: 1 is not a boolean"),
    ({"check_immunity": f"{2**31}s"}, 'check_immunity: "2147483648s" is over 2147483647s'),
    ({"check_immunity": "36501d"}, "check_immunity: '36501d' is longer than 36500d"),
    ({"check_immunity": "1500ms"}, 'check_immunity: "1500ms" is not a whole number of seconds'),
    ({"check_immunity": "1.5s"}, 'check_immunity: "1.5s" is not a duration such as 500ms, 30s'),
    ({"check_immunity": "30"}, 'check_immunity: "30" is not a duration such as 500ms, 30s'),
    ({"check_immunity": 30}, "check_immunity: 30 is not a duration such as 500ms, 30s"),
    ({"check_immunity": False}, "check_immunity: false is not a duration such as 500ms, 30s"),
    ({"check_immunity_s": 30}, "check_immunity_s: no such field, did you mean check_immunity?"),
    ({"transaction_id": "\ud83d"}, "transaction_id: half of a surrogate pair is no text"),
    ({"properties": {"a": "\udc00"}}, "properties: half of a surrogate pair is no text"),
    ({"properties": {"\udc00": "a"}}, "properties: half of a surrogate pair is no text"),
    ({"surprise": ["\ud800"]}, "surprise: half of a surrogate pair is no text"),
    ({"\ud800": 1}, "a field: half of a surrogate pair is no text"),
]


@pytest.mark.parametrize(("changes", "reason"), REJECTED_HALVES, ids=[reason[:60] for _, reason in REJECTED_HALVES])
def test_half_is_rejected(changes: dict[str, Any], reason: str) -> None:
    assert reason_of(parse_half, line(HALF, **changes)).startswith(reason)
