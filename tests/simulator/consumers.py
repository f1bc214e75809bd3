"""A consumer group of the topic as a position in the batches, on the real listing and runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from checkback.consumer.batch_listing import BatchListing
from checkback.consumer.batch_log import _listed
from checkback.consumer.position import Position
from checkback.consumer.row_groups import WantedRows
from checkback.consumer.unread_batches import _SCHEMA, UnreadBatches
from checkback.storage.horizon import missed_of
from simulator.retention import TOPIC, batch_columns, log_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from checkback.consumer.batch_listing import ListedBatch
    from simulator.tables import Batch, Published, Tables

GROUP = "billing"
_KEY = ("queue_id", "batch_id", "published_at", "half_queue_id", "half_queue_offset")


class _Unread(UnreadBatches):
    """The unread ones of these rows of `batches`."""

    def __init__(self, rows: list[Batch], floor: Position) -> None:
        super().__init__("", floor, [])
        self._rows = rows

    def _parts(self) -> Iterator[pa.Table]:
        yield self._unread(pa.Table.from_pylist([batch_columns(row) for row in self._rows], _SCHEMA))


@dataclass
class Consumer:
    """``consumed``: the messages behind the position, of whole batches."""

    tables: Tables
    position: Position = field(default_factory=Position)
    consumed: list[Published] = field(default_factory=list)

    def consume(self, most: int, alone: int, dies: bool) -> int:
        """Consume the next ``most`` batches, all but the newest ``alone`` as runs; how many messages.

        ``dies``: before the position is stored.
        """
        listing = self._listing(alone)
        first = listing.first_unconsumed(self.position)
        batches = listing.batches[first : first + most]
        found = self._wanted(self.tables.rows["topics"], batches)
        if batches and not dies:
            self.position = listing.consumed_before(first + len(batches))
            self.consumed += found
        return len(found)

    def unread(self, rows: Sequence[Published]) -> int:
        """As MissedMessages.of: how many of these messages are not consumed yet."""
        return len(self._wanted(rows, self._listing(99).batches))

    def missed(self) -> int:
        """How many messages retention has removed before they were consumed, as the group is told."""
        return missed_of(log_of(self.tables, TOPIC), GROUP)[1]

    def _listing(self, alone: int) -> BatchListing:
        listing = BatchListing(self.position)
        listing.extend(_listed(_Unread(self.tables.rows["batches"], self.position).read(alone)))
        return listing

    def _wanted(self, rows: Sequence[Published], batches: Sequence[ListedBatch]) -> list[Published]:
        if not rows or not batches:
            return []
        columns = zip(*((0, row.batch, row.at * 1000, row.queue, row.offset) for row in rows), strict=True)
        found = WantedRows(batches, {0: self.position}).of(pa.table(list(map(pa.array, columns)), _KEY))
        return [] if found is None else [rows[place] for place in found[0].tolist()]
