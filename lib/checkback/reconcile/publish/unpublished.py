"""Committed messages whose topic table cannot take them: which, why, and when they are retried.

Pure: no Spark, no clock, no I/O. The invariants by which they are neither lost nor published twice:

- From the batch that decides it on, a committed message is in its topic table, in `unpublished`, or in both if it was
  published late.
- While a topic waits, all its messages go to `unpublished`; they are published in order.
- A batch's row in `batches` names all tables that may have rows of it: consumers read no others.
- A topic table therefore takes an application's batches in order, each once, immediately or late, and its Delta
  transaction version is the last of them. That version tells whether a row of `unpublished` is published, even if a
  commit succeeded but reported failure, or a table was repaired, or broke, between a batch and its replay.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from checkback.messages.limits import TOPIC_MAX
from checkback.messages.names import reserved

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

TABLE = "unpublished"
#: Exponential backoff (ms) between retries of a topic table: first and longest pause.
FIRST_PAUSE, LONGEST_PAUSE = 10_000, 60_000
#: maximum number of topics retried in one batch
MOST_TRIES = 16
#: the same for topics not tried since the start
FIRST_TRIES = 100
#: reason of a topic whose table has not been tried yet
LATER = "a later batch makes its table: many topics are new"
#: TopicValidator.VALID_PATTERN_STR
_NAME = re.compile(r"[%|a-zA-Z0-9_-]+")


def unfit(topic: str | None) -> str | None:
    """Why a topic cannot have a table; None = it can."""
    if topic is None:
        return "it has no topic: real_topic is null"
    # Gateway and landing reject `%` and `|`; topics of other writers may contain them.
    if len(topic) > TOPIC_MAX or not _NAME.fullmatch(topic) or reserved(topic) is not None:
        return "its real_topic is no name of a topic"
    return None


@dataclass(frozen=True)
class UnpublishedTopics:
    """Tells a batch's tasks which messages go to `unpublished`.

    ``application``: the query id. ``waiting``: reasons by topic. ``only``: write the messages of
    ``waiting`` and nothing else.
    """

    application: str = ""
    waiting: Mapping[str, str] = field(default_factory=dict)
    only: bool = False

    def reason(self, topic: str | None) -> str | None:
        """Why the topic's messages go to `unpublished`; None = they are published."""
        return unfit(topic) or self.waiting.get(topic or "")

    def of(self, waiting: Mapping[str, str]) -> UnpublishedTopics:
        """For a second pass: only the messages of these topics."""
        return replace(self, waiting=waiting, only=True)

    def with_more(self, waiting: Mapping[str, str]) -> UnpublishedTopics:
        """With these topics added to ``waiting``."""
        return replace(self, waiting={**self.waiting, **waiting})


@dataclass(frozen=True)
class UnpublishedRows:
    """The rows of `unpublished` of one topic and application, up to its batch ``last``.

    ``since``: time of the first of these batches (ms). ``reason``: that of the last.
    """

    topic: str
    application: str
    last: int
    rows: int
    since: int
    reason: str


class Unpublished:
    """The topics with messages in `unpublished` that are not known to be published. Times are ms."""

    def __init__(self, unpublished_rows: Collection[UnpublishedRows] = ()) -> None:
        """``unpublished_rows``: the rows of fit topics. The first retry finds out which of them are published."""
        self._unpublished: dict[str, list[UnpublishedRows]] = {}
        self._tries: dict[str, tuple[int, int]] = {}
        #: Topics whose table may have rows of this batch although this process has not seen it take them: a commit may
        #: be made and reported as failed; of a process's first batch, the one before it may have committed a part.
        self.in_doubt: set[str] = {one.topic for one in unpublished_rows}
        for one in sorted(unpublished_rows, key=lambda one: one.since):
            self._unpublished.setdefault(one.topic, []).append(one)
            self._tries[one.topic] = 0, FIRST_PAUSE

    def of(self, topic: str) -> list[UnpublishedRows]:
        """A topic's waiting messages, oldest first."""
        return self._unpublished.get(topic, [])

    def reasons(self) -> dict[str, str]:
        """The reason by waiting topic."""
        return {topic: unpublished_rows[-1].reason for topic, unpublished_rows in self._unpublished.items()}

    @property
    def rows(self) -> int:
        """The number of waiting messages."""
        return sum(one.rows for unpublished_rows in self._unpublished.values() for one in unpublished_rows)

    @property
    def next_try(self) -> int | None:
        """Time of the next retry; 0 = in the next batch, None = no topic waits."""
        return min((at for at, _ in self._tries.values()), default=None)

    def due(self, now: int) -> list[str]:
        """Topics to retry now, longest waiting first: up to FIRST_TRIES untried ones, and MOST_TRIES of the others.

        However many of the ones there are, the others have their turn.
        """
        # A time beyond the longest pause: the clock was set back.
        passed = [(at, topic) for topic, (at, _) in self._tries.items() if at <= now or at > now + LONGEST_PAUSE]
        new = sorted((self._unpublished[topic][0].since, topic) for at, topic in passed if at == 0)
        others = sorted((at, topic) for at, topic in passed if at > 0)
        return [topic for _, topic in (*new[:FIRST_TRIES], *others[:MOST_TRIES])]

    def failed(self, topic: str, now: int, reason: str) -> None:
        """Register a failed retry."""
        self.in_doubt.add(topic)
        self._unpublished[topic][-1] = replace(self._unpublished[topic][-1], reason=reason)
        pause = self._tries[topic][1]
        self._tries[topic] = now + pause, min(2 * pause, LONGEST_PAUSE)

    def published(self, topic: str) -> None:
        """Register a successful retry."""
        del self._unpublished[topic], self._tries[topic]

    def leave_unpublished(self, unpublished_rows: UnpublishedRows, now: int) -> None:
        """Register a batch's rows in `unpublished`; idempotent for a replayed batch."""
        mine = self._unpublished.setdefault(unpublished_rows.topic, [])
        untried = 0, FIRST_PAUSE
        self._tries.setdefault(
            unpublished_rows.topic,
            untried if unpublished_rows.reason == LATER else (now + FIRST_PAUSE, 2 * FIRST_PAUSE),
        )
        place = next((at for at, one in enumerate(mine) if one.application == unpublished_rows.application), None)
        if place is None:
            mine.append(unpublished_rows)
        elif unpublished_rows.last > mine[place].last:
            rows = mine[place].rows + unpublished_rows.rows
            mine[place] = replace(mine[place], last=unpublished_rows.last, rows=rows, reason=unpublished_rows.reason)
