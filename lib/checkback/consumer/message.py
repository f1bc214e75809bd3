"""A message as a listener gets it, and what it answers."""

from __future__ import annotations

from enum import Enum
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from checkback.messages.half import SHARDING_KEY

if TYPE_CHECKING:
    from collections.abc import Sequence


class ConsumeResult(Enum):
    """SUCCESS: it is consumed. RECONSUME_LATER: it is to be consumed again; an exception says the same."""

    SUCCESS = "SUCCESS"
    RECONSUME_LATER = "RECONSUME_LATER"


_MICROSECONDS = pa.int64()


class MessageExt(NamedTuple):
    """A committed message of a topic (MessageExt of RocketMQ). Times are ms since 1970.

    ``queue_id``: the producer's real_queue_id. (``half_queue_id``, ``half_queue_offset``) identify the message.
    ``published_at``: time of the batch that published it. ``reconsume_times``: retries so far, 0 at first.
    """

    topic: str
    queue_id: int
    transaction_id: str | None
    producer_group: str | None
    tags: str | None
    keys: str | None
    properties: dict[str, str]
    body: bytes
    born_timestamp: int
    half_queue_id: int
    half_queue_offset: int
    published_at: int
    batch_id: int
    reconsume_times: int = 0

    @property
    def ordering_key(self) -> str | None:
        """The producer's ordering key; None = it has none."""
        return self.properties.get(SHARDING_KEY) or None

    def __repr__(self) -> str:
        """Without body, keys and properties: they do not belong in logs."""
        return f"MessageExt({self.topic}, {self.half_queue_id}/{self.half_queue_offset}, queue {self.queue_id})"


def messages_of(topic: str, rows: pa.Table, reconsume_times: Sequence[int] | None = None) -> list[MessageExt]:
    """The rows of a topic's table, with `valid_texts`, as messages."""
    count = len(rows)
    column = rows.column
    return list(
        map(
            MessageExt,
            [topic] * count,
            pc.fill_null(column("queue_id"), 0).to_pylist(),
            *(column(name).to_pylist() for name in ("transaction_id", "producer_group", "tags", "keys")),
            _dicts(column("properties")),
            pc.fill_null(column("body"), b"").to_pylist(),
            _ms(column("born_timestamp")),
            column("half_queue_id").to_pylist(),
            column("half_queue_offset").to_pylist(),
            _ms(column("published_at")),
            column("batch_id").to_pylist(),
            reconsume_times or [0] * count,
        )
    )


def _ms(times: pa.ChunkedArray) -> list[int]:
    found: list[int] = (pc.fill_null(times.cast(_MICROSECONDS), 0).to_numpy() // 1000).tolist()
    return found


def _dicts(column: pa.ChunkedArray) -> list[dict[str, str]]:
    """A map column as dicts; null is empty. Keys and values as whole arrays: to_pylist of a map is slow."""
    found: list[dict[str, str]] = []
    for chunk in column.chunks:
        offsets = chunk.offsets.to_pylist()
        first = offsets[0]
        keys = chunk.keys.slice(first, offsets[-1] - first).to_pylist()
        values = chunk.items.slice(first, offsets[-1] - first).to_pylist()
        for begin, end in pairwise(offsets):
            pairs = keys[begin - first : end - first], values[begin - first : end - first]
            made = dict(zip(*pairs, strict=True))
            if len(made) < end - begin:  # of a name that is there twice the first counts, as in filters
                made = dict(zip(*(reversed(part) for part in pairs), strict=True))
            found.append(made)
    return found
