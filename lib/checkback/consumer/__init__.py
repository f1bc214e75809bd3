"""The consumer's side: push consumers in groups, retries, dead letters (docs/consumer.md), without Spark.

Names are those of RocketMQ's DefaultMQPushConsumer. Imported lazily: each name brings only what it needs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from checkback.consumer.async_push_consumer import AsyncPushConsumer
    from checkback.consumer.message import MessageExt
    from checkback.consumer.push_consumer import PushConsumer
    from checkback.consumer.result import ConsumeResult
    from checkback.consumer.sql_positions import SqlPositions
    from checkback.filter import MessageSelector

__all__ = ["AsyncPushConsumer", "ConsumeResult", "MessageExt", "MessageSelector", "PushConsumer", "SqlPositions"]

_WHERE = {
    "AsyncPushConsumer": "checkback.consumer.async_push_consumer",
    "ConsumeResult": "checkback.consumer.result",
    "MessageExt": "checkback.consumer.message",
    "MessageSelector": "checkback.filter",
    "PushConsumer": "checkback.consumer.push_consumer",
    "SqlPositions": "checkback.consumer.sql_positions",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(name)
    return getattr(import_module(_WHERE[name]), name)
