"""Half messages of one request, in flight together. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from checkback.gateway.deduplication.remembered_half import RememberedHalf

if TYPE_CHECKING:
    import asyncio

    from checkback.gateway.problems import Problem
    from checkback.messages.half import Half

#: Approximate memory overhead of a message besides its texts and body, and of each property.
_OVERHEAD, _PROPERTY = 1024, 256


@dataclass(eq=False)
class ReceivedHalves:
    """In-flight half messages of one request; their offsets are assigned, consecutively, when their commit begins.

    ``names``, ``fingerprints``: of each; ``size``: approximate memory in bytes; ``done``: when they are committed, or
    failed with ``problem``.
    """

    halves: list[Half]
    names: list[str]
    fingerprints: list[int]
    size: int = 0
    done: asyncio.Future[None] | None = field(default=None, init=False)
    queue_id: int = field(default=-1, init=False)
    queue_offset: int = field(default=-1, init=False)
    problem: Problem | None = field(default=None, init=False)

    def __len__(self) -> int:
        return len(self.halves)

    def keep(self, count: int) -> None:
        """Drop all but the first ``count``."""
        for column in (self.halves, self.names, self.fingerprints):
            del column[count:]

    @cached_property
    def rows(self) -> dict[str, int]:
        """By name, the number of the half message here."""
        return {name: row for row, name in enumerate(self.names)}

    def remembered(self, stored: int) -> list[RememberedHalf]:
        """As the cache has them once they have landed; ``stored``: steady ms."""
        offsets = range(self.queue_offset, self.queue_offset + len(self))
        every = zip(offsets, self.names, self.fingerprints, self.halves, strict=True)
        return [
            RememberedHalf(
                *(self.queue_id, offset, name, content, half.real_topic, half.born_timestamp, stored),
                "COMMIT" if half.committed else None,
            )
            for offset, name, content, half in every
        ]


def size_of(half: Half) -> int:
    """The approximate memory a message needs: its body is not always the largest part."""
    size = _OVERHEAD + len(half.body) + len(half.transaction_id) + len(half.tags or "") + len(half.keys or "")
    if half.properties:
        size += _PROPERTY * len(half.properties) + sum(map(len, half.properties))
        size += sum(map(len, half.properties.values()))
    return size
