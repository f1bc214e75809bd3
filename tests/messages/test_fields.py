"""Lines with messages: what is no JSON object, and what no input may break."""

from __future__ import annotations

import base64
import json
import pickle
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkback.messages.fields import MessageRejectedError, is_blank
from checkback.messages.half import Half, parse_half
from checkback.messages.limits import LINE_MAX
from checkback.messages.op import parse_ops
from support.message_lines import BATCHED, HALF, OP, line, reason_of

if TYPE_CHECKING:
    from collections.abc import Callable


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


def test_rejection_survives_pickling() -> None:
    error = MessageRejectedError("body: missing")
    assert pickle.loads(pickle.dumps(error)).reason == "body: missing"  # noqa: S301 - our own


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
    delay_ms=st.none(),
    deliver_at=st.none() | st.integers(0, 253_402_300_799_999),
    committed=st.sampled_from([None, True]),
)


@given(half=HALVES, ascii_only=st.booleans())
def test_valid_half_survives_json_byte_for_byte(half: Half, ascii_only: bool) -> None:
    fields = half._asdict() | {"body": base64.b64encode(half.body).decode()}
    fields["check_immunity"] = f"{fields.pop('check_immunity_s')}s"
    del fields["delay_ms"]  # not a field of a line
    assert parse_half(json.dumps(fields, ensure_ascii=ascii_only).encode()) == half


def rejection(parse: Callable[[bytes], object], text: bytes) -> str | None:
    try:
        parse(text)
    except MessageRejectedError as error:
        return error.reason
    return None


def parse_both(text: bytes) -> None:
    """Anything but a message or MessageRejectedError is an error of the test."""
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
    name=st.sampled_from([*HALF, *OP, "queue_offsets", "surprise"]),
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
