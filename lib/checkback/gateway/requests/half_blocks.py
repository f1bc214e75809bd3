"""Half messages of one request, in flight together. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from checkback.gateway.deduplication.cached_half import CODE_OF, HalfRun

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from checkback.gateway.problems import Problem
    from checkback.messages.half import Half

#: Approximate memory overhead of a message besides its texts and body, and of each property.
_OVERHEAD, _PROPERTY = 1024, 256


@dataclass(eq=False)
class HalfBlock:
    """In-flight half messages of one request; their offsets are assigned, consecutively, when their commit begins.

    ``names``, ``fingerprints``: of each; ``reservation``: of the names in the cache; ``size``: approximate memory in
    bytes; ``done``: when they are committed, or failed with ``problem``.
    """

    halves: list[Half]
    names: list[str]
    fingerprints: list[int]
    reservation: int = -1
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


def run_of(blocks: Sequence[HalfBlock], halves: Sequence[Half], stored: int) -> HalfRun:
    """The half messages of blocks that follow one another, as the cache has them; ``stored``: steady ms."""
    code = CODE_OF["COMMIT"]
    return HalfRun(
        queue_id=blocks[0].queue_id,
        first=blocks[0].queue_offset,
        names=[name for block in blocks for name in block.names],
        fingerprints=[content for block in blocks for content in block.fingerprints],
        topics=[half.real_topic for half in halves],
        born=[half.born_timestamp for half in halves],
        stored=stored,
        states=bytes([code if half.committed else 0 for half in halves]),
        reservations=[(block.reservation, len(block)) for block in blocks],
    )


def size_of(half: Half) -> int:
    """The approximate memory a message needs: its body is not always the largest part."""
    size = _OVERHEAD + len(half.body) + len(half.transaction_id) + len(half.tags or "") + len(half.keys or "")
    if half.properties:
        size += _PROPERTY * len(half.properties) + sum(map(len, half.properties))
        size += sum(map(len, half.properties.values()))
    return size
