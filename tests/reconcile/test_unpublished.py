"""What waits for its topic's table: in a world in plain Python whose tables break and heal, and whose batches die."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random

import pytest

from checkback.reconcile.publish import unpublished
from checkback.reconcile.publish.unpublished import (
    FIRST_PAUSE,
    FIRST_TRIES,
    LATER,
    LONGEST_PAUSE,
    MOST_TRIES,
    Unpublished,
    UnpublishedRows,
    UnpublishedTopics,
    unfit,
)
from checkback.storage.failure_scope import as_reason

pytestmark = pytest.mark.slow

TOPICS = ("a", "b", "_delta_log")
#: how a topic's table may be: it takes rows; it can be opened, and takes none; it cannot be opened; it takes them and
#: fails nevertheless
FINE, REFUSES, DARK, LIES = "fine", "refuses", "dark", "lies"
Message = int


class CrashError(Exception):
    """The application dies."""


class TableError(Exception):
    """A topic's table fails."""


@dataclass
class Table:
    """Rows (message, its own batch, and the batch that it is a row of), and Delta's application versions."""

    state: str = FINE
    rows: list[tuple[Message, int, int]] = field(default_factory=list)
    versions: dict[str, int] = field(default_factory=dict)

    def last(self, app: str) -> int:
        """The last version of an application."""
        if self.state == DARK:
            raise TableError
        return self.versions.get(app, -1)

    def append(self, rows: list[tuple[Message, int, int]], app: str, version: int) -> None:
        """Once for each version."""
        if self.last(app) >= version or not rows:
            return
        if self.state == REFUSES:
            raise TableError
        self.rows += rows
        self.versions[app] = version
        if self.state == LIES:
            raise TableError


