"""The interface a service implements: its local transaction, and the check of its outcome."""

from __future__ import annotations

import inspect
import logging
from abc import ABC, abstractmethod
from enum import Enum
from typing import TYPE_CHECKING, Any

from checkback.errors import CheckbackError, error_summary
from checkback.messages.trace_context import in_trace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from checkback.check.wire import CheckRequest
    from checkback.producer.message import Message

logger = logging.getLogger("checkback.producer")


class LocalTransactionState(str, Enum):
    """The outcome of a local transaction. RocketMQ: COMMIT_MESSAGE, ROLLBACK_MESSAGE, UNKNOW."""

    COMMIT = "COMMIT"
    ROLLBACK = "ROLLBACK"
    UNKNOWN = "UNKNOWN"


class TransactionListener(ABC):
    """RocketMQ's TransactionListener. Called from several threads concurrently."""

    @abstractmethod
    def execute_local_transaction(self, message: Message, arg: Any) -> LocalTransactionState | None:
        """Run the local transaction and return its outcome; called once the half message is stored.

        ``message.transaction_id`` identifies it; ``arg`` is that of ``send_in_transaction``. An exception or None
        means UNKNOWN: no op is sent, and the check-back resolves it.
        """

    @abstractmethod
    def check_local_transaction(self, check: CheckRequest) -> LocalTransactionState | None:
        """Return the outcome of the transaction ``check.transaction_id``, according to the service's database.

        Return ROLLBACK only if it cannot commit any more: see Barrier. An exception or None means UNKNOWN: it is
        checked again.
        """


class AsyncTransactionListener(ABC):
    """TransactionListener for asyncio; its methods run in the event loop."""

    @abstractmethod
    async def execute_local_transaction(self, message: Message, arg: Any) -> LocalTransactionState | None:
        """See TransactionListener.execute_local_transaction."""

    @abstractmethod
    async def check_local_transaction(self, check: CheckRequest) -> LocalTransactionState | None:
        """See TransactionListener.check_local_transaction."""


def refuse_unfit(listener: object, where: str = "listener") -> None:
    """Raise CheckbackError unless the methods are of the listener's kind, and need no object that is not there.

    Else a local transaction would run, and nobody could learn its outcome; or not run at all.
    """
    awaited = isinstance(listener, AsyncTransactionListener)
    for name in ("execute_local_transaction", "check_local_transaction"):
        method = getattr(listener, name, None)
        if not callable(method):
            raise CheckbackError(
                f"has no method {name}", where, "give a TransactionListener, or AsyncTransactionListener"
            )
        if isinstance(listener, type) and inspect.isfunction(inspect.getattr_static(listener, name)):
            raise CheckbackError(f"{listener.__name__} is a class", where, f"give an object: {listener.__name__}()")
        inner = inspect.unwrap(method)  # a decorator's wrapper of a coroutine function need not be one
        if awaited and inspect.isroutine(inner) and not any(map(inspect.iscoroutinefunction, (method, inner))):
            fix = "write async def, or derive it from TransactionListener"
            raise CheckbackError(f"{name} is not a coroutine function", where, fix)
        if not awaited and inspect.iscoroutinefunction(method):
            fix = "derive it from AsyncTransactionListener"
            raise CheckbackError(f"{name} is a coroutine function", where, fix)


def no_listener() -> CheckbackError:
    """The error of a transaction without a listener."""
    return CheckbackError("the producer has no listener", "send_in_transaction", "construct it with one, or use send")


def state_of(said: object, transaction_id: str, trace: Mapping[str, str]) -> LocalTransactionState:
    """A listener's return value; UNKNOWN unless it is a LocalTransactionState. True or "COMMIT" decide nothing.

    ``trace``: the transaction's trace context, for the log.
    """
    if isinstance(said, LocalTransactionState):
        return said
    if said is not None:
        text = "transaction %s: the listener returned %s, taken as UNKNOWN"
        logger.error(text, transaction_id, type(said).__name__, extra=in_trace(trace))
    return LocalTransactionState.UNKNOWN


def failed(error: BaseException, transaction_id: str, method: str, trace: Mapping[str, str]) -> LocalTransactionState:
    """Log where the listener failed; returns UNKNOWN.

    The error's text, which may contain message data (SQL parameters), is logged at DEBUG only.
    """
    logger.error("transaction %s: %s raised %s", transaction_id, method, error_summary(error), extra=in_trace(trace))
    logger.debug("transaction %s", transaction_id, exc_info=error, extra=in_trace(trace))
    return LocalTransactionState.UNKNOWN
