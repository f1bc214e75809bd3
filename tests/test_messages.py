"""The rules of a half message and an op, case by case, and what no input may break."""

from __future__ import annotations

import base64
import json
import pickle
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkback.messages import (
    BODY_MAX,
    LINE_MAX,
    OFFSETS_MAX,
    SYSTEM_TOPICS,
    Half,
    Op,
    Rejected,
    is_blank,
    parse_half,
    parse_ops,
)

if TYPE_CHECKING:
    from collections.abc import Callable

HALF: dict[str, Any] = {
    "queue_id": 3,
    "queue_offset": 12,
    "transaction_id": "7F000001",
    "producer_group": "orders",
    "real_topic": "orders_created",
    "real_queue_id": 1,
    "tags": "new",
    "keys": "o-1",
    "properties": {"region": "eu"},
    "body": "aGk=",
    "born_timestamp": 1_700_000_000_000,
    "check_immunity_s": 30,
}
OP: dict[str, Any] = {
    "queue_id": 3,
    "half_offset": 12,
    "transaction_id": "7F000001",
    "producer_group": "orders",
    "state": "COMMIT",
    "born_timestamp": 1_700_000_000_000,
}
BATCHED = {name: value for name, value in OP.items() if name not in ("half_offset", "transaction_id")}
ABSENT = object()


def line(message: dict[str, Any], **changes: Any) -> bytes:
    fields = {name: value for name, value in (message | changes).items() if value is not ABSENT}
    return json.dumps(fields).encode()


def reason_of(parse: Any, text: bytes) -> str:
    with pytest.raises(Rejected) as caught:
        parse(text)
    return caught.value.reason


def properties_of(size: int, **others: str) -> dict[str, str]:
    """Properties that RocketMQ encodes to so many bytes: name, separator, value, separator."""
    return others | {"p": "x" * (size - 3 - sum(len(name) + len(value) + 2 for name, value in others.items()))}


def test_half_has_every_field() -> None:
    assert parse_half(line(HALF)) == Half(
        3, 12, "7F000001", "orders", "orders_created", 1, "new", "o-1", {"region": "eu"}, b"hi", 1_700_000_000_000, 30
    )


def test_op_has_every_field() -> None:
    assert parse_ops(line(OP)) == [Op(3, 12, "7F000001", "orders", "COMMIT", 1_700_000_000_000)]


ACCEPTED_HALVES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"tags": ABSENT, "keys": None, "properties": None}, {"tags": None, "keys": None, "properties": {}}),
    ({"properties": ABSENT}, {"properties": {}}),
    ({"surprise": [1, {"a": None}]}, {}),
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
    ({"check_immunity_s": 0}, {"check_immunity_s": 0}),
    ({"check_immunity_s": -7}, {"check_immunity_s": None}),
    ({"check_immunity_s": 2**31 - 1}, {"check_immunity_s": 2**31 - 1}),
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
    assert parse_half(line(HALF, check_immunity_s=ABSENT, properties=properties)).check_immunity_s == seconds
    assert parse_half(line(HALF, check_immunity_s=None, properties=properties)).check_immunity_s == seconds
    assert parse_half(line(HALF, check_immunity_s=5, properties=properties)).check_immunity_s == 5


REJECTED_HALVES: list[tuple[dict[str, Any], str]] = [
    *(
        ({name: ABSENT}, f"{name}: missing")
        for name in HALF
        if name not in ("tags", "keys", "properties", "check_immunity_s")
    ),
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
    ({"check_immunity_s": 2**31}, "check_immunity_s: 2147483648 is over 2147483647"),
    ({"check_immunity_s": 1.5}, "check_immunity_s: 1.5 is not an integer"),
    ({"check_immunity_s": False}, "check_immunity_s: false is not an integer"),
    ({"check_immunity_s": "30"}, 'check_immunity_s: "30" is not an integer'),
    ({"transaction_id": "\ud83d"}, "transaction_id: half of a surrogate pair is no text"),
    ({"properties": {"a": "\udc00"}}, "properties: half of a surrogate pair is no text"),
    ({"properties": {"\udc00": "a"}}, "properties: half of a surrogate pair is no text"),
    ({"surprise": ["\ud800"]}, "surprise: half of a surrogate pair is no text"),
    ({"\ud800": 1}, "a field: half of a surrogate pair is no text"),
]


