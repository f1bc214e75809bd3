"""Ops of one request, in flight together. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from checkback.messages.limits import LONG_MAX

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable, Sequence

    from checkback.gateway.deduplication.history import Place
    from checkback.gateway.deduplication.remembered_half import RememberedHalf
    from checkback.gateway.problems import Problem
    from checkback.messages.op import RemarkedOp


@dataclass(eq=False)
class ReceivedOps:
    """In-flight ops of one request, each of another recent half message that had none.

    ``halves``: their cache entries (`DeduplicationCache.pending`); ``firsts``: by queue, their first offset; ``size``:
    approximate memory in bytes; ``done``: when they are committed, or failed with ``problem``.
    """

    ops: Sequence[RemarkedOp]
    places: Sequence[Place]
    halves: Sequence[RememberedHalf]
    firsts: dict[int, int]
    size: int
    done: asyncio.Future[None] | None = field(default=None, init=False)
    problem: Problem | None = field(default=None, init=False)

    def __len__(self) -> int:
        return len(self.ops)


def firsts_of(places: Iterable[Place]) -> dict[int, int]:
    """By queue, the first offset of these places."""
    firsts: dict[int, int] = {}
    for queue_id, offset in places:
        if offset < firsts.get(queue_id, LONG_MAX):
            firsts[queue_id] = offset
    return firsts
