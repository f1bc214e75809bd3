"""The clients that are connected: their Telemetry streams, their topics, and whom to ask about a half message.

Belongs to one event loop. No gRPC: a stream is a function that sends.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from checkback.gateway.authentication import Groups
    from checkback.gateway.rocketmq.authentication import Caller, Credentials

#: the route of `Streams.connected`
CLIENTS = "/v1/rocketmq/clients"
#: topics of a client; streams of one
TOPICS_MAX, STREAMS_MAX = 1000, 8
_log = logging.getLogger("checkback.gateway")


@dataclass(eq=False)
class Stream:
    """A client's stream. ``send`` raises if it is broken; ``since``: ms since the epoch; ``end`` ends it."""

    caller: Caller
    send: Callable[[Any], Awaitable[None]]
    peer: str
    since: int
    end: Callable[[], object] = lambda: None
    #: the last time that it was asked, by a counter
    asked: int = field(default=0, init=False)
    #: is it asked nothing any more, whatever else comes of it?
    ended: bool = field(default=False, init=False)

    @property
    def who(self) -> str:
        """Whose it is."""
        return self.caller.who

    def may_answer(self, group: str) -> bool:
        """Do the client's credentials stand for the group?"""
        return not self.ended and (self.caller.groups is None or group in self.caller.groups)


@dataclass(eq=False)
class _Client:
    """``streams``: a client that reconnects may have several for a while; the last is used.

    ``topics``: those that its Settings name, and those that it sends to.
    """

    client_id: str
    streams: list[Stream] = field(default_factory=list)
    topics: dict[str, None] = field(default_factory=dict)


class Streams:
    """The streams, by client and by producer group."""

    def __init__(self, group_of: Callable[[str], str], credentials: Credentials | None = None) -> None:
        """``group_of``: a topic's producer group. ``credentials``: by which the streams were opened."""
        self._group_of, self._credentials = group_of, credentials
        #: the keys by which those that are open were verified
        self._keys: object = None
        self._open: set[Stream] = set()
        self._clients: dict[str, _Client] = {}
        #: by group, the ids of its clients, and with how many topics
        self._of_group: dict[str, dict[str, int]] = {}
        self._turns = count(1)

    def __len__(self) -> int:
        return len(self._clients)

    def __contains__(self, who: str) -> bool:
        return who in self._clients

    def opened(self, stream: Stream) -> None:
        """A client has opened the stream."""
        self._open.add(stream)

    def closed(self, stream: Stream) -> None:
        """The stream has ended."""
        self._open.discard(stream)
        self.remove(stream)

    def verify(self) -> None:
        """If the credentials have changed, end the streams whose signatures are not valid any more."""
        if self._credentials is None or (keys := self._credentials.keys) is self._keys:
            return
        self._keys = keys
        revoked = [stream for stream in self._open if not self._credentials.still_hold(stream.caller)]
        for stream in revoked:
            stream.ended = True
            self.closed(stream)
            stream.end()
        if revoked:
            _log.warning("RocketMQ clients' streams were ended, whose tokens are not valid any more: %d", len(revoked))

    def add(self, stream: Stream, topics: Iterable[str]) -> bool:
        """A client has sent its Settings over this stream, maybe again. False: it has too many streams."""
        client = self._clients.setdefault(stream.who, _Client(stream.caller.client_id))
        if stream not in client.streams:
            if len(client.streams) >= STREAMS_MAX:
                return False
            client.streams.append(stream)
        for topic in topics:
            self.uses(stream.who, topic)
        return True

    def remove(self, stream: Stream) -> None:
        """Nothing is asked over the stream any more."""
        client = self._clients.get(stream.who)
        if client is None or stream not in client.streams:
            return
        client.streams.remove(stream)
        if client.streams:
            return
        del self._clients[stream.who]
        for topic in client.topics:
            group = self._group_of(topic)
            members = self._of_group[group]
            members[stream.who] -= 1
            if not members[stream.who]:
                del members[stream.who]
            if not members:
                del self._of_group[group]

    def leave(self, caller: Caller) -> None:
        """The client says that it ends: it is asked no more."""
        client = self._clients.get(caller.who)
        for stream in list(client.streams if client else ()):
            self.remove(stream)

    def uses(self, who: str, topic: str) -> None:
        """The client sends to the topic. Its Settings may never say so: clients write them every five minutes."""
        client = self._clients.get(who)
        if client is None or topic in client.topics or len(client.topics) >= TOPICS_MAX:
            return
        client.topics[topic] = None
        members = self._of_group.setdefault(self._group_of(topic), {})
        members[who] = members.get(who, 0) + 1

    def to_ask(self, group: str, topic: str, sender: str | None) -> list[Stream]:
        """The streams to ask about a half message, best first, one of each client. ``sender``: its client's id.

        First that of the sender, then those of the topic; others of the group only if there are none of
        these: what they would say of another topic's message may be wrong. Of equals the one that was asked longest
        ago.
        """
        self.verify()
        ids = dict.fromkeys(self._of_group.get(group, ()))
        ids |= dict.fromkeys(who for who, one in self._clients.items() if one.client_id == sender)
        clients = {who: self._clients[who] for who in ids}
        found = [client.streams[-1] for client in clients.values() if client.streams[-1].may_answer(group)]
        near = [one for one in found if sender == one.caller.client_id or topic in clients[one.who].topics]
        return sorted(near or found, key=lambda stream: (stream.caller.client_id != sender, stream.asked))

    def turn(self, stream: Stream) -> bool:
        """It is asked now, and others come first next time. False: it is not there any more."""
        self.verify()
        stream.asked = next(self._turns)
        client = self._clients.get(stream.who)
        return not stream.ended and client is not None and stream in client.streams

    def connected(self, groups: Groups) -> dict[str, Any]:
        """The clients that may act for one of these groups (None: all), with their topics; ``connected_at``: ms."""
        shown = [
            (client.streams[-1], client.topics)
            for client in self._clients.values()
            if groups is None or any(map(client.streams[-1].may_answer, groups))
        ]
        return {
            "clients": [
                {
                    "client_id": stream.caller.client_id,
                    "language": stream.caller.language,
                    "version": stream.caller.version,
                    "address": stream.peer,
                    "connected_at": stream.since,
                    "topics": sorted(topics),
                }
                for stream, topics in sorted(shown, key=lambda one: one[0].since)
            ]
        }
