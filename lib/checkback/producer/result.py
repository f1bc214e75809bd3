"""The result of sending a transactional message."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from checkback.producer.listener import LocalTransactionState

if TYPE_CHECKING:
    from checkback.producer.responses import GatewayError, Place


class SendStatus(str, Enum):
    """Whether the half message is stored. The local transaction only runs after SEND_OK.

    REJECTED: the gateway refused it; it is not stored. NO_ANSWER: unknown. It may be stored and checked back, and the
    listener must not return COMMIT then.
    """

    SEND_OK = "SEND_OK"
    REJECTED = "REJECTED"
    NO_ANSWER = "NO_ANSWER"


@dataclass(frozen=True)
class TransactionSendResult:
    """RocketMQ's TransactionSendResult.

    ``local_transaction_state``: the listener's result; ROLLBACK if the half message is not stored, as the local
    transaction did not run. ``queue_id`` and ``queue_offset``: the half message's position, None if it is not stored.
    ``op_sent``: COMMIT or ROLLBACK was handed over, and is sent behind (RocketMQ: endTransactionOneway): after the
    producer's ``flush`` it has landed, unless ``on_op_error`` was told. If it does not land, nothing is lost: the
    check-back resolves it; if it has been decided otherwise before, ``on_op_error`` gets the code "contradiction".
    ``half_error``: why the half message did not land; ``op_error``: why the op was not handed over; ``local_error``:
    the listener's exception.
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
        """Return self if the half message is stored, else raise ``half_error``."""
        if self.half_error is not None:
            raise self.half_error
        return self


@dataclass(frozen=True)
class SendResult:
    """RocketMQ's SendResult: of a message without a transaction.

    ``queue_id`` and ``queue_offset``: its place in `half`, None if it is not known to be stored. ``error``: why not;
    with NO_ANSWER it may be stored all the same, and sending it again under the same transaction_id changes nothing
    within ``gateway.dedup_window`` (10 minutes), at one gateway.
    """

    send_status: SendStatus
    transaction_id: str
    queue_id: int | None = None
    queue_offset: int | None = None
    error: GatewayError | None = None

    def raise_for_status(self) -> SendResult:
        """Return self if the message is stored, else raise ``error``."""
        if self.error is not None:
            raise self.error
        return self


def sent(transaction_id: str, place: Place) -> SendResult:
    """The result for a message stored at ``place``."""
    return SendResult(SendStatus.SEND_OK, transaction_id, *place)


def not_sent(transaction_id: str, error: GatewayError) -> SendResult:
    """The result for a message whose storage the gateway did not confirm."""
    status = SendStatus.REJECTED if error.refused else SendStatus.NO_ANSWER
    return SendResult(status, transaction_id, error=error)


def not_stored(transaction_id: str, error: GatewayError) -> TransactionSendResult:
    """The result for a half message whose storage the gateway did not confirm."""
    return TransactionSendResult(
        send_status=SendStatus.REJECTED if error.refused else SendStatus.NO_ANSWER,
        transaction_id=transaction_id,
        local_transaction_state=LocalTransactionState.ROLLBACK,
        half_error=error,
    )


def stored(
    transaction_id: str,
    place: Place,
    state: LocalTransactionState,
    local_error: Exception | None,
    op_error: GatewayError | None,
) -> TransactionSendResult:
    """The result for a half message stored at ``place``, after the local transaction."""
    result = object.__new__(TransactionSendResult)  # the constructor of a frozen class takes three times as long
    result.__dict__.update(
        send_status=SendStatus.SEND_OK,
        transaction_id=transaction_id,
        local_transaction_state=state,
        queue_id=place[0],
        queue_offset=place[1],
        op_sent=state is not LocalTransactionState.UNKNOWN and op_error is None,
        half_error=None,
        op_error=op_error,
        local_error=local_error,
    )
    return result
