"""What clients are answered: a status, the route of a topic, their Settings. Pure."""

from __future__ import annotations

from typing import Any

from checkback.gateway.rocketmq.codes import DOMAIN_NAME, IPV4, READ_WRITE, Code, MessageType, Refusal
from checkback.gateway.rocketmq.interface import message
from checkback.messages.limits import BODY_MAX

_TYPES = [int(kind) for kind in MessageType if kind]
_BROKER = "checkback"


def route(topic: Any, endpoints: Any, other_notation: bool) -> Any:
    """QueryRouteResponse: one queue. ``endpoints``: by which the client has come, through whatever is in between.

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


def server_settings(settings: Any) -> Any:
    """The client's Settings, with what the server decides. Without a backoff_policy Java's client does not start."""
    answered = message("Settings")
    answered.CopyFrom(settings)
    backoff = answered.backoff_policy
    backoff.max_attempts = 3
    backoff.exponential_backoff.initial.nanos = 10_000_000
    backoff.exponential_backoff.max.seconds = 1
    backoff.exponential_backoff.multiplier = 2
    answered.publishing.max_body_size = BODY_MAX
    answered.publishing.validate_message_type = True
    answered.metric.on = False
    return answered


def answered() -> Any:
    """The answer that says OK."""
    return message("AnyResponse", status=message("Status", code=Code.OK, message="OK"))


def status_of(refusal: Refusal) -> Any:
    """The status that says this."""
    return message("Status", code=int(refusal.code), message=refusal.message)
