"""The clients that are connected: their Telemetry streams, their topics, and whom to ask about a half message.

Belongs to one event loop. No gRPC: a stream is a function that sends.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from checkback.gateway.authentication import Groups
    from checkback.gateway.rocketmq.authentication import Caller

    Place = tuple[int, int]

#: the route of `Streams.connected`
CLIENTS = "/v1/rocketmq/clients"
#: topics of a client; streams of one; half messages whose senders are known
TOPICS_MAX, STREAMS_MAX, SENDERS_MAX = 1000, 8, 100_000


@dataclass(eq=False)
class Stream:
    """A client's stream. ``send`` raises if it is broken; ``since``: ms since the epoch."""

    caller: Caller
    send: Callable[[Any], Awaitable[None]]
    peer: str
    since: int
    #: the last time that it was asked, by a counter
    asked: int = field(default=0, init=False)

    @property
    def client_id(self) -> str:
        """The client's own name of itself."""
        return self.caller.client_id

    def may_answer(self, group: str) -> bool:
        """Do the client's credentials stand for the group?"""
        return self.caller.groups is None or group in self.caller.groups


class Streams:
    """The streams by client. A client that reconnects may have several for a while: the last is used."""

    def __init__(self) -> None:
        self._of: dict[str, list[Stream]] = {}
        #: by client, the topics that its Settings name, and those that it sends to
        self._topics: dict[str, dict[str, None]] = {}
        self._senders: OrderedDict[Place, str] = OrderedDict()
        self._turns = count(1)

    def __len__(self) -> int:
        return len(self._of)

    def __contains__(self, client_id: str) -> bool:
        return client_id in self._of

    def add(self, stream: Stream, topics: Iterable[str]) -> bool:
        """A client has sent its Settings over this stream, maybe again. False: it has too many streams."""
        mine = self._of.setdefault(stream.client_id, [])
        if stream not in mine:
            if len(mine) >= STREAMS_MAX:
                return False
            mine.append(stream)
        for topic in topics:
            self.uses(stream.client_id, topic)
        return True

    def remove(self, stream: Stream) -> None:
        """The stream has ended."""
        mine = self._of.get(stream.client_id, [])
        if stream in mine:
            mine.remove(stream)
            if not mine:
                del self._of[stream.client_id]
                self._topics.pop(stream.client_id, None)

    def leave(self, caller: Caller) -> None:
        """The client says that it ends: it is asked no more."""
        for stream in [one for one in self._of.get(caller.client_id, []) if one.caller.groups == caller.groups]:
            self.remove(stream)

    def uses(self, client_id: str, topic: str) -> None:
        """The client sends to the topic. Its Settings may never say so: clients write them every five minutes."""
        if client_id in self._of:
            topics = self._topics.setdefault(client_id, {})
            if len(topics) < TOPICS_MAX:
                topics[topic] = None

    def sent(self, client_id: str, place: Place) -> None:
        """The client has sent the half message at this place."""
        self._senders[place] = client_id
        if len(self._senders) > SENDERS_MAX:
            self._senders.popitem(last=False)

    def ended(self, place: Place) -> None:
        """The half message there will not be asked about."""
        self._senders.pop(place, None)

    def to_ask(self, place: Place, group: str, topic: str, group_of: Callable[[str], str]) -> list[Stream]:
        """The streams to ask about a half message, best first, one of each client.

        First that of the client that sent it, then those of the topic, then others of the group; of equals the one that
        was asked longest ago.
        """
        sender = self._senders.get(place)

        def rank(stream: Stream) -> tuple[int, int]:
            nearness = 0 if stream.client_id == sender else 1 if topic in self._topics_of(stream) else 2
            return nearness, stream.asked

        found = [
            stream
            for client_id, streams in self._of.items()
            if (stream := next((one for one in reversed(streams) if one.may_answer(group)), None)) is not None
            and (client_id == sender or any(group_of(one) == group for one in self._topics_of(stream)))
        ]
        return sorted(found, key=rank)

    def turn(self, stream: Stream) -> None:
        """It is asked now: others come first next time."""
        stream.asked = next(self._turns)

    def connected(self, groups: Groups) -> dict[str, Any]:
        """The clients that may act for one of these groups (None: all), with their topics; ``since``: ms."""
        shown = [
            stream
            for streams in self._of.values()
            for stream in streams[-1:]
            if groups is None or any(map(stream.may_answer, groups))
        ]
        return {
            "clients": [
                {
                    "client_id": stream.client_id,
                    "language": stream.caller.language,
                    "version": stream.caller.version,
                    "address": stream.peer,
                    "connected_at": stream.since,
                    "topics": sorted(self._topics_of(stream)),
                }
                for stream in sorted(shown, key=lambda stream: stream.since)
            ]
        }

    def _topics_of(self, stream: Stream) -> dict[str, None]:
        return self._topics.get(stream.client_id, _NONE)


_NONE: dict[str, None] = {}
