"""Rounds: three consumers that are killed, stopped, shut down and started anew while batches are published."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sqlite3
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from checkback.consumer.storage import consumer_tables
from consumer.published import Published
from crash.books import rows
from crash_consumer.consuming import ENDED, STARTED, consume
from crash_consumer.journals import Fate, Journals, published
from crash_consumer.kinds import GROUP, SESSION_S, Kind
from crash_consumer.promises import Round, Verdict, judge, wanted
from crash_consumer.publishing import publish

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.process import BaseProcess
    from random import Random

MEMBERS = 3
#: for the group to consume what is left, for a process to end (s)
PATIENCE_S = 90.0
_LOOK_S = 0.2
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["crash_consumer.consuming", "crash_consumer.publishing", "crash_consumer.preload"])


@dataclass
class Figures:
    """Sums over all rounds."""

    rounds: int = 0
    kills: int = 0
    stops: int = 0
    shutdowns: int = 0
    taken_for_dead: int = 0
    messages: int = 0
    calls: int = 0
    repeated: int = 0
    unexplained: int = 0
    lost: int = 0
    doubled_dead_letters: int = 0
    doubled_effects: int = 0
    faults: int = 0

    @property
    def good(self) -> bool:
        """Was every promise kept?"""
        return not (self.lost or self.doubled_dead_letters or self.doubled_effects or self.faults)

    def __str__(self) -> str:
        return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in vars(self).items())


@dataclass
class Member:
    """A process of the group. ``slot``: among those that run."""

    name: str
    slot: int
    process: BaseProcess
    fate: Fate = field(default_factory=Fate)
    continue_at: float | None = None

    @property
    def pid(self) -> int:
        """The process's id."""
        assert self.process.pid is not None
        return self.process.pid


class Group:
    """The processes of one round."""

    def __init__(self, folder: str, kind: Kind, random: Random) -> None:
        self.folder, self.kind, self._random = folder, kind, random
        self.lake = f"{folder}/lake"
        self.members: list[Member] = []
        self.fates: dict[str, Fate] = {}
        self.stops = 0
        self.shutdowns = 0
        self.faults: list[str] = []

    def start(self) -> Member:
        """One more process."""
        name = f"m{len(self.fates)}"
        free = next(slot for slot in range(len(self.members) + 1) if all(each.slot != slot for each in self.members))
        known_as = f"member-{free}" if self.kind.named else name
        process = _CONTEXT.Process(
            target=consume, args=(self.lake, self.folder, name, known_as, self.kind), daemon=True
        )
        process.start()
        member = Member(name, free, process)
        self.members.append(member)
        self.fates[name] = member.fate
        return member

    def kill(self, member: Member) -> None:
        """Kill -9."""
        member.process.kill()
        member.process.join(PATIENCE_S)
        self._awake(member)
        member.fate.killed_at = time.monotonic_ns()
        self.members.remove(member)

    def stop(self, member: Member, seconds: float) -> None:
        """SIGSTOP; `look` continues it."""
        os.kill(member.pid, signal.SIGSTOP)
        member.fate.stopped.append((time.monotonic_ns(), 1 << 62))
        member.continue_at = time.monotonic() + seconds
        self.stops += 1

    def shutdown(self, *members: Member) -> None:
        """SIGTERM; wait for the end."""
        for member in members:
            self._awake(member)
            self._wait_for_handler(member)
            member.process.terminate()
        for member in members:
            member.process.join(PATIENCE_S)
            if member.process.exitcode is None:
                self.faults.append(f"{member.name} does not end; its log has the stacks of its threads")
                os.kill(member.pid, signal.SIGUSR1)
                time.sleep(1.0)
                member.process.kill()
            elif member.process.exitcode != 0:
                self.faults.append(f"{member.name} has ended with {member.process.exitcode}: {self.said(member.name)}")
            self.members.remove(member)
            self.shutdowns += 1

    def look(self) -> None:
        """Continue those whose time has come; a process that has ended by itself is a fault, and another one begins."""
        for member in list(self.members):
            if member.continue_at is not None and time.monotonic() > member.continue_at:
                self._awake(member)
            if member.process.exitcode is not None:
                self.faults.append(f"{member.name} has ended by itself: {self.said(member.name)}")
                self.members.remove(member)
        while len(self.members) < MEMBERS - 1 or (len(self.members) < MEMBERS and self._random.random() < 0.5):
            self.start()

    def wake_all(self) -> None:
        """Continue all."""
        for member in self.members:
            self._awake(member)

    def _wait_for_handler(self, member: Member) -> None:
        """A process that handles SIGTERM has a journal."""
        until = time.monotonic() + PATIENCE_S
        while not os.path.exists(f"{self.folder}/{member.name}.journal") and time.monotonic() < until:
            time.sleep(0.02)

    def said(self, name: str) -> str:
        """The last line that a process has said."""
        try:
            with open(f"{self.folder}/{name}.log", encoding="utf-8", errors="replace") as lines:
                return next((line.strip() for line in reversed(list(lines)) if line.strip()), "nothing")
        except FileNotFoundError:
            return "nothing"

    def disturb(self) -> None:
        """One random thing to a random process."""
        awake = [member for member in self.members if self._random.random() < 0.1 or self._works(member)]
        if not awake:
            return
        member, dice = self._random.choice(awake), self._random.random()
        if dice < 0.45:
            self.kill(member)
        elif member.continue_at is not None:
            return
        elif dice < 0.65:
            self.stop(member, self._random.uniform(1.5, 2.5) * SESSION_S)
        elif dice < 0.8:
            self.stop(member, self._random.uniform(0.1, 0.99) * SESSION_S)
        elif dice < 0.95:
            self.shutdown(member)
        else:
            self.start()

    def _works(self, member: Member) -> bool:
        """Mostly those are disturbed that have begun to consume."""
        return _last_word(self, member) not in ("", STARTED)

    @staticmethod
    def _awake(member: Member) -> None:
        if member.continue_at is not None:
            since, _ = member.fate.stopped.pop()
            member.fate.stopped.append((since, time.monotonic_ns()))
            member.continue_at = None
            if member.process.exitcode is None:
                os.kill(member.pid, signal.SIGCONT)

    def end(self) -> None:
        """Kill what is left."""
        for member in list(self.members):
            self.kill(member)


