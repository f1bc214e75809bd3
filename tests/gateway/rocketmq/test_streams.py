"""Whom to ask about a half message: its sender first, then clients of the topic, then others of the group, in turn."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from checkback.gateway.rocketmq.authentication import Caller
from checkback.gateway.rocketmq.checks import CheckBridge
from checkback.gateway.rocketmq.streams import STREAMS_MAX, TOPICS_MAX, Stream, Streams
from checkback.gateway.rocketmq.transaction_ids import TransactionIds

ID = "01AB"
GROUP_OF = {"orders": "shop", "refunds": "shop", "stock": "stock"}


def group_of(topic: str) -> str:
    return GROUP_OF.get(topic, topic)


async def no_send(_: Any) -> None:
    raise AssertionError("nothing is sent here")


def stream(client_id: str, groups: frozenset[str] | None = None) -> Stream:
    return Stream(Caller(client_id, groups, "", ""), no_send, "", 0)


def asked(streams: Streams, sender: str | None = None, topic: str = "orders", group: str = "shop") -> list[str]:
    """The clients, in their order; the first is asked."""
    found = streams.to_ask(group, topic, sender)
    if found:
        streams.turn(found[0])
    return [one.caller.client_id for one in found]


def of(**topics: str) -> Streams:
    streams = Streams(group_of)
    for client_id, topic in topics.items():
        streams.add(stream(client_id), [topic])
    return streams


def test_others_of_the_group_are_asked_only_if_there_is_no_client_of_the_topic() -> None:
    """A client that does not know the topic may say anything; Java's says UNKNOWN by silence."""
    streams = of(refunds="refunds", orders="orders", stock="stock")
    assert asked(streams) == ["orders"]
    assert asked(of(refunds="refunds", stock="stock")) == ["refunds"]
    assert asked(streams, "stock") == ["stock", "orders"]


def test_equals_take_turns() -> None:
    streams = of(a="orders", b="orders", c="orders")
    assert [asked(streams)[0] for _ in range(6)] == ["a", "b", "c", "a", "b", "c"]


def test_sender_is_first_each_time() -> None:
    streams = of(a="orders", b="orders")
    assert [asked(streams, "b") for _ in range(2)] == [["b", "a"], ["b", "a"]]


def test_sender_is_asked_whose_settings_never_named_the_topic() -> None:
    """A RocketMQ server asks nobody."""
    streams = of(a="stock")
    assert asked(streams, "a") == ["a"]


def test_topic_that_a_client_sends_to() -> None:
    streams = of(a="stock")
    assert asked(streams) == []
    streams.uses("a", "orders")
    assert asked(streams) == ["a"]


def test_client_without_the_groups_credentials_is_not_asked() -> None:
    """It would see the message: neither by its Settings, nor under the sender's id."""
    streams = Streams(group_of)
    streams.add(stream("a", frozenset({"stock"})), ["orders"])
    assert asked(streams, "a") == []
    streams.add(stream("a", frozenset({"shop"})), ["refunds"])
    for _ in range(STREAMS_MAX):
        streams.add(stream("a", frozenset({"stock"})), [])
    assert asked(streams) == ["a"]
    assert streams.add(stream("a", frozenset({"shop"})), [])


def test_last_stream_of_a_client_is_used() -> None:
    streams, old, new = Streams(group_of), stream("a"), stream("a")
    streams.add(old, ["orders"])
    streams.add(new, [])
    assert streams.to_ask("shop", "orders", None) == [new]
    streams.remove(new)
    assert streams.to_ask("shop", "orders", None) == [old]
    streams.remove(old)
    assert len(streams) == 0
    assert asked(streams) == []
    assert not streams._of_group


def test_client_that_leaves_is_not_asked() -> None:
    """It cannot be sent away by one of other credentials that uses its id."""
    streams = Streams(group_of)
    streams.add(stream("a", frozenset({"shop"})), ["orders"])
    streams.leave(Caller("a", frozenset({"stock"}), "", ""))
    assert asked(streams) == ["a"]
    streams.leave(Caller("a", frozenset({"shop"}), "", ""))
    assert asked(streams) == []


def test_memory_of_a_client_is_limited() -> None:
    streams = Streams(group_of)
    assert [streams.add(stream("a"), []) for _ in range(STREAMS_MAX + 1)] == [True] * STREAMS_MAX + [False]
    for number in range(TOPICS_MAX + 1):
        streams.uses("a", str(number))
    assert asked(streams, None, str(TOPICS_MAX - 1), str(TOPICS_MAX - 1)) == ["a"]
    assert asked(streams, None, str(TOPICS_MAX), str(TOPICS_MAX)) == []


def test_client_that_is_not_connected_takes_no_memory() -> None:
    streams = Streams(group_of)
    streams.uses("a", "orders")
    streams.add(stream("a"), [])
    assert asked(streams) == []


def test_listed_are_those_of_the_tokens_groups() -> None:
    streams = Streams(group_of)
    for client_id, groups in (("a", frozenset({"shop"})), ("b", frozenset({"stock", "more"})), ("c", None)):
        streams.add(stream(client_id, groups), ["orders"])

    def listed(groups: frozenset[str] | None) -> list[str]:
        return [client["client_id"] for client in streams.connected(groups)["clients"]]

    assert listed(None) == ["a", "b", "c"]
    assert listed(frozenset({"shop"})) == ["a", "c"]
    assert listed(frozenset({"more"})) == ["b", "c"]


def test_client_that_is_slow_to_read_is_connected() -> None:
    """It is not told of as away, and is asked again: gRPC itself ends a stream whose client is gone."""

    async def act() -> None:
        streams = Streams(group_of)
        bridge = CheckBridge(streams, TransactionIds(""), {}, 0.1)
        slow = Stream(Caller("a", None, "", ""), never, "", 0)
        streams.add(slow, ["orders"])
        named = {"transaction_id": ID, "producer_group": "shop", "real_topic": "orders"}
        about = named | {"queue_id": 0, "queue_offset": 0, "properties": None}
        for _ in range(2):
            status, _, _, headers = await bridge.reply(json.dumps(about).encode(), {})
            assert (status, (headers or {}).get("checkback-delivered")) == (408, None)
        assert asked(streams) == ["a"]

    async def never(_: Any) -> None:
        await asyncio.Event().wait()

    asyncio.run(act())
