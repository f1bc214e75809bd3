"""The next deliveries of a segment: a state variable beside its block, so that one delivery need not read the block.

Messages that are scheduled at random come due alone in their segments, and a block of thousands of records would be
read, decoded, encoded and written for each. The variable holds the first of the segment's SCHEDULED records, and up to
when those of the block are delivered: whoever decodes the block applies it (`load`). Both are written whenever the
block is. Pure: no Spark, no clock, no I/O.

Layout, little-endian: a header, then the SCHEDULED records. Its version is that of the block.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from checkback.errors import StateError
from checkback.reconcile import scheduled_messages as scheduling
from checkback.reconcile.records.segment_records import EARLY, SCHEDULED
from checkback.reconcile.state.state_codec import NO_TIMER, REBUILD, VERSION, Timers, decode, refuse_other

if TYPE_CHECKING:
    from collections.abc import Callable

    from checkback.reconcile.records.segment_records import Records
    from checkback.reconcile.segment import Segment

#: maximum number of records
MOST = 64
# mark, version, segment size, timers, delivered_until, number of pending, oldest, number of scheduled
_HEADER = struct.Struct("<2sHIqqqIqI")
_MARK = b"CN"
#: delivered_until: nothing is
_NEVER = np.iinfo(np.int64).min
_NO_CANCELS = np.empty(0, EARLY)


@dataclass(frozen=True)
class NextDeliveries:
    """The next deliveries of a segment, and what else a delivery needs. Times in ms.

    ``records``: SCHEDULED, by due; at least one. What only the block holds is not due before the last of them.
    ``delivered_until``: the block's scheduled records that were due until then are delivered.
    ``pending``, ``oldest``, ``scheduled``: as in a SEGMENT record (`actions`). ``timers``: the registered ones; those
    in the block may be older.
    """

    records: Records
    timers: Timers
    pending: int
    oldest: int
    scheduled: int
    delivered_until: int = _NEVER

    @classmethod
    def of(cls, segment: Segment, timers: Timers) -> NextDeliveries:
        """Those of a segment with scheduled messages, whose block is written with these timers."""
        by_due = segment.scheduled[np.argsort(segment.scheduled["due"], kind="stable")]
        most = 1 if len(segment.cancels) else MOST  # `deliver` needs the block then
        return cls(by_due[:most], timers, len(segment.pending), segment.oldest, len(by_due))

    def deliver(self, now: int, actions: list[Records]) -> NextDeliveries | None:
        """What is left after publishing what is due ``now``; None = only the block tells.

        That is so if all of them are due, as there may be more in the block, or else the segment's next timer is not
        known; and if its due timer has fired or fires in this batch.
        """
        if NO_TIMER < self.timers.due <= now or now >= self.records["due"][-1]:
            return None
        left = scheduling.deliver(self.records, now, actions, _NO_CANCELS)
        scheduled = self.scheduled - len(self.records) + len(left)
        return replace(self, records=left, scheduled=scheduled, delivered_until=max(now, self.delivered_until))

    @property
    def first(self) -> int:
        """The time of the next delivery."""
        return int(self.records["due"][0])

    def applied_to(self, segment: Segment) -> Segment:
        """The segment of the block, without what has been delivered since the block was written."""
        left = segment.scheduled["due"] > self.delivered_until
        return replace(segment, scheduled=segment.scheduled[left])

    def to_bytes(self, size: int) -> bytes:
        """Encoded. ``size``: of the segment."""
        fields = *self.timers, self.delivered_until, self.pending, self.oldest, self.scheduled
        return _HEADER.pack(_MARK, VERSION, size, *fields) + self.records.tobytes()

    @classmethod
    def of_bytes(cls, value: bytes, size: int) -> NextDeliveries:
        """Decoded; raises StateError as `decode` does."""
        length = len(value) - _HEADER.size
        if value[:2] != _MARK or length <= 0 or length % SCHEDULED.itemsize:
            raise StateError("a segment's next deliveries are not Checkback's, or cut off", fix=REBUILD)
        _, version, of_size, due, delivery, until, pending, oldest, scheduled = _HEADER.unpack_from(value)
        refuse_other(version, of_size, size)
        records = np.frombuffer(value, SCHEDULED, offset=_HEADER.size)
        return cls(records, Timers(due, delivery), pending, oldest, scheduled, until)


def load(block: bytes, next_deliveries: Callable[[], bytes | None], base: int, size: int) -> tuple[Segment, Timers]:
    """The segment in a block, and its timers, as they are now.

    ``next_deliveries``: reads the variable; called only if the block has scheduled messages. Raises StateError as
    `decode` does, and if the variable is missing then.
    """
    segment, timers = decode(block, base, size)
    if not len(segment.scheduled):
        return segment, timers
    value = next_deliveries()
    if value is None:
        raise StateError("a segment's next deliveries are missing", fix=REBUILD)
    found = NextDeliveries.of_bytes(value, size)
    return found.applied_to(segment), found.timers
