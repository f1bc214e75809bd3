"""Kinds of rounds, and what a listener does with each message: known beforehand, by the message's offset."""

from __future__ import annotations

from dataclasses import dataclass

from checkback.consumer.position import QUEUES

GROUP = "credits"
TOPICS = ("a", "b")
#: real_queue_id of the messages: all over the queues, and some beyond them
QUEUE_IDS = (0, 1, 20, 21, 22, 41, 42, 43, 63, 64, 85, 127)
TAGS = ("A", "B", None)
#: retries before a message is given up; pauses before them, and of an orderly queue that is held up (s)
MOST = 3
LEVELS = (0.1, 0.1, 0.15)
SUSPEND_S = 0.1
SESSION_S, COMMIT_S = 2.0, 0.2


@dataclass(frozen=True)
class Kind:
    """How the group consumes.

    ``batch``: messages of a call; ``tags``: the selector of topic b; ``exactly_once``: with positions in a database
    (SqlPositions); ``named``: a process has the member's name of one that has ended.
    """

    orderly: bool = False
    batch: int | None = None
    threads: int = 4
    tags: str = "*"
    exactly_once: bool = False
    named: bool = False

    def __str__(self) -> str:
        words = ["orderly" if self.orderly else "concurrent", f"{self.threads} threads"]
        words += [] if self.batch is None else [f"batches of {self.batch}"]
        words += [] if self.tags == "*" else [f"tags {self.tags}"]
        words += ["exactly once"] if self.exactly_once else []
        words += ["named"] if self.named else []
        return ", ".join(words)

    def wants(self, topic: str, tag: str | None) -> bool:
        """Does the group subscribe it?"""
        return topic != TOPICS[1] or self.tags == "*" or tag in self.tags.split(" || ")


def consume_queue(queue_id: int) -> int:
    """The queue that shares a position."""
    return queue_id % QUEUES


def tag(offset: int) -> str | None:
    """The message's tag."""
    return TAGS[offset % len(TAGS)]


def poisoned(offset: int) -> bool:
    """It always fails."""
    return offset % 211 == 13


def fails(offset: int, reconsume_times: int) -> bool:
    """This try fails."""
    return poisoned(offset) or (offset % 41 == 5 and reconsume_times < 1 + offset % 2)


def pause_s(offset: int) -> float:
    """How long the listener takes: now and then longer than all retries of a poisoned message soon behind it."""
    if offset % 844 == 6:
        return 2.5
    return 0.02 if offset % 67 == 0 else 0.001
