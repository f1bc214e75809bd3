"""Messages of SendMessage: what they become, and with which codes a RocketMQ server refuses them.

The codes were recorded from RocketMQ 5.3.3 with a bare stub.
"""

from __future__ import annotations

import gzip
import zlib
from typing import Any

import pytest

from checkback.gateway.rocketmq.codes import GZIP, Code, MessageType
from checkback.gateway.rocketmq.interface import message
from checkback.gateway.rocketmq.messages import MESSAGE_ID_MAX, RefusedError, halves_of, topic_groups
from checkback.messages.half import CLIENT_ID, Half
from gateway.rocketmq.calls import at, msg

NOW = 1_800_000_000_000
MIB4 = 4 << 20


def sent(*messages: Any) -> list[Half]:
    return halves_of(messages, "one", topic_groups({"payments": "accounts"}), NOW)


def test_all_that_a_transactional_message_says() -> None:
    (half,) = sent(
        msg(
            "payments",
            b"\0\xff",
            MessageType.TRANSACTION,
            message_id="01AB",
            tag="paid",
            keys=["k1", "", "k 2"],
            properties={"ключ": "🙂", "empty": ""},
            born_timestamp=at(NOW - 5),
            message_group="account-1",
            orphaned_transaction_recovery_duration=at(15_000),
        )
    )
    assert half == Half(
        queue_id=-1,
        queue_offset=-1,
        transaction_id="01AB",
        producer_group="accounts",
        real_topic="payments",
        real_queue_id=half.real_queue_id,
        tags="paid",
        keys="k1 k 2",
        properties={"ключ": "🙂", "empty": "", "__SHARDINGKEY": "account-1", CLIENT_ID: "one"},
        body=b"\0\xff",
        born_timestamp=NOW - 5,
        check_immunity_s=15,
        committed=None,
    )


def test_message_without_a_transaction() -> None:
    """Its group is its topic's name, and it is born now if it does not say."""
    (half,) = sent(msg("orders"))
    assert (half.producer_group, half.committed, half.born_timestamp) == ("orders", True, NOW)
    assert half.properties == {CLIENT_ID: "one"}


@pytest.mark.parametrize("kind", [MessageType.DELAY, MessageType.NORMAL, MessageType.UNSPECIFIED])
def test_delay(kind: MessageType) -> None:
    (half,) = sent(msg(kind=kind, delivery_timestamp=at(NOW + 8_123)))
    assert (half.deliver_at, half.committed) == (NOW + 8_123, True)


def test_messages_of_a_group_go_to_one_queue() -> None:
    """Their order is kept there."""
    queues = {sent(msg(kind=MessageType.FIFO, message_group="g"))[0].real_queue_id for _ in range(5)}
    assert queues != {sent(msg(kind=MessageType.FIFO, message_group="h"))[0].real_queue_id}
    assert len(queues) == 1


@pytest.mark.parametrize("compress", [gzip.compress, zlib.compress])
def test_compressed_body_is_stored_as_it_was(compress: Any) -> None:
    assert sent(msg(body=compress(b"hello" * 100), body_encoding=GZIP))[0].body == b"hello" * 100


