"""Rounds of kill -9 under load, some with a rebuild of the checkpoint, and the figures of it."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from crash.books import Books, audit, cancelled, count, decided, rows
from crash.fates import HOUR_MS, Lander, answers, ended_by_op, fate
from crash.process import INTERVAL_S, PATIENCE_S, TIMEOUT_S, Application, Shape, Tuning
from examples.producer import ExampleProducer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

_EVERY_S, _TRANSACTIONS = 1.0, 50
#: transactions that the producer knows
_MOST = 200_000
#: one round in so many begins with a rebuild
_REBUILDS = 5
_SHAPES = (Shape(), Shape(segment_size=100), Shape(segment_size=1000, partitions=3))


@dataclass
class Load:
    """Lands transactions all the time, while its ``with`` block runs."""

    lander: Lander
    _stop: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Load:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(PATIENCE_S)

    def _run(self) -> None:
        cancelled = 0
        while not self._stop.is_set():
            # Of the last three seconds: some are scheduled by then, some delivered, some not even decided.
            landed = self.lander.landed
            self.lander.land(_TRANSACTIONS)
            self._stop.wait(_EVERY_S)
            if landed - cancelled > 3 * _TRANSACTIONS:
                self.lander.cancel(range(cancelled, cancelled + _TRANSACTIONS))
                cancelled += _TRANSACTIONS


@dataclass(frozen=True)
class Figures:
    """Seconds from a start after a kill until everything is decided that had been ended by then."""

    rounds: int
    books: Books
    catch_up_s: list[float]
    rebuilds: int = 0
    killed_rebuilds: int = 0

    def __str__(self) -> str:
        typical = f"{median(self.catch_up_s):.1f} s" if self.catch_up_s else "-"
        return (
            f"rounds {self.rounds}, transactions {self.books.transactions}, lost {len(self.books.lost)}, "
            f"duplicated {len(self.books.duplicated)}, median time to catch up after a kill {typical} "
            f"(with the start of Spark), rebuilds {self.rebuilds}, kills in them {self.killed_rebuilds}"
        )


@dataclass
class Rounds:
    """What goes on from round to round. ``shape``: the one that the checkpoint has."""

    root: str
    endpoints: list[str]
    lander: Lander
    random: Random
    catch_up: list[float] = field(default_factory=list)
    shape: Shape = _SHAPES[0]
    rebuilds: int = 0
    kills: int = 0

    def start(self, *options: str, max_checks: Sequence[int] = (1, 100, 160_000)) -> Application:
        """`checkback reconcile`, each time with other settings."""
        tuning = Tuning(
            self.random.choice([TIMEOUT_S, 2 * TIMEOUT_S]),
            self.random.choice([INTERVAL_S, 2 * INTERVAL_S]),
            self.random.choice(max_checks),
            self.random.choice(["1h", "72h"]),
        )
        return Application("reconcile", self.root, self.endpoints, *options, shape=self.shape, tuning=tuning)

    def audit(self, finished: bool) -> Books:
        """The tables as they are."""
        return audit(self.root, timedelta(seconds=TIMEOUT_S), timedelta(seconds=INTERVAL_S), finished)

    def round(self) -> str:
        """Start, wait, kill: in the middle of the work, or anywhere from the start on; continuous or scheduled."""
        options = ["--available-now"] if self.random.random() < 0.3 else []
        kind = "a scheduled run" if options else "continuous"
        with self.start(*options) as application:
            begun = time.monotonic()
            if self.random.random() < 0.25:
                self._die_within(application, max(self.catch_up, default=10.0))
            else:
                self.caught_up(application)
                time.sleep(self.random.uniform(0, 3))
            alive = application.process.poll() is None
            application.kill()
            return f"{kind}, {'killed' if alive else 'ended'} after {time.monotonic() - begun:.1f} s"

    def rebuild(self) -> str:
        """The checkpoint is lost, or another one is wanted; killed at random moments the rebuild is started again."""
        checkpoint = Path(self.root, "_checkpoints/reconcile")
        if lost := self.random.random() < 0.5 and checkpoint.exists():
            checkpoint.rename(checkpoint.with_name(f"lost-{self.rebuilds}"))
        else:
            self.shape = self.random.choice([shape for shape in _SHAPES if shape != self.shape])
        kills = self.random.choice([0, 1, 1, 2])
        for _ in range(kills):
            with Application("rebuild", self.root, self.endpoints, shape=self.shape) as application:
                # What it says is where it is: to die in its start would be nothing new.
                stage = self.random.choice(["finishing", "restoring", "starting"])
                application.until(partial(_says, application, stage))
                self._die_within(application, 6.0)
                self.kills += application.process.poll() is None
                application.kill()
        with Application("rebuild", self.root, self.endpoints, shape=self.shape) as application:
            code, said = application.wait()
            assert code == 0, said
        self.rebuilds += 1
        return f"{'lost' if lost else f'now {self.shape}'}, rebuilt, killed {kills} times in it; then "

    def _die_within(self, application: Application, most_s: float) -> None:
        until = time.monotonic() + self.random.uniform(0, most_s)
        while time.monotonic() < until and application.process.poll() is None:
            time.sleep(0.02)

    def caught_up(self, application: Application) -> None:
        """Wait until there are decisions for all that had been ended before the start, or the run ends."""
        begun, wanted = time.monotonic(), {offset for offset in range(self.lander.landed) if ended_by_op(offset)}
        application.until(lambda: wanted <= decided(self.root) or application.process.poll() == 0)
        self.catch_up.append(time.monotonic() - begun)


def run(root: str, rounds: int, random: Random, tell: Callable[[str], object]) -> Figures:
    """Kill the application ``rounds`` times while transactions land, then let it finish, and audit the tables.

    About one round in five begins with a rebuild; the second always does, after what the first has left half done.
    """
    lander = Lander(root)
    with ExampleProducer(answers(range(_MOST))) as producer:
        all_rounds = Rounds(root, producer.endpoints, lander, random)
        with Load(lander):
            for number in range(1, rounds + 1):
                rebuilds = number == 2 or (number > 2 and random.random() < 1 / _REBUILDS)
                told = (all_rounds.rebuild() if rebuilds else "") + all_rounds.round()
                books = all_rounds.audit(finished=False)
                tell(f"round {number} of {rounds}: {told}; {books.transactions} landed, faults: {_faults(books)}")
        # What the load has left takes a few batches, or hundreds.
        with all_rounds.start(max_checks=[160_000]) as application:
            all_rounds.caught_up(application)
            application.until(lambda: len(decided(root)) >= lander.landed)
            lander.cancel(range(lander.landed))  # those that were not scheduled yet when it was tried
            application.until(lambda: len(cancelled(root)) >= sum(map(_must_be_cancelled, range(lander.landed))))
            application.until(lambda: count(root, "deliveries") + len(cancelled(root)) >= _scheduled(root))
            application.stop()
            code, said = application.wait()
            assert code == 0, said
    books = all_rounds.audit(finished=True)
    return Figures(rounds, books, all_rounds.catch_up, all_rounds.rebuilds, all_rounds.kills)


def _must_be_cancelled(offset: int) -> bool:
    return fate(offset).delay_ms == HOUR_MS


def _scheduled(root: str) -> int:
    return sum(row["deliver_at"] is not None for row in rows(root, "decisions", "deliver_at"))


def _says(application: Application, words: str) -> bool:
    return words in application.said()


def _faults(books: Books) -> str:
    return "; ".join(map(str, [*books.duplicated, *books.lost, *books.faults][:3])) or "none"