class World:
    """The tables, the plan of each batch, and a run that may die at any step of one. As `Publisher` does it."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.topics = {topic: Table() for topic in TOPICS}
        self.unpublished: list[tuple[str, str, int, Message]] = []
        self.versions: dict[str, int] = {}
        self.notes: dict[tuple[str, str], int] = {}
        self.moved: list[tuple[str, Table]] = []
        self.decided: dict[Message, tuple[str, int]] = {}
        self.plans: list[dict[Message, str]] = []
        self.done = self.first = self.apps = 0
        self.messages = self.clock = 0
        self.waiting: Unpublished | None = None
        #: by batch, the topics whose tables its row in `batches` names
        self.named: dict[int, set[str]] = {}
        self.steps = -1

    @property
    def app(self) -> str:
        return f"q{self.apps}"

    def step(self) -> None:
        """Where it may die."""
        self.steps -= 1
        if self.steps == -1:
            self.waiting = None
            raise CrashError

    def known(self) -> Unpublished:
        if self.waiting is None:
            unpublished_rows: dict[tuple[str, str], list[int]] = {}
            for topic, app, batch, _ in self.unpublished:
                if batch > self.notes.get((topic, app), -1):
                    unpublished_rows.setdefault((topic, app), []).append(batch)
            fit = [(topic, app, batches) for (topic, app), batches in unpublished_rows.items() if unfit(topic) is None]
            found = [UnpublishedRows(topic, app, max(some), len(some), min(some), "") for topic, app, some in fit]
            self.waiting = Unpublished(found)
        return self.waiting

    def batch(self, new: dict[Message, str]) -> None:
        """The next batch, or the one that is to be done again. What was planned once is planned."""
        if self.done == len(self.plans):
            self.plans.append(new)
        number, plan = self.done - self.first, self.plans[self.done]
        late, done = self.late()
        unpublished_topics = UnpublishedTopics(self.app, self.known().reasons())
        unpublished_rows = {
            message: topic for message, topic in plan.items() if unpublished_topics.reason(topic) is not None
        }
        direct = sorted({*plan.values()} - {*unpublished_rows.values()})
        self.random.shuffle(direct)
        failed: dict[str, str] = {}
        for topic in [*direct, ""]:
            self.step()
            mine = [message for message in plan if plan[message] == topic]
            if not topic:
                self.decided |= {message: (topic, self.done) for message, topic in plan.items()}
                continue
            try:
                self.topics[topic].append([(one, self.done, self.done) for one in mine], self.app, number)
            except TableError:
                failed[topic] = "why"
                unpublished_rows |= dict.fromkeys(mine, topic)
        self.step()
        if unpublished_rows and self.versions.get(self.app, -1) < number:
            self.unpublished += [(topic, self.app, number, message) for message, topic in unpublished_rows.items()]
            self.versions[self.app] = number
        self.step()
        reasons = {**self.known().reasons(), **failed}
        for topic, count in Counter(unpublished_rows.values()).items():
            if topic in reasons:
                self.known().leave_unpublished(
                    UnpublishedRows(topic, self.app, number, count, self.clock, reasons[topic]), self.clock
                )
        self.known().in_doubt.update(failed)
        self.step()
        self.named[self.done] = {*direct, *late, *self.known().in_doubt}
        self.done += 1
        self.step()
        self.notes |= done
        self.known().in_doubt.clear()

    def late(self) -> tuple[set[str], dict[tuple[str, str], int]]:
        """What waits, where it is time to try: the topics whose tables took it, and the notes of it."""
        due, done = self.known().due(self.clock), dict[tuple[str, str], int]()
        took = {topic: self.took(topic, done) for topic in due}
        for topic in due:
            if took[topic]:
                self.known().published(topic)
            else:
                self.known().failed(topic, self.clock, "again")
        return {topic for topic in due if took[topic]}, done

    def took(self, topic: str, done: dict[tuple[str, str], int]) -> bool:
        """Has the table taken all that waits for it?"""
        try:
            for one in self.known().of(topic):
                self.step()
                self.publish_unpublished(topic, one)
                done[topic, one.application] = one.last
        except TableError:
            return False
        return True

    def publish_unpublished(self, topic: str, one: UnpublishedRows) -> None:
        table = self.topics[topic]
        last = table.last(one.application)
        if last >= one.last:
            return
        there = {message for message, _, _ in table.rows}
        after = max(last, self.notes.get((topic, one.application), -1))
        rows = [
            (message, self.decided[message][1], self.done)
            for name, app, batch, message in self.unpublished
            if (name, app) == (topic, one.application) and batch > after and message not in there
        ]
        table.append(rows, one.application, one.last)

    def move_away(self, topic: str) -> None:
        """Somebody moves a table away that nothing waits for, between two batches of a run; a new one is made."""
        if self.waiting is not None and self.done == len(self.plans) and not self.waiting.of(topic):
            self.moved.append((topic, self.topics[topic]))
            self.topics[topic] = Table()

    def rows(self, topic: str) -> list[tuple[Message, int, int]]:
        """Of a topic, also in the tables that were moved away."""
        return [row for name, table in [*self.moved, *self.topics.items()] if name == topic for row in table.rows]

    def rebuild(self) -> None:
        """The checkpoint is lost. As `batch_recovery.finish`, then a new application; the undecided are pending."""
        self.waiting = None
        unpublished_rows = {message for *_, message in self.unpublished}
        waits = self.known().reasons()
        for number, plan in enumerate(self.plans[self.done :], self.done):
            there = {message for table in self.topics.values() for message, _, _ in table.rows}
            for message, topic in plan.items():
                if message in there:
                    self.decided[message] = topic, number
            lacking = {one: topic for one, topic in plan.items() if one in self.decided and one not in unpublished_rows}
            for topic in TOPICS:
                mine = [one for one in lacking if lacking[one] == topic]
                table = self.topics[topic]
                new = [(one, number, number) for one in mine if one not in {row[0] for row in table.rows}]
                dark = table.state == DARK
                why = waits.get(topic) or unfit(topic)
                if not why and not dark:
                    with suppress(TableError):
                        table.append(new, f"rebuild {number}", 0)
                        continue
                some = mine if dark else [row[0] for row in new]
                self.unpublished += [(topic, f"r{self.apps}", number, one) for one in some]
        plans = self.plans[self.done :]
        left = {one: topic for plan in plans for one, topic in plan.items() if one not in self.decided}
        self.plans = [*self.plans[: self.done], *([left] if left else [])]
        self.first, self.waiting = self.done, None
        self.apps += 1

    def check(self) -> None:
        """Nothing twice, ever; a message that is decided by a whole batch is somewhere."""
        there = Counter(message for topic in TOPICS for message, _, _ in self.rows(topic))
        assert max(there.values(), default=1) == 1, "published twice"
        waits = {message for *_, message in self.unpublished}
        for plan in self.plans[: self.done]:
            for message in plan:
                assert message in there or message in waits, f"{message} is lost"
                assert message in self.decided

    def check_named(self) -> None:
        """A batch's row in `batches` names each topic that has rows of it: consumers read no others."""
        for topic in TOPICS:
            for message, _, batch in self.rows(topic):
                assert topic in self.named[batch], f"no consumer reads {message}"


