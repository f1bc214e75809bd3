"""What processes have written down, read again: calls of listeners, published batches, and what was done to whom."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import NamedTuple

from crash_consumer.consuming import BEGAN, FAILED, SUCCEEDED, TAKEN_FOR_DEAD
from crash_consumer.kinds import consume_queue


class Place(NamedTuple):
    """A published message: its queue, its number in the queue's order, and when its batch was concluded (ns)."""

    topic: str
    queue: int
    number: int
    at: int


@dataclass
class Call:
    """A listener's call with one message. ``end``: None = it did not end. Times: monotonic, ns."""

    member: str
    topic: str
    queue_id: int
    offset: int
    reconsume_times: int
    begin: int
    end: int | None = None
    succeeded: bool = False

    @property
    def queue(self) -> tuple[str, int]:
        """Topic and consume queue."""
        return self.topic, consume_queue(self.queue_id)


@dataclass
class Fate:
    """What was done to a process. Times: monotonic, ns; ``stopped``: from and to."""

    stopped: list[tuple[int, int]] = field(default_factory=list)
    killed_at: int | None = None
    taken_for_dead: list[int] = field(default_factory=list)

    def hindered(self, begin: int, end: int) -> bool:
        """Was it stopped, or taken for dead, at some time between?"""
        times = [*self.stopped, *((at, at) for at in self.taken_for_dead)]
        return any(since <= end and to >= begin for since, to in times)

    def disturbed(self, begin: int, end: int) -> bool:
        """Was it killed, stopped, or taken for dead?"""
        killed = self.killed_at is not None and begin <= self.killed_at <= end
        return killed or self.hindered(begin, end)


class Journals:
    """The calls of all processes so far; `read` reads on."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._offsets: dict[str, int] = {}
        self._open: dict[tuple[str, int, str, int], Call] = {}
        self.calls: list[Call] = []
        self.succeeded: set[int] = set()
        self.deaths: dict[str, list[int]] = {}

    def read(self) -> None:
        """Read what was written since the last time."""
        for name in sorted(os.listdir(self._folder)):
            if name.endswith(".journal"):
                path = f"{self._folder}/{name}"
                with open(path, "rb") as file:
                    file.seek(self._offsets.get(name, 0))
                    whole = file.read()
                whole = whole[: whole.rfind(b"\n") + 1]
                self._offsets[name] = self._offsets.get(name, 0) + len(whole)
                for line in whole.decode().splitlines():
                    self._line(name.removesuffix(".journal"), line.split())

    def _line(self, member: str, words: list[str]) -> None:
        kind, at = words[0], int(words[1])
        if kind == TAKEN_FOR_DEAD:
            self.deaths.setdefault(member, []).append(at)
        elif kind == BEGAN:
            topic, queue_id, offset, times = words[2], *map(int, words[3:])
            call = Call(member, topic, queue_id, offset, times, at)
            self.calls.append(call)
            self._open[member, offset, topic, times] = call
        elif kind in (SUCCEEDED, FAILED):
            call = self._open.pop((member, int(words[4]), words[2], int(words[5])))
            call.end, call.succeeded = at, kind == SUCCEEDED
            if call.succeeded:
                self.succeeded.add(call.offset)


def published(ledger: str) -> dict[int, Place]:
    """All messages of concluded batches, by offset."""
    found: dict[int, Place] = {}
    counts: dict[tuple[str, int], int] = {}
    with open(ledger, encoding="utf-8") as lines:
        for line in lines:
            batch = json.loads(line)
            for topic, queue_id, _, offset in batch["messages"]:
                queue = topic, consume_queue(queue_id)
                found[offset] = Place(*queue, counts.get(queue, 0), batch["at"])
                counts[queue] = counts.get(queue, 0) + 1
    return found
