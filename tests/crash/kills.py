"""Rounds of kill -9 under load, and the figures of it."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from datetime import timedelta
from statistics import median
from typing import TYPE_CHECKING

from checkback.demo.producer import ExampleProducer
from crash.books import Books, audit, count, decided
from crash.fates import Lander, answers, ended_by_op
from crash.process import INTERVAL_S, PATIENCE_S, TIMEOUT_S, Reconcile

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

_EVERY_S, _TRANSACTIONS = 1.0, 50
#: transactions that the producer knows
_MOST = 200_000


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
        while not self._stop.is_set():
            self.lander.land(_TRANSACTIONS)
            self._stop.wait(_EVERY_S)


@dataclass(frozen=True)
class Figures:
    """Seconds from a start after a kill until everything is decided that had been ended by then."""

    rounds: int
    books: Books
    catch_up_s: list[float]

    def __str__(self) -> str:
        typical = f"{median(self.catch_up_s):.1f} s" if self.catch_up_s else "-"
        return (
            f"rounds {self.rounds}, transactions {self.books.transactions}, lost {len(self.books.lost)}, "
            f"duplicated {len(self.books.duplicated)}, median time to catch up after a kill {typical} "
            "(with the start of Spark)"
        )


def run(root: str, rounds: int, random: Random, tell: Callable[[str], object]) -> Figures:
    """Kill the application ``rounds`` times while transactions land, then let it finish, and audit the tables."""
    catch_up: list[float] = []
    lander = Lander(root)
    with ExampleProducer(answers(range(_MOST))) as producer:
        with Load(lander):
            for number in range(1, rounds + 1):
                told = _round(root, producer.endpoints, lander, random, catch_up)
                books = audit(root, timedelta(seconds=TIMEOUT_S), timedelta(seconds=INTERVAL_S), finished=False)
                tell(f"round {number} of {rounds}: {told}; {books.transactions} landed, faults: {_faults(books)}")
        with Reconcile(root, producer.endpoints) as application:
            _caught_up(root, lander, application, catch_up)
            application.until(lambda: count(root, "decisions") >= lander.landed)
            application.stop()
            code, said = application.wait()
            assert code == 0, said
        # As a scheduled run, there is nothing left to do.
        with Reconcile(root, producer.endpoints, "--available-now") as application:
            code, said = application.wait()
            assert code == 0, said
    return Figures(rounds, audit(root, timedelta(seconds=TIMEOUT_S), timedelta(seconds=INTERVAL_S)), catch_up)


def _round(root: str, endpoints: list[str], lander: Lander, random: Random, catch_up: list[float]) -> str:
    """Start, wait, kill: in the middle of the work, or anywhere from the start on; continuous or scheduled."""
    options = ["--available-now"] if random.random() < 0.3 else []
    kind = "a scheduled run" if options else "continuous"
    with Reconcile(root, endpoints, *options) as application:
        begun = time.monotonic()
        if random.random() < 0.25:
            application_s = random.uniform(0, max(catch_up, default=10.0))
            while time.monotonic() - begun < application_s and application.process.poll() is None:
                time.sleep(0.02)
        else:
            _caught_up(root, lander, application, catch_up)
            time.sleep(random.uniform(0, 3))
        alive = application.process.poll() is None
        application.kill()
        return f"{kind}, {'killed' if alive else 'ended'} after {time.monotonic() - begun:.1f} s"


def _caught_up(root: str, lander: Lander, application: Reconcile, catch_up: list[float]) -> None:
    """Wait until there are decisions for all that had been ended before the start, or the run ends."""
    begun, wanted = time.monotonic(), {offset for offset in range(lander.landed) if ended_by_op(offset)}
    application.until(lambda: wanted <= decided(root) or application.process.poll() == 0)
    catch_up.append(time.monotonic() - begun)


def _faults(books: Books) -> str:
    return "; ".join(map(str, [*books.duplicated, *books.lost, *books.faults][:3])) or "none"