REFUSED: dict[str, tuple[Any, Code]] = {
    "no messages": ((), Code.MESSAGE_CORRUPTED),
    "two topics": ((msg("a"), msg("b")), Code.MESSAGE_CORRUPTED),
    "too many messages": ((msg(),) * 1001, Code.MESSAGE_CORRUPTED),
    "no body": ((msg(body=b""),), Code.MESSAGE_BODY_EMPTY),
    "body too large": ((msg(body=b"z" * (MIB4 + 1)),), Code.MESSAGE_BODY_TOO_LARGE),
    "gzip bomb": ((msg(body=gzip.compress(bytes(MIB4 + 1)), body_encoding=GZIP),), Code.MESSAGE_BODY_TOO_LARGE),
    "gzip cut off": ((msg(body=gzip.compress(b"hello")[:-9], body_encoding=GZIP),), Code.MESSAGE_CORRUPTED),
    "no gzip": ((msg(body=b"hello", body_encoding=GZIP),), Code.MESSAGE_CORRUPTED),
    "no message id": ((msg(message_id=""),), Code.ILLEGAL_MESSAGE_ID),
    "long message id": ((msg(message_id="x" * (MESSAGE_ID_MAX + 1)),), Code.ILLEGAL_MESSAGE_ID),
    "FIFO without group": ((msg(kind=MessageType.FIFO),), Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
    "DELAY without time": ((msg(kind=MessageType.DELAY),), Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
    "LITE": ((msg(kind=5),), Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
    "newline in a property": ((msg(properties={"k": "a\nb"}),), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
    "newline in a name": ((msg(properties={"a\x85b": "v"}),), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
    "TAGS": ((msg(properties={"TAGS": "x"}),), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
    "DELAY": ((msg(properties={"DELAY": "3"}),), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
    "place of a resumed one": ((msg(properties={"CHECKBACK_RESUMED_FROM": "0/1"}),), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
    "129 properties": ((msg(properties={str(n): "" for n in range(129)}),), Code.MESSAGE_PROPERTIES_TOO_LARGE),
    "properties over 16 KiB": ((msg(properties={"k": "я" * 8192}),), Code.MESSAGE_PROPERTIES_TOO_LARGE),
    "keys over 16 KiB": ((msg(keys=["k" * (16 << 10), "l"]),), Code.MESSAGE_PROPERTIES_TOO_LARGE),
    "keys of many messages": (
        tuple(msg(keys=[""] * (8 << 10), message_id=str(number)) for number in range(3)),
        Code.MESSAGE_PROPERTIES_TOO_LARGE,
    ),
    "bodies that are large together": (
        tuple(msg(body=gzip.compress(bytes(1 << 20)), body_encoding=GZIP, message_id=str(n)) for n in range(5)),
        Code.MESSAGE_BODY_TOO_LARGE,
    ),
    "gzip of nothing": ((msg(body=gzip.compress(b""), body_encoding=GZIP),), Code.MESSAGE_BODY_EMPTY),
    "more than gzip": ((msg(body=gzip.compress(b"a") + b"junk", body_encoding=GZIP),), Code.MESSAGE_CORRUPTED),
    "tag with |": ((msg(tag="a|b"),), Code.ILLEGAL_MESSAGE_TAG),
    "blank tag": ((msg(tag=" "),), Code.ILLEGAL_MESSAGE_TAG),
    "blank key": ((msg(keys=[" "]),), Code.ILLEGAL_MESSAGE_KEY),
    "blank group": ((msg(kind=MessageType.FIFO, message_group=" "),), Code.ILLEGAL_MESSAGE_GROUP),
    "long group": ((msg(kind=MessageType.FIFO, message_group="g" * 64),), Code.ILLEGAL_MESSAGE_GROUP),
    "no topic": ((msg(""),), Code.ILLEGAL_TOPIC),
    "topic with a space": ((msg("a b"),), Code.ILLEGAL_TOPIC),
    "long topic": ((msg("x" * 128),), Code.ILLEGAL_TOPIC),
    "topic too long for its group": ((msg("x" * 121),), Code.ILLEGAL_TOPIC),
    "system topic": ((msg("rmq_sys_x"),), Code.ILLEGAL_TOPIC),
    "topic that is no folder": ((msg("_delta_log"),), Code.ILLEGAL_TOPIC),
    "time out of range": ((msg(delivery_timestamp=message("Time", seconds=2**62)),), Code.ILLEGAL_DELIVERY_TIME),
    "born out of range": ((msg(born_timestamp=message("Time", seconds=-(2**62))),), Code.BAD_REQUEST),
    "recovery of 2 h": ((msg(orphaned_transaction_recovery_duration=at(7_200_000)),), Code.BAD_REQUEST),
}


@pytest.mark.parametrize(("messages", "code"), REFUSED.values(), ids=REFUSED)
def test_refused_as_a_rocketmq_server_does(messages: Any, code: Code) -> None:
    with pytest.raises(RefusedError) as error:
        sent(*messages)
    assert error.value.refusal.code == code


def test_gzip_of_several_members_is_their_content() -> None:
    body = gzip.compress(b"first,") + gzip.compress(b"second")
    assert sent(msg(body=body, body_encoding=GZIP))[0].body == b"first,second"


def test_consumed_message_is_sent_on_with_its_properties() -> None:
    """The sender is then another one."""
    assert sent(msg(properties={CLIENT_ID: "other", "a": "b"}))[0].properties == {CLIENT_ID: "one", "a": "b"}


def test_limits_are_inclusive() -> None:
    assert len(sent(msg(body=b"z" * MIB4))[0].body) == MIB4
    assert len(sent(msg(properties={str(n): "" for n in range(128)}))[0].properties) == 129
    assert sent(msg(kind=MessageType.FIFO, message_group="g" * 63, message_id="x" * MESSAGE_ID_MAX))
