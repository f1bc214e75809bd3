"""The place at which a half message was acknowledged, in the message for the listener."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from checkback.producer import LocalTransactionState, Message
from producer.gateways import StubGateway
from producer.sending import MESSAGE, SENDERS, Sender


@pytest.mark.parametrize("kind", SENDERS)
def test_listener_knows_place_and_group_before_it_begins(kind: str) -> None:
    """The place that the gateway has acknowledged, which the result has, too; the group is the producer's."""
    places, groups = [], []

    def local(message: Message, _: Any) -> LocalTransactionState:
        places.append((message.queue_id, message.queue_offset, message.place))
        groups.append(message.producer_group)
        return LocalTransactionState.COMMIT

    with StubGateway() as gateway:
        results = [Sender(kind).send(gateway.url, local, group=group)[0] for group in ("orders", "refunds")]
    assert groups == ["orders", "refunds"]
    assert places == [(3, 0, (3, 0)), (3, 1, (3, 1))]
    assert [(result.queue_id, result.queue_offset) for result in results] == [(3, 0), (3, 1)]
    assert (MESSAGE.place, MESSAGE.producer_group) == (None, None)


def test_message_for_the_listener_is_the_one_sent() -> None:
    """Also of a class of one's own; what is made of it is another message, which nobody has acknowledged."""

    @dataclass(frozen=True)
    class Order(Message):
        number: int = 0

    order = Order("payments", b"", transaction_id="t1", number=7)
    stored = order.stored_at(0, 12, "orders")
    assert isinstance(stored, Order)
    assert (stored, stored.number, stored.place, order.place) == (order, 7, (0, 12), None)
    assert replace(stored, tags="eu").place is None


def test_place_is_not_an_argument() -> None:
    """The topic's queue is real_queue_id: it would be taken for it."""
    with pytest.raises(TypeError, match="queue_id"):
        Message("payments", b"", queue_id=3)  # type: ignore[call-arg]
