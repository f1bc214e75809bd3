"""Committed messages whose topic's table cannot take them: which they are, why, and when it is tried again.

Pure: no Spark, no clock, no I/O. The rules that keep them from being lost, or published twice:

- From the batch on that decides it, a committed message is a row of its topic's table or of `unpublished`, or of both:
  then it was published late.
- While a topic waits, all its messages go to `unpublished`; what waits longest is published first.
- So a topic's table takes the batches of an application in their order, each once, at once or late, and the last is
  Delta's application version of the table. By it a row of `unpublished` is known to be there or not, also where a
  commit was made and failed nevertheless, or where a batch is run again and a table is mended, or broken, in between.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from checkback.messages import TOPIC_MAX, reserved

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

TABLE = "unpublished"
#: After so long (ms) a topic's table is tried again; each time in vain twice as long, up to the second.
FIRST_PAUSE, LONGEST_PAUSE = 10_000, 600_000
#: topics that are tried again in one batch
MOST_TRIES = 16
#: and after a start, when none of them has been tried
FIRST_TRIES = 100
#: why a topic waits whose table nobody has tried to make
LATER = "a later batch makes its table: many topics are new"
_LONGEST_REASON = 400
#: TopicValidator.VALID_PATTERN_STR
_NAME = re.compile(r"[%|a-zA-Z0-9_-]+")


def unfit(topic: str | None) -> str | None:
    """Why no table can be made for messages that are meant for this; None = one can."""
    if topic is None:
        return "it has no topic: real_topic is null"
    # The doors refuse `%` and `|`; what other writers, or a release before, sent with them has a table all the same.
    if len(topic) > TOPIC_MAX or not _NAME.fullmatch(topic) or reserved(topic) is not None:
        return "its real_topic is no name of a topic"
    return None


def as_reason(line: str) -> str:
    """An error's line as the column `reason` has it: printable, and not endless."""
    text = "".join(char if char.isprintable() else " " for char in line)
    return text if len(text) <= _LONGEST_REASON else f"{text[: _LONGEST_REASON - 3]}..."


@dataclass(frozen=True)
class Parking:
    """What a batch's tasks are told: whose messages become rows of `unpublished`.

    ``application``: the query's id. ``waiting``: by topic, why. ``kept``: topics whose tables are there, fit or not.
    ``only``: the messages of ``waiting`` are all that is wanted.
    """

    application: str = ""
    waiting: Mapping[str, str] = field(default_factory=dict)
    kept: frozenset[str] = frozenset()
    only: bool = False

    def reason(self, topic: str | None) -> str | None:
        """Why the topic's messages are not published now; None = they are."""
        if topic is None or topic not in self.kept:
            found = unfit(topic)
            if found is not None or topic is None:
                return found
        return self.waiting.get(topic)

    def of(self, waiting: Mapping[str, str]) -> Parking:
        """For a second pass: the messages of these topics, and nothing else."""
        return replace(self, waiting=waiting, only=True)

    def with_more(self, waiting: Mapping[str, str]) -> Parking:
        """These topics wait, too."""
        return replace(self, waiting={**self.waiting, **waiting})


@dataclass(frozen=True)
class Parked:
    """Rows of `unpublished`: those of a topic that one application parked, the last of them in its batch ``last``.

    ``since``: time of the first of these batches (ms). ``reason``: of the last.
    """

    topic: str
    application: str
    last: int
    rows: int
    since: int
    reason: str


class Waiting:
    """The topics that have messages in `unpublished` and, as far as is known, not in their table. Times are ms."""

    def __init__(self, parked: Iterable[Parked] = ()) -> None:
        """``parked``: what the table has, of topics that are fit. What is published of it the first try finds out."""
        self._parked: dict[str, list[Parked]] = {}
        self._tries: dict[str, tuple[int, int]] = {}
        for one in sorted(parked, key=lambda one: one.since):
            self._parked.setdefault(one.topic, []).append(one)
            self._tries[one.topic] = 0, FIRST_PAUSE

    def of(self, topic: str) -> list[Parked]:
        """What of a topic waits, the oldest first."""
        return self._parked.get(topic, [])

    def reasons(self) -> dict[str, str]:
        """By topic that waits, why."""
        return {topic: parked[-1].reason for topic, parked in self._parked.items()}

    @property
    def rows(self) -> int:
        """How many messages wait."""
        return sum(one.rows for parked in self._parked.values() for one in parked)

    @property
    def next_try(self) -> int | None:
        """When the next topic is to be tried; 0 = in the next batch, None = none waits."""
        return min((at for at, _ in self._tries.values()), default=None)

    def due(self, now: int) -> list[str]:
        """Topics to be tried now, longest waiting first: FIRST_TRIES of the untried, MOST_TRIES of the others."""
        # One that is further ahead than any is put off: the clock was set back.
        passed = [(at, topic) for topic, (at, _) in self._tries.items() if at <= now or at > now + LONGEST_PAUSE]
        found = sorted(passed)
        new = [topic for at, topic in found if at == 0][:FIRST_TRIES]
        return [*new, *[topic for at, topic in found if at > 0][: max(0, MOST_TRIES - len(new))]]

    def failed(self, topic: str, now: int, reason: str) -> None:
        """It was tried in vain."""
        self._parked[topic][-1] = replace(self._parked[topic][-1], reason=reason)
        pause = self._tries[topic][1]
        self._tries[topic] = now + pause, min(2 * pause, LONGEST_PAUSE)

    def published(self, topic: str) -> None:
        """All that waited is in its table."""
        del self._parked[topic], self._tries[topic]

    def park(self, parked: Parked, now: int) -> None:
        """A batch has put more rows into `unpublished`; the same batch, done again, has not."""
        mine = self._parked.setdefault(parked.topic, [])
        untried = 0, FIRST_PAUSE
        self._tries.setdefault(
            parked.topic, untried if parked.reason == LATER else (now + FIRST_PAUSE, 2 * FIRST_PAUSE)
        )
        place = next((at for at, one in enumerate(mine) if one.application == parked.application), None)
        if place is None:
            mine.append(parked)
        elif parked.last > mine[place].last:
            rows = mine[place].rows + parked.rows
            mine[place] = replace(mine[place], last=parked.last, rows=rows, reason=parked.reason)
