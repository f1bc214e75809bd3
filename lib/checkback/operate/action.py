"""An operator action: previewed, performed, then recorded in the ledger. `resolve` and `resume` are its kinds."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from checkback.errors import CheckbackError, FencedError
from checkback.operate.lookup import find, is_recorded
from checkback.operate.operations import operation_row, operations_of
from checkback.operate.permissions import RefusedError
from checkback.operate.transaction import Asked, chosen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from checkback.operate.operations import Operation
    from checkback.operate.operator_tables import OperatorTables
    from checkback.operate.transaction import Transaction

#: each attempt lost to a conflict means that another operator's succeeded.
TRIES = 50


@dataclass(frozen=True)
class Action:
    """What is to be done: its name in `operations`; ``judge`` raises RefusedError if it is not allowed.

    ``version`` is what ``attempt`` will commit (Delta's transaction identifier). It is read before the transaction is:
    if another operator commits after that, the attempt fails. It is given the transaction whose last attempt failed,
    None at first. ``attempt`` returns what it did; None if its version is taken.
    """

    name: str
    judge: Callable[[Transaction], None]
    version: Callable[[OperatorTables, Transaction | None], int]
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


def look(store: OperatorTables, asked: Asked, queue: int, action: Action, *, confirmed: bool = False) -> View:
    """What the action would affect. ``queue``: that of resumed messages.

    Read-only, unless it is refused although it is ``confirmed``: then the ledger is completed first, as by `act`.
    Raises RefusedError if the action is not allowed, SettingsError if the half message is missing or ambiguous.
    """
    family, missing = _find(store, asked, queue)
    try:
        return _judged(chosen(family, asked), missing, action)
    except CheckbackError:
        if confirmed:
            record(store, missing)
        raise


def _find(store: OperatorTables, asked: Asked, queue: int) -> tuple[list[Transaction], list[Operation]]:
    """The half messages of the transaction id, and what the ledger lacks of them.

    One whose op was rejected and one after it differ in their time alone.
    """
    found = find(store, asked, queue)
    done = operations_of(found.transactions)
    alike = Counter(one.name for one in done)
    missing = [
        one for one in done if one.name not in found.recorded or (alike[one.name] > 1 and not is_recorded(store, one))
    ]
    return found.transactions, missing


def _judged(transaction: Transaction, missing: Sequence[Operation], action: Action) -> View:
    try:
        action.judge(transaction)
    except RefusedError:
        place, group = transaction.place, transaction.producer_group
        mine = [one for one in missing if one.producer_group == group and place in (one.place, one.new_place)]
        own = [one for one in mine if one.action == action.name and not one.in_vain]
        if not own:
            raise
        return View(transaction, missing, own[-1])
    return View(transaction, missing, None)


def act(store: OperatorTables, asked: Asked, queue: int, action: Action, shown: Transaction | None = None) -> Outcome:
    """Perform the action: first the op or half message, then the ledger, which must not record what was not done.

    ``shown``: what was confirmed. By now the selection may mean another half message: it is done to this one, and
    refused if it has changed. Raises what ``look`` raises, and StorageError. After a crash in between, the same command
    completes the ledger, and so does any other action on the transaction id, also one that is refused.
    """
    meant = asked if shown is None else Asked(shown.transaction_id, shown.producer_group, shown.place)
    refused: Transaction | None = None
    for _ in range(TRIES):
        version = action.version(store, refused)
        family, missing = _find(store, asked, queue)
        record(store, missing)
        view = _judged(chosen(family, meant), missing, action)
        if view.done is not None:
            return Outcome(view.transaction, view.done, repeated=True)
        if shown is not None and _unasked(shown) != _unasked(view.transaction):
            raise RefusedError("has changed since it was shown", f"transaction {shown.place}", "look at it again")
        if refused is not None and refused.key != view.transaction.key:
            refused = None  # the version is of another transaction
            continue
        operation = action.attempt(store, view.transaction, version)
        if operation is not None:
            record(store, [operation])
            return Outcome(view.transaction, operation, repeated=False)
        refused = view.transaction
    raise FencedError("too many concurrent operator ops", f"transaction {asked.transaction_id}", "run it again")


def _unasked(transaction: Transaction) -> Transaction:
    """It without its checks: one that is sent or answered changes no action's consequences."""
    return replace(transaction, check_times=0, last_outcome=None, last_error=None)


def record(store: OperatorTables, operations: Iterable[Operation]) -> None:
    """Append to the ledger, idempotently and safe under concurrency.

    A version that is taken may be an earlier action's, whose op or half message is gone since a table was restored to
    an older version; or the row is gone: then it is appended with the next.
    """
    for one in operations:
        version = 0
        while not store.append("operations", operation_row(one), one.application, version):
            last = store.last_version("operations", one.application)
            if last is None or last < version or is_recorded(store, one):
                break
            version = last + 1
