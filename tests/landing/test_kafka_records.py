"""A record is read like a line, its queue and offset are Kafka's, and what it says of them must agree."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkback.landing.kafka_records import read_half, read_ops, readers
from checkback.messages.fields import MessageRejectedError
from checkback.messages.half import parse_half
from checkback.messages.limits import INT_MAX, LINE_MAX, LONG_MAX
from checkback.messages.op import parse_ops
from landing.broker import changed
from landing.fixtures import half, op

QUEUE_IDS = st.integers(0, INT_MAX)
OFFSETS = st.integers(0, LONG_MAX)
UNPLACED = changed(half(0), leave=("queue_id", "queue_offset")).encode()
UNNAMED = changed(op(0), leave=("queue_id", "queue_offset"))
AT = 1_600_000_000_123


@given(base=QUEUE_IDS, partition=st.integers(0, INT_MAX), offset=OFFSETS, stated=st.booleans())
def test_half_lies_where_kafka_put_it(base: int, partition: int, offset: int, stated: bool) -> None:
    queue_id = base + partition
    value = changed(half(offset), queue_id=queue_id).encode() if stated else UNPLACED
    if queue_id > INT_MAX:
        with pytest.raises(MessageRejectedError, match="queue_id: "):
            read_half(base, value, partition, offset, AT)
        return
    (message,) = read_half(base, value, partition, offset, AT)
    assert (message.queue_id, message.queue_offset) == (queue_id, offset)
    # All else is as in a line of a file.
    line = changed(value.decode(), queue_id=queue_id, queue_offset=offset)
    assert message == parse_half(line.encode())


def test_a_record_may_have_a_delay_and_no_transaction() -> None:
    """As a line may: fields, or RocketMQ's properties."""
    for more, delay_ms, committed in (
        ({"delay_level": 3, "committed": True}, 10_000, True),
        ({"delay": "1m"}, 60_000, None),
        ({"properties": {"DELAY": "1"}}, 1_000, None),
    ):
        (message,) = read_half(7, changed(UNPLACED.decode(), **more).encode(), 1, 3, AT)
        assert (message.delay_ms, message.committed) == (delay_ms, committed)
    with pytest.raises(MessageRejectedError, match="delay: "):
        read_half(7, changed(UNPLACED.decode(), delay="soon").encode(), 1, 3, AT)


@given(
    name=st.sampled_from(["queue_id", "queue_offset"]), stated=st.one_of(st.booleans(), st.floats(), st.text(), OFFSETS)
)
def test_half_that_says_another_place_is_rejected(name: str, stated: object) -> None:
    place: dict[str, Any] = {name: stated}
    value = changed(UNPLACED.decode(), **place)
    if type(stated) is int and stated == {"queue_id": 8, "queue_offset": 3}[name]:
        assert read_half(7, value.encode(), 1, 3, AT)
        return
    with pytest.raises(MessageRejectedError, match=f"{name}: is not the record's, |not JSON"):
        read_half(7, value.encode(), 1, 3, AT)


@given(base=st.integers(0, 1000), partition=st.integers(0, 1000), offset=OFFSETS)
def test_op_may_name_its_half_as_kafka_or_as_the_table_does(base: int, partition: int, offset: int) -> None:
    expected = parse_ops(changed(UNNAMED, queue_id=base + partition, queue_offset=offset).encode())
    for names in (
        {"partition": partition, "offset": offset},
        {"queue_id": base + partition, "queue_offset": offset},
        {"partition": partition, "queue_offset": offset},
        {"partition": partition, "offset": offset, "half_offset": offset},
        {"queue_id": base + partition, "offset": offset},
        {"partition": partition, "offset": offset, "queue_id": base + partition, "queue_offset": offset},
        {"partition": partition, "queue_offsets": f"{offset}"},
    ):
        # Where the op itself lies is of no account.
        assert read_ops(base, changed(UNNAMED, **names).encode(), 9, 9, AT) == expected


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        ({"partition": 1, "offset": 2, "queue_id": 1}, "queue_id: is not that of the partition, 6"),
        ({"partition": 1, "offset": 2, "queue_offset": 3}, "queue_offset: is not the offset, 2"),
        ({"partition": 1, "offset": 2, "half_offset": 3}, "queue_offset: is not the offset, 2"),
        ({"partition": True, "offset": 2}, "partition: not an integer from 0 on"),
        ({"partition": 1, "offset": -1}, "offset: not an integer from 0 on"),
        ({"partition": INT_MAX, "offset": 1}, f"queue_id: 5 + partition {INT_MAX} is over {INT_MAX}"),
        ({"partition": 1, "offset": LONG_MAX + 1}, f"queue_offset: {LONG_MAX + 1} is over {LONG_MAX}"),
        ({"partition": 1}, "queue_offset: missing"),
        ({"offset": 1}, "queue_id: missing"),
        (
            {"partition": 1, "offset": 1, "queue_offsets": "1,"},
            "queue_offsets: queue_offset is there too, only one of them may be",
        ),
    ],
)
def test_op_that_names_no_half_is_rejected(names: dict[str, Any], reason: str) -> None:
    with pytest.raises(MessageRejectedError) as caught:
        read_ops(5, changed(UNNAMED, **names).encode(), 0, 0, AT)
    assert caught.value.reason == reason


def test_birth_is_the_messages_own_else_the_records() -> None:
    assert read_half(0, UNPLACED, 0, 0, AT)[0].born_timestamp == 1_700_000_000_000
    births: list[dict[str, Any]] = [{"leave": ("born_timestamp",)}, {"born_timestamp": None}]
    for given_birth in births:
        value = changed(UNPLACED.decode(), **given_birth).encode()
        assert read_half(0, value, 0, 0, AT)[0].born_timestamp == AT
    line = changed(op(0), leave=("born_timestamp",)).encode()
    assert read_ops(0, line, 0, 0, AT)[0].born_timestamp == AT
    with pytest.raises(
        MessageRejectedError, match="born_timestamp: -1 is negative"
    ):  # a record of Kafka may have no timestamp
        read_ops(0, line, 0, 0, -1)


@pytest.mark.parametrize("value", [None, b"", b" \n", b"\xff", b"[]", b"x" * (LINE_MAX + 1)])
def test_every_record_that_is_no_message_is_rejected(value: bytes | None) -> None:
    for reader in readers(0).values():
        with pytest.raises(MessageRejectedError):
            reader.read(value, 0, 0, AT)


@given(st.integers(0, 2**32 - 1), st.binary(max_size=20))
def test_schema_registry_header_is_named(number: int, rest: bytes) -> None:
    """Of Avro and Protobuf: JSON comes without its header (`kafka_query.records`)."""
    for reader in readers(0).values():
        with pytest.raises(
            MessageRejectedError, match=rf"\(schema id {number}\) and no JSON object behind it: Avro or Protobuf"
        ):
            reader.read(b"\0" + number.to_bytes(4, "big") + rest, 0, 0, AT)


def test_readers_reach_the_workers_with_their_base() -> None:
    for kind, reader in readers(5).items():
        sent = pickle.loads(pickle.dumps(reader))  # noqa: S301 - our own
        line = json.dumps(json.loads(UNPLACED if kind == "half" else changed(UNNAMED, partition=1, offset=1)))
        assert sent.read(line.encode(), 1, 1, AT)[0].queue_id == 6