def run_round(folder: str, kind: Kind, random: Random, seconds: float) -> tuple[Verdict, Group]:
    """One round in a new folder: disturb for ``seconds``, let the group consume the rest, and judge."""
    group = Group(folder, kind, random)
    ledger = f"{folder}/ledger"
    open(ledger, "w", encoding="utf-8").close()
    # The members may be faster than the publisher, and refuse a root without tables.
    Published(consumer_tables(group.lake)[0]).log("batches")
    publisher = _CONTEXT.Process(target=publish, args=(group.lake, ledger, random.randrange(1 << 30)), daemon=True)
    publisher.start()
    try:
        for _ in range(MEMBERS):
            group.start()
        _begin(group, ledger)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(random.uniform(0.1, 1.6))
            group.look()
            group.disturb()
        publisher.terminate()
        publisher.join(PATIENCE_S)
        if publisher.exitcode != 0:
            group.faults.append(f"the publisher has ended with {publisher.exitcode}")
        verdict = _finish(group, ledger)
    finally:
        publisher.kill()
        group.end()
    return verdict, group


def _begin(group: Group, ledger: str) -> None:
    """Wait until something is published and somebody consumes it: a busy machine needs its time."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        group.look()
        if published(ledger) and any(_last_word(group, member) not in ("", STARTED) for member in group.members):
            return
        time.sleep(_LOOK_S)


def _finish(group: Group, ledger: str) -> Verdict:
    group.wake_all()
    while len(group.members) < MEMBERS:
        group.start()
    messages = published(ledger)
    subscribed = wanted(group.kind, messages)
    journals = Journals(group.folder)
    until, known = time.monotonic() + PATIENCE_S, 0
    while time.monotonic() < until:
        group.look()
        journals.read()
        dead = Counter(_dead(group.lake))
        rest = subscribed - journals.succeeded - set(dead)
        effects = _applied(group)
        if not rest and (effects is None or subscribed <= set(effects) | set(dead)):
            break
        if len(journals.calls) > known:
            known, until = len(journals.calls), time.monotonic() + PATIENCE_S / 3
        time.sleep(_LOOK_S)
    group.shutdown(*group.members)
    _consume_nothing(group, journals)
    for name, deaths in journals.deaths.items():
        group.fates[name].taken_for_dead += deaths
    dead = Counter(_dead(group.lake))
    verdict = judge(Round(group.kind, messages, journals.calls, group.fates, dead, _applied(group)))
    verdict.faults += group.faults
    return verdict


def _consume_nothing(group: Group, journals: Journals) -> None:
    """After shutdowns that were waited for the positions are behind the last message: nothing is left to consume."""
    journals.read()
    before = len(journals.calls)
    member = group.start()
    until = time.monotonic() + PATIENCE_S
    while _last_word(group, member) != STARTED and time.monotonic() < until:
        time.sleep(0.05)
    time.sleep(1.0)
    group.shutdown(member)
    journals.read()
    more = journals.calls[before:]
    if more:
        group.faults.append(f"{len(more)} calls after all was consumed and shut down, as {more[0].offset}")
    if _last_word(group, member) != ENDED:
        group.faults.append(f"the last member did not end: {group.said(member.name)}")


def _last_word(group: Group, member: Member) -> str:
    try:
        with open(f"{group.folder}/{member.name}.journal", encoding="utf-8") as lines:
            return next((line.split()[0] for line in reversed(list(lines))), "")
    except FileNotFoundError:
        return ""


def _dead(lake: str) -> list[int]:
    found = rows(lake, "dead_letters", "consumer_group", "half_queue_offset")
    return [row["half_queue_offset"] for row in found if row["consumer_group"] == GROUP]


def _applied(group: Group) -> Counter[int] | None:
    if not group.kind.exactly_once:
        return None
    with closing(sqlite3.connect(f"{group.folder}/applied.db", timeout=60)) as database:
        return Counter(offset for (offset,) in database.execute('SELECT "offset" FROM applied'))


def kinds(random: Random, exactly_once: bool) -> Kind:
    """A random kind. ``exactly_once``: that one may be among them."""
    once = exactly_once and random.random() < 0.35
    return Kind(
        orderly=random.random() < 0.45,
        batch=random.choice([None, None, 3, 8]),
        threads=random.choice([1, 4, 4, 12]),
        tags=random.choice(["*", "A", "A || B"]),
        exactly_once=once,
        named=random.random() < 0.3,
    )


def run(
    folder: str,
    rounds: int,
    random: Random,
    tell: Callable[[str], object],
    seconds: float,
    kind: Kind | None = None,
    stop: bool = False,
) -> Figures:
    """So many rounds, each in a folder of its own. ``kind``: None = random ones; ``stop``: after the first fault."""
    figures = Figures()
    once = has_positions()
    for number in range(1, rounds + 1):
        place = f"{folder}/{number}"
        os.makedirs(f"{place}/lake")
        this = kind or kinds(random, once)
        verdict, group = run_round(place, this, random, seconds)
        _add(figures, verdict, group)
        shown = [*verdict.faults[:3]]
        shown += [f"lost {verdict.lost[:5]}"] if verdict.lost else []
        shown += [f"twice in dead_letters {verdict.doubled_dead_letters[:5]}"] if verdict.doubled_dead_letters else []
        shown += [f"applied twice {verdict.doubled_effects[:5]}"] if verdict.doubled_effects else []
        tell(
            f"round {number} of {rounds}: {this}; {verdict.messages} messages, {verdict.repeated} repeated, "
            f"{group.stops} stops, faults: {'; '.join(shown) or 'none'}"
        )
        if stop and not figures.good:
            break
    return figures


def has_positions() -> bool:
    """Does the library keep positions in a database?"""
    try:
        from checkback.consumer import SqlPositions
    except ImportError:
        return False
    return SqlPositions is not None


def _add(figures: Figures, verdict: Verdict, group: Group) -> None:
    figures.rounds += 1
    figures.kills += sum(fate.killed_at is not None for fate in group.fates.values())
    figures.stops += group.stops
    figures.shutdowns += group.shutdowns
    figures.taken_for_dead += sum(len(fate.taken_for_dead) for fate in group.fates.values())
    figures.messages += verdict.messages
    figures.calls += verdict.calls
    figures.repeated += verdict.repeated
    figures.unexplained += verdict.unexplained
    figures.lost += len(verdict.lost)
    figures.doubled_dead_letters += len(verdict.doubled_dead_letters)
    figures.doubled_effects += len(verdict.doubled_effects)
    figures.faults += len(verdict.faults)