def _history(random: Random) -> tuple[World, dict[Message, str], bool]:
    """Some steps at random, then all tables are mended and it runs on: messages, and was there a rebuild?"""
    world = World(random)
    sent: dict[Message, str] = {}
    rebuilt, rebuilds = False, random.random() < 0.3

    def batch(number: int, crash: int = -1) -> None:
        new = {world.messages + one: random.choice(TOPICS) for one in range(number)}
        world.messages += number
        world.steps = crash
        if world.done == len(world.plans):
            sent.update(new)
        with suppress(CrashError):
            world.batch(new)
        world.check()

    for _ in range(random.randrange(25)):
        kind = random.random()
        if kind < 0.6:
            batch(random.randrange(4), random.choice([-1, -1, random.randrange(8)]))
        elif kind < 0.8:
            world.topics[random.choice(TOPICS)].state = random.choice([FINE, FINE, REFUSES, DARK, LIES])
        elif kind < 0.9:
            world.clock += random.choice([1, FIRST_PAUSE, LONGEST_PAUSE])
        elif kind < 0.93:
            world.move_away(random.choice(TOPICS))
        elif kind < 0.97 or not rebuilds:
            world.waiting = None
        else:
            world.rebuild()
            rebuilt = True
    for table in world.topics.values():
        table.state = FINE
    world.waiting = None
    while world.done < len(world.plans):
        batch(0)
    world.waiting = None
    batch(0)
    while world.known().reasons():
        batch(0)
    return world, sent, rebuilt


@pytest.mark.parametrize("first_tries", [1, unpublished.FIRST_TRIES])
def test_each_message_is_published_once_whatever_breaks(first_tries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables break and heal, batches die and are done again, the checkpoint is lost: in the end each is there, once."""
    monkeypatch.setattr(unpublished, "FIRST_TRIES", first_tries)
    for seed in range(4000):
        world, sent, rebuilt = _history(Random(seed))
        for topic in ("a", "b"):
            rows = world.rows(topic)
            assert sorted(row[0] for row in rows) == sorted(one for one in sent if sent[one] == topic), seed
            if not rebuilt:  # the row of a batch that a rebuild has completed names none: consumers look into all
                world.check_named()
            for place in () if rebuilt else (1, 2):  # its own batch, and that of which it is a row
                batches = [row[place] for row in rows]
                assert batches == sorted(batches), f"out of order: {seed}"
        assert not world.topics["_delta_log"].rows


def test_topic_is_tried_again_later_and_later() -> None:
    """At the start, then after 10 s, 20 s, ... 10 min; only so many in a batch; a clock that is set back hurts not."""
    waiting = Unpublished([UnpublishedRows(f"t{number}", "q", 1, 2, number, "why") for number in range(40)])
    assert (waiting.rows, len(waiting.due(0)), waiting.next_try) == (80, 40, 0)
    for number in range(40):
        waiting.failed(f"t{number}", 1000, "still")
    assert waiting.due(1000 + FIRST_PAUSE - 1) == []
    assert len(waiting.due(1000 + FIRST_PAUSE)) == MOST_TRIES
    for number in range(39):
        waiting.published(f"t{number}")
    now, pauses = 1000, []
    for _ in range(9):
        assert waiting.next_try is not None
        pauses.append(waiting.next_try - now)
        now = waiting.next_try
        waiting.failed("t39", now, "still")
    assert (pauses[:3], pauses[-1]) == ([FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE], LONGEST_PAUSE)
    assert waiting.due(0) == ["t39"]
    waiting.published("t39")
    assert (waiting.next_try, waiting.reasons(), waiting.rows) == (None, {}, 0)


@pytest.mark.parametrize("topic", [None, "", "_delta_log", "_x", ".x", "../decisions", "a/b", "a b", "x" * 128, "é"])
def test_name_that_no_table_can_have_is_never_tried(topic: str | None) -> None:
    """Whoever landed it."""
    assert unfit(topic)
    assert UnpublishedTopics().reason(topic)


def test_topic_that_waits_has_its_reason() -> None:
    assert UnpublishedTopics().of({"a": "why"}).reason("a") == "why"


def test_reason_is_one_printable_line() -> None:
    assert as_reason("a\x1b[2Jb\nc\u2028d") == "a [2Jb c d"
    assert len(as_reason("x" * 10_000)) == 400


def test_flood_of_new_topics_delays_no_others() -> None:
    """Whatever their names are: one that had failed, and was repaired, and one that came with the flood."""
    waiting, now, tried, names = Unpublished(), 0, Counter[str](), iter(range(10**9))

    def leave_unpublished(topic: str, batch: int, reason: str) -> None:
        waiting.leave_unpublished(UnpublishedRows(topic, "app", batch, 1, now, reason), now)

    leave_unpublished("repaired", 0, "permission denied")
    for batch in range(60):
        now += FIRST_PAUSE
        for topic in waiting.due(now):
            tried[topic] += 1
            waiting.published(topic)
        for _ in range(FIRST_TRIES + 10):
            leave_unpublished(f"a{next(names):09}", batch, LATER)
        if batch == 1:
            leave_unpublished("zeta", batch, LATER)
    assert (tried["repaired"], tried["zeta"]) == (1, 1)
