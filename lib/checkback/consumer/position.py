"""Positions of a consumer in a topic. Pure: no clock, no I/O.

A position names batches, not versions of the topic's table: OPTIMIZE, VACUUM and log cleanup change files and versions,
but a message keeps its batch. A rebuild begins a new application, whose batch ids start over, so a position has the
last batch of each application. After tables are restored from a backup the same application uses batch ids again,
so a position also has the latest time of the batches that were consumed: a later one is another batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple

from checkback.messages import limits

#: Consume queues of a topic: messages with the same real_queue_id modulo this share a position.
QUEUES = limits.QUEUES


class BatchKey(NamedTuple):
    """A batch of `reconcile`: a row of `batches`. ``batch_time``: ms."""

    application: str
    batch_id: int
    batch_time: int


class MessageKey(NamedTuple):
    """A message of a topic: its batch, and its half message, by which a batch's messages are ordered."""

    batch: BatchKey
    half_queue_id: int
    half_queue_offset: int


@dataclass(frozen=True)
class Position:
    """Which messages of a consume queue are consumed: those of all batches up to those in ``consumed``, and more.

    ``consumed``: the last batch consumed whole, by application. ``part``: the last message consumed of a batch that is
    consumed in part. ``settled_at``: the latest batch time consumed whole (ms), None = nothing yet. ``times``: by
    application the latest time of its batches consumed whole (ms).
    """

    consumed: Mapping[str, int] = field(default_factory=dict)
    part: MessageKey | None = None
    settled_at: int | None = None
    times: Mapping[str, int] = field(default_factory=dict)

    def has_batch(self, batch: BatchKey) -> bool:
        """True if the batch is consumed whole."""
        last = self.consumed.get(batch.application)
        if last is None or batch.batch_id > last:
            return False
        return batch.batch_time <= self.times[batch.application]

    def has(self, message: MessageKey) -> bool:
        """True if the message is consumed."""
        if self.has_batch(message.batch):
            return True
        return self.part is not None and message.batch == self.part.batch and message[1:] <= self.part[1:]

    def covers(self, batches_of: Position) -> bool:
        """True if all batches that ``batches_of`` has whole are consumed whole."""
        return all(
            self.has_batch(BatchKey(application, last, batches_of.times[application]))
            for application, last in batches_of.consumed.items()
        )

    def after_batches(self, last: Iterable[BatchKey], settled_at: int | None) -> Position:
        """With more batches consumed whole; ``last``: by application their last id and their latest time."""
        consumed, times = dict(self.consumed), dict(self.times)
        for batch in last:
            application, batch_id, time = batch
            if not self.has_batch(batch):  # with an id used before, the batches from it on are gone: a restore
                consumed[application] = batch_id
            times[application] = max(time, times.get(application, time))
        settled = [time for time in (self.settled_at, settled_at) if time is not None]
        found = Position(consumed, self.part, max(settled, default=None), times)
        return found if self.part is None or not found.has_batch(self.part.batch) else replace(found, part=None)


def floor_of(positions: Iterable[Position], again: Iterable[MessageKey] = ()) -> Position:
    """The batches that all of the positions have consumed whole, up to those of messages that come ``again``."""
    known = list(positions)
    shared = set(known[0].consumed).intersection(*(each.consumed for each in known[1:])) if known else set()
    consumed = {name: min(each.consumed[name] for each in known) for name in shared}
    for application, batch_id, _ in (message.batch for message in again):
        if application in shared:
            consumed[application] = min(consumed[application], batch_id - 1)
    return Position(consumed, times={name: min(each.times[name] for each in known) for name in shared})


def last_of(batches: Iterable[BatchKey], known: Mapping[str, BatchKey] = MappingProxyType({})) -> dict[str, BatchKey]:
    """By application the last id of batches and their latest time, those of ``known`` included."""
    last = dict(known)
    for batch in batches:
        before = last.get(batch.application, batch)
        later = max(before.batch_id, batch.batch_id), max(before.batch_time, batch.batch_time)
        last[batch.application] = BatchKey(batch.application, *later)
    return last