@pytest.mark.parametrize(("changes", "reason"), REJECTED_HALVES, ids=[reason[:60] for _, reason in REJECTED_HALVES])
def test_half_is_rejected(changes: dict[str, Any], reason: str) -> None:
    assert reason_of(parse_half, line(HALF, **changes)).startswith(reason)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "not JSON: Expecting value at character 0"),
        (b"{", "not JSON: Expecting property name enclosed in double quotes at character 1"),
        (b"\x1f\x8b\x08\x00", "not JSON: byte 1 is not UTF-8"),
        (line(HALF).decode().encode("utf-16"), "not JSON: byte 0 is not UTF-8"),
        (line(HALF).decode().encode("utf-16-le"), "not JSON: "),
        (line(HALF) + line(HALF), "not JSON: Extra data at character "),
        (b"[" + line(HALF) + b"]", "not a JSON object: an array"),
        (b"null", "not a JSON object: null"),
        (b'"half"', "not a JSON object: a string"),
        (b'{"queue_id": NaN}', "not JSON: NaN is no JSON number"),
        (b'{"surprise": -Infinity}', "not JSON: -Infinity is no JSON number"),
        (b'{"queue_id": ' + b"9" * 5000 + b"}", "not JSON: a number has too many digits"),
        (b'{"surprise": ' + b"[" * 200_000, "not JSON: nested too deeply"),
        (b'{"surprise": "' + b"x" * LINE_MAX, "line: over 16 MiB"),
    ],
    ids=lambda case: case if isinstance(case, str) else "",
)
def test_line_is_no_json_object(text: bytes, reason: str) -> None:
    assert reason_of(parse_half, text).startswith(reason)
    assert reason_of(parse_ops, text).startswith(reason)


@pytest.mark.parametrize("around", [b"\xef\xbb\xbf%s", b"%s\r", b"\xef\xbb\xbf \t%s \r"])
def test_byte_order_mark_and_line_ends_are_tolerated(around: bytes) -> None:
    assert parse_half(around % line(HALF)) == parse_half(line(HALF))


@pytest.mark.parametrize("text", [b"", b" ", b"\r", b"\t \r", b"\xef\xbb\xbf", b"\xef\xbb\xbf\r"])
def test_blank_lines(text: bytes) -> None:
    assert is_blank(text)
    assert not is_blank(text + b"x")


@pytest.mark.parametrize(
    ("changes", "offsets"),
    [
        ({"half_offsets": "12,13,"}, [12, 13]),
        ({"half_offsets": "12"}, [12]),
        ({"half_offsets": "0,9223372036854775807"}, [0, 2**63 - 1]),
        ({"half_offsets": ",".join(map(str, range(OFFSETS_MAX)))}, list(range(OFFSETS_MAX))),
        ({"half_offsets": "3,12,03,12,1,"}, [3, 12, 1]),
        ({"half_offsets": "1," * OFFSETS_MAX}, [1]),
    ],
    ids=["two", "one", "limits", "many", "repeats", "one so often"],
)
def test_batched_op_is_one_op_an_offset(changes: dict[str, Any], offsets: list[int]) -> None:
    assert parse_ops(line(BATCHED, **changes)) == [
        Op(3, offset, None, "orders", "COMMIT", 1_700_000_000_000) for offset in offsets
    ]


def test_batched_op_may_state_its_transaction() -> None:
    assert [op.transaction_id for op in parse_ops(line(BATCHED, half_offsets="1,2", transaction_id="T"))] == ["T", "T"]
    assert [op.transaction_id for op in parse_ops(line(BATCHED, half_offsets="1", transaction_id=None))] == [None]


REJECTED_OPS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    *((OP, {name: ABSENT}, f"{name}: missing") for name in OP),
    (OP, {"state": "UNKNOWN"}, 'state: unknown state "UNKNOWN", neither COMMIT nor ROLLBACK'),
    (OP, {"state": "commit"}, 'state: unknown state "commit"'),
    (OP, {"state": None}, "state: unknown state null"),
    (OP, {"state": ["COMMIT"]}, "state: unknown state an array"),
    (OP, {"half_offset": -1}, "half_offset: -1 is negative"),
    (OP, {"half_offset": False}, "half_offset: false is not an integer"),
    (OP, {"transaction_id": None}, "transaction_id: null, not a string"),
    (OP, {"half_offsets": "12,"}, "half_offsets: half_offset is there too, only one of them may be"),
    (OP, {"half_offsets": None}, "half_offsets: half_offset is there too"),
    (BATCHED, {"half_offsets": ""}, 'half_offsets: "" is no list of offsets like 12,13,'),
    (BATCHED, {"half_offsets": ","}, 'half_offsets: "," is no list'),
    (BATCHED, {"half_offsets": "12,,13"}, 'half_offsets: "12,,13" is no list'),
    (BATCHED, {"half_offsets": ",12"}, 'half_offsets: ",12" is no list'),
    (BATCHED, {"half_offsets": "12, 13"}, 'half_offsets: "12, 13" is no list'),
    (BATCHED, {"half_offsets": "12,x"}, 'half_offsets: "12,x" is no list'),
    (BATCHED, {"half_offsets": "12,\u0661"}, 'half_offsets: "12,\\u0661" is no list'),
    (BATCHED, {"half_offsets": "12\n"}, 'half_offsets: "12\\n" is no list'),
    (BATCHED, {"half_offsets": "-1"}, 'half_offsets: "-1" is no list'),
    (
        BATCHED,
        {"half_offsets": "1,9223372036854775808"},
        "half_offsets: 9223372036854775808 is over 9223372036854775807",
    ),
    (BATCHED, {"half_offsets": "1," * (OFFSETS_MAX + 1)}, "half_offsets: more than 10000 offsets"),
    (BATCHED, {"half_offsets": "1," * OFFSETS_MAX + "1"}, "half_offsets: more than 10000 offsets"),
    (BATCHED, {"half_offsets": "1," * 99 + "x"}, "half_offsets: a string is no list"),
    (BATCHED, {"half_offsets": [12, 13]}, "half_offsets: an array, not a string"),
    (BATCHED, {"half_offsets": None}, "half_offsets: null, not a string"),
    (BATCHED, {"half_offsets": "12", "producer_group": ABSENT}, "producer_group: missing"),
    (BATCHED, {"half_offsets": "12", "transaction_id": ""}, "transaction_id: empty"),
    (BATCHED, {"half_offsets": "12", "transaction_id": 1}, "transaction_id: an integer, not a string"),
]


