"""What `tx resolve`, `tx cancel` and `tx resume` ask for: validated options, the action, the tables to do it on."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from checkback.errors import SettingsError
from checkback.messages.limits import INT_MAX, LONG_MAX
from checkback.operate.action import Action
from checkback.operate.operations import ACTIONS, CANCEL, Operation, OperatorSignature, op_row
from checkback.operate.operator_tables import open_tables
from checkback.operate.permissions import judge_cancel, judge_resolve
from checkback.operate.resume import resuming
from checkback.operate.resume_all import RequestForAll
from checkback.operate.transaction import Asked, Place
from checkback.storage.queue_owners import QueueOwner, log_of_half, refuse_foreign
from checkback.storage.tables import Tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime

    from checkback.operate.operator_tables import OperatorTables
    from checkback.operate.transaction import Transaction
    from checkback.settings import Settings


def ending(state: str, signed: OperatorSignature, clock: Callable[[], datetime]) -> Action:
    """The action that appends an op; ``state`` is COMMIT, ROLLBACK or CANCEL.

    Each half message's `Key` is an application id of Delta's transaction identifiers, ``operator/<key>``: of two
    concurrent operators, one fails because the other's op is there. The version of a CANCEL is 1: that of the COMMIT
    before it is 0, if an operator gave it. Where they are taken, it is the next: of a table that was restored to an
    older version the op is gone, while the versions stay.
    """
    judge, first = (judge_cancel, 1) if state == CANCEL else (judge_resolve, 0)

    def next_version(store: OperatorTables, refused: Transaction | None) -> int:
        last = None if refused is None else store.last_version("op", f"operator/{refused.key}")
        return first if last is None else max(first, last + 1)

    def attempt(store: OperatorTables, transaction: Transaction, version: int) -> Operation | None:
        now = clock()
        if not store.append("op", op_row(transaction, state, signed, now), f"operator/{transaction.key}", version):
            return None
        return Operation.on(transaction, now, ACTIONS[state], signed)

    return Action(ACTIONS[state], judge, next_version, attempt)


def state_of(commit: bool, rollback: bool) -> str:
    """COMMIT or ROLLBACK, from the options of `tx resolve`. Raises SettingsError unless exactly one is given."""
    if commit == rollback:
        raise SettingsError("say how the transaction ends", "--commit, --rollback", "give one of the two")
    return "COMMIT" if commit else "ROLLBACK"


@dataclass(frozen=True)
class Request:
    """The options of a command. ``state``: COMMIT or ROLLBACK to resolve with, or CANCEL; None = resume."""

    asked: Asked
    signed: OperatorSignature
    state: str | None

    @classmethod
    def of(
        cls,
        transaction_id: str,
        group: str | None,
        queue_id: int | None,
        queue_offset: int | None,
        actor: str,
        reason: str,
        state: str | None = None,
    ) -> Request:
        """Validate the options. Raises SettingsError."""
        if (queue_id is None) != (queue_offset is None):
            raise SettingsError("only half of a place", "--queue-id, --queue-offset", "give both")
        place = None if queue_id is None or queue_offset is None else Place(queue_id, queue_offset)
        if place is not None and not (0 <= place.queue_id <= INT_MAX and 0 <= place.queue_offset <= LONG_MAX):
            fix = f"give numbers from 0 to {INT_MAX} and {LONG_MAX}"
            raise SettingsError("is no place", "--queue-id, --queue-offset", fix)
        return cls(Asked(transaction_id, group, place), OperatorSignature.of(actor, reason), state)

    def action(self, queue: int, clock: Callable[[], datetime]) -> Action:
        """What is to be done. ``queue``: that of resumed messages."""
        if self.state is None:
            return resuming(queue, self.signed, clock)
        return ending(self.state, self.signed, clock)


def resume_request(
    transaction_id: str | None,
    everything: bool,
    group: str | None,
    since: datetime | None,
    queue_id: int | None,
    queue_offset: int | None,
    actor: str,
    reason: str,
) -> Request | RequestForAll:
    """What `tx resume` is asked for: one message by its transaction id, or all. Raises SettingsError."""
    if (transaction_id is None) != everything:
        raise SettingsError("say which discarded messages", "TX, --all", "give one of the two")
    if transaction_id is not None:
        if since is not None:
            raise SettingsError("is for all discarded messages", "--since", "give it with --all, without TX")
        return Request.of(transaction_id, group, queue_id, queue_offset, actor, reason)
    if queue_id is not None or queue_offset is not None:
        raise SettingsError("are of one message", "--queue-id, --queue-offset", "give them with TX, without --all")
    return RequestForAll(group, since, OperatorSignature.of(actor, reason))


@contextmanager
def tables_for(settings: Settings, request: Request | RequestForAll) -> Iterator[OperatorTables]:
    """The tables to do it on. Raises SettingsError if there are none, or another writer has operator.queue."""
    with open_tables(settings) as store:
        for name in ("half", "decisions"):
            if not store.has(name):
                raise SettingsError("there is no such table", name, "run `checkback reconcile` first")
        if isinstance(request, RequestForAll) or request.state is None:
            queues = [settings.operator.queue]
            refuse_foreign(log_of_half(Tables.of(settings.storage)), queues, QueueOwner.OPERATOR, "operator.queue")
        yield store
