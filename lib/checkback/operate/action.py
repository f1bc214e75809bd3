"""An operator action: looked at first, then done, then written to the ledger. `resolve` and `resume` are its kinds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from checkback.errors import FencedError
from checkback.operate.lookup import find
from checkback.operate.operations import operations_of
from checkback.operate.rows import operation_row
from checkback.operate.rules import RefusedError
from checkback.operate.transaction import chosen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from checkback.operate.operations import Operation
    from checkback.operate.tables import OperatorTables
    from checkback.operate.transaction import Asked, Transaction

#: Each try that is lost is another operator's that was won.
_TRIES = 50


@dataclass(frozen=True)
class Action:
    """What is to be done: its name in `operations`; ``judge`` raises RefusedError when it may not be done.

    ``version`` is what ``attempt`` will commit (Delta's transaction identifier). It is read before the transaction is
    looked at: whatever another operator commits from then on makes the attempt fail. ``attempt`` says what it did; None
    when another operator was first.
    """

    name: str
    judge: Callable[[Transaction], None]
    version: Callable[[OperatorTables], int]
    attempt: Callable[[OperatorTables, Transaction, int], Operation | None]


@dataclass(frozen=True)
class View:
    """The transaction that is meant, the ledger's ``missing`` rows, and what is ``done`` already but not in it."""

    transaction: Transaction
    missing: Sequence[Operation]
    done: Operation | None


@dataclass(frozen=True)
class Outcome:
    """What was done to the transaction as it was before. ``repeated``: earlier; now the ledger has it, too."""

    transaction: Transaction
    operation: Operation
    repeated: bool


def look(store: OperatorTables, asked: Asked, queue: int, action: Action) -> View:
    """What the action would be done to. Writes nothing. ``queue``: that of resumed messages.

    Raises RefusedError when it may not be done, SettingsError when it is not clear to which half message.
    """
    found = find(store, asked, queue)
    transaction = chosen(found.transactions, asked)
    missing = [one for one in operations_of(found.transactions) if (one.action, one.place) not in found.recorded]
    try:
        action.judge(transaction)
    except RefusedError:
        own = [one for one in missing if one.action == action.name and transaction.place in (one.place, one.new_place)]
        if not own:
            raise
        return View(transaction, missing, own[-1])
    return View(transaction, missing, None)


def act(store: OperatorTables, asked: Asked, queue: int, action: Action) -> Outcome:
    """Do it: first the op or half message, then the ledger, which must not tell of what was not done.

    Raises what ``look`` raises, and StorageError. After a crash in between the same command completes the ledger.
    """
    for _ in range(_TRIES):
        version = action.version(store)
        view = look(store, asked, queue, action)
        _record(store, view.missing)
        if view.done is not None:
            return Outcome(view.transaction, view.done, repeated=True)
        operation = action.attempt(store, view.transaction, version)
        if operation is not None:
            _record(store, [operation])
            return Outcome(view.transaction, operation, repeated=False)
    raise FencedError("other operators were always first", f"transaction {asked.transaction_id}", "run it again")


def _record(store: OperatorTables, operations: Iterable[Operation]) -> None:
    """Append to the ledger, each once, whoever comes first: a place is resolved once, and resumed once."""
    for one in operations:
        store.append("operations", operation_row(one), f"operator/{one.action}/{one.place}", 0)
