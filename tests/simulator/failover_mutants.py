"""A listener or a barrier with one fault put in: histories with several gateways must find every one."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING
from unittest.mock import patch

from checkback.producer import LocalTransactionState, barrier
from simulator import services
from simulator.mutants import broken_module
from simulator.services import Service

if TYPE_CHECKING:
    from collections.abc import Iterator

    from checkback.producer import CheckRequest, Message
    from checkback.producer.barrier import Transaction


#: the same place for all half messages, and that of none
_NOWHERE = 63, 0


class ByTransactionIdAlone(Service):
    """Knows that the transaction has committed, and not as which half message."""

    def mark_of(self, message: Message) -> Transaction:
        return message.stored_at(*_NOWHERE, "orders")

    def check_of(self, check: CheckRequest) -> Transaction:
        return replace(check, queue_id=_NOWHERE[0], queue_offset=_NOWHERE[1])


class ChecksByTransactionIdAlone(Service):
    """Its local transaction has the place, its checks do not look at it."""

    def check_of(self, check: CheckRequest) -> Transaction:
        return replace(check, queue_id=_NOWHERE[0], queue_offset=_NOWHERE[1])


class MarksTransactionIdAlone(Service):
    """Its checks have a place that the local transaction did not record."""

    def mark_of(self, message: Message) -> Transaction:
        return message.stored_at(*_NOWHERE, "orders")


class SaysRollbackWithoutAMark(Service):
    """A local transaction that failed is said to be rolled back, and may be tried again as the same half message."""

    def failed(self, message: Message) -> LocalTransactionState:  # noqa: ARG002 - that is the fault
        return LocalTransactionState.ROLLBACK


SERVICES: dict[str, type[Service]] = {
    "identity by transaction id alone": ByTransactionIdAlone,
    "checks by transaction id alone": ChecksByTransactionIdAlone,
    "local transactions by transaction id alone": MarksTransactionIdAlone,
    "ROLLBACK without a mark": SaysRollbackWithoutAMark,
}

#: what is wrong -> (as it stands, as it should not): in barrier.py
BARRIERS: dict[str, tuple[str, str]] = {
    "a check bars the whole transaction": (
        "(:group, :whole, '{CHECKED}', :now), (:group, :place, 'ROLLBACK', :now)",
        "(:group, :whole, 'ROLLBACK', :now), (:group, :place, 'ROLLBACK', :now)",
    ),
    "checked elsewhere bars the local transaction": ("WHERE {table}.state = '{CHECKED}'", "WHERE false"),
    "commits at one place after the other": (
        "WHERE {table}.state = '{CHECKED}'",
        "WHERE {table}.state IN ('{CHECKED}', '{PLACED}')",
    ),
    "a check told ROLLBACK bars nothing": ("WHERE {table}.state = '{CHECKED}'", "WHERE true"),
    "committed elsewhere is COMMIT": (
        "        return LocalTransactionState(self.place)\n",
        "        return LocalTransactionState('COMMIT' if self.whole == PLACED else self.place)\n",
    ),
    "places of one gateway are the same": ('f"@{queue_id}/{queue_offset} {name}"', 'f"@{queue_id}/0 {name}"'),
    "places of all gateways are the same": ('f"@{queue_id}/{queue_offset} {name}"', 'f"@0/{queue_offset} {name}"'),
}


@contextmanager
def broken_barrier(fault: str) -> Iterator[None]:
    """Inside, listeners have a barrier with this fault."""
    module = broken_module(barrier, *BARRIERS[fault])
    names = {name: getattr(module, name) for name in ("CHECKED", "PLACED", "MarkKey", "MarkStates", "Statements")}
    services.database.cache_clear()
    with patch.multiple(barrier, **names):
        yield
    services.database.cache_clear()
