"""The route that clients get for a topic: one queue, at the address that the client has itself named. Pure."""

from __future__ import annotations

from typing import Any

from checkback.gateway.rocketmq.codes import DOMAIN_NAME, IPV4, READ_WRITE, Code, MessageType
from checkback.gateway.rocketmq.interface import message

_TYPES = [int(kind) for kind in MessageType if kind]
_BROKER = "checkback"


def route(topic: Any, endpoints: Any, other_notation: bool) -> Any:
    """QueryRouteResponse. ``endpoints``: by which the client has come, through whatever is in between.

    ``other_notation``: name the same address differently. Python's client renews a lost stream only for an address that
    it does not know yet, and otherwise is not asked for ten minutes after a restart of the gateway.
    """
    named = _renamed(endpoints) if other_notation else endpoints
    queue = message(
        "MessageQueue",
        topic=topic,
        permission=READ_WRITE,
        broker=message("Broker", name=_BROKER, endpoints=named),
        accept_message_types=_TYPES,
    )
    return message("QueryRouteResponse", status=message("Status", code=Code.OK, message="OK"), message_queues=[queue])


def _renamed(endpoints: Any) -> Any:
    """The same address in another notation: an IPv4 address as a name, a name in the other case."""
    addresses = endpoints.addresses
    if endpoints.scheme == IPV4 and len(addresses) == 1:
        return message("Endpoints", scheme=DOMAIN_NAME, addresses=addresses)
    others = [message("Address", host=one.host.swapcase(), port=one.port) for one in addresses]
    return message("Endpoints", scheme=endpoints.scheme, addresses=others)
