"""What came of sending a message in a transaction."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from checkback.producer.listener import LocalTransactionState, logger

if TYPE_CHECKING:
    from checkback.producer.responses import GatewayError


class SendStatus(str, Enum):
    """Is the half message stored? Only after SEND_OK has the local transaction run.

    REJECTED: the gateway said no; it is not stored. NO_ANSWER: the gateway did not say. It may be stored: then the
    check-back asks, and the listener must not say COMMIT.
    """

    SEND_OK = "SEND_OK"
    REJECTED = "REJECTED"
    NO_ANSWER = "NO_ANSWER"


@dataclass(frozen=True)
class TransactionSendResult:
    """RocketMQ's TransactionSendResult.

    ``local_transaction_state``: what the listener said; ROLLBACK when the half message is not stored, because the
    local transaction has not run. ``queue_id`` and ``queue_offset``: the half message's place, None when it has none.
    ``op_sent``: COMMIT or ROLLBACK has landed. If not, nothing is wrong yet: the check-back asks.
    ``half_error``, ``op_error``: why the half or the op did not land; ``local_error``: what the listener raised.
    """

    send_status: SendStatus
    transaction_id: str
    local_transaction_state: LocalTransactionState
    queue_id: int | None = None
    queue_offset: int | None = None
    op_sent: bool = False
    half_error: GatewayError | None = None
    op_error: GatewayError | None = None
    local_error: Exception | None = field(default=None, repr=False)

    def raise_for_status(self) -> TransactionSendResult:
        """Itself when the half message is stored; else raises ``half_error``."""
        if self.half_error is not None:
            raise self.half_error
        return self


def not_stored(transaction_id: str, error: GatewayError) -> TransactionSendResult:
    """The result of a half message that the gateway did not say it has stored."""
    return TransactionSendResult(
        send_status=SendStatus.REJECTED if error.refused else SendStatus.NO_ANSWER,
        transaction_id=transaction_id,
        local_transaction_state=LocalTransactionState.ROLLBACK,
        half_error=error,
    )


def stored(
    transaction_id: str,
    place: tuple[int, int],
    state: LocalTransactionState,
    local_error: Exception | None,
    op_error: GatewayError | None,
) -> TransactionSendResult:
    """The result of a half message at ``place``, whose local transaction has run. An op that did not land is logged."""
    if op_error is not None:
        logger.warning("transaction %s: %s did not land: %s", transaction_id, state.value, op_error)
    return TransactionSendResult(
        send_status=SendStatus.SEND_OK,
        transaction_id=transaction_id,
        local_transaction_state=state,
        queue_id=place[0],
        queue_offset=place[1],
        op_sent=state is not LocalTransactionState.UNKNOWN and op_error is None,
        op_error=op_error,
        local_error=local_error,
    )
