"""Messages of a topic as Arrow rows, with the keys by which they are ordered. Pure: no I/O."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from checkback.consumer.position import MessageKey


@dataclass(frozen=True)
class MessageKeys:
    """By which messages are ordered. ``batch``: index in the run; ``queue``: consume queue, 0 to 63."""

    batch: NDArray[np.int64]
    queue: NDArray[np.int64]
    half_queue_id: NDArray[np.int64]
    half_queue_offset: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.batch)

    def take(self, places: NDArray[np.int64]) -> MessageKeys:
        """Those of these places, in this order."""
        columns = (self.batch, self.queue, self.half_queue_id, self.half_queue_offset)
        return MessageKeys(*(column[places] for column in columns))

    def order(self) -> NDArray[np.int64] | None:
        """The places in order; None if they are in order."""
        order = np.lexsort((self.half_queue_offset, self.half_queue_id, self.batch))
        return None if bool((np.diff(order) > 0).all()) else order

    def at(self, place: int) -> tuple[int, int, int]:
        """batch, half_queue_id and half_queue_offset of a place."""
        return int(self.batch[place]), int(self.half_queue_id[place]), int(self.half_queue_offset[place])

    def up_to(self, key: tuple[int, int, int]) -> int:
        """How many, which must be in order, come up to this key."""
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self.at(middle) <= key else (low, middle)
        return low

    @staticmethod
    def joined(parts: Sequence[MessageKeys]) -> MessageKeys:
        """One after the other."""
        columns = ([part.batch, part.queue, part.half_queue_id, part.half_queue_offset] for part in parts)
        return MessageKeys(*(np.concatenate(column) for column in zip(*columns, strict=True)))


@dataclass(frozen=True)
class MessageRows:
    """Messages of a topic in order; ``rows``: the table's columns."""

    keys: MessageKeys
    rows: pa.Table

    def __len__(self) -> int:
        return len(self.keys)

    def take(self, places: NDArray[np.int64]) -> MessageRows:
        """Those of these places, in this order."""
        return MessageRows(self.keys.take(places), self.rows.take(places))

    def slice(self, first: int, end: int) -> MessageRows:
        """Those from ``first`` to before ``end``, without a copy."""
        columns = (self.keys.batch, self.keys.queue, self.keys.half_queue_id, self.keys.half_queue_offset)
        return MessageRows(MessageKeys(*(each[first:end] for each in columns)), self.rows.slice(first, end - first))

    def by_queue(self) -> Iterator[tuple[int, MessageRows]]:
        """The messages of each queue, in order."""
        queues = self.keys.queue
        if bool((queues == queues[0]).all()):
            yield int(queues[0]), self
            return
        places = np.argsort(queues, kind="stable")
        ends = np.flatnonzero(np.diff(queues[places])) + 1
        sorted_ = self.take(places)
        for first, end in pairwise([0, *ends.tolist(), len(places)]):
            yield int(sorted_.keys.queue[first]), sorted_.slice(first, end)


@dataclass(frozen=True)
class FetchedMessages:
    """Single messages: their keys, and their rows in the same order."""

    keys: tuple[MessageKey, ...]
    rows: MessageRows

    def by_key(self) -> dict[MessageKey, dict[str, Any]]:
        """Each message's columns, by its key."""
        return dict(zip(self.keys, self.rows.rows.to_pylist(), strict=True))


@dataclass(frozen=True)
class Unread:
    """Messages that a queue has not consumed: how many, and the time of the batch of the oldest (ms)."""

    messages: int
    oldest: int


def joined(parts: Sequence[MessageRows]) -> MessageRows:
    """The messages of all parts, in order."""
    if len(parts) == 1:
        return parts[0]
    found = MessageRows(
        MessageKeys.joined([part.keys for part in parts]), pa.concat_tables([part.rows for part in parts])
    )
    order = found.keys.order()
    return found if order is None else found.take(order)
