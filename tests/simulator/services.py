"""A service that sends through several gateways: the steps of the SDK, and a listener with the real barrier."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import create_engine, text

from checkback.producer import Barrier, BarrierError, CheckRequest, LocalTransactionState, Message
from simulator.producers import NO_ANSWER, NOBODY, UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from checkback.producer.barrier import Transaction
    from simulator.tables import Tables

    Place = tuple[int, int]

GROUP = 1
#: the answer is the barrier's
BARRIER = "BARRIER"
ANSWERS = (BARRIER, BARRIER, BARRIER, UNKNOWN, NO_ANSWER, NOBODY)


class HinderedError(AssertionError):
    """A local transaction was refused without need."""


class Sending(NamedTuple):
    """A transaction of the service, and what comes of its checks by turns, the last one for ever."""

    transaction: int
    answers: Sequence[str]

    def __str__(self) -> str:
        return f"id {self.transaction}; asked, it says {', '.join(self.answers)} ..."


@dataclass
class Send:
    """A half message that was acknowledged to the service. ``state``: of its local transaction, None = not run."""

    place: Place
    state: LocalTransactionState | None = None


@cache
def database() -> Connection:
    """One for all histories of this process."""
    connection = create_engine("sqlite://").connect()
    Barrier(connection).create_table()
    with connection.begin():
        connection.execute(text("CREATE TABLE paid (transaction_id TEXT, place TEXT)"))
    return connection


@dataclass
class Service:
    """``sends``: of each transaction, in order; ``told``: the places of which a check was told ROLLBACK."""

    tables: Tables
    sendings: Sequence[Sending]
    sends: dict[int, list[Send]] = field(default_factory=dict)
    committed: dict[int, list[Place]] = field(default_factory=dict)
    told: set[tuple[int, Place]] = field(default_factory=set)
    _asked: dict[Place, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        connection = database()
        self.barrier = Barrier(connection)
        with connection.begin():
            connection.execute(self.barrier.table.delete())
            connection.execute(text("DELETE FROM paid"))

    def mark_of(self, message: Message) -> Transaction:
        """What the listener gives the barrier."""
        return message

    def check_of(self, check: CheckRequest) -> Transaction:
        """Likewise."""
        return check

    def acknowledged(self, transaction: int, place: Place) -> None:
        """The first answer that came."""
        self.sends.setdefault(transaction, []).append(Send(place))

    def failed(self, message: Message) -> LocalTransactionState:
        """What the listener returns for a local transaction that has failed: it may be said only once it is marked."""
        return self.barrier.check(self.mark_of(message))

    def run_local(self, transaction: int, ends: str) -> str:
        """The local transaction of the last half message, unless it has run. Raises HinderedError.

        ``ends``: commits; fails, and the listener says so; raises, which is UNKNOWN.
        """
        sends = self.sends.get(transaction)
        if not sends or sends[-1].state is not None:
            return "nothing to do"
        send = sends[-1]
        message = Message("payments", b"", transaction_id=str(transaction)).stored_at(*send.place, "orders")
        try:
            with self.barrier.local_transaction(self.mark_of(message)) as connection:
                row = {"id": str(transaction), "place": str(send.place)}
                connection.execute(text("INSERT INTO paid VALUES (:id, :place)"), row)
                _pay(ends)
        except ZeroDivisionError:
            send.state = LocalTransactionState.UNKNOWN if ends == "raises" else self.failed(message)
            if send.state is LocalTransactionState.ROLLBACK:
                self.told.add((transaction, send.place))
            return ends
        except BarrierError as barred:
            if not self.committed.get(transaction) and (transaction, send.place) not in self.told:
                raise HinderedError(f"P2: the local transaction of id {transaction} is hindered: {barred}") from barred
            send.state = barred.state
            return f"is barred, {barred.state.value}"
        send.state = LocalTransactionState.COMMIT
        self.committed.setdefault(transaction, []).append(send.place)
        return "commits"

    def ask(self, key: Place) -> str:
        """A check comes in."""
        half = next(half for half in self.tables.landed["half"] if (half.queue, half.offset) == key)
        turn = self._asked.get(key, 0)
        self._asked[key] = turn + 1
        answers = next(one.answers for one in self.sendings if one.transaction == half.transaction)
        said = answers[min(turn, len(answers) - 1)]
        if said != BARRIER:
            return said
        check = CheckRequest(*key, str(half.transaction), "orders", "payments", turn + 1, half.born)
        state = self.barrier.check(self.check_of(check))
        if state is LocalTransactionState.ROLLBACK:
            self.told.add((half.transaction, key))
        return state.value


def _pay(ends: str) -> None:
    if ends != "commits":
        raise ZeroDivisionError
