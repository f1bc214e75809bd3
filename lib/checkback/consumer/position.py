"""Positions of a consumer in a topic. Pure: no clock, no I/O.

A position names batches, not versions of the topic's table: OPTIMIZE, VACUUM and log cleanup change files and versions,
but a message keeps its batch. A rebuild begins a new application, whose batch ids begin anew, so a position has the
last batch of each application.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

#: Consume queues of a topic: messages with the same real_queue_id modulo this share a position.
QUEUES = 64
#: Application of the messages that a release without the table `batches` has published.
BEFORE_BATCHES = "-"


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
    consumed in part. ``settled_at``: the latest batch time consumed whole (ms), None = nothing yet.
    """

    consumed: Mapping[str, int] = field(default_factory=dict)
    part: MessageKey | None = None
    settled_at: int | None = None

    def has_batch(self, batch: BatchKey) -> bool:
        """True if the batch is consumed whole."""
        return batch.batch_id <= self.consumed.get(batch.application, -1 << 62)

    def has(self, message: MessageKey) -> bool:
        """True if the message is consumed."""
        if self.has_batch(message.batch):
            return True
        return self.part is not None and message.batch == self.part.batch and message[1:] <= self.part[1:]

    def after_batches(self, consumed: Mapping[str, int], settled_at: int | None) -> Position:
        """With these batches consumed whole, too, in the form of ``consumed``."""
        merged = dict(self.consumed)
        for application, batch_id in consumed.items():
            merged[application] = max(batch_id, merged.get(application, batch_id))
        times = [time for time in (self.settled_at, settled_at) if time is not None]
        part = self.part
        if part is not None and part.batch.batch_id <= merged.get(part.batch.application, -1 << 62):
            part = None
        return Position(merged, part, max(times, default=None))
