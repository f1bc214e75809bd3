"""What a service implements: its local transaction, and what became of it."""

from __future__ import annotations

import logging
import traceback
from abc import ABC, abstractmethod
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from checkback.check.wire import CheckRequest
    from checkback.producer.message import Message

logger = logging.getLogger("checkback.producer")


class LocalTransactionState(str, Enum):
    """What became of a local transaction. RocketMQ: COMMIT_MESSAGE, ROLLBACK_MESSAGE, UNKNOW."""

    COMMIT = "COMMIT"
    ROLLBACK = "ROLLBACK"
    UNKNOWN = "UNKNOWN"


class TransactionListener(ABC):
    """RocketMQ's TransactionListener. Called from several threads at once."""

    @abstractmethod
    def execute_local_transaction(self, message: Message, arg: Any) -> LocalTransactionState | None:
        """What became of the local transaction, which runs here, once the half message is stored.

        ``message.transaction_id`` names it; ``arg`` is what was given to ``send_in_transaction``. An exception or
        None is UNKNOWN: then nothing is sent, and the check-back asks.
        """

    @abstractmethod
    def check_local_transaction(self, check: CheckRequest) -> LocalTransactionState | None:
        """What became of the transaction ``check.transaction_id``, as the service's own database has it.

        Say ROLLBACK only of a transaction that cannot commit any more: see Barrier. An exception or None is UNKNOWN:
        it is asked again.
        """


class AsyncTransactionListener(ABC):
    """TransactionListener for asyncio; its methods run in the event loop."""

    @abstractmethod
    async def execute_local_transaction(self, message: Message, arg: Any) -> LocalTransactionState | None:
        """As TransactionListener.execute_local_transaction."""

    @abstractmethod
    async def check_local_transaction(self, check: CheckRequest) -> LocalTransactionState | None:
        """As TransactionListener.check_local_transaction."""


def state_of(said: object, transaction_id: str) -> LocalTransactionState:
    """What a listener said; UNKNOWN for whatever is no LocalTransactionState. True or "COMMIT" decide nothing."""
    if isinstance(said, LocalTransactionState):
        return said
    if said is not None:
        logger.error("transaction %s: the listener returned %s, taken as UNKNOWN", transaction_id, type(said).__name__)
    return LocalTransactionState.UNKNOWN


def failed(error: Exception, transaction_id: str, method: str) -> LocalTransactionState:
    """UNKNOWN, and a log entry of where the listener failed.

    The error's text, which may hold what the message holds (SQL parameters), is logged on DEBUG only.
    """
    frames = traceback.extract_tb(error.__traceback__)
    place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "nowhere"
    logger.error("transaction %s: %s raised %s at %s", transaction_id, method, type(error).__name__, place)
    logger.debug("transaction %s", transaction_id, exc_info=error)
    return LocalTransactionState.UNKNOWN
