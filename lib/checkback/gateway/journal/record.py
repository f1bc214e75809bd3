"""A record of the journal: what one group commit had for one table."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from checkback.gateway.deduplication.history import Place


class Kind(IntEnum):
    """What a record has: messages of one queue at consecutive offsets, or ops."""

    HALF = 0
    OP = 1


@dataclass(frozen=True)
class Record:
    """One group commit's messages for one table.

    ``rows``: their number; ``content``: the messages (`record_codec`); ``queue_id``, ``first``: of half messages,
    the queue and the first offset. ``position``: in the journal, from 1 on.

    Of ops, kept in memory only: ``firsts``: by queue, the first offset that must stay in the cache until they are in
    the tables; ``places`` of half messages that need not be in it.
    """

    kind: Kind
    rows: int
    content: bytes
    queue_id: int = -1
    first: int = -1
    position: int = 0
    places: Collection[Place] = ()
    firsts: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Unflushed:
    """A record that is not in the tables yet: without its content. ``at``: when it was acknowledged (steady ms)."""

    position: int
    kind: Kind
    rows: int
    size: int
    queue_id: int
    first: int
    at: int
    places: Collection[Place] = ()
    firsts: Mapping[int, int] = field(default_factory=dict)
