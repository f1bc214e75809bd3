"""An operator action: previewed, performed, then recorded in the ledger. `resolve` and `resume` are its kinds."""

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

#: each attempt lost to a conflict means that another operator's succeeded.
TRIES = 50


@dataclass(frozen=True)
class Action:
    """What is to be done: its name in `operations`; ``judge`` raises RefusedError if it is not allowed.

    ``version`` is what ``attempt`` will commit (Delta's transaction identifier). It is read before the transaction is:
    if another operator commits after that, the attempt fails. ``attempt`` returns what it did; None if another operator
    was first.
    """

    name: str
    judge: Callable[[Transaction], None]
    version: Callable[[OperatorTables], int]
    attempt: Callable[[OperatorTables, Transaction, int], Operation | None]


@dataclass(frozen=True)
class View:
    """The selected transaction, the ledger's ``missing`` rows, and what is ``done`` but not recorded yet."""

    transaction: Transaction
    missing: Sequence[Operation]
    done: Operation | None


@dataclass(frozen=True)
class Outcome:
    """What was done, with the transaction as it was before. ``repeated``: done earlier; now the ledger has it, too."""

    transaction: Transaction
    operation: Operation
    repeated: bool


def look(store: OperatorTables, asked: Asked, queue: int, action: Action) -> View:
    """What the action would affect. Read-only. ``queue``: that of resumed messages.

    Raises RefusedError if the action is not allowed, SettingsError if the half message is missing or ambiguous.
    """
    found = find(store, asked, queue)
    transaction = chosen(found.transactions, asked)
    missing = [one for one in operations_of(found.transactions) if (one.action, one.key) not in found.recorded]
    try:
        action.judge(transaction)
    except RefusedError:
        place, group = transaction.place, transaction.producer_group
        mine = [one for one in missing if one.producer_group == group and place in (one.place, one.new_place)]
        own = [one for one in mine if one.action == action.name]
        if not own:
            raise
        return View(transaction, missing, own[-1])
    return View(transaction, missing, None)


def act(store: OperatorTables, asked: Asked, queue: int, action: Action) -> Outcome:
    """Perform the action: first the op or half message, then the ledger, which must not record what was not done.

    Raises what ``look`` raises, and StorageError. After a crash in between, the same command completes the ledger.
    """
    for _ in range(TRIES):
        version = action.version(store)
        view = look(store, asked, queue, action)
        record(store, view.missing)
        if view.done is not None:
            return Outcome(view.transaction, view.done, repeated=True)
        operation = action.attempt(store, view.transaction, version)
        if operation is not None:
            record(store, [operation])
            return Outcome(view.transaction, operation, repeated=False)
    raise FencedError("too many concurrent operator ops", f"transaction {asked.transaction_id}", "run it again")


def record(store: OperatorTables, operations: Iterable[Operation]) -> None:
    """Append to the ledger, idempotently and safe under concurrency: each is resolved once, and resumed once."""
    for one in operations:
        store.append("operations", operation_row(one), one.application, 0)
