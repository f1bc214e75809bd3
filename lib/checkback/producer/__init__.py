"""Producer SDK: half message, local transaction, op, check endpoint.

The counterpart of RocketMQ's TransactionMQProducer and TransactionListener, over HTTP. Nothing here imports Spark,
pandas, Arrow or Delta. ``CheckServer`` needs uvicorn (``checkback[producer]``), ``Barrier`` and ``idempotent`` need
SQLAlchemy (``checkback[barrier]``), each only when used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from checkback.check.wire import CheckRequest
from checkback.errors import missing_module
from checkback.messages.fields import MessageRejectedError
from checkback.producer.async_producer import AsyncTransactionProducer
from checkback.producer.check_endpoint import check_app
from checkback.producer.check_server import CheckServer
from checkback.producer.listener import AsyncTransactionListener, LocalTransactionState, TransactionListener
from checkback.producer.message import Message
from checkback.producer.producer import TransactionProducer
from checkback.producer.responses import GatewayError
from checkback.producer.result import SendResult, SendStatus, TransactionSendResult
from checkback.producer.retry import RetryPolicy

if TYPE_CHECKING:
    from checkback.producer.barrier import Barrier, BarrierError
    from checkback.producer.idempotent_consumer import MessageApply, idempotent

__all__ = [
    "AsyncTransactionListener",
    "AsyncTransactionProducer",
    "Barrier",
    "BarrierError",
    "CheckRequest",
    "CheckServer",
    "GatewayError",
    "LocalTransactionState",
    "Message",
    "MessageApply",
    "MessageRejectedError",
    "RetryPolicy",
    "SendResult",
    "SendStatus",
    "TransactionListener",
    "TransactionProducer",
    "TransactionSendResult",
    "check_app",
    "idempotent",
]

#: name -> module, for those that need SQLAlchemy
_LAZY = {
    "Barrier": "barrier",
    "BarrierError": "barrier",
    "MessageApply": "idempotent_consumer",
    "idempotent": "idempotent_consumer",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
    except ModuleNotFoundError as error:
        raise missing_module(error, "barrier") from error
