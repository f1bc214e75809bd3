"""The producer's side: send a half message, run the local transaction, end it, and answer when asked.

What RocketMQ calls TransactionMQProducer and TransactionListener, over HTTP. Nothing here imports Spark, pandas, Arrow
or Delta; ``AsyncTransactionProducer`` needs httpx, ``CheckServer`` uvicorn (``checkback[producer]``), ``Barrier`` and
``consumed`` SQLAlchemy (``checkback[barrier]``), each only when it is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from checkback.check.exchange import CheckRequest
from checkback.producer.aio import AsyncTransactionProducer
from checkback.producer.attempts import Patience
from checkback.producer.endpoint import check_app
from checkback.producer.listener import AsyncTransactionListener, LocalTransactionState, TransactionListener
from checkback.producer.message import Message
from checkback.producer.replies import GatewayError
from checkback.producer.result import SendStatus, TransactionSendResult
from checkback.producer.server import CheckServer
from checkback.producer.sync import TransactionProducer

if TYPE_CHECKING:
    from checkback.producer.apply import MessageApply, consumed
    from checkback.producer.barrier import Barrier, BarrierError

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
    "Patience",
    "SendStatus",
    "TransactionListener",
    "TransactionProducer",
    "TransactionSendResult",
    "check_app",
    "consumed",
]

#: what needs SQLAlchemy -> its module
_LAZY = {"Barrier": "barrier", "BarrierError": "barrier", "MessageApply": "apply", "consumed": "apply"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