@pytest.mark.parametrize(
    ("message", "changes", "reason"), REJECTED_OPS, ids=[reason[:60] for _, _, reason in REJECTED_OPS]
)
def test_op_is_rejected(message: dict[str, Any], changes: dict[str, Any], reason: str) -> None:
    assert reason_of(parse_ops, line(message, **changes)).startswith(reason)


def test_rejection_survives_pickling() -> None:
    assert pickle.loads(pickle.dumps(Rejected("body: missing"))).reason == "body: missing"  # noqa: S301 - our own


NAMES = st.from_regex(r"[a-zA-Z0-9_-]{1,100}", fullmatch=True).map(lambda name: "x" + name)
TEXTS = st.text(max_size=200)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters())
    | st.sampled_from(["COMMIT", "12,"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
HALVES = st.builds(
    Half,
    queue_id=st.integers(0, 2**31 - 1),
    queue_offset=st.integers(0, 2**63 - 1),
    transaction_id=st.text(min_size=1, max_size=1024),
    producer_group=NAMES,
    real_topic=NAMES,
    real_queue_id=st.integers(0, 2**31 - 1),
    tags=st.none() | TEXTS,
    keys=st.none() | TEXTS,
    properties=st.dictionaries(TEXTS, TEXTS, max_size=5),
    body=st.binary(max_size=1000),
    born_timestamp=st.integers(0, 253_402_300_799_999),
    check_immunity_s=st.integers(0, 2**31 - 1),
)


@given(half=HALVES, ascii_only=st.booleans())
def test_valid_half_survives_json_byte_for_byte(half: Half, ascii_only: bool) -> None:
    fields = half._asdict() | {"body": base64.b64encode(half.body).decode()}
    assert parse_half(json.dumps(fields, ensure_ascii=ascii_only).encode()) == half


def rejection(parse: Callable[[bytes], object], text: bytes) -> str | None:
    try:
        parse(text)
    except Rejected as error:
        return error.reason
    return None


def parse_both(text: bytes) -> None:
    """Anything but a message or Rejected is an error of the test."""
    for parse in (parse_half, parse_ops):
        reason = rejection(parse, text)
        if reason is not None:
            assert reason.isprintable()
            assert 0 < len(reason) < 200


@given(text=st.binary() | st.text(max_size=300).map(str.encode))
def test_no_bytes_break_the_parsers(text: bytes) -> None:
    parse_both(text)


@given(cut=st.integers(0, 300), put=st.binary(max_size=6), skip=st.integers(0, 6), message=st.sampled_from([HALF, OP]))
def test_no_damage_to_a_message_breaks_the_parsers(cut: int, put: bytes, skip: int, message: dict[str, Any]) -> None:
    whole = line(message)
    parse_both(whole[:cut] + put + whole[cut + skip :])


@given(
    name=st.sampled_from([*HALF, *OP, "half_offsets", "surprise"]),
    value=JSON,
    message=st.sampled_from([HALF, OP, BATCHED]),
)
def test_no_json_breaks_the_parsers(name: str, value: Any, message: dict[str, Any]) -> None:
    parse_both(line(message, **{name: value}))
    parse_both(json.dumps(value).encode())


@given(name=st.sampled_from([*HALF, *OP]), value=JSON, damaged=st.booleans())
def test_reasons_never_show_body_or_properties(name: str, value: Any, damaged: bool) -> None:
    secret = "c2VjcmV0"
    message = HALF | {"properties": {"a": secret, "b": secret}, "body": secret}
    text = line(message if name in ("body", "properties") else message | {name: value})
    reason = rejection(parse_half, text.replace(b'"tags"', b"tags") if damaged else text)
    assert secret not in (reason or "")
